"""Operating system, disks, ports, package database and graphics cards."""

import os
import platform
import sys
import time
from pathlib import Path
from typing import Any

from aibox.box.probe.accounts import account
from aibox.box.probe.caches import linkable
from aibox.box.probe.commands import text_of
from aibox.box.probe.files import DEPLOYED, read_text
from aibox.box.probe.foreign_unit import foreign_unit
from aibox.box.probe.nvml import gpu
from aibox.box.probe.packages import dpkg
from aibox.box.probe.port_owners import owner_of
from aibox.box.probe.serving import serving
from aibox.box.probe.unit_files import unit_of_whom


def system(asked: dict[str, Any]) -> dict[str, Any]:
    """Operating system, disks, ports, package database and graphics cards."""
    return {
        "os": os_release(),
        "architecture": platform.machine(),
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "root": os.geteuid() == 0,
        "systemd": systemd_version(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "clock": time.time(),
        "disks": {folder: disk(folder) for folder in asked["folders"]},
        "ports": {str(port): owner_of(port) for port in asked["ports"]},
        "serving": serving(asked),
        "dpkg": dpkg(),
        "gpu": gpu(),
        "account": account(asked["user"]),
        "foreign_unit": foreign_unit(asked["unit"]),
        "units": {name: unit_of_whom(name, DEPLOYED) for name in asked["units"]},
        "keys": [path for path in asked["keys"] if (read_text(Path(path)) or "").strip()],
        "sizes": {
            name: size_of(paths) + linkable(asked.get("linkable", {}).get(name))
            for name, paths in asked["sizes"].items()
        },
    }


def os_release() -> dict[str, str]:
    try:
        found = platform.freedesktop_os_release()
    except OSError:
        found = {}
    return {
        "id": found.get("ID", ""),
        "version_id": found.get("VERSION_ID", ""),
        "pretty_name": found.get("PRETTY_NAME", "an unknown system"),
    }


def systemd_version() -> int | None:
    if not Path("/run/systemd/system").is_dir():
        return None
    words = (text_of(["systemctl", "--version"]) or "").split()
    return int(words[1]) if len(words) > 1 and words[1].isdigit() else None


def disk(folder: str) -> dict[str, Any]:
    """The file system that holds a folder, or will hold it once it is made."""
    path = Path(folder)
    while not path.exists():
        path = path.parent
    space = os.statvfs(path)
    mount = path.resolve()
    while not mount.is_mount():
        mount = mount.parent
    return {
        "filesystem": str(path.stat().st_dev),
        "mount": str(mount),
        "free_bytes": space.f_bavail * space.f_frsize,
    }


def size_of(paths: list[str]) -> int:
    """Bytes that files and folders take on the disk together; 0 for those that are not there."""
    there = [path for path in paths if Path(path).exists()]
    found = text_of(["du", "-s", "--block-size=1", *there]) if there else None
    return sum(int(line.split()[0]) for line in (found or "").splitlines())


QUESTIONS = {"system": system}
