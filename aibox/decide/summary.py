"""One row a box, where a run has worked on several: how it ended there, or what it would do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.figures import counted

ROLL = "python -m tasks.roll"
NO_CONNECTION = "no ssh connection: "
NARROWEST = 40  # columns that an outcome has at least


@dataclass(frozen=True)
class Seen:
    """What a run knows of a box.

    refusals: what was found wrong, in words, since the last operation that went well. at: the
    operation that it came to last, None before the first. due: operations with something to do;
    done: those that changed something; ended: whether all of them have ended. model: None where it
    serves none. pause: what its server's clients will meet ("restart", "reboot"); None for nothing.
    models: the names that it answers to. out: where gateways of the run leave it out, and why.
    """

    box: str
    reached: bool = True
    failed: bool = False
    refusals: Sequence[str] = ()
    at: str | None = None
    due: int = 0
    done: int = 0
    ended: bool = False
    model: str | None = None
    pause: str | None = None
    models: Collection[str] = ()
    out: str | None = None


def outcome(seen: Seen, *, carried_out: bool) -> str:
    """How a run ended on a box. carried_out: whether it was to do anything, or only looked."""
    first, *more = seen.refusals or [""]
    others = f" (and {counted(len(more), 'more cause')})" if more else ""
    if seen.failed and not seen.reached:
        return _because("not reached", first.removeprefix(NO_CONNECTION))
    if seen.failed and seen.at is not None:
        return _because(f"failed at {seen.at}", f"{first}{others}")
    if seen.failed:
        return _because("refused" if first else "no plan could be made", f"{first}{others}")
    if not carried_out:
        return _planned(seen)
    if not seen.ended:
        return f"broken off at {seen.at}" if seen.at else "nothing was done"
    change = counted(seen.done, "change") if seen.done else "in sync"
    served = f"serves {seen.model}, {change}" if seen.model else change
    return f"{served}, {seen.out}" if seen.out else served


def _because(what: str, cause: str) -> str:
    return f"{what}: {cause}" if cause else what


def _planned(seen: Seen) -> str:
    return would_do(seen.due, seen.pause) if seen.due else "in sync"


def would_do(things: int, pause: str | None) -> str:
    """pause: what the server's clients will meet, see `pause`."""
    server = {None: "", "restart": ", restarts the server", "reboot": ", reboots"}[pause]
    return f"would do {counted(things, 'thing')}{server}"


def pause(*, serves: bool, reboot: bool, restart: bool) -> str | None:
    """What a server's clients will meet where it serves now: "reboot", "restart" or nothing."""
    due = "reboot" if reboot else "restart" if restart else None
    return due if serves else None


def out_of_rotation(box: str, told: Mapping[str, Mapping[str, Any]]) -> str | None:
    """Where gateways leave a box out, and why; None where all ask it. told: {gateway: {box: see
    aibox.decide.rotation.Out}}."""
    where = {gateway: out[box]["why"] for gateway, out in told.items() if box in out}
    if not where:
        return None
    return f"out of rotation at {', '.join(where)}: {next(iter(where.values()))}"


def left_out_rows(
    out: Mapping[str, Mapping[str, Any]] | None, gateways: Sequence[str], command: str
) -> list[str]:
    """For the last screen of one box. out: what it leaves out, None where it is no gateway.
    gateways: of the inventory. command: of `aibox rotation`."""
    if out is None:
        told = f"`{command}` on {', '.join(gateways)} says whether this box is asked"
        return [told] if gateways else []
    left_out = [
        f"{box} is out of rotation here: {of['why']}; back by `{command} back {box}`"
        for box, of in out.items()
    ]
    return [*left_out, f"`{command}` says how each box stands, and takes one out"]


def rows(run: Sequence[Seen], width: int, *, carried_out: bool) -> list[tuple[str, str]]:
    """(name, outcome) of each box, in the order given. width: columns of a row, a blank between."""
    room = max(NARROWEST, width - max((len(one.box) for one in run), default=0) - 2)
    texts = [outcome(one, carried_out=carried_out).splitlines()[0] for one in run]
    shown = [text if len(text) <= room else f"{text[: room - 1]}…" for text in texts]
    return [(one.box, text) for one, text in zip(run, shown, strict=True)]


def pausing_together(run: Sequence[Seen]) -> str | None:
    """What is to be said where several boxes, over which gateways spread the requests for one
    model, stop serving in the same run; None where none do."""
    serving: dict[str, list[str]] = {}
    for one in run:
        if one.pause and not one.failed:
            for name in one.models:
                serving.setdefault(name, []).append(one.box)
    together = {box for boxes in serving.values() if len(boxes) > 1 for box in boxes}
    if not together:
        return None
    names = [one.box for one in run if one.box in together]
    return (
        f"{', '.join(names[:-1])} and {names[-1]} serve the same and would pause at the same time: "
        f"`{ROLL}` deploys to one after the other, and each ends its requests first"
    )
