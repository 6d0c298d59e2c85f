"""The arithmetic of the fresh-build benchmark."""

from __future__ import annotations

import pytest

from tests.benchmarks.fresh_build import NEEDS, Span, critical_path, report, spans


@pytest.mark.parametrize(
    ("seconds", "total", "chain"),
    [
        ({}, 0, []),
        ({"before": 5, "weights": 100, "release": 60, "switch": 30, "after": 1}, 136, None),
        ({"weights": 10, "cuda": 40, "release": 30, "kernels": 20}, 60, ["cuda", "kernels"]),
        ({"weights": 10, "cuda": 5, "compiler": 2, "release": 30, "kernels": 20}, 50, None),
    ],
)
def test_the_longest_chain(
    seconds: dict[str, float], total: float, chain: list[str] | None
) -> None:
    found = critical_path(seconds)
    assert found[0] == total
    assert chain is None or found[1] == chain


def test_every_stage_is_named_after_what_it_needs() -> None:
    named: list[str] = []
    for stage, needs in NEEDS.items():
        assert set(needs) <= set(named), stage
        named.append(stage)


def test_spans_of_one_deploy() -> None:
    jobs = {"weights": (105.0, 120.0), "switch": (121.0, 130.0), "driver": (101.0, 103.0)}
    jobs["release"] = (50.0, 60.0)  # of an earlier one
    found = spans(jobs, began=100.0, ended=132.0)
    assert found == {
        "before": Span(0, 5),
        "weights": Span(5, 20),
        "switch": Span(21, 30),
        "after": Span(30, 32),
    }
    assert "wall 32.0 s; critical path 31.0 s (before → weights → switch → after)" in report(found)
    assert spans({}, 100.0, 132.0) == {"before": Span(0, 32), "after": Span(32, 32)}
