"""A job's reports in words."""

from typing import Any

import pytest

from aibox.decide.figures import duration, size
from tasks.progress import described


def report(**changes: Any) -> dict[str, Any]:
    nothing = {"done": None, "total": None, "unit": "", "rate": None}
    return {"step": "downloading", "seconds": 12.3, **nothing, **changes}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, "downloading, 12 s"),
        ({"done": 3_200_000_000}, "downloading, 3.2 GB, 12 s"),
        ({"done": 0, "total": 55_000_000_000}, "downloading 0 %, 0 B of 55.0 GB"),
        (
            {"done": 23_100_000_000, "total": 55_000_000_000, "rate": 95_000_000.0},
            "downloading 42 %, 23.1 GB of 55.0 GB, 95.0 MB/s, 6 min left",
        ),
        ({"done": 60.4, "total": 100, "unit": "%", "rate": 5.0}, "downloading 60 %, 12 s"),
        ({"done": 5, "total": 10, "rate": 0.0}, "downloading 50 %, 5 B of 10 B"),
        (
            {"done": 10, "total": 10, "rate": 1.0},
            "downloading 100 %, 10 B of 10 B, 1 B/s, 0 s left",
        ),
    ],
)
def test_a_report_is_a_line(changes: dict[str, Any], words: str) -> None:
    assert described(report(**changes)) == words


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2_500_000, "2.5 MB"), (96e9, "96.0 GB")],
)
def test_sizes_are_decimal(number: float, text: str) -> None:
    assert size(number) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (89, "89 s"), (90, "2 min"), (3600, "60 min"), (5400, "1.5 h")],
)
def test_times_are_short(seconds: float, text: str) -> None:
    assert duration(seconds) == text
