"""A unit as systemd has it, and its main process."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from aibox.box.probe.commands import text_of

UNIT_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "NeedDaemonReload",
    "InvocationID",
    "MainPID",
    "ExecMainStartTimestamp",
    "NRestarts",
    "FragmentPath",
    "DropInPaths",
)


def unit_properties(name: str) -> dict[str, str]:
    command = ["systemctl", "show", name, "--timestamp=us+utc", "-p", ",".join(UNIT_PROPERTIES)]
    shown = text_of(command) or ""
    return dict(line.partition("=")[::2] for line in shown.splitlines())


def active_state(unit: str) -> str | None:
    said = text_of(["systemctl", "show", "-p", "ActiveState", "--value", unit])
    return said.strip() if said else None


def process(pid: int, started: str) -> dict[str, Any] | None:
    """Command line, environment and start (seconds since the epoch) of a unit's main process."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        start = datetime.strptime(started, "%a %Y-%m-%d %H:%M:%S.%f UTC").replace(tzinfo=UTC)
    except (OSError, ValueError):
        return None
    return {
        "pid": pid,
        "command": [word.decode(errors="replace") for word in command.split(b"\0")[:-1]],
        "environment": dict(
            entry.decode(errors="replace").partition("=")[::2]
            for entry in environment.split(b"\0")
            if entry
        ),
        "started": start.timestamp(),
    }
