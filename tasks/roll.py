"""Deploy to one box after the other, each out of rotation meanwhile: `python -m tasks.roll`.

No request at a gateway is lost: a box is asked no more, ends what it works on, is deployed to, and
is asked again when every gateway finds it healthy. It shows what differs and asks once. What fails
stops it; the next roll goes on from there. Exit codes: 0 done or nothing to do, 1 anything else.
"""

from __future__ import annotations

import argparse
import fcntl
import io
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from aibox.decide import drift as drifts
from aibox.decide import roll
from aibox.decide.figures import duration
from aibox.decide.refusal import Refusal
from aibox.decide.roll import Gateway, Looked, Turn
from tasks import drift, roll_runs
from tasks.parser import Parser

DRAIN_S = 600  # LiteLLM's own limit of a request
HEALTHY_S = 120  # until the gateways find a box healthy that was deployed to
SETTLE_S = 8  # until they have noticed that one is not: two looks, each with its patience
POLL_S = 1.0


class StoppedError(Exception):
    """The roll ends here. refusal: why. left: what is to be said of boxes that are out."""

    def __init__(self, refusal: Refusal, left: Sequence[str] = ()) -> None:
        super().__init__(refusal.found)
        self.refusal, self.left = refusal, left


@dataclass
class Roll:
    """One roll. out: {box: gateways that leave it out}, now. skipped: boxes that were left alone
    although their turn had come."""

    asked: argparse.Namespace
    gateways: list[str]
    out: dict[str, list[str]] = field(default_factory=dict)
    skipped: list[str] = field(default_factory=list)


def main(words: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):  # whatever a box is called, in whatever locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    asked = parser().parse_args(words)
    try:
        with one_at_a_time(asked.inventory):
            return rolled(asked)
    except StoppedError as stopped:
        say(stopped.refusal, stopped.left)
    except KeyboardInterrupt:
        print("interrupted: nothing was changed", file=sys.stderr)
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
    if not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text} is no number of seconds")
    return int(text)


def say(refusal: Refusal, more: Sequence[str] = ()) -> None:
    sys.stdout.flush()
    for line in [*str(refusal).splitlines(), *more]:
        print(drifts.printable(line), file=sys.stderr, flush=True)


@contextmanager
def one_at_a_time(inventory: str) -> Iterator[None]:
    """Two rolls would each take what the other has out for what an earlier one has left."""
    path = Path(inventory)
    if not path.is_file():
        yield
        return
    with path.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            found = f"another roll of {os.path.relpath(path)} is at work"
            raise StoppedError(Refusal(found, "one at a time", "wait for it, or end it")) from None
        yield


# --- before it begins ----------------------------------------------------------------------------


def rolled(asked: argparse.Namespace) -> int:
    """Look, refuse or ask, and do it. Returns the exit code. Raises StoppedError."""
    names = roll_runs.named(asked)
    if isinstance(names, str):
        print(names, file=sys.stderr)
        return 1
    if not names["gateways"]:
        raise StoppedError(roll.no_gateways())
    looked = look(asked, names["boxes"], names["gateways"])
    refusals = roll.refusals(looked, interrupt=asked.interrupt)
    for refusal in refusals:
        say(refusal)
    if refusals:
        return 1
    turns = roll.turns(looked)
    for line in roll.plan(turns, looked.gateways):
        print(drifts.printable(line), flush=True)
    work = Roll(asked, names["gateways"])
    if any(one.is_due for one in turns):
        agreed(asked)
        in_turn(work, [one for one in turns if one.is_due])
    left = roll.ending(turns)
    for line in left:
        print(drifts.printable(line))
    return 1 if left or work.skipped else 0


def look(asked: argparse.Namespace, boxes: Sequence[str], gateways: Sequence[str]) -> Looked:
    """Everything, with what differs on the screen."""
    answers = roll_runs.ask(asked, gateways)
    audits, failure = roll_runs.audits(asked)
    for audit in audits.values():
        for line in drifts.table(audit) if audit.mends else ():
            print(drifts.printable(line))
    sys.stdout.flush()
    if failure is not None:
        print(failure, file=sys.stderr)
    return Looked(boxes, answers, audits)


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
    """Each box to its end. Raises StoppedError, with what is out then."""
    try:
        for at, turn in enumerate(turns):
            print(f"\n==> {turn.box} ({at + 1} of {len(turns)})", flush=True)
            began = time.monotonic()
            done = turned(work, turn)
            print(f"==> {turn.box}: {done}, {duration(time.monotonic() - began)}", flush=True)
    except (KeyboardInterrupt, StoppedError) as ended:
        refusal = ended.refusal if isinstance(ended, StoppedError) else roll.interrupted()
        left = [line for box, where in work.out.items() for line in roll.left_out(box, where)]
        raise StoppedError(refusal, left) from None


def turned(work: Roll, turn: Turn) -> str:
    """One box: out, quiet, deployed to, healthy, back. Returns what became of it."""
    box, asked = turn.box, work.asked
    found = roll_runs.ask(asked, work.gateways)
    by_hand = roll.reason_of_a_hand(box, found)
    if by_hand is not None:
        work.skipped.append(box)
        return f"left alone, somebody has taken it out meanwhile: {by_hand}"
    take_out(work, box, judged_again(work, turn, found))
    left = roll_runs.wait(asked, box, asked.drain)
    if left != 0:
        print(roll.not_quiet(box, left, asked.drain), flush=True)
    if turn.differs and roll_runs.deploy(asked, box, quiet=left == 0):
        after_a_failure(work, box)
    wait_until_healthy(work, box)
    put_back(work, box)
    return "done, and asked again"


def judged_again(work: Roll, turn: Turn, found: Sequence[Gateway]) -> Sequence[Gateway]:
    """What the gateways say when its turn may begin as things stand now: right after its own start
    a gateway knows nothing of anybody for a moment. Raises StoppedError."""
    end = time.monotonic() + SETTLE_S
    while refusal := roll.refusal_of_a_turn(turn, found, interrupt=work.asked.interrupt):
        if time.monotonic() > end:
            raise StoppedError(refusal)
        time.sleep(POLL_S)
        found = roll_runs.ask(work.asked, work.gateways)
    return found


def take_out(work: Roll, box: str, found: Sequence[Gateway]) -> None:
    """At every gateway that asks it. Raises StoppedError; it is back then where it was out."""
    where = [name for name, _ in roll.told_of(box, found)]
    work.out[box] = where
    why = f"{roll.WHY} from {socket.gethostname()}"
    for one in roll_runs.ask(work.asked, where, "out", box, "--why", why):
        if box not in roll.out_names(one):
            put_back(work, box)
            raise StoppedError(roll.not_taken(box, one, "out"))
    if where:
        print(f"{box} is out of rotation at {', '.join(where)}", flush=True)


def after_a_failure(work: Roll, box: str) -> None:
    """A deploy failed: a box that serves is asked again. Raises StoppedError in any case."""
    time.sleep(SETTLE_S)
    found = roll_runs.ask(work.asked, work.gateways)
    if not roll.is_healthy(box, found):
        raise StoppedError(roll.failed(box, roll.why_not_healthy(box, found)))
    put_back(work, box)
    raise StoppedError(roll.failed_but_serves(box))


def wait_until_healthy(work: Roll, box: str) -> None:
    """Raises StoppedError where it takes too long."""
    end = time.monotonic() + HEALTHY_S
    while not roll.is_healthy(box, found := roll_runs.ask(work.asked, work.gateways)):
        if time.monotonic() > end:
            raise StoppedError(roll.not_healthy(box, roll.why_not_healthy(box, found), HEALTHY_S))
        time.sleep(POLL_S)


def put_back(work: Roll, box: str) -> None:
    """At every gateway that leaves it out. Raises StoppedError."""
    answers = roll_runs.ask(work.asked, work.out[box], "back", box)
    deaf = [one for one in answers if one.boxes is None or box in roll.out_names(one)]
    work.out[box] = [one.name for one in deaf]
    for one in deaf:
        raise StoppedError(roll.not_taken(box, one, "back"))
    del work.out[box]


if __name__ == "__main__":
    sys.exit(main())
