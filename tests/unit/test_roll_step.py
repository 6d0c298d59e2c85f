"""How a roll waits for a box, and what it makes of what a host answered."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aibox.decide.roll import Gateway, Left, running_at
from tasks.roll_runs import PyinfraRuns, answers_in
from tasks.roll_step import gateway_of, until_quiet


@dataclass
class Clock:
    """A second passes where somebody sleeps for one."""

    seconds: float = 0
    said: list[str] = field(default_factory=list)

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def waited(looks: list[Any], seconds: float) -> tuple[Left, Clock]:
    """looks: what each finds, in requests or as an error; the last one for ever."""
    clock = Clock()

    def found() -> Iterator[Any]:
        yield from looks
        while True:
            yield looks[-1]

    each = found()

    def look() -> Left:
        one = next(each)
        if isinstance(one, Exception):
            raise one
        return Left(one, ours=True)

    return until_quiet(look, seconds, clock.said.append, clock.now, clock.sleep), clock


@pytest.mark.parametrize(
    ("looks", "limit", "running", "after"),
    [
        ([0], 600, 0, 1),  # two looks
        ([3, 0, 2, 0, 0], 600, 0, 4),  # in a row
        ([0], 0, 0, 1),  # the second look has its time
        ([2], 0, 2, 0),
        ([2], 30, 2, 30),
        ([None], 30, None, 30),
        ([0, ValueError("not whole"), 0, 0], 600, 0, 3),  # a look that fails ends nothing
        ([1, LookupError("requests")], 5, None, 5),
    ],
)
def test_a_box_is_quiet_when_two_looks_in_a_row_have_found_nothing(
    looks: list[Any], limit: float, running: int | None, after: float
) -> None:
    left, clock = waited(looks, limit)
    assert (left.running, clock.seconds) == (running, after)


def test_what_still_runs_is_said_now_and_then() -> None:
    _, clock = waited([2], 60)
    assert 2 < len(clock.said) < 10
    assert clock.said[0].startswith("2 requests still run there")


def test_a_lost_connection_ends_the_wait_at_once() -> None:
    with pytest.raises(ConnectionError):
        waited([1, ConnectionResetError("gone")], 600)


TOLD = {"models": ["coder"], "out": None, "healthy": True, "found": None}
BOXES = {"a": {**TOLD, "requests": 2}, "b": TOLD}


def boxes(**of: Any) -> dict[str, Any]:
    """An answer that names one box, of which this is said."""
    return {"answer": {"gateway": None, "boxes": {"a": {**TOLD, **of}}}, "error": None}


@pytest.mark.parametrize(
    ("found", "said"),
    [
        (None, "it was not reached"),
        ({"answer": None, "error": "no such command"}, "no such command"),
        ({"answer": {"gateway": "refused", "boxes": BOXES}, "error": None}, "refused"),
        ({"answer": {"something": "else"}, "error": None}, "its aibox answers otherwise"),
        ({"answer": [1], "error": None}, "its aibox answers otherwise"),
        ({"answer": {"boxes": []}, "error": None}, "its aibox answers otherwise: it names no"),
        ({"answer": {"boxes": None}, "error": None}, "its aibox answers otherwise: it names no"),
        ({"answer": {"boxes": {"a": 1}}, "error": None}, "otherwise: it says of a what no"),
        ({"answer": {"boxes": {"a": {}}}, "error": None}, "otherwise: it says of a what no"),
        (boxes(models="coder"), "otherwise: it says of a what no"),
        (boxes(models=[1]), "otherwise: it says of a what no"),
        (boxes(missing=None), "otherwise: it says of a what no"),
        (boxes(healthy="yes"), "otherwise: it says of a what no"),
        (boxes(found=503), "otherwise: it says of a what no"),
        (boxes(requests="2"), "otherwise: it says of a what no"),
        (boxes(requests=-1), "otherwise: it says of a what no"),
        (boxes(out=True), "otherwise: a has no `why` and `since`"),
        (boxes(out={"why": "x", "since": 1e20}), "otherwise: a has no `why` and `since`"),
        (boxes(out={"why": "x", "since": 1, "by": "cat"}), "`by` is none of hand, roll"),
    ],
)
def test_a_gateway_that_does_not_say_how_boxes_stand(
    found: dict[str, Any] | None, said: str
) -> None:
    told = gateway_of("g", found)
    assert (told.name, told.boxes) == ("g", None)
    assert said in told.said


def test_a_gateway_of_the_first_version_does_not_say_who_takes_boxes_out() -> None:
    told = gateway_of("g", boxes(out={"why": "x", "since": 1}))
    assert told.boxes is not None
    assert told.boxes["a"]["out"]["by"] == "hand"


@pytest.mark.parametrize(("box", "running"), [("a", 2), ("b", None), ("c", 0)])
def test_a_gateways_own_count(box: str, running: int | None) -> None:
    told = gateway_of("g", {"answer": {"gateway": None, "boxes": BOXES}, "error": None})
    assert running_at(box, told) == running
    assert running_at(box, Gateway("g", None, "it was not reached")) is None


def test_an_answer_that_is_not_whole_is_none(tmp_path: Path) -> None:
    tmp_path.joinpath("0.answer").write_text(json.dumps({"host": "a", "answer": 1, "error": None}))
    tmp_path.joinpath("1.answer").write_text('{"host": "b", "ans')
    tmp_path.joinpath("2.answer").write_text("[]")
    assert answers_in(tmp_path) == {"a": {"host": "a", "answer": 1, "error": None}}


@pytest.mark.parametrize("may_reboot", [True, False])
def test_the_words_of_a_deploy(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, may_reboot: bool
) -> None:
    """A program in pyinfra's place writes down what it was given."""
    program = tmp_path / "python"
    program.write_text(f"#!/bin/sh\nprintf '%s\\n' \"$@\" > {tmp_path}/words\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    asked = argparse.Namespace(
        inventory="a,b", limit=["a", "b"], ssh_user="me", ssh_port=None, ssh_key=None
    )
    assert PyinfraRuns(asked).deploy("b", may_reboot=may_reboot) == 3
    words = tmp_path.joinpath("words").read_text().splitlines()
    assert words[:5] == ["-m", "pyinfra", "--ssh-user=me", "--limit=b", "-y"]
    assert words[-3:] == ["--", "a,b", "deploy.py"]
    assert ("--data=reboot_while_serving=true" in words) == may_reboot


def test_nobody_is_asked_where_no_host_is_named() -> None:
    assert PyinfraRuns(argparse.Namespace()).ask([]) == []
