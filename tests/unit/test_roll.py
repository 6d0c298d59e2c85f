"""A rolling update: the order, what speaks against it, and a made-up fleet that is rolled."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from aibox.box.probe.serving import running_in
from aibox.decide import roll
from aibox.decide.drift import Audit, Mend, Reason, Serves
from aibox.decide.manifest import AIBOX
from aibox.decide.roll import Gateway, Left, Looked, Turn
from tasks import roll as entry
from tasks.roll import Patience
from tasks.roll_step import AT_BOX, AT_GATEWAY
from tests.unit.conftest import ROOT

HAND = {"why": "rolling update of its fan", "since": 1.0, "by": "hand"}  # as a roll's might read
OURS = {"why": "rolling update from desk", "since": 1.0, "by": "roll"}


def told(**of: Any) -> dict[str, Any]:
    """What a gateway says of a box that is healthy and in rotation."""
    usual = {"models": ["coder"], "out": None, "healthy": True, "found": None, "requests": 0}
    return {**usual, **of}


def audit(box: str, *reasons: Reason, **serves: Any) -> Audit:
    """One that differs, for these reasons; in sync without any."""
    mends = (Mend("Server", "it runs", reasons),) if reasons else ()
    return Audit(box, mends, (), (), (), Serves(**serves))


DIFFERS = Reason("a flag")
BOXES = ["a", "b", "c"]


def looked(audits: dict[str, Audit] | None = None, **boxes: dict[str, Any]) -> Looked:
    """Three boxes that differ, behind one gateway on the first; boxes: what it says of some."""
    all_differ = {name: audit(name, DIFFERS) for name in BOXES}
    asked = {name: boxes.get(name, told()) for name in BOXES}
    return Looked(BOXES, [Gateway("a", asked)], audits if audits is not None else all_differ)


def order(found: Looked) -> list[tuple[str, str]]:
    return [(one.box, one.what) for one in roll.turns(found)]


def test_boxes_are_taken_as_the_inventory_has_them() -> None:
    assert order(looked()) == [(name, roll.UPDATE) for name in BOXES]


def test_what_an_earlier_roll_left_comes_first_even_in_sync_or_ill() -> None:
    audits = {"a": audit("a"), "b": audit("b", DIFFERS), "c": audit("c")}
    found = looked(audits, c=told(out=OURS, healthy=False, found="nothing"))
    assert order(found) == [("c", roll.FINISH), ("a", roll.NOTHING), ("b", roll.UPDATE)]


@pytest.mark.parametrize(
    ("of", "why"),
    [
        (told(out=HAND), "somebody has taken it out at a: rolling update of its fan"),
        (told(healthy=False, found="HTTP 503"), "it is not healthy at a: HTTP 503"),
        (told(healthy=None), "it is not healthy at a: not known yet"),
    ],
)
def test_what_is_another_hands_or_ill_is_left_alone_and_said(of: dict[str, Any], why: str) -> None:
    found = roll.turns(looked(b=of))
    assert [one.box for one in found if one.is_due] == ["a", "c"]
    alone = next(one for one in found if one.box == "b")
    assert (alone.what, alone.why) == (roll.ALONE, why)
    assert roll.ending(found, {}) == [
        f"b still differs and was left alone: {why}. "
        "By itself: pyinfra inventory deploy.py --limit b"
    ]


def test_a_monitor_that_differs_is_named_at_the_end() -> None:
    audits = {"a": audit("a"), "watcher": audit("watcher", DIFFERS), "other": audit("other")}
    assert roll.ending([Turn("a", roll.NOTHING, "", differs=False)], audits) == [
        "watcher still differs: a monitor is not rolled. "
        "By itself: pyinfra inventory deploy.py --limit watcher"
    ]


def test_a_box_that_no_gateway_asks_yet_is_updated_all_the_same() -> None:
    found = Looked(["new"], [Gateway("a", {"a": told()})], {"new": audit("new", DIFFERS)})
    assert [(one.what, one.why) for one in roll.turns(found)] == [
        (roll.UPDATE, "a deploy would do 1 thing; no gateway asks it yet")
    ]
    assert roll.refusals(found, interrupt=False) == []


def test_a_plan_is_a_line_for_each_box_and_names_gateways_that_pause() -> None:
    lines = roll.plan(roll.turns(looked(c=told(out=HAND))), [Gateway("a", {})])
    assert [line.split()[0] for line in lines] == ["a", "b", "c", "a:"]
    assert "left alone" in lines[2] and "a gateway too" in lines[3]
    assert "another gateway" not in lines[3]
    two = roll.plan(roll.turns(looked()), [Gateway("a", {}), Gateway("b", {})])
    assert "another gateway has none" in two[3]


def test_a_box_that_is_called_otherwise_now_is_said() -> None:
    asked = [Gateway("a", {"a": told(), "old": told()}), Gateway("b", None)]
    (line,) = roll.not_named(asked, ["a", "b", "new"])
    assert line.startswith("old: a asks it, and the inventory has no such name.")
    assert roll.not_named(asked, ["a", "b", "old"]) == []


@pytest.mark.parametrize("words", ["-1", "1.5", "1e3", "²", "86401", "9" * 400, ""])
def test_a_wait_is_a_number_of_seconds(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        entry.parser().parse_args([f"--drain={words}"])
    assert ended.value.code == 1
    assert "is no number of seconds up to 86400" in capsys.readouterr().err


def test_a_plan_says_what_the_clients_of_each_box_meet() -> None:
    audits = {
        "a": audit("a", DIFFERS, pause="restart", doors=("the stream filter",)),
        "b": audit("b", DIFFERS, pause="reboot", doors=("the stream filter", "LiteLLM")),
        "c": audit("c", doors=("the stream filter", "LiteLLM")),
    }
    first, second, _, *more = roll.plan(roll.turns(looked(audits)), [])
    assert first.endswith("a deploy would do 1 thing, restarts the server")
    assert second.endswith("a deploy would do 1 thing, reboots")
    assert [line.partition(". ")[0] for line in more] == [
        "a: answers by itself too, at the stream filter",
        "b: answers by itself too, at the stream filter and LiteLLM",
    ]


# --- what speaks against it ----------------------------------------------------------------------


def refused(found: Looked, *, interrupt: bool = False) -> list[str]:
    return [one.found for one in roll.refusals(found, interrupt=interrupt)]


def test_nothing_speaks_against_boxes_that_serve_the_same() -> None:
    assert refused(looked()) == []


def test_without_gateways_nothing_can_be_rolled() -> None:
    assert refused(Looked(BOXES, [], {})) == ["no group `gateways` in the inventory"]


def test_silent_gateways_and_unseen_boxes_are_named_together() -> None:
    found = Looked(["a", "b"], [Gateway("g", None, "it was not reached")], {"a": audit("a")})
    first, second = refused(found)
    assert first == "the gateway g does not say how the boxes stand: it was not reached"
    assert second == "b could not be looked at to the end, see above"


def test_a_deploy_that_would_be_refused_is_not_begun() -> None:
    audits = {name: audit(name, DIFFERS) for name in BOXES}
    audits["b"] = audit("b", Reason("it failed its gate", refused=True))
    assert refused(looked(audits)) == ["a deploy to b would be refused, for what is said above"]


def test_a_server_that_no_deploy_has_set_up_is_not_taken_over_in_passing() -> None:
    audits = {name: audit(name, DIFFERS) for name in BOXES}
    audits["b"] = audit("b", DIFFERS, theirs="chat.service (port 8000)")
    found = roll.refusals(looked(audits), interrupt=True)
    assert [one.found for one in found] == [
        "b has a server that no deploy has set up: chat.service (port 8000)"
    ]
    assert found[0].remedy.endswith("--limit b")
    assert refused(looked(audits, b=told(healthy=False))) == []  # it is left alone anyway


@pytest.mark.parametrize(
    ("others", "lonely"),
    [
        ({"b": told(models=["writer"]), "c": told(models=["writer"])}, "a"),
        ({"b": told(out=HAND), "c": told(healthy=False, found="nothing")}, "a"),
        ({"b": told(models=["coder", "writer"]), "c": told()}, "b"),
    ],
)
def test_a_box_that_serves_something_alone_needs_a_word(
    others: dict[str, dict[str, Any]], lonely: str
) -> None:
    found = looked(**others)
    assert any(f"no box but {lonely} can be asked for" in one for one in refused(found))
    assert refused(found, interrupt=True) == []


def test_who_serves_the_name_too_is_named_with_what_puts_it_back() -> None:
    """As for somebody who has forgotten what they took out."""
    others = {"b": told(out=HAND), "c": told(healthy=False, found="HTTP 503")}
    (alone,) = roll.refusals(looked(**others), interrupt=False)
    assert alone.found == (
        "no box but a can be asked for coder now (at the gateway a); "
        "b serves it too, and is out of rotation since 1970-01-01 00:00:01 UTC, taken by somebody: "
        "rolling update of its fan; c serves it too, and is not healthy: HTTP 503"
    )
    assert alone.remedy == (
        f"put it back, on a: sudo {AIBOX} rotation back b; or let these requests fail: --interrupt"
    )


OLD_AND_NEW = told(models=["old", "new"])


@pytest.mark.parametrize(
    ("wanted", "others", "stops"),
    [
        (("new",), {"b": told(models=["new"])}, False),  # the last one that has the old name
        (("old", "new"), {"b": told(models=["new"])}, True),
        ((), {"b": told(models=["new"])}, True),  # not known what it is to serve
        (("new",), {"b": told(models=["new", "old"], healthy=False)}, True),  # another has it
    ],
)
def test_a_name_that_no_settings_want_holds_nobody_up(
    wanted: tuple[str, ...], others: dict[str, Any], stops: bool
) -> None:
    gateway = Gateway("a", {"a": OLD_AND_NEW, **others})
    audits = {name: audit(name, models=wanted) for name in ("a", "b")}
    audits["a"] = audit("a", DIFFERS, models=wanted)
    found = Looked(["a", "b"], [gateway], audits)
    assert bool(roll.refusals(found, interrupt=False)) == stops
    turn = roll.turns(found)[0]
    assert (roll.refusal_of_a_turn(turn, [gateway], interrupt=False) is not None) == stops


def test_a_name_that_goes_is_told_before_anybody_is_asked() -> None:
    audits = {name: audit(name, DIFFERS, models=("new",)) for name in BOXES}
    names = looked(audits, b=OLD_AND_NEW)
    lines = roll.plan(roll.turns(names), names.gateways)
    said = ": no box is to serve it any more; requests for it fail from this roll on."
    assert [line for line in lines if said in line] == [f"coder{said}", f"old{said}"]
    audits["b"] = audit("b", DIFFERS, models=("new", "coder", "old"))
    names = looked(audits, b=OLD_AND_NEW)
    assert not [line for line in roll.plan(roll.turns(names), names.gateways) if said in line]


def test_a_box_that_is_out_already_takes_no_requests_away() -> None:
    found = looked({"a": audit("a"), "b": audit("b", DIFFERS), "c": audit("c")}, b=told(out=OURS))
    assert refused(found) == []


@pytest.mark.parametrize(
    ("metrics", "running"),
    [
        ('vllm:num_requests_running{a="b"} 2.0\nvllm:num_requests_waiting{a="b"} 1.0\n', 3),
        ('vllm:num_requests_waiting_by_reason{a="b"} 7.0\nvllm:num_requests_running{a="b"} 0\n', 0),
        ("# nothing", None),
    ],
)
def test_requests_are_those_that_run_and_wait(metrics: str, running: int | None) -> None:
    assert running_in(metrics) == running


def test_what_is_not_quiet_is_said() -> None:
    assert roll.not_quiet("a", 1, 600).startswith("1 request still runs on a after 10 min")
    assert roll.not_quiet("a", 3, 60).startswith("3 requests still run on a after 60 s")
    assert roll.not_quiet("a", None, 60).startswith("what it still runs is not known on a")


def test_the_only_box_of_all_is_finished_when_it_is_out() -> None:
    ill = told(healthy=False, found="nothing")
    audits = {"a": audit("a"), "b": audit("b", DIFFERS), "c": audit("c")}
    assert refused(looked(audits, a=ill, b=told(out=OURS), c=ill)) == []


ILL = told(healthy=False, found="nothing answers")


@pytest.mark.parametrize(
    ("what", "boxes", "why"),
    [
        (roll.UPDATE, {"a": told(), "b": told()}, None),
        (roll.UPDATE, None, "the gateway g does not say"),
        (roll.UPDATE, {"a": ILL, "b": told()}, "a has become ill: g finds nothing answers"),
        (
            roll.UPDATE,
            {"a": told(), "b": ILL},
            "no box but a can be asked for coder now (at the gateway g); b serves",
        ),
        (roll.FINISH, {"a": {**ILL, "out": OURS}, "b": ILL}, None),
    ],
)
def test_a_turn_begins_only_as_things_stand_then(
    what: str, boxes: dict[str, Any] | None, why: str | None
) -> None:
    turn = Turn("a", what, "", differs=True)
    found = roll.refusal_of_a_turn(turn, [Gateway("g", boxes)], interrupt=False)
    assert found.found.startswith(why) if found and why else found is None and why is None


# --- a made-up fleet -----------------------------------------------------------------------------


IDLE: dict[str, Any] = {"jobs": [], "by": None}
NOBODY = Left(0, ours=True)
HASTE = Patience(0, 0, 0)


@dataclass
class Fleet:
    """Boxes behind gateways. differs: those with work for a deploy. deploying: what happens in
    one, and its exit code. left: what is found in each wait, by who is asked; NOBODY after that.
    works: what is at work on a box."""

    gateways: dict[str, dict[str, dict[str, Any]]]
    differs: set[str]
    deploying: Callable[[Fleet, str], int] = lambda _fleet, _box: 0
    deaf: set[str] = field(default_factory=set)
    away: set[str] = field(default_factory=set)
    events: list[str] = field(default_factory=list)
    left: dict[str, list[Left | None]] = field(default_factory=dict)
    works: dict[str, dict[str, Any] | None] = field(default_factory=dict)
    rebooting: list[str] = field(default_factory=list)

    def roll(self, *words: str, patience: Patience = HASTE) -> int:
        return entry.main(["-y", *words], lambda _asked: self, patience)

    def named(self) -> dict[str, list[str]]:
        boxes = dict.fromkeys(box for held in self.gateways.values() for box in held)
        return {"boxes": list(boxes), "gateways": list(self.gateways), "every": list(boxes)}

    def audits(self) -> tuple[dict[str, Audit], None]:
        boxes = self.named()["boxes"]
        return {one: audit(one, *([DIFFERS] if one in self.differs else [])) for one in boxes}, None

    def ask(self, gateways: Sequence[str], *words: str) -> list[Gateway]:
        if words:
            self.events += [f"{words[1]} {words[0]} at {name}" for name in gateways]
        for name in set(gateways) - self.deaf - self.away if words else ():
            of = self.gateways[name][words[1]]
            if words[0] == "out":
                of["out"] = {"why": words[3], "since": 1.0, "by": words[5]}
            elif not (words[2:] == ("--by", "roll") and of["out"] and of["out"]["by"] == "hand"):
                of["out"] = None
        return [self._answer(name, changed=bool(words)) for name in gateways]

    def _answer(self, name: str, *, changed: bool) -> Gateway:
        if changed and name in self.away:
            return Gateway(name, None, "it was not reached")
        return Gateway(name, {box: dict(of) for box, of in self.gateways[name].items()})

    def wait(self, hosts: Sequence[str], at: str, box: str, seconds: float) -> list[Left | None]:
        assert 0 <= seconds <= entry.DRAIN_S
        found = self.left[at].pop(0) if self.left.get(at) else NOBODY
        self.events.append(f"{box} is {'quiet' if found == NOBODY else 'busy'} at its {at}")
        return [found for _ in hosts]

    def at_work(self, box: str) -> dict[str, Any] | None:
        return self.works.get(box, IDLE)

    def deploy(self, box: str, *, may_reboot: bool) -> int:
        assert all(held[box]["out"] for held in self.gateways.values() if box in held)
        self.events.append(f"{box} deployed to")
        self.rebooting += [box] if may_reboot else []
        code = self.deploying(self, box)
        if not code:
            self.differs.discard(box)
        return code

    def healthy(self, box: str, *, yes: bool) -> None:
        for held in self.gateways.values():
            held[box] |= {"healthy": yes, "found": None if yes else "nothing answers"}

    def out(self) -> set[str]:
        return {box for held in self.gateways.values() for box, of in held.items() if of["out"]}


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Fleet:
    """Two boxes, each a gateway, and both differ."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return two()


def two() -> Fleet:
    return Fleet({name: {"a": told(), "b": told()} for name in ("a", "b")}, {"a", "b"})


A_WHOLE_TURN = [
    *("a out at a", "a out at b", "a is quiet at its gateway", "a is quiet at its box"),
    *("a deployed to", "a back at a", "a back at b"),
]


def test_one_box_after_the_other_is_out_quiet_deployed_to_and_back(fleet: Fleet) -> None:
    assert fleet.roll() == 0
    assert fleet.events[:7] == A_WHOLE_TURN
    assert fleet.events[7:] == [one.replace("a ", "b ", 1) for one in A_WHOLE_TURN]
    assert fleet.rebooting == ["a", "b"]
    assert (fleet.differs, fleet.out()) == (set(), set())
    assert fleet.roll() == 0
    assert len(fleet.events) == 14  # all in sync: nothing is done


def test_a_failed_box_that_serves_is_asked_again_and_the_roll_stops(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.deploying = lambda _fleet, _box: 1
    assert fleet.roll() == 1
    assert fleet.out() == set() and "b out at a" not in fleet.events
    assert "serves what it served before and is asked again" in capsys.readouterr().err


def test_a_failed_box_that_is_ill_stays_out_and_the_next_roll_begins_with_it(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    def ill(fleet: Fleet, box: str) -> int:
        fleet.healthy(box, yes=False)
        return 1

    def mended(fleet: Fleet, box: str) -> int:
        fleet.healthy(box, yes=True)
        return 0

    fleet.differs, fleet.deploying = {"b", "a"}, ill
    fleet.gateways = {name: {"b": told(), "a": told()} for name in ("a", "b")}
    assert fleet.roll() == 1
    said = capsys.readouterr().err
    assert "b is out of rotation at a, b" in said and "a finds nothing answers" in said
    assert fleet.out() == {"b"}
    fleet.deploying = mended
    fleet.events.clear()
    assert fleet.roll() == 0
    assert fleet.events[4] == "b deployed to"
    assert (fleet.differs, fleet.out()) == (set(), set())


def test_an_interrupted_roll_says_what_is_out(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_fleet: Fleet, _box: str) -> int:
        raise KeyboardInterrupt

    fleet.deploying = interrupted
    assert fleet.roll() == 1
    said = capsys.readouterr().err
    assert "interrupted" in said and "a is out of rotation at a, b" in said
    assert "rotation back a" in said


def test_a_gateway_that_keeps_asking_stops_it_before_anything_is_done(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.deaf = {"b"}
    assert fleet.roll() == 1
    assert "a deployed to" not in fleet.events
    assert "b did not take a out" in capsys.readouterr().err
    assert fleet.out() == set()


def test_a_gateway_that_has_just_started_is_waited_for(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It finds nobody healthy before its first look."""
    looks: list[int] = []
    asked = fleet.ask

    def started(fleet: Fleet, box: str) -> int:
        if box == "a":
            fleet.healthy("b", yes=False)
            looks.append(0)
        return 0

    def ask(names: Sequence[str], *words: str) -> list[Gateway]:
        if looks and not words:
            looks.append(len(looks))
            fleet.healthy("b", yes=len(looks) > 4)
        return asked(names, *words)

    fleet.deploying = started
    monkeypatch.setattr(fleet, "ask", ask)
    assert fleet.roll(patience=Patience(0, 60, 0)) == 0
    assert (fleet.differs, fleet.out()) == (set(), set())


def test_a_box_that_nobody_finds_healthy_afterwards_stays_out(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(fleet: Fleet, box: str) -> int:
        fleet.healthy(box, yes=False)
        return 0

    fleet.deploying = silent
    assert fleet.roll() == 1
    assert "a was deployed to, but after 0 s a finds nothing answers" in capsys.readouterr().err
    assert fleet.out() == {"a"}


def test_a_box_that_is_taken_out_by_hand_meanwhile_is_left_alone(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    def by_hand(fleet: Fleet, _box: str) -> int:
        fleet.gateways["a"]["b"]["out"] = HAND
        return 0

    fleet.gateways = {"a": {name: told() for name in "abc"}}
    fleet.deploying = by_hand
    assert fleet.roll() == 1
    assert "b deployed to" not in fleet.events
    assert (
        "somebody has taken it out at a meanwhile: rolling update of its fan"
        in capsys.readouterr().out
    )


def test_nobody_there_to_press_enter_changes_nothing(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PYINFRA_YES", raising=False)
    monkeypatch.setattr("sys.stdin.isatty", lambda: False, raising=False)
    assert entry.main([], lambda _asked: fleet) == 1
    assert fleet.events == []
    assert "no -y" in capsys.readouterr().err


def test_two_rolls_of_one_inventory_do_not_run_at_once(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    def second(fleet: Fleet, _box: str) -> int:
        fleet.deploying = lambda _fleet, _box: 0
        assert fleet.roll() == 1
        assert "another roll" in capsys.readouterr().err
        return 0

    fleet.deploying = second
    assert fleet.roll() == 0


# --- what could be wrong of its own ---------------------------------------------------------------


@pytest.mark.parametrize(
    ("at_gateway", "at_box", "said", "reboots"),
    [
        ([], [], None, True),
        ([Left(1)], [Left(0, ours=True)], "2 requests still run on a after", False),
        ([], [Left(1, ours=True)], "1 request still runs on a after", False),
        ([], [Left(None)], "what it still runs is not known on a after", False),
        ([], [Left(0)], None, False),  # nobody serves there, or somebody else does too
    ],
)
def test_only_a_box_whose_own_server_has_told_that_it_is_quiet_may_reboot(
    fleet: Fleet,
    capsys: pytest.CaptureFixture[str],
    at_gateway: list[Left | None],
    at_box: list[Left | None],
    said: str | None,
    reboots: bool,
) -> None:
    fleet.differs = {"a"}
    fleet.left = {AT_GATEWAY: at_gateway, AT_BOX: at_box}
    assert fleet.roll("--drain=0") == 0
    shown = capsys.readouterr().out
    assert said in shown if said else "the roll goes on" not in shown
    assert fleet.rebooting == (["a"] if reboots else [])


def test_a_box_that_no_gateway_asks_is_not_rebooted_under_its_clients() -> None:
    known = [Gateway("a", {"a": told()})]
    assert not roll.may_reboot("new", known, NOBODY)
    assert roll.may_reboot("a", known, NOBODY)


def test_a_lost_connection_is_no_end_of_the_wait(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.differs = {"a"}
    fleet.left = {AT_GATEWAY: [None, Left(None)], AT_BOX: [None, Left(None), NOBODY]}
    assert fleet.roll("--drain=60") == 0
    waits = [one.partition(" ")[2] for one in fleet.events if " at its " in one]
    at_gateway, at_box = "at its gateway", "at its box"
    assert waits == [
        *(f"is busy {at_gateway}", f"is busy {at_gateway}", f"is quiet {at_gateway}"),
        *(f"is busy {at_box}", f"is busy {at_box}", f"is quiet {at_box}"),
    ]
    assert "the roll goes on" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("works", "said"),
    [
        ({"jobs": ["aibox-switch.service"], "by": None}, "aibox-switch.service is still at work"),
        ({"jobs": [], "by": {"who": "me@desk"}}, "a deploy by me@desk holds its lock"),
        ({"jobs": [], "by": {}}, "a deploy by somebody holds its lock"),
        (None, "it does not say whether something of it is still at work there"),
    ],
)
def test_a_failed_box_on_which_work_may_go_on_stays_out_although_it_serves(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], works: dict[str, Any] | None, said: str
) -> None:
    def lost(fleet: Fleet, box: str) -> int:
        fleet.works[box] = works
        return 1

    fleet.deploying = lost
    assert fleet.roll() == 1
    assert fleet.out() == {"a"}
    shown = capsys.readouterr().err
    assert said in shown and "a is out of rotation at a, b" in shown


@pytest.mark.parametrize(
    ("works", "said"),
    [
        (
            {
                "jobs": [],
                "by": {"who": "me@desk", "pid": 7, "since": 0, "seconds": 90, "holder": 9},
            },
            "a deploy of this box by me@desk",
        ),
        (None, "a was not reached"),
    ],
)
def test_a_box_that_somebody_deploys_to_is_not_taken_out(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], works: dict[str, Any] | None, said: str
) -> None:
    fleet.works["a"] = works
    assert fleet.roll() == 1
    assert said in capsys.readouterr().err
    assert fleet.events == []


def test_a_gateway_that_is_away_is_named_as_such(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.away = {"b"}
    assert fleet.roll() == 1
    shown = capsys.readouterr().err
    assert "b did not take a out: it was not reached" in shown
    assert "a is out of rotation at b" in shown


def test_a_box_in_sync_that_is_finished_is_not_said_to_be_deployed_to(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.differs = set()
    fleet.gateways["a"]["a"] = told(out=OURS, healthy=False, found="nothing answers")
    assert fleet.roll() == 1
    assert "a is as a deploy would leave it, but after 0 s a finds" in capsys.readouterr().err
    assert "a deployed to" not in fleet.events


def test_what_a_hand_takes_out_within_a_turn_stays_out(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    def by_hand(fleet: Fleet, box: str) -> int:
        fleet.gateways["b"][box]["out"] = HAND
        return 0

    fleet.differs, fleet.deploying = {"a"}, by_hand
    assert fleet.roll() == 1
    assert fleet.gateways["a"]["a"]["out"] is None
    assert fleet.gateways["b"]["a"]["out"] == HAND
    assert "left out there: somebody has taken it out at b" in capsys.readouterr().out


def test_what_a_hand_takes_out_in_the_last_moment_stays_out(
    fleet: Fleet, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = fleet.ask

    def ask(names: Sequence[str], *words: str) -> list[Gateway]:
        if words and words[0] == "back":
            fleet.gateways["b"]["a"]["out"] = HAND
        return asked(names, *words)

    fleet.differs = {"a"}
    monkeypatch.setattr(fleet, "ask", ask)
    assert fleet.roll() == 1
    assert [fleet.gateways[name]["a"]["out"] for name in ("a", "b")] == [None, HAND]
    shown = capsys.readouterr()
    assert "left out there: somebody has taken it out at b" in shown.out
    assert "did not take" not in shown.err


def test_what_a_hand_takes_out_within_a_turn_that_fails_is_said_too(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    def by_hand(fleet: Fleet, box: str) -> int:
        fleet.gateways["b"][box]["out"] = HAND
        return 1

    fleet.deploying = by_hand
    assert fleet.roll() == 1
    assert [fleet.gateways[name]["a"]["out"] for name in ("a", "b")] == [None, HAND]
    said = capsys.readouterr().err
    assert "stays out there: somebody has taken it out at b" in said
    assert "is asked again" not in said


def test_a_roll_ends_with_a_row_for_each_box(
    fleet: Fleet, capsys: pytest.CaptureFixture[str]
) -> None:
    fleet.gateways = {"a": {"a": told(), "box-b": told(), "c": told(), "d": told(out=HAND)}}
    fleet.differs = {"box-b", "c"}
    assert fleet.roll() == 0
    assert capsys.readouterr().out.splitlines()[-4:] == [
        "a      in sync",
        "box-b  done, and asked again, 0 s",
        "c      done, and asked again, 0 s",
        "d      left alone: somebody has taken it out at a: rolling update of its fan",
    ]
    fleet.differs, fleet.deploying = {"box-b", "c"}, lambda _fleet, _box: 1
    assert fleet.roll() == 1
    said = capsys.readouterr().err.splitlines()
    assert "box-b  the roll stopped here, see above" in said
    assert "c      its turn has not come" in said


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(28, "No space left on device", "/tmp/x"), "No space left on device at /tmp/x"),
        (BrokenPipeError(32, "Broken pipe"), "nobody reads any more what the roll says"),
    ],
)
def test_a_fault_of_control_is_said_with_what_is_out(
    fleet: Fleet, capsys: pytest.CaptureFixture[str], error: OSError, said: str
) -> None:
    def fails(_fleet: Fleet, _box: str) -> int:
        raise error

    fleet.deploying = fails
    assert fleet.roll() == 1
    shown = capsys.readouterr().err
    assert said in shown and "a is out of rotation at a, b" in shown


UNREAD = """
import sys
from tests.unit.test_roll import two
fleet = two()
fleet.deploying = lambda *_: print(sys.stdin.read(), flush=True)  # once the reader has gone
sys.exit(fleet.roll())
"""


def test_a_roll_that_nobody_reads_any_more_says_what_is_out(tmp_path: Path) -> None:
    pipe = subprocess.PIPE
    words = [sys.executable, "-c", UNREAD]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path)}
    with subprocess.Popen(
        words, cwd=ROOT, env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
    ) as running:
        assert running.stdin and running.stdout and running.stderr
        while "is out of rotation" not in running.stdout.readline():
            assert running.poll() is None
        running.stdout.close()
        running.stdin.close()
        said = running.stderr.read()
    assert (running.returncode, "Traceback" in said, "ignored" in said) == (1, False, False), said
    assert "nobody reads any more what the roll says" in said
    assert "a is out of rotation at a, b. The next roll" in said


def test_a_lock_is_of_one_inventory_whatever_that_is(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    folder = tmp_path / "inventories"
    folder.mkdir()
    tmp_path.joinpath("link").symlink_to(folder)
    names = [str(folder), str(tmp_path / "link"), "a-box,b-box", "@local"]
    assert len({entry.lock_of(name) for name in names}) == 3
    with entry.one_at_a_time("a-box,b-box"):
        with entry.one_at_a_time("@local"):
            pass
        with pytest.raises(entry.StoppedError), entry.one_at_a_time("a-box,b-box"):
            pass
