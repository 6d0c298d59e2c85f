"""What a deploy would change about a server that a person runs, line by line, and what stays."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePosixPath

from aibox.decide import launch
from aibox.decide.consequences import as_python
from aibox.decide.discovery import Kept, Ours, Server
from aibox.decide.fault_about import SITE
from aibox.decide.plan import cut
from aibox.decide.secrecy import HIDDEN, words_without_secrets
from aibox.decide.standing import moment
from aibox.decide.start_limits import unit_limits
from aibox.decide.unit import OWN_FLAGS, flag_changes

MOST_CHANGES = 14
VISIBLE = "CUDA_VISIBLE_DEVICES"
# What they mean to clients stands with the consequences.
TOLD_THERE = ("port", "api-key", "served-model-name")


def adopted(servers: Sequence[Server], ours: Ours) -> Server | None:
    """The one that a deploy would stand in for: what serves now, of our name or on our port first;
    else a unit of our name that does not run."""
    running = [one for one in servers if one.pid is not None]
    named = [one for one in servers if one.manager == "system" and one.unit == ours.unit]
    on_port = [one for one in running if one.port == ours.port]
    named_and_running = [one for one in named if one.pid is not None]
    return next(iter([*named_and_running, *on_port, *running, *named]), None)


def changes(theirs: Server, ours: Ours) -> list[str]:
    """Line by line against what they run: flags, user, environment, and the rest of the unit."""
    start = theirs.launch
    older = start.without(*TOLD_THERE) if start else []
    own = [word for words in OWN_FLAGS for word in words]
    newer = [*own, *launch.launch(ours.flags).without(*TOLD_THERE)]
    rows = cut(flag_changes(words_without_secrets(older), newer), MOST_CHANGES) or ["no flag"]
    if theirs.user and theirs.user != ours.user:
        rows.append(f"user {theirs.user} -> {ours.user}")
    rows += _lost_variables(theirs, ours)
    rows += _other_settings(theirs, ours)
    rows += _of_drop_ins(theirs)
    stem = ours.unit.removesuffix(".service")
    sandbox = "sandbox: no home folders, no new rights, no device but the card's; it writes to"
    return [*rows, f"{sandbox} /var/lib/{stem} and /var/cache/{stem} only"]


def _lost_variables(theirs: Server, ours: Ours) -> list[str]:
    """Which of their variables go, and the line that keeps those that are no secrets."""
    set_there = launch.environment(theirs.texts)
    lost = {name: set_there[name] for name in sorted(set_there.keys() - ours.environment.keys())}
    if not lost:
        return []
    cards = lost.pop(VISIBLE, None)  # it would win over the cards that a deploy judges
    rows = [f"no longer set: {VISIBLE}={cards}; gpu_uuid names the cards"] if cards else []
    kept = {name: value for name, value in lost.items() if HIDDEN not in value}
    if not kept:
        return [*rows, *([f"no longer set: {', '.join(lost)}"] if lost else [])]
    instead = " in place of its `server_environment`" if ours.variables else ""
    return [
        *rows,
        f"no longer set: {', '.join(lost)}; where one is missed, in {SITE}{instead}:",
        f"  server_environment = {as_python({**ours.variables, **kept})}",
    ]


def stays(theirs: Server, ours: Ours, kept: Kept | None = None) -> list[str]:
    """What a person keeps, and the way back. kept: how their unit was kept before."""
    if theirs.manager != "system" or theirs.unit != ours.unit or theirs.starter:
        return []
    how = "as it is now is kept"
    if kept is not None:
        then = moment(kept.when)
        how = f"is kept already, as it stood {then}"
        how = f"as it stands now is kept, changed since {then}" if kept.changed else how
    return [
        f"{theirs.unit} {how}, and comes back with",
        "  pyinfra inventory tasks/rollback.py --data to=found",
        f"files of {theirs.user or 'its user'}, other units and their ports are not touched",
    ]


# What has rows of its own, or is ours in another way.
_TOLD = {"ExecStart", "Environment", "User", "Group"}


def _of_drop_ins(theirs: Server) -> list[str]:
    """Those of /etc/systemd/system go with their unit; what lies elsewhere is not its alone."""
    folder = PurePosixPath("/etc/systemd/system", f"{theirs.unit}.d")
    paths = [PurePosixPath(path) for path in sorted(theirs.drop_ins)]
    going = ", ".join(path.name for path in paths if path.parent == folder)
    staying = ", ".join(str(path) for path in paths if path.parent != folder)
    rows = [f"drop-ins set aside: {going}"] if going else []
    return rows + ([f"drop-ins that stay, and change ours too: {staying}"] if staying else [])


def of_our_unit(ours: Ours) -> dict[str, str]:
    """What a deploy's unit says of settings that a person's unit often has."""
    limits = unit_limits(ours.start_timeout)
    return {
        "Type": "exec",
        "Restart": "always",
        "RestartSec": f"{limits.restart}",
        "WorkingDirectory": f"/var/lib/{ours.unit.removesuffix('.service')}",
        "TimeoutStartSec": f"{limits.start}",
        "TimeoutStopSec": f"{limits.stop}",
        "KillMode": "control-group",
        "LimitNOFILE": "65536",
    }


def _other_settings(theirs: Server, ours: Ours) -> list[str]:
    """Settings of their unit that are otherwise in ours, and those that it does not have."""
    given = dict(pair for text in theirs.texts for pair in launch.settings(text))
    mine = of_our_unit(ours)
    other = [
        f"{name}={value} -> {mine[name]}"
        for name, value in given.items()
        if name in mine and value not in (mine[name], f"{mine[name]}s")
    ]
    gone = sorted(given.keys() - mine.keys() - _TOLD)
    return [
        *([f"lines of the unit: {', '.join(other)}"] if other else []),
        *([f"lines of the unit that go: {', '.join(gone)}"] if gone else []),
    ]
