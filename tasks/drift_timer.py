"""A systemd user timer on control that checks for drift every hour."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from aibox.box.job import write_whole
from aibox.decide.refusal import Refusal
from aibox.decide.unit import systemd_word

PROJECT = Path(__file__).resolve().parent.parent
NAME = "aibox-drift"
NEEDS = """It runs without you, so it needs:
  an ssh key without a passphrase (or an agent that lives in your systemd session)
  root, or sudo that asks for no password, on each box
  a session that outlives your login: loginctl enable-linger"""

SERVICE = """# Written by `python -m tasks.drift --install-timer`
[Unit]
Description=Look for drift on the boxes of {project}

[Service]
Type=oneshot
WorkingDirectory={project}
ExecStart={command}
StandardInput=null
TimeoutStartSec=3h
"""
TIMER = """# Written by `python -m tasks.drift --install-timer`
[Unit]
Description=Look for drift every hour

[Timer]
OnCalendar=hourly
RandomizedDelaySec=5min
Persistent=yes

[Install]
WantedBy=timers.target
"""


def change(words: list[str], *, install: bool) -> int:
    """Write the two units and start the timer, or take both away. Returns the exit code.

    words: the command line that asked for it; its other options become those of the check.
    """
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "systemd/user"
    service, timer = folder / f"{NAME}.service", folder / f"{NAME}.timer"
    if not install:
        systemctl("disable", "--now", timer.name)
        service.unlink(missing_ok=True)
        timer.unlink(missing_ok=True)
        systemctl("daemon-reload")
        print(f"{timer.name} is gone")
        return 0
    options = [word for word in words if word != "--install-timer"]
    command = [sys.executable, "-m", "tasks.drift", *options]
    folder.mkdir(parents=True, exist_ok=True)
    text = SERVICE.format(
        project=str(PROJECT).replace("%", "%%"), command=" ".join(map(systemd_word, command))
    )
    write_whole(service, text)
    write_whole(timer, TIMER)
    said = systemctl("daemon-reload") or systemctl("enable", "--now", timer.name)
    if said:
        remedy = "log in as this user (not by su or sudo), then run this again"
        print(Refusal(said, "a systemd of your own (systemctl --user)", remedy), file=sys.stderr)
        return 1
    print(f"{timer.name} runs the check every hour; the last one: systemctl --user status {NAME}")
    print(NEEDS)
    return 0


def systemctl(*words: str) -> str:
    """Run it for this user; what it said when it failed, else nothing."""
    try:
        done = subprocess.run(
            ["systemctl", "--user", *words], capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"systemctl: {error.strerror}"
    return (done.stderr.strip() or f"it ended with {done.returncode}") if done.returncode else ""
