"""Deploy to one box after the other, each out of rotation meanwhile: `python -m tasks.roll`.

A box gets no new request from a gateway, ends those that it works on, is deployed to, and is asked
again when every gateway finds it healthy (docs/fleet.md says which requests are lost all the same).
It shows what differs and asks once. What fails stops it; the next roll goes on from there. Exit
codes: 0 done or nothing to do, 1 anything else.
"""

from __future__ import annotations

import argparse
import fcntl
import hashlib
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from aibox.decide import drift as drifts
from aibox.decide import roll
from aibox.decide.figures import duration
from aibox.decide.refusal import Refusal
from aibox.decide.roll import Gateway, Left, Looked, Turn
from aibox.decide.rotation import BY_ROLL
from aibox.parser import Parser
from tasks import deploy_lock, drift
from tasks.roll_runs import PyinfraRuns, Runs
from tasks.roll_step import AT_BOX, AT_GATEWAY

DRAIN_S = 600  # LiteLLM's own limit of a request
LONGEST_S = 86_400  # that anybody may want to wait


@dataclass(frozen=True)
class Patience:
    """Seconds. healthy: until the gateways find a box so that was deployed to. settle: until they
    have noticed that one is not, two looks, each with its own patience. poll: between two looks."""

    healthy: float = 120
    settle: float = 8
    poll: float = 1


class StoppedError(Exception):
    """The roll ends here. refusal: why. left: what is to be said of boxes that are out."""

    def __init__(self, refusal: Refusal, left: Sequence[str] = ()) -> None:
        super().__init__(refusal.found)
        self.refusal, self.left = refusal, left


@dataclass
class Roll:
    """One roll. out: {box: gateways that leave it out}, now. skipped: boxes that were left alone
    although their turn had come. became: what became of each box whose turn has begun, in words."""

    asked: argparse.Namespace
    runs: Runs
    gateways: list[str]
    patience: Patience
    out: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)
    became: dict[str, str] = field(default_factory=dict)


def main(
    words: list[str] | None = None,
    runs: Callable[[argparse.Namespace], Runs] = PyinfraRuns,
    patience: Patience = Patience(),
) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):  # whatever a box is called, in whatever locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    asked = parser().parse_args(words)
    try:
        with one_at_a_time(asked.inventory):
            return rolled(asked, runs(asked), patience)
    except StoppedError as stopped:
        say(stopped.refusal, stopped.left)
    except KeyboardInterrupt:
        print("interrupted: nothing was changed", file=sys.stderr)
    except OSError as error:
        say(fault(error))
    return 1


def parser() -> Parser:
    parser = Parser(prog="python -m tasks.roll", description=__doc__, allow_abbrev=False)
    parser.add_argument("inventory", nargs="?", default=str(drift.PROJECT / "inventory"))
    parser.add_argument("--limit", action="append", default=[], metavar="BOX", help="only this box")
    parser.add_argument("-y", "--yes", action="store_true", help="do not ask")
    parser.add_argument(
        "--drain",
        type=seconds,
        default=DRAIN_S,
        metavar="S",
        help=f"seconds that a box has to end its requests ({DRAIN_S})",
    )
    parser.add_argument(
        "--interrupt",
        action="store_true",
        help="also where no other box serves the same: its requests fail meanwhile",
    )
    for name in drift.SSH:
        parser.add_argument(f"--{name}", metavar="X", help="handed to pyinfra")
    return parser


def seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 9 and int(text) <= LONGEST_S):
        raise argparse.ArgumentTypeError(f"{text:.20} is no number of seconds up to {LONGEST_S}")
    return int(text)


def say(refusal: Refusal, more: Sequence[str] = ()) -> None:
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # whoever read has gone; so must what is still to be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    with suppress(BrokenPipeError):
        for line in [*str(refusal).splitlines(), *more]:
            print(drifts.printable(line), file=sys.stderr, flush=True)


def fault(error: OSError) -> Refusal:
    return roll.unread() if isinstance(error, BrokenPipeError) else roll.file_fault(error)


@contextmanager
def one_at_a_time(inventory: str) -> Iterator[None]:
    """Two rolls would each take what the other has out for what an earlier one has left."""
    path = lock_of(inventory)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found = f"another roll of {inventory} is at work"
            raise StoppedError(Refusal(found, "one at a time", "wait for it, or end it")) from None
        yield


def lock_of(inventory: str) -> Path:
    """Of this user, for one inventory, which need not be a file."""
    state = Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser()
    path = Path(inventory)
    named = str(path.resolve()) if path.exists() else inventory
    return state / "aibox" / f"roll-{hashlib.sha256(named.encode()).hexdigest()[:16]}.lock"


# --- before it begins ----------------------------------------------------------------------------


def rolled(asked: argparse.Namespace, runs: Runs, patience: Patience) -> int:
    """Look, refuse or ask, and do it. Returns the exit code. Raises StoppedError."""
    names = runs.named()
    if isinstance(names, str):
        print(names, file=sys.stderr)
        return 1
    if not names["gateways"]:
        raise StoppedError(roll.no_gateways())
    looked = look(runs, names["boxes"], names["gateways"])
    refusals = roll.refusals(looked, interrupt=asked.interrupt)
    for refusal in refusals:
        say(refusal)
    if refusals:
        return 1
    turns = roll.turns(looked)
    show(roll.plan(turns, looked.gateways) + roll.not_named(looked.gateways, names["every"]))
    work = Roll(asked, runs, names["gateways"], patience)
    if any(one.is_due for one in turns):
        agreed(asked)
        in_turn(work, turns)
        show(["", *roll.rows(turns, work.became)])
    left = roll.ending(turns, looked.audits)
    show(left)
    return 1 if left or work.skipped else 0


def look(runs: Runs, boxes: Sequence[str], gateways: Sequence[str]) -> Looked:
    """Everything, with what differs on the screen."""
    answers = runs.ask(gateways)
    audits, failure = runs.audits()
    show([line for audit in audits.values() if audit.mends for line in drifts.table(audit)])
    if failure is not None:
        print(failure, file=sys.stderr)
    return Looked(boxes, answers, audits)


def show(lines: Sequence[str]) -> None:
    for line in lines:
        print(drifts.printable(line))
    sys.stdout.flush()


def agreed(asked: argparse.Namespace) -> None:
    """Returns where the person wants it. Raises StoppedError."""
    if asked.yes or os.environ.get("PYINFRA_YES"):
        return
    expected = "a word that this is to be done"
    if not sys.stdin.isatty():
        remedy = "look at it, then run it again with -y (or set PYINFRA_YES=1)"
        raise StoppedError(Refusal("no terminal to press Enter on, and no -y", expected, remedy))
    try:
        answer = input("\nPress Enter to do it, one box after the other: ")
    except EOFError:
        answer = "the end of the input"
    if answer:
        raise StoppedError(Refusal(f"{answer!r}, not Enter alone", expected, "press Enter alone"))


# --- one after the other -------------------------------------------------------------------------


def in_turn(work: Roll, turns: Sequence[Turn]) -> None:
    """Each box that is due to its end. Raises StoppedError, with what became of every box."""
    due = [one for one in turns if one.is_due]
    try:
        for at, turn in enumerate(due):
            print(f"\n==> {turn.box} ({at + 1} of {len(due)})", flush=True)
            work.became[turn.box] = roll.STOPPED
            began = time.monotonic()
            done = turned(work, turn)
            work.became[turn.box] = f"{done}, {duration(time.monotonic() - began)}"
            print(f"==> {turn.box}: {work.became[turn.box]}", flush=True)
    except (KeyboardInterrupt, StoppedError, OSError) as ended:
        rows = ["", *roll.rows(turns, work.became), ""]
        left = [line for box, at in work.out.items() if at for line in roll.left_out(box, at)]
        raise StoppedError(why(ended), [*rows, *left]) from None


def why(ended: BaseException) -> Refusal:
    """For an end within a turn."""
    if isinstance(ended, StoppedError):
        return ended.refusal
    return fault(ended) if isinstance(ended, OSError) else roll.interrupted()


def turned(work: Roll, turn: Turn) -> str:
    """One box: out, quiet, deployed to, healthy, back. Returns what became of it."""
    box = turn.box
    found: Sequence[Gateway] = work.runs.ask(work.gateways)
    by_hand = roll.by_hand_at(box, found)
    if by_hand:
        work.skipped.append(box)
        return f"left alone, {roll.taken_by_a_hand(by_hand)}"
    found = judged_again(work, turn, found)
    nobody_deploys(work, box)
    take_out(work, box, found)
    may_reboot = roll.may_reboot(box, found, quiet(work, box, found))
    if turn.differs and work.runs.deploy(box, may_reboot=may_reboot):
        after_a_failure(work, box)
    found = wait_until_healthy(work, turn)
    by_hand = put_back(work, box, found)
    if by_hand:
        work.skipped.append(box)
        return f"done, and left out there: {roll.taken_by_a_hand(by_hand)}"
    return "done, and asked again"


def nobody_deploys(work: Roll, box: str) -> None:
    """Raises StoppedError where somebody does, as a roll's own that was killed may."""
    found = work.runs.at_work(box)
    if found is None:
        raise StoppedError(roll.not_reached(box))
    if found["by"] is not None:
        raise StoppedError(deploy_lock.busy(found["by"]))


def judged_again(work: Roll, turn: Turn, found: Sequence[Gateway]) -> Sequence[Gateway]:
    """What the gateways say when its turn may begin as things stand now: right after its own start
    a gateway knows nothing of anybody for a moment. Raises StoppedError."""
    end = time.monotonic() + work.patience.settle
    while refusal := roll.refusal_of_a_turn(turn, found, interrupt=work.asked.interrupt):
        if time.monotonic() > end:
            raise StoppedError(refusal)
        time.sleep(work.patience.poll)
        found = work.runs.ask(work.gateways)
    return found


def take_out(work: Roll, box: str, found: Sequence[Gateway]) -> None:
    """At every gateway that asks it. Raises StoppedError; it is back then where it was out."""
    where = [name for name, _ in roll.told_of(box, found)]
    work.out[box] = where
    words = "out", box, "--why", f"rolling update from {socket.gethostname()}", "--by", BY_ROLL
    answers = work.runs.ask(where, *words)
    for one in answers:
        if box not in roll.out_names(one):
            with suppress(StoppedError):  # where it stays out is said at the end
                put_back(work, box, answers)
            raise StoppedError(roll.not_taken(box, one, "out"))
    if where:
        print(f"{box} is out of rotation at {', '.join(where)}", flush=True)


def quiet(work: Roll, box: str, found: Sequence[Gateway]) -> Left:
    """What is left on a box that is out, after as long as it may take; what is not over is said.

    Gateways first: what they have sent is at the box last.
    """
    began = time.monotonic()
    end = began + work.asked.drain
    gateways = [name for name, _ in roll.told_of(box, found)]
    sent = waited(work, gateways, AT_GATEWAY, box, end)
    left = roll.of_both(sent, waited(work, [box], AT_BOX, box, end))
    if left.running != 0:
        print(roll.not_quiet(box, left.running, time.monotonic() - began), flush=True)
    return left


def waited(work: Roll, hosts: Sequence[str], at: str, box: str, end: float) -> Left:
    """What these hosts told last. A connection that is lost is made again, until the end."""
    while True:
        rest = max(0.0, end - time.monotonic())
        left = roll.together(work.runs.wait(hosts, at, box, rest)) if hosts else Left(0)
        if left.running is not None or time.monotonic() >= end:
            return left
        time.sleep(work.patience.poll)


def after_a_failure(work: Roll, box: str) -> None:
    """A deploy failed: a box that serves is asked again, unless something of a deploy may still be
    at work there and stop its server. Raises StoppedError in any case."""
    time.sleep(work.patience.settle)
    busy = roll.still_at_work(work.runs.at_work(box))
    if busy:
        raise StoppedError(roll.failed(box, busy))
    found = work.runs.ask(work.gateways)
    if not roll.is_healthy(box, found):
        raise StoppedError(roll.failed(box, roll.why_not_healthy(box, found)))
    by_hand = put_back(work, box, found)
    raise StoppedError(roll.failed_but_serves(box, by_hand))


def wait_until_healthy(work: Roll, turn: Turn) -> Sequence[Gateway]:
    """What the gateways say then. Raises StoppedError where it takes too long."""
    box, patience = turn.box, work.patience
    end = time.monotonic() + patience.healthy
    while not roll.is_healthy(box, found := work.runs.ask(work.gateways)):
        if time.monotonic() > end:
            ill = roll.why_not_healthy(box, found)
            raise StoppedError(roll.not_healthy(box, ill, patience.healthy, deployed=turn.differs))
        time.sleep(patience.poll)
    return found


def put_back(work: Roll, box: str, found: Sequence[Gateway]) -> dict[str, str]:
    """At every gateway where the roll has taken it out, and nobody else since: as these have told
    just now, or do when they are asked for it. Returns where it stays out, see by_hand_at. Raises
    StoppedError."""
    by_hand = roll.by_hand_at(box, found)
    ours = [name for name in work.out[box] if name not in by_hand]
    answers = work.runs.ask(ours, "back", box, "--by", BY_ROLL)
    by_hand |= roll.by_hand_at(box, answers)
    deaf = [
        one
        for one in answers
        if one.boxes is None or (box in roll.out_names(one) and one.name not in by_hand)
    ]
    work.out[box] = [one.name for one in deaf]
    for one in deaf:
        raise StoppedError(roll.not_taken(box, one, "back"))
    del work.out[box]
    return by_hand


if __name__ == "__main__":
    sys.exit(main())
