"""The machine's files: the state that a test writes, the record of this boot, the kernel log."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

STATE = Path("/var/lib/emulated-gpu/state.json")
BOOT = Path("/run/emulated-gpu/boot.json")
JOURNAL = "/run/systemd/journal/socket"

Record = dict[str, Any]


def state() -> Record:
    """The hardware and its faults. Without the file there is no card in the machine."""
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads(STATE.read_text()))
    return {"cards": []}


def boot_record() -> Record:
    """What this boot did: modules (in the order of loading), version, open, usable, and what
    nvidia-smi has set per UUID: power_limit_mw, persistence."""
    with contextlib.suppress(FileNotFoundError):
        return dict(json.loads(BOOT.read_text()))
    return {
        "modules": [],
        "version": None,
        "open": None,
        "usable": False,
        "hmm_off": False,
        "power_limit_mw": {},
        "persistence": {},
        "logged": [],
    }


@contextlib.contextmanager
def changing_boot() -> Iterator[Record]:
    """The record of this boot, to be changed by one command at a time. Needs root."""
    BOOT.parent.mkdir(mode=0o755, exist_ok=True)
    with BOOT.with_name("lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        record = boot_record()
        yield record
        replace(BOOT, json.dumps(record) + "\n")


def replace(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_name(path.name + ".new")
    aside.write_text(text)
    aside.chmod(0o644)
    aside.rename(path)


def kernel_log(*lines: str) -> None:
    """Lines for `journalctl -t kernel`. Nobody but the kernel may write `journalctl -k`'s."""
    import socket  # noqa: PLC0415  # 10 ms that most commands need not spend

    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as journal:
        for line in lines:
            fields = f"MESSAGE={line}\nPRIORITY=4\nSYSLOG_FACILITY=0\nSYSLOG_IDENTIFIER=kernel\n"
            with contextlib.suppress(OSError):  # no journal: in a chroot
                journal.sendto(fields.encode(), JOURNAL)


def slot(card: Record) -> str:
    """The card's place as the kernel writes it: 0000:01:00.0."""
    return str(card["pci_bus_id"])[4:].lower()


def running_kernel() -> str:
    return os.uname().release
