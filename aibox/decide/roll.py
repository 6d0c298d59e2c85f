"""A rolling update: which boxes, in which order, what speaks against it, and when it stops.

What the gateways say of the boxes is their own answer, see aibox/decide/rotation.py: {box:
{"models": names, "out": {"why", "since", "by"} or None, "healthy": bool or None, "found": text,
"requests": how many of its own the gateway waits for there; not where LiteLLM does not answer}}.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.drift import Audit
from aibox.decide.figures import counted, duration
from aibox.decide.manifest import AIBOX
from aibox.decide.refusal import Refusal, of_file
from aibox.decide.rotation import BY_HAND
from aibox.decide.standing import moment
from aibox.decide.summary import ROLL, would_do

DEPLOY = "pyinfra inventory deploy.py"

# What becomes of a box
FINISH, UPDATE, ALONE, NOTHING = "finish", "update", "left alone", "in sync"
STOPPED = "the roll stopped here, see above"


@dataclass(frozen=True)
class Gateway:
    """What a gateway says of the boxes; why it says nothing, where it does not."""

    name: str
    boxes: Mapping[str, Any] | None
    said: str = ""


@dataclass(frozen=True)
class Turn:
    """What becomes of a box, and why. differs: whether a deploy has work there. doors: of its own,
    by title. wanted: see `wanted`."""

    box: str
    what: str
    why: str
    differs: bool
    doors: Sequence[str] = ()
    wanted: Collection[str] | None = None

    @property
    def is_due(self) -> bool:
        return self.what in (FINISH, UPDATE)


@dataclass(frozen=True)
class Looked:
    """What was found before anything is touched. boxes: those that the roll is for, in the order of
    the inventory. audits: what a deploy would do, of each box that was looked at to the end."""

    boxes: Sequence[str]
    gateways: Sequence[Gateway]
    audits: Mapping[str, Audit]


@dataclass(frozen=True)
class Left:
    """What still runs on a box, as it says itself, or of a gateway's requests there.

    running: None where it is not told. ours: whether the server that was deployed has told it, and
    nobody else serves on the box.
    """

    running: int | None
    ours: bool = False


# --- which boxes, in which order -----------------------------------------------------------------


def turns(looked: Looked) -> list[Turn]:
    """Every box; first what an earlier roll has left, then the others as the inventory has them."""
    found = [turn(box, looked) for box in looked.boxes]
    return sorted(found, key=lambda one: one.what != FINISH)


def turn(box: str, looked: Looked) -> Turn:
    audit = looked.audits.get(box)
    what, why = outlook(audit, dict(told_of(box, looked.gateways)))
    doors = audit.serves.doors if audit else ()
    return Turn(box, what, why, bool(audit and audit.mends), doors, wanted(looked))


def wanted(looked: Looked) -> Collection[str] | None:
    """The names that the boxes of the roll are to serve; None where that is not known of one."""
    audits = [looked.audits[box] for box in looked.boxes if box in looked.audits]
    if not all(audit.serves.models for audit in audits):
        return None
    return {name for audit in audits for name in audit.serves.models}


def outlook(audit: Audit | None, known: Mapping[str, Mapping[str, Any]]) -> tuple[str, str]:
    """What becomes of a box, and why. known: what each gateway that asks it says of it."""
    deploy = would_do(len(audit.mends), audit.serves.pause) if audit and audit.mends else ""
    by_hand = [(name, of["out"]["why"]) for name, of in known.items() if is_out_by_hand(of)]
    for name, why in by_hand:
        return ALONE, f"somebody has taken it out at {name}: {why}"
    if any(of["out"] for of in known.values()):
        return FINISH, f"it is out since an earlier roll; a deploy {deploy or 'has nothing to do'}"
    ill = [(name, of["found"]) for name, of in known.items() if not of["healthy"]]
    for name, found in ill:
        return ALONE, f"it is not healthy at {name}: {found or 'not known yet'}"
    if not deploy:
        return NOTHING, "in sync"
    return UPDATE, f"a deploy {deploy}{'' if known else '; no gateway asks it yet'}"


def told_of(box: str, gateways: Sequence[Gateway]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """(gateway, what it says of the box), of each that asks it."""
    for one in gateways:
        if one.boxes and box in one.boxes:
            yield one.name, one.boxes[box]


def is_out_by_hand(of: Mapping[str, Any]) -> bool:
    return bool(of["out"]) and of["out"]["by"] == BY_HAND


# --- what speaks against it ----------------------------------------------------------------------


def refusals(looked: Looked, *, interrupt: bool) -> list[Refusal]:
    """Every reason not to begin. interrupt: whether a model may go without any box meanwhile."""
    if not looked.gateways:
        return [no_gateways()]
    found = [silent(one) for one in looked.gateways if one.boxes is None]
    found += [unseen(box) for box in looked.boxes if box not in looked.audits]
    found += [would_be_refused(box) for box in looked.boxes if is_refused(looked.audits.get(box))]
    due = [one for one in turns(looked) if one.is_due]
    found += [
        taken_over(one.box, of)
        for one in due
        if (of := server_of_another(looked.audits.get(one.box)))
    ]
    if found or interrupt:
        return found
    finished = {one.box for one in due if one.what == FINISH}
    later = [once_finished(one, finished) for one in looked.gateways]
    alone = [
        serves_alone(one.box, looked.gateways if one.what == FINISH else later, one.wanted)
        for one in due
    ]
    return [one for one in alone if one]


def once_finished(gateway: Gateway, finished: Collection[str]) -> Gateway:
    """What it will say when the boxes that come first are back: it is asked again before each."""
    boxes = gateway.boxes or {}
    back = {box: {**boxes[box], "out": None, "healthy": True} for box in finished if box in boxes}
    return Gateway(gateway.name, {**boxes, **back})


def no_gateways() -> Refusal:
    return Refusal(
        "no group `gateways` in the inventory",
        "boxes behind at least one gateway, which asks the others meanwhile",
        f"a plain deploy does one box, or all at the same time: {DEPLOY}",
    )


def silent(gateway: Gateway) -> Refusal:
    return Refusal(
        f"the gateway {gateway.name} does not say how the boxes stand: {gateway.said}",
        "an answer of every gateway: each has to leave out the box that is worked on",
        f"mend it, deploy to it first ({DEPLOY} --limit {gateway.name}), or take it out of the "
        "group `gateways` and deploy to the others",
    )


def unseen(box: str) -> Refusal:
    return Refusal(
        f"{box} could not be looked at to the end, see above",
        "every box of the roll reached and fit for a deploy",
        "mend what is said above, or leave it out: --limit, once for each of the others",
    )


def is_refused(audit: Audit | None) -> bool:
    return audit is not None and audit.refused


def would_be_refused(box: str) -> Refusal:
    return Refusal(
        f"a deploy to {box} would be refused, for what is said above",
        "a deploy that can come to its end on every box of the roll",
        "change what is said there, or leave it out: --limit, once for each of the others",
    )


def server_of_another(audit: Audit | None) -> str | None:
    """One that no deploy has set up and this one would replace, in words; None without one."""
    return audit.serves.theirs if audit else None


def taken_over(box: str, theirs: str) -> Refusal:
    return Refusal(
        f"{box} has a server that no deploy has set up: {theirs}",
        "boxes whose server is a deploy's: what one that is taken over loses is shown on a page, "
        "and asked for by itself",
        f"deploy to it first: {DEPLOY} --limit {box}",
    )


def serves_alone(
    box: str, gateways: Sequence[Gateway], wanted: Collection[str] | None
) -> Refusal | None:
    """Why its requests would fail while it is out; None where other boxes take them all.

    A name that is not wanted, and that no other box has, goes with this roll anyway. wanted: see
    `wanted`; None: every name counts.
    """
    for name, of in told_of(box, gateways):
        if of["out"]:
            continue
        boxes = next(one.boxes for one in gateways if one.name == name) or {}
        others = {other: one for other, one in boxes.items() if other != box}
        for model in of["models"]:
            serve = {other: one for other, one in others.items() if model in one["models"]}
            goes = wanted is not None and model not in wanted and not serve
            if not goes and not any(takes_requests(one) for one in serve.values()):
                return lonely(box, name, model, serve)
    return None


def takes_requests(of: Mapping[str, Any]) -> bool:
    return not of["out"] and bool(of["healthy"])


def lonely(box: str, gateway: str, model: str, others: Mapping[str, Mapping[str, Any]]) -> Refusal:
    """others: what the gateway says of those that serve the name too, and can't be asked."""
    whys = [f"{other} serves it too, and {why_not_asked(of)}" for other, of in others.items()]
    out = [other for other, of in others.items() if of["out"]]
    back = f"sudo {AIBOX} rotation back {out[0]}" if out else ""
    remedy = f"put it back, on {gateway}: {back}" if out else "add one, or wait until it is healthy"
    return Refusal(
        "; ".join(
            [f"no box but {box} can be asked for {model} now (at the gateway {gateway})", *whys]
        ),
        "another healthy box that serves the same, for the requests meanwhile",
        f"{remedy}; or let these requests fail: --interrupt",
    )


def why_not_asked(of: Mapping[str, Any]) -> str:
    """What a gateway says of a box that it does not ask, in words."""
    if not of["out"]:
        return f"is not healthy: {of['found'] or 'not known yet'}"
    who = "somebody" if is_out_by_hand(of) else "an earlier roll"
    since = f"since {moment(of['out']['since'])}"
    return f"is out of rotation {since}, taken by {who}: {of['out']['why']}"


# --- in its middle -------------------------------------------------------------------------------


def refusal_of_a_turn(
    turn: Turn, gateways: Sequence[Gateway], *, interrupt: bool
) -> Refusal | None:
    """Why a box's turn is not to begin, as its gateways see things right before it."""
    for one in gateways:
        if one.boxes is None:
            return silent(one)
    if turn.what != FINISH and not is_healthy(turn.box, gateways):
        ill = f"{turn.box} has become ill: {why_not_healthy(turn.box, gateways)}"
        return once_mended(ill, "a box that serves when its turn comes")
    return None if interrupt else serves_alone(turn.box, gateways, turn.wanted)


def is_healthy(box: str, gateways: Sequence[Gateway]) -> bool:
    """Whether every gateway answers, and each that asks the box finds it healthy."""
    answered = all(one.boxes is not None for one in gateways)
    return answered and all(of["healthy"] for _, of in told_of(box, gateways))


def why_not_healthy(box: str, gateways: Sequence[Gateway]) -> str:
    """In words, for one that is_healthy says no of."""
    silent = [f"the gateway {one.name} does not answer" for one in gateways if one.boxes is None]
    ill = [
        f"{name} finds {of['found']}" for name, of in told_of(box, gateways) if not of["healthy"]
    ]
    return "; ".join([*ill, *silent])


def out_names(gateway: Gateway) -> set[str]:
    """The boxes that a gateway leaves out."""
    return {box for box, of in (gateway.boxes or {}).items() if of["out"]}


def by_hand_at(box: str, gateways: Sequence[Gateway]) -> dict[str, str]:
    """{gateway: why}, of those where somebody has taken the box out that is no roll."""
    known = told_of(box, gateways)
    return {name: str(of["out"]["why"]) for name, of in known if is_out_by_hand(of)}


def taken_by_a_hand(where: Mapping[str, str]) -> str:
    """where: see by_hand_at."""
    name, why = next(iter(where.items()))
    return f"somebody has taken it out at {name} meanwhile: {why}"


def running_at(box: str, gateway: Gateway) -> int | None:
    """How many of its requests a gateway waits for at a box; None where it does not say."""
    if gateway.boxes is None:
        return None
    running: int | None = gateway.boxes[box].get("requests") if box in gateway.boxes else 0
    return running


def together(found: Sequence[Left | None]) -> Left:
    """Of several hosts. None: one that was not reached."""
    known = [one for one in found if one and one.running is not None]
    if len(known) < len(found):
        return Left(None)
    return Left(sum(one.running or 0 for one in known), all(one.ours for one in known))


def of_both(gateways: Left, box: Left) -> Left:
    """What gateways wait for is within what the box runs, once it has arrived there."""
    if gateways.running is None or box.running is None:
        return Left(None)
    return Left(max(gateways.running, box.running), box.ours)


def may_reboot(box: str, gateways: Sequence[Gateway], left: Left) -> bool:
    """Whether nobody is cut off by a reboot: its gateways leave it out, and its server, the only
    one there, has told that it runs nothing."""
    return any(told_of(box, gateways)) and left.ours and left.running == 0


def still_at_work(found: Mapping[str, Any] | None) -> str | None:
    """What of a deploy may go on over there; None for nothing. found: the probe's answer to
    "at_work", None where there is none."""
    if found is None:
        return "it does not say whether something of it is still at work there"
    if found["by"] is not None:
        return f"a deploy by {found['by'].get('who', 'somebody')} holds its lock"
    return f"{', '.join(found['jobs'])} is still at work there" if found["jobs"] else None


def once_mended(found: str, expected: str, mend: str = "mend it", box: str = "") -> Refusal:
    """What ends a roll in its middle. mend: what comes first. box: what the next one begins with,
    where that is known."""
    begins = f", which begins with {box}" if box else ""
    return Refusal(found, expected, f"{mend}, then run the roll again{begins}: {ROLL}")


def not_reached(box: str) -> Refusal:
    expected = "a box that says whether a deploy is at work there, before it is taken out"
    return once_mended(f"{box} was not reached, or does not answer", expected)


def failed_but_serves(box: str, by_hand: Mapping[str, str]) -> Refusal:
    """by_hand: see by_hand_at."""
    asked = f"stays out there: {taken_by_a_hand(by_hand)}" if by_hand else "is asked again"
    found = f"the deploy to {box} failed, see above; {box} serves what it served before and {asked}"
    return once_mended(found, "a deploy that comes to its end", "mend what is said above")


def failed(box: str, why: str) -> Refusal:
    """why: how its gateways find it, or what is at work there."""
    expected = "a box that serves after it, and that nothing works on any more"
    return once_mended(f"the deploy to {box} failed, see above, and {why}", expected, box=box)


def not_healthy(box: str, why: str, seconds: float, *, deployed: bool) -> Refusal:
    """deployed: whether there was anything to deploy."""
    what = "was deployed to" if deployed else "is as a deploy would leave it"
    found = f"{box} {what}, but after {duration(seconds)} {why}"
    return once_mended(found, "every gateway finds it healthy", box=box)


def not_taken(box: str, gateway: Gateway, act: str) -> Refusal:
    """A gateway that did not do as it was told. act: "out" or "back"."""
    found = f"{gateway.name} did not take {box} {act}: {gateway.said or 'it says otherwise'}"
    return once_mended(found, "every gateway does")


def left_out(box: str, gateways: Sequence[str]) -> list[str]:
    """What is said at the end of a roll that stopped, of a box that is out. gateways: where."""
    return [
        f"{box} is out of rotation at {', '.join(gateways)}. The next roll begins with it, puts "
        f"it back, and goes on: {ROLL}",
        f"or by hand, on each of these: sudo {AIBOX} rotation back {box}",
    ]


# --- in words ------------------------------------------------------------------------------------


def plan(found: Sequence[Turn], gateways: Sequence[Gateway]) -> list[str]:
    """What the roll would do, one line a box, in its order."""
    width = max((len(one.box) for one in found), default=0)
    words = {FINISH: "first", UPDATE: "update", ALONE: "left alone", NOTHING: "nothing"}
    rows = [f"{one.box:<{width}}  {words[one.what]:<10}  {one.why}" for one in found]
    names = {one.name for one in gateways}
    pausing = [one.box for one in found if one.is_due and one.box in names]
    if pausing:
        other = "; another gateway has none" if len(names) > 1 else ""
        rows.append(
            f"{', '.join(pausing)}: a gateway too. Whoever asks it meets a pause where the deploy "
            f"starts LiteLLM anew or reboots the box{other}."
        )
    return rows + asked_alone(found) + names_that_go(found, gateways)


def names_that_go(found: Sequence[Turn], gateways: Sequence[Gateway]) -> list[str]:
    """Of names that are asked for now, and that no box has after the roll."""
    due = {one.box: one.wanted for one in found if one.is_due and one.wanted is not None}
    asked = [(box, of["models"]) for one in gateways for box, of in (one.boxes or {}).items()]
    stay = {name for box, models in asked if box not in due for name in models}
    stay |= {name for names in due.values() for name in names or ()}
    go = dict.fromkeys(name for box, models in asked if box in due for name in models)
    return [
        f"{name}: no box is to serve it any more; requests for it fail from this roll on."
        for name in go
        if name not in stay
    ]


def not_named(gateways: Sequence[Gateway], every: Collection[str]) -> list[str]:
    """Of boxes that gateways ask by another name, perhaps. every: of the inventory's hosts."""
    by = {box: one.name for one in gateways for box in one.boxes or {} if box not in every}
    return [
        f"{box}: {name} asks it, and the inventory has no such name. If it has another one now, "
        f"requests go to it while it is worked on: deploy to {name} first, by itself."
        for box, name in by.items()
    ]


def asked_alone(found: Sequence[Turn]) -> list[str]:
    """Of the boxes that are due and have doors of their own."""
    having: dict[tuple[str, ...], list[str]] = {}
    for one in found:
        if one.is_due and one.doors:
            having.setdefault(tuple(one.doors), []).append(one.box)
    return [
        f"{', '.join(boxes)}: answers by itself too, at {' and '.join(doors)}. Whoever asks there "
        "is not sent to another box, and is cut off by a restart or reboot."
        for doors, boxes in having.items()
    ]


def rows(found: Sequence[Turn], became: Mapping[str, str]) -> list[str]:
    """What became of each box, one line a box. became: of those whose turn has ended or begun."""
    width = max((len(one.box) for one in found), default=0)
    return [f"{one.box:<{width}}  {became.get(one.box) or not_begun(one)}" for one in found]


def not_begun(turn: Turn) -> str:
    if turn.is_due:
        return "its turn has not come"
    return turn.why if turn.what == NOTHING else f"left alone: {turn.why}"


def still_runs(running: int, seconds: float) -> str:
    return f"{counted(running, 'request')} still run there, {duration(seconds)}"


def not_quiet(box: str, left: int | None, seconds: float) -> str:
    """left: requests that still run after so long; None where that is not told."""
    what = "what it still runs" if left is None else counted(left, "request")
    verb = "is not known" if left is None else f"still run{'s' if left == 1 else ''}"
    return f"{what} {verb} on {box} after {duration(seconds)}: the roll goes on, and may end them"


def interrupted() -> Refusal:
    return Refusal("interrupted", "a roll to its end", f"run it again: {ROLL}")


def unread() -> Refusal:
    found = "nobody reads any more what the roll says"
    return Refusal(found, "a roll that is read to its end", f"run it again: {ROLL}")


def file_fault(error: OSError) -> Refusal:
    """Of control's own files."""
    return once_mended(of_file(error), "files that this machine can write and read", "mend this")


def ending(found: Sequence[Turn], audits: Mapping[str, Audit]) -> list[str]:
    """What is left after a roll that came to its end: boxes that differ and were left alone, and
    hosts that differ and are no boxes. audits: of everything that was looked at."""
    alone = [
        f"{one.box} still differs and was left alone: {one.why}. "
        f"By itself: {DEPLOY} --limit {one.box}"
        for one in found
        if one.what == ALONE and one.differs
    ]
    others = audits.keys() - {one.box for one in found}
    return alone + [
        f"{name} still differs: a monitor is not rolled. By itself: {DEPLOY} --limit {name}"
        for name in sorted(others)
        if audits[name].mends
    ]
