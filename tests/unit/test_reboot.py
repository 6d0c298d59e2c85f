"""What a person is told while a box is away, and why a run does not reboot twice."""

from __future__ import annotations

from tasks.reboot import LONG_S, Waiting, reboot_it_yourself, useless


class Clock:
    """A clock that goes only when it is told to."""

    def __init__(self) -> None:
        self.seconds = 5000.0

    def __call__(self) -> float:
        return self.seconds


def told(until: int, every: float = 1.0) -> list[str]:
    """The lines of a wait that looks so often, in seconds, until it ends."""
    said: list[str] = []
    clock = Clock()
    waiting = Waiting(said.append, clock)
    while clock.seconds < 5000 + until:
        clock.seconds += every
        waiting.show()
    return said


def test_a_short_wait_is_not_worth_a_word() -> None:
    assert told(9) == []


def test_a_box_that_is_away_is_spoken_of_every_ten_seconds() -> None:
    assert told(35) == ["away for 10 s", "away for 20 s", "away for 30 s"]


def test_a_look_that_took_long_is_no_reason_for_several_lines_at_once() -> None:
    assert told(31, every=15) == ["away for 15 s", "away for 30 s", "away for 45 s"]


def test_when_it_grows_long_a_disk_passphrase_is_thought_of() -> None:
    lines = told(LONG_S + 10)
    doubted = [line for line in lines if line.endswith(" (waiting for a disk passphrase?)")]
    assert doubted == lines[-2:]
    assert lines[-2] == "away for 3 min (waiting for a disk passphrase?)"


def test_a_reboot_that_mended_nothing_is_told_with_both_reasons() -> None:
    said = useless(["nouveau is loaded"], ["nouveau is loaded still"])
    assert said.found == "after the reboot of this run: nouveau is loaded still"
    assert "it was done because nouveau is loaded" in said.expected
    assert "no second reboot" in said.remedy


def test_on_the_box_itself_the_person_reboots() -> None:
    assert reboot_it_yourself(["a", "b"]).found == "a; b"
    assert reboot_it_yourself(["a"]).remedy.startswith("reboot, then run again")
