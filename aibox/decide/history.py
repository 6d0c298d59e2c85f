"""What this box has served: the units that passed the gate, and which of them can come back."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from aibox.decide.manifest import AIBOX
from aibox.decide.refusal import Refusal
from aibox.decide.unit import flag_changes

HISTORY = f"`sudo {AIBOX} status --history` on the box"
DEPLOY = "run the deploy: pyinfra inventory deploy.py"
HIS = "found"  # by this name a person's own unit is meant, whatever the history still holds
TO = "pyinfra inventory tasks/rollback.py --data to="
TO_HIS = f"to your own unit: {TO}{HIS}"
MOST = 10
BY_DEPLOY, BY_ROLLBACK, AS_FOUND = "deploy", "rollback", "found"


@dataclass(frozen=True)
class Passed:
    """One passing of the gate.

    sha256: of the unit's text. when: seconds since the epoch. how: "deploy", "rollback", or
    "found" for a unit that served before any gate was there. seconds_start: from the new process
    to its /health. seconds_down: from the stop of the old one; None where none served before.
    account: the memory account of the start, by name. environment: what the unit sets, without
    secrets; None where it is not known: of a unit that was found, and of entries of before.
    """

    sha256: str
    when: float
    release: str
    release_id: str
    weights: str
    commit: str
    model: str
    speculative: bool
    command: list[str]
    how: str = BY_DEPLOY
    seconds_start: float | None = None
    seconds_down: float | None = None
    account: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] | None = None


def read(record: object) -> list[Passed]:
    """The entries of history.json, the newest first; what is not one is left out."""
    rows = record if isinstance(record, list) else []
    return [entry for row in rows if (entry := entry_of(row)) is not None]


def entry_of(row: object) -> Passed | None:
    try:
        entry = Passed(**row)  # type: ignore[arg-type]  # what is no mapping raises TypeError
    except TypeError:
        return None
    sound = isinstance(entry.command, list) and isinstance(entry.when, int | float)
    return entry if sound and isinstance(entry.sha256, str) else None


def with_newest(history: Sequence[Passed], entry: Passed) -> list[dict[str, Any]]:
    """What history.json says when `entry` has passed. The same unit in a row is one entry."""
    again = bool(history) and history[0].sha256 == entry.sha256
    if again:  # the slowest start counts; one that was not started anew has no figures
        starts = [one.seconds_start for one in (history[0], entry) if one.seconds_start is not None]
        down = entry.seconds_down if entry.seconds_start is not None else history[0].seconds_down
        account = entry.account if entry.seconds_start is not None else history[0].account
        entry = replace(
            entry, seconds_start=max(starts, default=None), seconds_down=down, account=account
        )
    rest = history[1:] if again else history
    return [asdict(one) for one in [entry, *rest][:MOST]]


# --- going back ----------------------------------------------------------------------------------


def offered(history: Sequence[Passed], there: Collection[str]) -> list[Passed]:
    """Each unit once, the newest passing of it, where its release and weights are still there.

    there: folders, and the sums of units, that the box still has.
    """
    newest: dict[str, Passed] = {}
    for entry in history:
        newest.setdefault(entry.sha256, entry)
    return [
        entry
        for entry in newest.values()
        if {entry.release, entry.weights, entry.sha256} <= set(there)
    ]


def to_go_back_to(
    history: Sequence[Passed], there: Collection[str], current: str | None
) -> Passed | None:
    """What a rollback without a name goes to: what served before the current unit was deployed.

    current: the sum of the unit that runs. A rollback is an entry too, and no step forward: after
    one, the next goes further back.
    """
    good = {entry.sha256 for entry in offered(history, there)} - {current}
    deployed = [
        index
        for index, entry in enumerate(history)
        if entry.sha256 == current and entry.how != BY_ROLLBACK
    ]
    older = history[deployed[0] + 1 :] if deployed else history
    return next((entry for entry in older if entry.sha256 in good), None)


def chosen(
    history: Sequence[Passed],
    there: Collection[str],
    current: str | None,
    name: str | None,
    *,
    serves: bool = True,
    found: Passed | None = None,
    kept: Sequence[Passed] = (),
) -> Passed | Refusal:
    """What a rollback goes to: the one that a person names, or what served before the current.

    serves: whether the current unit, by its sum, is the last good one and answers. Where it is not
    or does not, the last good one is what served before. found: a person's own unit as a
    deploy met it last, which is always there to go back to. kept: that and older ones of theirs,
    each to be named by its sum.
    """
    if name == HIS:
        return his_own(found, there)
    if not history and not kept:
        return Refusal("nothing has passed its gate on this box", "a box that has served", DEPLOY)
    if name is None:
        older = to_go_back_to(history, there, current if serves else None)
        return older or Refusal(
            "nothing served here before what runs now, or its release or weights were removed",
            "an older unit to go back to",
            f"look at {HISTORY}; change the card and deploy" + (f"; {TO_HIS}" if found else ""),
        )
    meant = named(history, name, kept)
    if len(meant) != 1:
        what = "several units" if meant else "no unit"
        remedy = f"look at {HISTORY}: its first column, or enough of its second"
        return Refusal(f"{what} of the history by the name {name!r}", "one of them", remedy)
    lost = missing(meant[0], there)
    if lost:
        remedy = f"name one that {HISTORY} offers, or deploy its settings anew"
        return Refusal(f"{name}: {' and '.join(lost)}", "a unit that can still run", remedy)
    return meant[0]


def his_own(found: Passed | None, there: Collection[str]) -> Passed | Refusal:
    if found is None:
        return Refusal(
            "no unit of your own was found on this box before the first deploy, or it was masked",
            "a unit that somebody had built by hand",
            f"name one that {HISTORY} offers",
        )
    lost = missing(found, there)
    if lost:
        remedy = f"bring it back ({' and '.join({found.release, found.weights} - set(there))})"
        return Refusal(f"your own unit: {' and '.join(lost)}", "a unit that can still run", remedy)
    return found


def named(history: Sequence[Passed], name: str, kept: Sequence[Passed] = ()) -> list[Passed]:
    """The units that a person means: a number of `aibox status --history`, or how a sum begins."""
    if name.isdigit() and 1 <= int(name) <= len(history):
        return [history[int(name) - 1]]
    every = reversed([*history, *kept])
    found = {entry.sha256: entry for entry in every if entry.sha256.startswith(name)}
    return list(found.values()) if len(name) >= 4 else []


# --- in words ------------------------------------------------------------------------------------


def last_screen(entry: Passed, port: int | None, *, his: bool) -> list[tuple[str, str]]:
    """(label, text) of what serves after a rollback. entry: what it went to; port: of its server,
    None where nobody knows it; his: whether it is a person's own unit."""
    when = datetime.fromtimestamp(entry.when, UTC).strftime("%Y-%m-%d %H:%M UTC")
    address = f" on http://localhost:{port}/v1" if port else ""
    unit = f"your own, as it stood at {when}" if his else f"{entry.sha256[:12]} of {when}"
    return [
        ("serves", f"{entry.model}{address}"),
        ("unit", unit),
        ("release", release_of(entry)),
        ("MTP", "on" if entry.speculative else "off"),
        ("next", "the next deploy goes forward again, to what the settings say:"),
        ("", "pyinfra inventory deploy.py"),
        ("", f"what has served here: {HISTORY}"),
    ]


def changes(newer: Passed, older: Passed) -> list[str]:
    """How one entry differs from the one before it, in words; empty when it does not."""
    rows = []
    if newer.release_id != older.release_id:
        rows.append(f"{release_of(older)} -> {release_of(newer)}")
    if newer.commit != older.commit:
        rows.append(f"weights {weights_of(older)} -> {weights_of(newer)}")
    rows += flag_changes(older.command[3:], newer.command[3:])
    return rows + variable_changes(older.environment, newer.environment)


# They follow from the release, which has a row of its own.
FOLLOW = ("PATH", "CUDA_HOME")


def variable_changes(older: Mapping[str, str] | None, newer: Mapping[str, str] | None) -> list[str]:
    """Variables that changed, came and went, as flag_changes tells flags."""
    if older is None or newer is None:
        return []
    names = [name for name in sorted({*older, *newer}) if name not in FOLLOW]
    differing = [name for name in names if older.get(name) != newer.get(name)]
    was = {name: f"{name}={older[name]}" for name in differing if name in older}
    is_now = {name: f"{name}={newer[name]}" for name in differing if name in newer}
    return [
        *(f"{was[name]} -> {is_now[name]}" for name in differing if name in was and name in is_now),
        *(f"+ {is_now[name]}" for name in differing if name not in was),
        *(f"- {was[name]}" for name in differing if name not in is_now),
    ]


def release_of(entry: Passed) -> str:
    """By its id; of a unit that was found only the venv is known, or not even that."""
    if not entry.release_id:
        return "a vLLM of its own"
    ours = re.fullmatch(r"\d\S*-[0-9a-f]{8}", entry.release_id)
    return f"vLLM {entry.release_id}" if ours else f"your own venv {entry.release}"


def weights_of(entry: Passed) -> str:
    return entry.commit[:12] or entry.weights or "unknown"


def missing(entry: Passed, there: Collection[str]) -> list[str]:
    """Why an entry can't come back."""
    parts: Mapping[str, str] = {
        entry.release: "its release is gone",
        entry.weights: "its weights are gone",
        entry.sha256: "its unit is gone",
    }
    return [words for path, words in parts.items() if path not in there]
