"""The control group of one box: everything the box runs is in it, so it can be ended as a whole."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tests.rehearsal.machine import RehearsalError

ROOT = Path("/sys/fs/cgroup")


def folders(machine_name: str) -> list[Path]:
    """Where the box's group lies: one folder with pure v2, two on a v1 and v2 hybrid."""
    if (ROOT / "cgroup.controllers").exists():
        trees = [ROOT]
    else:
        trees = [ROOT / tree for tree in ("unified", "systemd") if (ROOT / tree).is_dir()]
    if not trees:
        raise RehearsalError(
            f"No control groups of systemd's kind are mounted at {ROOT}; the boxes need cgroup v2"
            " or the v1 hierarchy `name=systemd` there."
        )
    return [tree / f"rehearsal-{machine_name}" for tree in trees]


def join(machine_name: str, process: int = 0) -> None:
    """Move a process, 0 is the caller, into the box's group, which is made when it is missing."""
    for folder in folders(machine_name):
        folder.mkdir(exist_ok=True)
        (folder / "cgroup.procs").write_text(str(process))


def processes(machine_name: str) -> list[int]:
    """The processes of the box, as the machine counts them."""
    found: set[int] = set()
    for folder in folders(machine_name):
        for inner, _, _ in os.walk(folder):
            try:
                listing = Path(inner, "cgroup.procs").read_text()
                found |= {int(word) for word in listing.split()}
            except OSError:
                continue  # the group went away while we looked
    return sorted(found - {0})


def leader(machine_name: str) -> int | None:
    """The machine's number of the process that is number 1 inside the box."""
    for process in processes(machine_name):
        try:
            status = Path(f"/proc/{process}/status").read_text()
        except OSError:
            continue
        numbers = next(line for line in status.splitlines() if line.startswith("NSpid:")).split()
        if len(numbers) == 3 and numbers[2] == "1":
            return process
    return None


def end(machine_name: str, timeout_s: float = 60) -> None:
    """Kill every process of the box and take its group away; a box that is off is no error."""
    until = time.monotonic() + timeout_s
    while True:
        for folder in folders(machine_name):
            killer = folder / "cgroup.kill"
            if killer.exists():
                killer.write_text("1")
        for process in processes(machine_name):
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        if remove(machine_name):
            return
        if time.monotonic() > until:
            raise RehearsalError(
                f"The processes of the box {machine_name} do not end although they were killed;"
                " they probably wait for a disk. Look at them with `ps` and try again."
            )
        time.sleep(0.01)


def remove(machine_name: str) -> bool:
    """Take the empty group away; False when processes are still in it."""
    for folder in folders(machine_name):
        for inner, _, _ in os.walk(folder, topdown=False):
            try:
                Path(inner).rmdir()
            except FileNotFoundError:
                continue
            except OSError:
                return False
    return True
