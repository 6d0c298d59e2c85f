"""A systemd unit of ours as the switch handles it: its files, its starts, its journal."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path

from aibox.box.found import INSTALLED, text_in
from aibox.box.job import JobError
from aibox.box.journal import told_since
from aibox.box.probe.units import unit_properties

TRIED = Path("/run/systemd/system.control")
BEGIN_S = 30
ASK_AGAIN = 20


@dataclass(frozen=True)
class Start:
    """One start of a unit. invocation: systemd's name for it. asked: when, since the epoch."""

    invocation: str
    asked: float


class Service:
    """name: with its suffix, as `vllm-coder.service`.

    tried is where a candidate stands until it has passed: systemd prefers it to what is installed,
    and a reboot takes it away. staged lies beside the installed file, so that a rename installs it;
    a name that begins with a dot is no unit to systemd.
    """

    def __init__(self, name: str, installed: Path = INSTALLED, tried: Path = TRIED) -> None:
        self.name = name
        self.installed, self.tried = installed / name, tried / name
        self.staged = installed / f".{name}.candidate"
        self.drop_ins, self.tried_drop_ins = installed / f"{name}.d", tried / f"{name}.d"

    def properties(self) -> dict[str, str]:
        """As systemd shows them. Raises JobError where it does not answer at all."""
        for _ in range(ASK_AGAIN):  # it is deaf for a moment while it executes itself anew
            found = unit_properties(self.name)
            if "InvocationID" in found:
                return found
            time.sleep(1)
        raise JobError(
            f"systemd says nothing of {self.name}",
            "an answer to `systemctl show`",
            "look at `systemctl status` on the box, then run the deploy again",
        )

    def installed_text(self) -> str | None:
        return text_in(self.installed)

    def text(self) -> str | None:
        """The unit's file as systemd has it, wherever that lies."""
        return text_in(Path(self.properties().get("FragmentPath") or self.installed))

    # --- starting and stopping -------------------------------------------------------------

    def restart(self) -> Start:
        """Stop it, and wait until systemd has begun a new start.

        Stopped first: a unit that starts again and again has other starts of its own under way.
        """
        asked = time.time()
        self.stop()
        before = self.properties()["InvocationID"]
        self.run("start", "--no-block")
        begun = time.time()
        while time.time() - begun < BEGIN_S:
            found = self.properties()
            if found["InvocationID"] not in ("", before):
                return Start(found["InvocationID"], asked)
            time.sleep(0.1)
        return Start("", asked)

    def stop(self) -> None:
        self.run("stop", check=False)
        self.run("reset-failed", check=False)

    def reload(self) -> None:
        subprocess.run(["systemctl", "daemon-reload"], check=True)

    def run(self, verb: str, *words: str, check: bool = True) -> None:
        command = ["systemctl", verb, *words, self.name]
        subprocess.run(command, check=check, capture_output=not check)

    # --- its journal -----------------------------------------------------------------------

    def journal(
        self, since: float, invocation: str | None = None, until: float | None = None
    ) -> list[str]:
        """What it and systemd said of it since a moment, or in one start, oldest first."""
        return told_since(self.name, since, invocation, until)


def synced(folder: Path) -> None:
    """The names in a folder are on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
