"""Wait until a server's own process answers /health: the unit's ExecStartPost."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from aibox.box.probe import health, holds, listening


def wait(pid: int, port: int, seconds: float) -> int:
    """0 once process `pid` listens on `port` and /health says 200; 1 when it dies or time is over.

    It ends at once when the process dies, so that systemd sees the failure and not a time-out.
    """
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if not Path(f"/proc/{pid}").exists():
            print(f"process {pid} ended before it answered", file=sys.stderr)
            return 1
        if holds(pid, listening(port)) and health(port) == 200:
            return 0
        time.sleep(0.5)
    print(f"process {pid} did not answer on port {port} within {seconds:.0f} s", file=sys.stderr)
    return 1
