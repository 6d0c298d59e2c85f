"""What a rollback is asked for is judged while it is planned: --dry says it too."""

from __future__ import annotations

from dataclasses import asdict
from types import SimpleNamespace

import pytest

from aibox.decide.refusal import Refusal
from tasks import going_back
from tests.unit.passed import passed

NEW, OLD = passed("b", ["--seed", "7"]), passed("a")
FOUND = {
    "history": [asdict(NEW), asdict(OLD)],
    "there": [OLD.release, OLD.weights, NEW.sha256, OLD.sha256],
    "installed": NEW.sha256,
    "serves": True,
}


class Box:
    """One whose answers are given, in a run that asks to go back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, to: object) -> None:
        self.failed: set[object] = set()
        self.said: list[Refusal] = []
        self.data = {"to": to}
        monkeypatch.setattr(going_back, "host", self)
        monkeypatch.setattr(going_back, "state", SimpleNamespace(fail_hosts=self.failed.update))
        monkeypatch.setattr(going_back, "history_of_box", lambda: FOUND)
        monkeypatch.setattr(going_back, "say_refusal", lambda _, refusal: self.said.append(refusal))


@pytest.mark.parametrize(
    ("to", "words"),
    [
        ("fund", "no unit of the history by the name 'fund'"),
        (77, "no unit of the history by the name '77'"),
        ("found", "no unit of your own was found"),
    ],
)
def test_what_is_not_there_is_refused_before_the_plan(
    monkeypatch: pytest.MonkeyPatch, to: object, words: str
) -> None:
    box = Box(monkeypatch, to)
    assert not going_back.is_well_asked()
    assert box.failed == {box}
    assert words in box.said[0].found


@pytest.mark.parametrize("to", [None, 2, "aaaa"])
def test_what_is_there_goes_through(monkeypatch: pytest.MonkeyPatch, to: object) -> None:
    box = Box(monkeypatch, to)
    assert going_back.is_well_asked()
    assert (box.failed, box.said) == (set(), [])
