"""Whether boxes are as a deploy would leave them, from pyinfra's plan and each box's own report."""

import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from aibox.decide import textfile
from aibox.decide.figures import counted
from aibox.decide.foreign import Foreign
from aibox.decide.textfile import Family

IN_SYNC, FAILED, DRIFT = 0, 1, 2
FORMAT = 1


class UnfinishedError(ValueError):
    """A run whose output is no answer, in words."""


@dataclass(frozen=True)
class Reason:
    """Why something would be mended: one line, and for a file how it differs.

    refused: it says why a deploy would refuse to mend it.
    """

    text: str
    diff: tuple[str, ...] = ()
    refused: bool = False


@dataclass(frozen=True)
class Mend:
    """One operation of a deploy that would change something."""

    stage: str
    operation: str
    reasons: tuple[Reason, ...]

    @property
    def refused(self) -> bool:
        return any(one.refused for one in self.reasons)


@dataclass(frozen=True)
class Serves:
    """What a deploy is to those who ask a box.

    pause: what they meet where it serves now, "restart" or "reboot"; None for nothing. theirs: a
    server that no deploy has set up and this one would replace, in words; None without one. doors:
    what stands before the server and asks this box alone, by title. models: the names that it is
    to answer to.
    """

    pause: str | None = None
    theirs: str | None = None
    doors: tuple[str, ...] = ()
    models: tuple[str, ...] = ()


@dataclass(frozen=True)
class Audit:
    """What was found on one box: what a deploy would mend, and what is foreign to it."""

    box: str
    mends: tuple[Mend, ...]
    foreign: tuple[Foreign, ...]
    accepted: tuple[str, ...]
    gone: tuple[str, ...]
    serves: Serves = Serves()

    @property
    def in_sync(self) -> bool:
        return not self.mends and not self.foreign

    @property
    def refused(self) -> bool:
        """Whether a deploy would refuse to mend some of it."""
        return any(one.refused for one in self.mends)


# --- from what a run left behind to what it found ----------------------------------------------


def planned(output: str) -> list[dict[str, Any]]:
    """The rows of pyinfra's `--dry --json`. Raises UnfinishedError for anything less than all."""
    if not output.strip():
        raise UnfinishedError("pyinfra gave no plan")
    try:
        document = json.loads(output)
        rows: list[dict[str, Any]] = document["plan"]
        for row in rows:
            named = [row["op_hash"], row["name"], *touched(row)]
            if not all(isinstance(text, str) and text for text in named):
                raise TypeError
    except (ValueError, TypeError, KeyError, RecursionError):
        raise UnfinishedError("pyinfra's plan is damaged, or not whole") from None
    if not rows:
        raise UnfinishedError("pyinfra's plan holds nothing: nothing was looked at")
    return rows


def touched(row: Mapping[str, Any]) -> list[str]:
    return [*row["hosts_with_change"], *row["hosts_with_conditional_change"]]


def audits(
    rows: Sequence[Mapping[str, Any]], reports: Mapping[str, Mapping[str, Any]]
) -> list[Audit]:
    """What was found on each box that left a report.

    reports: {box: {"operations": how many were planned, "reasons": {op_hash: [Reason as a
    mapping]}, "new": [Foreign as a mapping], "accepted": [text], "gone": [text], "serves":
    Serves as a mapping, null for a host that is no box}}.
    """
    return [audit(box, rows, report) for box, report in sorted(reports.items())]


def gap(rows: Sequence[Mapping[str, Any]], reports: Mapping[str, Mapping[str, Any]]) -> str | None:
    """What was not looked at to the end, in words; None when everything was."""
    if not reports:
        return "no box was looked at to the end"
    silent = {box for row in rows for box in touched(row)} - reports.keys()
    silent |= {box for box, report in reports.items() if not report["operations"]}
    return f"not looked at to the end: {', '.join(sorted(silent))}" if silent else None


def audit(box: str, rows: Sequence[Mapping[str, Any]], report: Mapping[str, Any]) -> Audit:
    mends = [mend(row, report["reasons"]) for row in rows if box in touched(row)]
    return Audit(
        box=box,
        mends=tuple(mends),
        foreign=tuple(
            Foreign(one["what"], one["why"], tuple(one["lines"])) for one in report["new"]
        ),
        accepted=tuple(report["accepted"]),
        gone=tuple(report["gone"]),
        serves=served(report.get("serves") or {}),
    )


def served(told: Mapping[str, Any]) -> Serves:
    """Of a host that is no box nothing is told."""
    doors, models = tuple(told.get("doors", ())), tuple(told.get("models", ()))
    return Serves(told.get("pause"), told.get("theirs"), doors, models)


def mend(row: Mapping[str, Any], reasons: Mapping[str, Any]) -> Mend:
    stage, bar, operation = row["name"].partition(" | ")
    told = [
        Reason(one["text"], tuple(one["diff"]), one.get("refused", False))
        for one in reasons.get(row["op_hash"], ())
    ]
    return Mend(stage if bar else "", operation if bar else stage, tuple(told))


def exit_code(found: Sequence[Audit], failure: str | None) -> int:
    """0 only where every box was looked at and nothing was found."""
    if failure is not None or not found:
        return FAILED
    return IN_SYNC if all(one.in_sync for one in found) else DRIFT


# --- in words ----------------------------------------------------------------------------------


def table(found: Audit) -> Iterator[str]:
    """What was found on a box, line by line, by stage."""
    yield f"{found.box}: {summary(found)}"
    width = max((len(one.stage) for one in found.mends), default=0)
    for one in found.mends:
        yield f"  {one.stage:<{width}}  {one.operation}"
        for reason in one.reasons or (Reason("it is not as it should be"),):
            yield f"  {'':<{width}}    {reason.text}"
            yield from (f"  {'':<{width}}      {line}" for line in reason.diff)
    if found.foreign:
        yield "  foreign: no deploy lays it down or takes it away"
    for thing in found.foreign:
        yield f"    {thing.what}: {thing.why}"
        yield from (f"        {line}" for line in thing.lines)
    yield from (f"  accepted         {text}" for text in found.accepted)
    yield from (f"  no longer there  {text} (take it out of `accepted`)" for text in found.gone)


def summary(found: Audit) -> str:
    if found.in_sync:
        return "in sync"
    words = []
    if found.mends:
        things = counted(len(found.mends), "thing")
        refused = ", and would be refused" if found.refused else ""
        words.append(f"a deploy would do {things}{refused}")
    if found.foreign:
        words.append(f"{counted(len(found.foreign), 'thing')} foreign and not accepted")
    return ", ".join(words)


def next_steps(found: Sequence[Audit], deploy: str) -> Iterator[str]:
    """What a person does about it. deploy: the command of one."""
    if any(one.mends and not one.refused for one in found):
        yield f"a deploy mends it: {deploy}"
    for one in found:
        if one.refused:
            yield f"a deploy of {one.box} would be refused: first change what is said above"
    if any(one.foreign for one in found):
        yield "foreign things: take them away, or list their text in the setting `accepted`"


def printable(line: str) -> str:
    """A line as a terminal may have it: what a box says may hold control characters."""
    return "".join(one if one.isprintable() else repr(one)[1:-1] for one in line)


# --- for machines ------------------------------------------------------------------------------


def document(found: Sequence[Audit], failure: str | None, when: float) -> dict[str, Any]:
    """For --json. when: seconds since the epoch."""
    return {
        "format": FORMAT,
        "exit_code": exit_code(found, failure),
        "failure": failure,
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(when)),
        "boxes": {
            one.box: {
                "in_sync": one.in_sync,
                "mends": [asdict(row) for row in one.mends],
                "foreign": [asdict(thing) for thing in one.foreign],
                "accepted": list(one.accepted),
                "no_longer_there": list(one.gone),
            }
            for one in found
        },
    }


def metrics(found: Sequence[Audit], failure: str | None, when: float) -> str:
    """For Prometheus' textfile collector. when: seconds since the epoch."""
    families = [
        Family(
            "aibox_drift_exit_code",
            "How the last check ended: 0 in sync, 1 it could not look, 2 drift or foreign things.",
            [({}, exit_code(found, failure))],
        ),
        Family(
            "aibox_drift_check_timestamp_seconds", "When the last check ended.", [({}, round(when))]
        ),
        Family(
            "aibox_drift_operations",
            "Operations of a deploy that would change something on a box.",
            [({"box": one.box}, len(one.mends)) for one in found],
        ),
        Family(
            "aibox_drift_foreign",
            "Foreign things on a box that are not accepted.",
            [({"box": one.box}, len(one.foreign)) for one in found],
        ),
    ]
    return textfile.text(families)


def deployed(told: str) -> str:
    """The same figures after a deploy that came to its end: nothing is left to mend."""
    return re.sub(r"^(aibox_drift_operations\{.*\}) \S+$", r"\1 0", told, flags=re.MULTILINE)
