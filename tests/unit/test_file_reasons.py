"""Why a file would be replaced, in words for a drift check, and what of it may be shown."""

from typing import Any

import pytest

from aibox.decide.drift import Reason
from tasks.drift_report import difference
from tasks.operations import reasons_to_replace

WANTED = {"user": "root", "group": "root", "mode": "600", "content": b"new"}


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        (None, ["/x is not there as a file"]),
        ({**WANTED, "content": b"old"}, ["/x has another content"]),
        ({**WANTED, "user": "vllm"}, ["/x belongs to vllm:root, not root:root"]),
        ({**WANTED, "mode": "644"}, ["/x has mode 644, not 600"]),
        (
            {"user": "a", "group": "b", "mode": "1", "content": b""},
            [
                "/x has another content",
                "/x belongs to a:b, not root:root",
                "/x has mode 1, not 600",
            ],
        ),
        (WANTED, []),
    ],
)
def test_every_difference_is_a_reason(found: dict[str, Any] | None, reasons: list[str]) -> None:
    assert [one.text for one in reasons_to_replace("/x", found, WANTED, [])] == reasons


def test_a_file_that_is_a_secret_shows_no_line() -> None:
    """Its operation hands over no difference; the reason alone stands there."""
    found = {**WANTED, "content": b"old"}
    assert reasons_to_replace("/x", found, WANTED, []) == [Reason("/x has another content")]


def test_a_difference_hides_what_looks_secret() -> None:
    lines = difference("/x", b"A=1\nHF_TOKEN=hunter2\n", b"A=2\n")
    assert lines[3:] == ["-A=1", "-HF_TOKEN=(hidden)", "+A=2"]


def test_a_difference_of_a_secret_alone_shows_none() -> None:
    assert difference("/x", b"HF_TOKEN=hunter2", b"HF_TOKEN=hunter3") == []


def test_binary_content_is_no_obstacle() -> None:
    assert difference("/x", b"\xff\x00", b"a")[-1] == "+a"
