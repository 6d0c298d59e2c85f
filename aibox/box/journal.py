"""What the journal holds of a unit, start by start, and what the kernel said meanwhile."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from aibox.box.probe.commands import ran

STARTS = 3  # that are looked at: systemd may have begun the next try already
LINES = 20_000  # of a start, the last; a server that was up for weeks has many
KERNEL = "NVRM|Xid|oom-kill|Out of memory|Memory cgroup out"

Entry = dict[str, Any]


@dataclass
class Told:
    """One invocation of the unit: its own lines and systemd's about it, since a moment."""

    invocation: str
    began: float
    lines: list[str] = field(default_factory=list)
    own: int = 0  # lines that the server itself said


def flushed() -> None:
    """See that all that was said is written down, before a last look."""
    ran(["journalctl", "--sync"], 10)


def told_since(
    unit: str, moment: float, invocation: str | None = None, until: float | None = None
) -> list[str]:
    """All that a unit and systemd said of it since a moment, or of one start, oldest first."""
    lines = []
    end = [] if until is None else ["--until", f"@{until:.3f}"]
    for entry in entries(["-u", unit, "--since", f"@{moment:.3f}", *end]):
        own = entry.get("_SYSTEMD_UNIT") == unit
        if invocation in (None, start_of(entry, own=own)):
            lines += [headed(entry, line, own=own) for line in message_of(entry)]
    return lines


def start_of(entry: Entry, *, own: bool) -> Any:
    """The invocation that a line belongs to; None where it says none."""
    return entry.get("_SYSTEMD_INVOCATION_ID") if own else entry.get("INVOCATION_ID")


def starts_of(unit: str) -> list[Told]:
    """The last invocations of a unit in this boot, the oldest first, with the kernel's lines."""
    found = entries(["-b", "-u", unit, "-n", str(LINES)])
    starts: dict[str, Told] = {}
    for entry in found:
        own = entry.get("_SYSTEMD_UNIT") == unit
        name = start_of(entry, own=own)
        if not isinstance(name, str):
            continue
        start = starts.setdefault(name, Told(name, moment_of(entry)))
        start.own += own
        start.lines += [headed(entry, line, own=own) for line in message_of(entry)]
    last = sorted(starts.values(), key=lambda start: start.began)[-STARTS:]
    if last:
        add_kernel(last)
    return last


def add_kernel(starts: Sequence[Told]) -> None:
    """The kernel's lines of the card and of memory, each to the start it fell into."""
    since = f"@{starts[0].began:.0f}"
    for entry in entries(["-b", "-k", "--since", since, "--grep", KERNEL]):
        into = [start for start in starts if start.began <= moment_of(entry)]
        if into:
            into[-1].lines += [headed(entry, line, own=False) for line in message_of(entry)]


def entries(words: Sequence[str]) -> list[Entry]:
    said = ran(["journalctl", *words, "-o", "json", "--no-pager", "-q"], 60)
    found = []
    for row in (said.stdout if said else "").splitlines():
        try:
            entry = json.loads(row)
        except ValueError:
            continue
        if isinstance(entry, dict):
            found.append(entry)
    return found


def message_of(entry: Entry) -> list[str]:
    """The lines of a message; the journal gives one with control characters as bytes."""
    message = entry.get("MESSAGE")
    if isinstance(message, list):
        message = bytes(message).decode(errors="replace")
    return message.splitlines() if isinstance(message, str) else []


def moment_of(entry: Entry) -> float:
    return int(entry.get("__REALTIME_TIMESTAMP", "0")) / 1e6


def headed(entry: Entry, line: str, *, own: bool) -> str:
    """A line as `journalctl` shows it, by which its writer is known; the server's as they are."""
    if own:
        return line
    stamp = time.strftime("%b %d %H:%M:%S", time.gmtime(moment_of(entry)))
    return f"{stamp} box {entry.get('SYSLOG_IDENTIFIER', 'systemd')}: {line}"
