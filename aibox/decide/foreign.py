"""What stands on a box that no deploy lays down and none takes away: shown until it is accepted.

Each thing has one text, which is also what a person writes into the setting `accepted`.
"""

import ipaddress
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.secrecy import without_secrets

SSH_PORT = 22
MOST_LINES = 40  # of a drop-in that are shown
# Where packages of the distribution lay their units (systemd.unit(5)).
PACKAGED_UNITS = ("/usr/lib/systemd/system/", "/lib/systemd/system/")
# Where a person's own unit may lie that a deploy takes over, see aibox/box/found.py.
THEIR_UNITS = ("/etc/systemd/system/", "/usr/local/lib/systemd/system/", *PACKAGED_UNITS)

# What systemd and shells give every process.
_USUAL = re.compile(
    r"_|HOME|INVOCATION_ID|JOURNAL_STREAM|LANG|LANGUAGE|LC_\w+|LISTEN_\w+|LOGNAME|MANAGERPID"
    r"|MEMORY_PRESSURE_\w+|NOTIFY_SOCKET|OLDPWD|PATH|PIDFILE|PWD|SHELL|SHLVL|SYSTEMD_EXEC_PID|TERM|USER"
    r"|WATCHDOG_\w+|(?:CACHE|CONFIGURATION|CREDENTIALS|LOGS|RUNTIME|STATE)_DIRECTORY"
)


@dataclass(frozen=True)
class Declared:
    """What the deploy lays down: paths, members by group, variable names by unit."""

    files: Collection[str]
    groups: Mapping[str, Collection[str]]
    users: Collection[str]
    variables: Mapping[str, Collection[str]]

    @property
    def units(self) -> Collection[str]:
        return self.variables.keys()


@dataclass(frozen=True)
class Foreign:
    """what: the text to accept it by. why: what it means. lines: what it says itself."""

    what: str
    why: str
    lines: tuple[str, ...] = ()


@dataclass(frozen=True)
class Sorted:
    """Foreign things to be shown, accepted ones that are there, accepted ones that are not."""

    new: tuple[Foreign, ...]
    accepted: tuple[str, ...]
    gone: tuple[str, ...]


def foreign_in(
    found: Mapping[str, Any], strays: Iterable[str], declared: Declared
) -> list[Foreign]:
    """Every foreign thing in the probe's answer to "foreign". strays: files among the weights."""
    return [
        *drop_ins(found["units"], declared),
        *variables(found["units"], declared),
        *members(found["members"], found["groups_of"], declared),
        *listeners(found["listeners"], found["ssh_port"], declared),
        *(Foreign(f"file {path}", "it is no file of the weights' commit") for path in strays),
    ]


def drop_ins(units: Mapping[str, Any], declared: Declared) -> list[Foreign]:
    """Files that change a unit of ours, and a unit file that systemd reads instead of ours.

    A unit that we do not lay down ourselves, but only enable, is its package's. Where a person's
    own stands in the place of ours (after a rollback to it), a deploy sets it aside with its
    drop-ins: that is drift.
    """
    things = []
    for name, unit in sorted(units.items()):
        fragment = unit["fragment"]
        ours = any(path.endswith(f"/{name}") for path in declared.files)
        packaged = not ours and fragment.startswith(PACKAGED_UNITS)
        theirs = ours and unit["theirs"] and fragment.startswith(THEIR_UNITS)
        if fragment and not (packaged or theirs) and fragment not in declared.files:
            things.append(Foreign(f"unit file {fragment}", f"systemd reads it for {name}"))
        things += [
            Foreign(f"drop-in {path}", f"it changes what {name} runs", said(content))
            for path, content in sorted(unit["drop_ins"].items())
            if path not in declared.files
            and not (theirs and path.startswith(f"/etc/systemd/system/{name}.d/"))
        ]
    return things


def said(content: str) -> tuple[str, ...]:
    """A file's lines without blank ones, comments and secrets."""
    lines = without_secrets(content).splitlines()
    telling = [line.rstrip() for line in lines if re.match(r"\s*[^\s#;]", line)]
    more = len(telling) - MOST_LINES
    return (*telling[:MOST_LINES], *([f"({more} more lines)"] if more > 0 else ()))


def variables(units: Mapping[str, Any], declared: Declared) -> list[Foreign]:
    """Variables of a running unit that neither we nor a file of it gave it; the names alone."""
    things = []
    for name, unit in sorted(units.items()):
        by_drop_in = "\n".join(unit["drop_ins"].values())
        told = {*declared.variables[name], *unit["given"]}
        for variable in sorted(set(unit["variables"]) - told):
            plain = re.fullmatch(r"[A-Za-z_]\w*", variable, re.ASCII)
            if plain and not _USUAL.fullmatch(variable) and f"{variable}=" not in by_drop_in:
                why = "it runs with it; see `systemctl show-environment` and /etc/environment"
                things.append(Foreign(f"variable {variable} of {name}", why))
    return things


def members(
    groups: Mapping[str, Sequence[str]],
    groups_of: Mapping[str, Sequence[str]],
    declared: Declared,
) -> list[Foreign]:
    """Strangers in our groups, and our users in groups of others."""
    things = [
        Foreign(f"member {user} of {group}", "whatever the group may do, this user may do")
        for group, users in sorted(groups.items())
        for user in sorted(set(users) - set(declared.groups[group]))
    ]
    return things + [
        Foreign(f"member {user} of {group}", f"{user} is a service's user, and alone in its group")
        for user, its in sorted(groups_of.items())
        for group in sorted(its)
        if group not in declared.groups
    ]


def listeners(
    sockets: Iterable[Mapping[str, Any]], ssh_port: int | None, declared: Declared
) -> list[Foreign]:
    """TCP ports open to other machines. Ours are those of our units; the way in is known too."""
    addresses: dict[tuple[int, str], set[str]] = {}
    for socket in sockets:
        ours = socket["unit"] in declared.units
        way_in = socket["port"] == (ssh_port or SSH_PORT)
        if not ours and not way_in and not is_loopback(socket["address"]):
            thing = (socket["port"], socket["name"])
            addresses.setdefault(thing, set()).add(socket["address"])
    return [
        Foreign(f"port {port} {name}", f"it listens on {', '.join(sorted(where))}")
        for (port, name), where in sorted(addresses.items())
    ]


def is_loopback(address: str) -> bool:
    """address: may be a host name too."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return address == "localhost"
    mapped = getattr(found, "ipv4_mapped", None)
    return bool((mapped or found).is_loopback)


def sort(things: Iterable[Foreign], accepted: Sequence[str]) -> Sorted:
    """Which things are new, by the setting `accepted`; blanks at the ends do not count."""
    by_text = {thing.what: thing for thing in things}
    texts = list(dict.fromkeys(text.strip() for text in accepted))
    return Sorted(
        new=tuple(thing for what, thing in by_text.items() if what not in texts),
        accepted=tuple(text for text in texts if text in by_text),
        gone=tuple(text for text in texts if text not in by_text),
    )
