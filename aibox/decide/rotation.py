"""The rotation: which boxes a gateway asks, by what was taken out by hand and what is healthy.

A box is out from `aibox rotation out` to `aibox rotation back`, whatever is started anew meanwhile.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from aibox.decide.doors import FLEET
from aibox.decide.doors import ROTATION as FILE
from aibox.decide.figures import duration
from aibox.decide.manifest import AIBOX
from aibox.decide.refusal import Refusal, of_file

WHY_MOST = 200  # characters
BY_HAND, BY_ROLL = "hand", "roll"  # who takes boxes out

Out = dict[str, dict[str, Any]]  # {box: {"why": text, "since": seconds since 1970, "by": who}}
Boxes = dict[str, dict[str, Any]]  # as the gateway answers GET /rotation, see `unasked`


def text(out: Mapping[str, Any]) -> str:
    """The file."""
    return json.dumps({"out": dict(out)}, indent=1, sort_keys=True) + "\n"


def taken_out(out: Out, box: str, why: str, by: str, now: float) -> Out:
    """One that is out already stays so since then; the newest reason holds.

    But a hand's outlasts a roll's, which is not to put back what it has not taken out. by: BY_HAND
    or BY_ROLL.
    """
    there = out.get(box)
    if there and there["by"] == BY_HAND and by == BY_ROLL:
        return out
    return {**out, box: {"why": why, "since": there["since"] if there else now, "by": by}}


def put_back(out: Out, box: str, by: str) -> Out:
    """What a hand has taken out stays out for a roll, which may not have seen it yet. by: BY_HAND
    or BY_ROLL."""
    there = out.get(box)
    if there and there["by"] == BY_HAND and by == BY_ROLL:
        return out
    return {name: of for name, of in out.items() if name != box}


def unasked(boxes: Mapping[str, Any], out: Out) -> Boxes:
    """What is known of the boxes where the gateway does not say it: nothing of their health.

    {box: {"models": names, "missing": names, "out": see Out, or None, "healthy": None,
    "found": None}}
    """
    unknown: dict[str, Any] = {"missing": [], "healthy": None, "found": None}
    return {
        name: {"models": of["models"], "out": out.get(name), **unknown}
        for name, of in boxes.items()
    }


def takes_requests(box: Mapping[str, Any]) -> bool:
    """Where its health is not known, it may."""
    return not box["out"] and box["healthy"] is not False


def unserved(boxes: Boxes) -> list[str]:
    """The names that no box is asked for now."""
    served = {name for of in boxes.values() if takes_requests(of) for name in of["models"]}
    names = dict.fromkeys(name for of in boxes.values() for name in of["models"])
    return [name for name in names if name not in served]


# --- refusals ------------------------------------------------------------------------------------


def unknown(box: str, known: Iterable[str]) -> Refusal | None:
    names = sorted(known)
    if box in names:
        return None
    return Refusal(
        f"{box} is no box that this gateway asks",
        f"one of {', '.join(names)}",
        "name one of these; which boxes there are is said in the inventory",
    )


def no_reason(why: str) -> Refusal | None:
    """why: what stands in the way of asking it, for whoever wonders later."""
    if why.strip() and why.isprintable() and len(why) <= WHY_MOST:
        return None
    return Refusal(
        "a reason that can't be shown" if why.strip() else "no reason",
        f"one line of at most {WHY_MOST} characters",
        'say it so: --why "its card is being changed"',
    )


def no_gateway() -> Refusal:
    return Refusal(
        f"{FLEET} is not there or not whole: no gateway here asks several boxes",
        "a gateway of the inventory's group `gateways`",
        "ask on such a one; or name this box there and deploy to it",
    )


def broken(said: str) -> Refusal:
    return Refusal(
        f"{FILE} is not whole: {said}",
        '{"out": {"BOX": {"why": "TEXT", "since": SECONDS, "by": "hand" or "roll"}}}',
        f"delete it: every box is in rotation then, as all are while it is broken (rm {FILE})",
    )


def no_file(error: OSError) -> Refusal:
    """error: of the file, or of the disk below it."""
    return Refusal(
        of_file(error),
        f"{FILE} as a file that can be read and written",
        "mend this on the box, and run it again",
    )


# --- in words ------------------------------------------------------------------------------------


def rows(boxes: Mapping[str, Any], now: float) -> list[str]:
    """One a box, in the order of the boxes. now: seconds since 1970."""
    width = max((len(name) for name in boxes), default=0)
    return [f"{name:<{width}}  {standing(of, now)}" for name, of in boxes.items()]


def standing(box: Mapping[str, Any], now: float) -> str:
    """How one box stands, with the names of what it serves."""
    serves = ", ".join(box["models"])
    if box.get("missing"):
        serves += f" (not yet: {', '.join(box['missing'])})"
    health = {True: "healthy", False: f"not healthy: {box['found']}", None: "health not known"}
    if box["out"]:
        place = f"out for {duration(max(0, now - box['out']['since']))}: {box['out']['why']}"
        return f"{place} ({health[box['healthy']]})  {serves}"
    if box["healthy"]:
        return f"in  {serves}"
    return f"in, {health[box['healthy']]}  {serves}"


def nobody_left(names: Sequence[str], boxes: Boxes) -> str | None:
    """What the clients of these names meet, and what ends it; None without one. names: see
    unserved."""
    if not names:
        return None
    out = [name for name, of in boxes.items() if of["out"] and set(of["models"]) & set(names)]
    back = f" (sudo {AIBOX} rotation back {' or '.join(out)})" if out else ""
    until = f"one is {'put back' if out else 'healthy'}{back}"
    return f"nobody is left that serves {', '.join(names)}: requests for it get 503 until {until}"
