"""The TCP sockets that listen, and the processes that hold them."""

import contextlib
from pathlib import Path

from aibox.box.probe.processes import pids_of_unit

LISTEN = "0A"  # the state column of /proc/net/tcp


def sockets(process: str = "/proc/self") -> list[tuple[str, str]]:
    """(address as the kernel writes it, link in /proc/PID/fd) of all that listen by TCP in the
    network of a process."""
    found = []
    for table in ("tcp", "tcp6"):
        try:
            rows = Path(process, "net", table).read_text().splitlines()[1:]
        except OSError:
            continue
        cells = (row.split() for row in rows)
        found += [(one[1], f"socket:[{one[9]}]") for one in cells if one[3] == LISTEN]
    return found


def listening(port: int) -> set[str]:
    """The sockets that listen on a TCP port, as links in /proc/PID/fd name them."""
    return {link for local, link in sockets() if int(local.rpartition(":")[2], 16) == port}


def ports_of_unit(unit: str) -> set[int]:
    """The TCP ports that processes of a unit of the system listen on, its own control group's."""
    return {port for pid in pids_of_unit(unit) for port in ports_of(pid)}


def ports_of(pid: int) -> set[int]:
    """The TCP ports that a process listens on, in its own network."""
    held = set(links_of(pid))
    return {
        int(local.rpartition(":")[2], 16) for local, link in sockets(f"/proc/{pid}") if link in held
    }


def links_of(pid: int) -> list[str]:
    """What a process has open, as far as it can be seen."""
    links = []
    try:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed in between
                links.append(str(link.readlink()))
    except OSError:  # the process went away
        pass
    return links


def holds(pid: int, sockets: set[str]) -> bool:
    try:
        links = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # the process went away, or is somebody else's
        return False
    for link in links:
        try:
            if str(link.readlink()) in sockets:
                return True
        except OSError:
            continue
    return False


def holders_of(sockets: set[str]) -> dict[str, int]:
    """{link of a socket: the oldest process that holds it}."""
    holders: dict[str, int] = {}
    pids = sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    for pid in pids:
        for link in sockets.intersection(links_of(pid)):
            holders.setdefault(link, pid)
    return holders
