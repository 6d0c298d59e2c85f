"""What a person reads of each of several boxes, and which words of --limit name none."""

from __future__ import annotations

from typing import Any

import pytest

from aibox.decide.inventory import Named
from aibox.decide.summary import (
    Seen,
    left_out_rows,
    out_of_rotation,
    outcome,
    pause,
    pausing_together,
    rows,
)
from tasks.exit_codes import judge_boxes

AWAY = "no ssh connection: Connection refused"


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({"done": 3, "model": "coder"}, "serves coder, 3 changes"),
        ({"done": 1, "model": "coder"}, "serves coder, 1 change"),
        ({"model": "coder"}, "serves coder, in sync"),
        ({"done": 2}, "2 changes"),
        ({}, "in sync"),
        ({"failed": True, "reached": False, "refusals": [AWAY]}, "not reached: Connection refused"),
        ({"failed": True, "refusals": ["no card"]}, "refused: no card"),
        ({"failed": True, "refusals": ["a", "b", "c"]}, "refused: a (and 2 more causes)"),
        ({"failed": True}, "no plan could be made"),
        ({"failed": True, "at": "Server | it runs"}, "failed at Server | it runs"),
        (
            {"failed": True, "at": "Server | it runs", "refusals": ["it fails its gate"]},
            "failed at Server | it runs: it fails its gate",
        ),
        ({"ended": False, "at": "Weights | of x"}, "broken off at Weights | of x"),
        ({"ended": False}, "nothing was done"),
        (
            {"model": "coder", "out": "out of rotation at g: x"},
            "serves coder, in sync, out of rotation at g: x",
        ),
    ],
)
def test_how_a_run_ended_on_a_box(seen: dict[str, Any], said: str) -> None:
    assert outcome(Seen("box", **{"ended": True, **seen}), carried_out=True) == said


@pytest.mark.parametrize(
    ("seen", "said"),
    [
        ({}, "in sync"),
        ({"due": 1}, "would do 1 thing"),
        ({"due": 4, "pause": "restart"}, "would do 4 things, restarts the server"),
        ({"due": 4, "pause": "reboot"}, "would do 4 things, reboots"),
        ({"failed": True, "due": 4, "refusals": ["no card"]}, "refused: no card"),
    ],
)
def test_what_a_run_would_do_to_a_box(seen: dict[str, Any], said: str) -> None:
    assert outcome(Seen("box", **seen), carried_out=False) == said


def test_a_box_that_gateways_leave_out_is_named_with_the_reason() -> None:
    told = {"g": {"b": {"why": "its fan"}}, "h": {"b": {"why": "its fan"}, "c": {"why": "a roll"}}}
    assert out_of_rotation("a", told) is None
    assert out_of_rotation("b", told) == "out of rotation at g, h: its fan"
    assert out_of_rotation("c", told) == "out of rotation at h: a roll"


@pytest.mark.parametrize(
    ("out", "gateways", "rows"),
    [
        (None, [], []),
        (None, ["g", "h"], ["`aibox rotation` on g, h says whether this box is asked"]),
        ({}, ["g"], ["`aibox rotation` says how each box stands, and takes one out"]),
        (
            {"b": {"why": "its fan"}},
            ["g"],
            [
                "b is out of rotation here: its fan; back by `aibox rotation back b`",
                "`aibox rotation` says how each box stands, and takes one out",
            ],
        ),
    ],
)
def test_the_last_screen_says_what_is_out(
    out: dict[str, Any] | None, gateways: list[str], rows: list[str]
) -> None:
    assert left_out_rows(out, gateways, "aibox rotation") == rows


@pytest.mark.parametrize(
    ("serves", "reboot", "restart", "met"),
    [
        (True, True, True, "reboot"),
        (True, False, True, "restart"),
        (True, False, False, None),
        (False, True, True, None),
    ],
)
def test_what_clients_meet(*, serves: bool, reboot: bool, restart: bool, met: str | None) -> None:
    assert pause(serves=serves, reboot=reboot, restart=restart) == met


def test_a_row_stays_on_one_line_of_the_screen() -> None:
    long = Seen("a-box", failed=True, refusals=["x" * 300])
    two_lines = Seen("b", failed=True, refusals=["first\nsecond"])
    found = rows([long, two_lines], 100, carried_out=True)
    assert [name for name, _ in found] == ["a-box", "b"]
    assert len("a-box  " + found[0][1]) == 100 and found[0][1].endswith("…")
    assert found[1][1] == "refused: first"


def test_boxes_that_pause_together_are_named() -> None:
    a, b, c = (Seen(name, pause="restart", models=["coder"]) for name in ("a", "b", "c"))
    other = Seen("other", pause="restart", models=["writer"])
    said = pausing_together([a, other, b, c])
    assert said is not None
    assert said.startswith("a, b and c serve the same") and "python -m tasks.roll" in said


@pytest.mark.parametrize(
    "second",
    [
        {"pause": None, "models": ["coder"]},
        {"pause": "restart", "models": ["writer"]},
        {"pause": "restart", "models": ["coder"], "failed": True},
    ],
)
def test_one_box_that_pauses_is_no_news(second: dict[str, Any]) -> None:
    assert (
        pausing_together([Seen("a", pause="reboot", models=["coder"]), Seen("b", **second)]) is None
    )


NAMED = Named(
    ["ai-box", "ai-box-2"],
    {"site": ["ai-box", "ai-box-2"], "gateways": ["ai-box"], "inventory": ["ai-box", "ai-box-2"]},
    of_all=["all", "inventory"],
)


@pytest.mark.parametrize(
    ("limit", "exclude", "wrong"),
    [
        (("ai-box",), (), None),
        (("gateways",), (), None),
        (("ai-*",), (), None),
        (("ai-box", "ai-box-3"), (), "--limit ai-box-3"),
        (("ai-box", "b*"), (), "--limit 'b*'"),
        (("empty",), (), "--limit empty"),
        (("",), (), "--limit ''"),
        ((), ("ai-box-3",), "--exclude ai-box-3"),
    ],
)
def test_a_word_that_names_no_box_is_refused(
    limit: tuple[str, ...], exclude: tuple[str, ...], wrong: str | None
) -> None:
    options = {"limit": limit, "exclude": exclude, "inventory": "inventory"}
    found = judge_boxes(NAMED, ["one"] if limit else None, options)
    assert (found.found if found else None) == (wrong and f"{wrong} names no box of the inventory")
    wanted = "name one of: ai-box, ai-box-2; or a group: site, gateways"
    assert found is None or found.remedy == wanted
