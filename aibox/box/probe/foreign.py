"""What no deploy lays down: drop-ins, members of groups, ports that listen."""

import ipaddress
import os
import sys
from pathlib import Path
from typing import Any

from aibox.box.probe.accounts import groups_of, members
from aibox.box.probe.drop_ins import surroundings
from aibox.box.probe.processes import name_of, unit_of
from aibox.box.probe.sockets import holders_of, sockets


def foreign(asked: dict[str, Any]) -> dict[str, Any]:
    """Drop-ins and variables of units, members of groups, and every TCP port that listens."""
    return {
        "units": {name: surroundings(name) for name in asked["units"]},
        "members": {name: members(name) for name in asked["groups"]},
        "groups_of": {name: groups_of(name) for name in asked["users"]},
        "listeners": listeners(),
        "ssh_port": ssh_port(),
    }


def listeners() -> list[dict[str, Any]]:
    """{"port", "address", "name" and "unit" of the process} of every TCP socket that listens."""
    listen = sockets()
    holders = holders_of({link for _, link in listen})
    found = []
    for local, link in listen:
        digits, _, port = local.rpartition(":")
        pid = holders.get(link)
        name, unit = (name_of(pid), unit_of(pid)) if pid else ("?", None)
        address = address_of(digits)
        found.append({"port": int(port, 16), "address": address, "name": name, "unit": unit})
    return found


def address_of(digits: str) -> str:
    """An address as the kernel's tables write it: words of 32 bits, each as the CPU has it."""
    words = [bytes.fromhex(digits[at : at + 8]) for at in range(0, len(digits), 8)]
    if sys.byteorder == "little":
        words = [word[::-1] for word in words]
    return str(ipaddress.ip_address(b"".join(words)))


def ssh_port() -> int | None:
    """The port of this box that control came in by, from the nearest parent that knows it."""
    pid = os.getpid()
    while pid > 1:
        try:
            environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
            status = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            return None
        for entry in environment:
            if entry.startswith(b"SSH_CONNECTION="):
                return int(entry.split()[-1])
        pid = int(status.rpartition(")")[2].split()[1])
    return None


QUESTIONS = {"foreign": foreign}
