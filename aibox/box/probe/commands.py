"""What a command of the box prints."""

import os
import subprocess


def text_of(command: list[str]) -> str | None:
    """What a command prints, or None when it can't be run or fails."""
    done = ran(command)
    return done.stdout if done is not None and done.returncode == 0 else None


def ran(
    command: list[str], seconds: float = 30, **environment: str
) -> subprocess.CompletedProcess[str] | None:
    """A command that has ended, or None when it can't be run or takes too long."""
    path = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    try:
        return subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            check=False,
            env={**os.environ, "LC_ALL": "C", "PATH": path, **environment},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
