"""Wait until a service's own process answers that it is well: the unit's ExecStartPost."""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path

from aibox.box.probe.files import SERVER_STATE
from aibox.box.probe.replies import status_of
from aibox.box.probe.sockets import holds, listening
from aibox.decide.start_limits import start_limit

HISTORY = SERVER_STATE / "history.json"
POLL_MS = 200  # what a poll may add to the downtime


def wait(
    pid: int, port: int, seconds: float, history: Path = HISTORY, url: str | None = None
) -> int:
    """0 once process `pid` listens on `port` and `url` says 200; 1 when it dies or time is over.

    url: /health on the port where none is given.

    seconds: the limit, or less of it where starts of the same command line have been measured.
    It ends at once when the process dies, so that systemd sees the failure and not a time-out.
    """
    began, url = time.monotonic(), url or f"http://127.0.0.1:{port}/health"
    try:
        process = os.pidfd_open(pid)
    except OSError:
        return ended(pid)
    limit, command = seconds, command_of(pid)
    end = select.poll()
    end.register(process, select.POLLIN)
    while time.monotonic() - began < limit:
        command = command or command_of(pid)  # still empty just after the exec
        limit = start_limit(measured(history), command, seconds)
        if answers(pid, port, url):
            return 0
        if end.poll(POLL_MS):
            return ended(pid)
    print(f"process {pid} did not answer on port {port} within {limit:.0f} s", file=sys.stderr)
    return 1


def answers(pid: int, port: int, url: str) -> bool:
    sockets = listening(port)
    return bool(sockets) and holds(pid, sockets) and status_of(url) == 200


def ended(pid: int) -> int:
    print(f"process {pid or 'of the server'} ended before it answered", file=sys.stderr)
    return 1


def measured(history: Path) -> object:
    """The record of the starts that passed, None without one that can be read."""
    try:
        found: object = json.loads(history.read_text())
    except (OSError, ValueError, RecursionError):
        return None
    return found


def command_of(pid: int) -> list[str]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[:-1]
    except OSError:
        return []
    return [word.decode(errors="replace") for word in words]
