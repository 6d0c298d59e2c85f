"""What a box is and holds, as JSON. Standard library only: it runs before anything is laid down.

Control sends this file's text to the box's own python3 and gives one question with its arguments:

    python3 - system '{"folders": ["/opt/vllm/releases"], "ports": [8000], "sizes": {}}'

Each question is a function below that takes the arguments and returns something JSON can hold.
It never changes anything, and what it can't find out is null, never a guess.
"""

import contextlib
import ctypes
import grp
import hashlib
import ipaddress
import json
import os
import platform
import pwd
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

NVML_SUCCESS = 0
NVML_NOT_SUPPORTED = 3
LISTEN = "0A"  # the state column of /proc/net/tcp


def text_of(command: list[str]) -> str | None:
    """What a command prints, or None when it can't be run or fails."""
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
            env={**os.environ, "LC_ALL": "C"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


# --- the question "system" --------------------------------------------------------------------


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
        "dpkg": dpkg(),
        "gpu": gpu(),
        "account": account(asked["user"]),
        "foreign_unit": foreign_unit(Path(asked["unit_file"]), Path(asked["deployed"])),
        "sizes": {name: size_of(paths) for name, paths in asked["sizes"].items()},
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


def account(name: str) -> dict[str, Any] | None:
    """A user of the box: number and login shell; None when there is no such user."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return {"uid": found.pw_uid, "shell": found.pw_shell}


def foreign_unit(path: Path, deployed: Path) -> bool:
    """Whether a unit file is there that a person would lose: no deploy has written it.

    Ours say so in their first line. Where the deploy's own record names the unit, another content
    is drift; a masked unit has none.
    """
    record = record_in(deployed) or {}
    if record.get("server", {}).get("unit") == path.name:
        return False
    try:
        text = path.read_text(errors="replace")
    except OSError:
        return False
    return bool(text.strip()) and not text.startswith("# Laid down by the deploy")


def owner_of(port: int) -> dict[str, Any] | None:
    """The process that listens on a TCP port on any address, or None."""
    sockets = listening(port)
    if not sockets:
        return None
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if holds(pid, sockets):
            return {"pid": pid, "name": name_of(pid), "unit": unit_of(pid)}
    return {"pid": 0, "name": "a process that can't be seen", "unit": None}


def listening(port: int) -> set[str]:
    """The sockets that listen on a TCP port, as links in /proc/PID/fd name them."""
    sockets = set()
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for row in rows:
            cells = row.split()
            if cells[3] == LISTEN and int(cells[1].rpartition(":")[2], 16) == port:
                sockets.add(f"socket:[{cells[9]}]")
    return sockets


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


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def unit_of(pid: int) -> str | None:
    try:
        groups = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return None
    for line in groups.splitlines():
        last = line.rpartition("/")[2]
        if last.endswith(".service"):
            return last
    return None


def dpkg() -> dict[str, Any]:
    listing = text_of(["dpkg-query", "-W", "-f", "${Package} ${Status}\n"])
    if listing is None:
        return {"present": False, "broken": []}
    broken = []
    for line in listing.splitlines():
        name, _, status = line.partition(" ")
        state = status.split()[-1] if status else "?"
        if state in ("half-installed", "unpacked", "half-configured", "triggers-awaited"):
            broken.append(f"{name}: {state}")
    return {"present": True, "broken": broken}


# --- graphics cards, asked of NVML itself ------------------------------------------------------


class NvmlMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def gpu() -> dict[str, Any]:
    """The cards as the driver's own library names them. An error is NVML's own text."""
    answer: dict[str, Any] = {"library": False, "error": None, "driver": None, "cards": []}
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return answer
    answer["library"] = True
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    code = nvml.nvmlInit_v2()
    if code != NVML_SUCCESS:
        answer["error"] = nvml.nvmlErrorString(code).decode(errors="replace")
        return answer
    try:
        version = ctypes.create_string_buffer(96)
        if nvml.nvmlSystemGetDriverVersion(version, 96) == NVML_SUCCESS:
            answer["driver"] = version.value.decode()
        count = ctypes.c_uint(0)
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        answer["cards"] = [card(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()
    return answer


def card(nvml: ctypes.CDLL, index: int) -> dict[str, Any]:
    """One card; what it does not support is null."""
    device = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetName(device, name, 96)
    nvml.nvmlDeviceGetUUID(device, uuid, 96)
    memory = NvmlMemory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    mig, pending = ctypes.c_uint(), ctypes.c_uint()
    has_memory = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    has_capability = nvml.nvmlDeviceGetCudaComputeCapability(
        device, ctypes.byref(major), ctypes.byref(minor)
    )
    has_mig = nvml.nvmlDeviceGetMigMode(device, ctypes.byref(mig), ctypes.byref(pending))
    return {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "uuid": uuid.value.decode(errors="replace"),
        "memory_bytes": memory.total if has_memory == NVML_SUCCESS else None,
        "capability": [major.value, minor.value] if has_capability == NVML_SUCCESS else None,
        "mig": ("enabled" if mig.value else "disabled") if has_mig == NVML_SUCCESS else None,
    }


# --- the question "release" --------------------------------------------------------------------


def release(asked: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a finished release, or None: without its record a release does not exist."""
    return record_in(Path(asked["folder"]) / "release.json")


def record_in(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# --- the question "weights" --------------------------------------------------------------------


def weights(asked: dict[str, Any]) -> dict[str, Any]:
    """What stands in a weights folder, and what its last verification recorded of it."""
    folder = Path(asked["folder"])
    seen = {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        if path.is_file() and path.name != ".verified.json":
            status = path.stat()
            seen[str(path.relative_to(folder))] = [
                status.st_size,
                status.st_mtime_ns,
                status.st_ino,
            ]
    return {"seen": seen, "verified": record_in(folder / ".verified.json")}


# --- the question "server" ---------------------------------------------------------------------

UNIT_PROPERTIES = (
    "LoadState",
    "ActiveState",
    "SubState",
    "Result",
    "UnitFileState",
    "NeedDaemonReload",
    "InvocationID",
    "MainPID",
    "ExecMainStartTimestamp",
    "NRestarts",
    "FragmentPath",
    "DropInPaths",
)


def server(asked: dict[str, Any]) -> dict[str, Any]:
    """The unit, the process it runs and what that answers."""
    unit = unit_properties(asked["unit"])
    pid = int(unit.get("MainPID") or 0)
    return {
        "unit": unit,
        "process": process(pid, unit["ExecMainStartTimestamp"]) if pid else None,
        "file": file_stamp(unit.get("FragmentPath", "")),
        "health": health(asked["port"]) if pid else None,
        "proof": record_in(Path(asked["proof"])),
        "changed": {
            "release": changed_at(Path(asked["release"]) / "release.json"),
            "weights": (record_in(Path(asked["weights"]) / ".verified.json") or {}).get("changed"),
        },
    }


def unit_properties(name: str) -> dict[str, str]:
    command = ["systemctl", "show", name, "--timestamp=us+utc", "-p", ",".join(UNIT_PROPERTIES)]
    shown = text_of(command) or ""
    return dict(line.partition("=")[::2] for line in shown.splitlines())


def process(pid: int, started: str) -> dict[str, Any] | None:
    """Command line, environment and start (seconds since the epoch) of a unit's main process."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
        environment = Path(f"/proc/{pid}/environ").read_bytes()
        start = datetime.strptime(started, "%a %Y-%m-%d %H:%M:%S.%f UTC").replace(tzinfo=UTC)
    except (OSError, ValueError):
        return None
    return {
        "pid": pid,
        "command": [word.decode(errors="replace") for word in command.split(b"\0")[:-1]],
        "environment": dict(
            entry.decode(errors="replace").partition("=")[::2]
            for entry in environment.split(b"\0")
            if entry
        ),
        "started": start.timestamp(),
    }


def changed_at(path: Path) -> float | None:
    """When a file was last written, in seconds since the epoch."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def file_stamp(path: str) -> dict[str, Any] | None:
    try:
        content = Path(path).read_bytes()
        changed = Path(path).stat().st_mtime
    except OSError:
        return None
    return {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "changed": changed}


def health(port: int) -> int | None:
    """The HTTP status of the server's own /health, or None when nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=3) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except (OSError, ValueError):
        return None


# --- the question "owners" ---------------------------------------------------------------------


def owners(asked: dict[str, Any]) -> dict[str, list[str]]:
    """{path: ["user:group", octal mode]} of the paths that are there; links are followed."""
    found = {}
    for path in asked["paths"]:
        try:
            status = Path(path).stat()
        except OSError:
            continue
        owner = f"{user_name(status.st_uid)}:{group_name(status.st_gid)}"
        found[path] = [owner, f"{status.st_mode & 0o7777:o}"]
    return found


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


# --- the question "foreign" --------------------------------------------------------------------

# Where systemd looks for drop-ins of a unit of the system (systemd.unit(5)).
UNIT_FOLDERS = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator.late",
)


def foreign(asked: dict[str, Any]) -> dict[str, Any]:
    """Drop-ins and variables of units, members of groups, and every TCP port that listens."""
    return {
        "units": {name: surroundings(name) for name in asked["units"]},
        "members": {name: members(name) for name in asked["groups"]},
        "groups_of": {name: groups_of(name) for name in asked["users"]},
        "listeners": listeners(),
        "ssh_port": ssh_port(),
    }


def surroundings(unit: str) -> dict[str, Any]:
    """What changes a unit beside its own file, loaded already or only lying there."""
    shown = unit_properties(unit)
    paths = {Path(path) for path in shown.get("DropInPaths", "").split()}
    for folder in UNIT_FOLDERS:
        for name in drop_in_folders(unit):
            paths |= set(Path(folder, name).glob("*.conf"))
    pid = int(shown.get("MainPID") or 0)
    running = process(pid, shown["ExecMainStartTimestamp"]) if pid else None
    return {
        "fragment": shown.get("FragmentPath", ""),
        "drop_ins": {str(path): content(path) for path in sorted(paths)},
        "variables": sorted(running["environment"]) if running else [],
    }


def drop_in_folders(unit: str) -> list[str]:
    """a-b.service: its own folder, those of its prefixes, and the one of all services."""
    stem, _, kind = unit.rpartition(".")
    prefixes = [stem[: dash.end()] for dash in re.finditer("-", stem)]
    return [f"{name}.{kind}.d" for name in (stem, *prefixes)] + [f"{kind}.d"]


def content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:20_000]
    except OSError as error:
        return f"# cannot be read: {error.strerror}"


def members(name: str) -> list[str]:
    """Everybody in a group, by name or because it is their own."""
    try:
        group = grp.getgrnam(name)
    except KeyError:
        return []
    own = {one.pw_name for one in pwd.getpwall() if one.pw_gid == group.gr_gid}
    return sorted(own | set(group.gr_mem))


def groups_of(name: str) -> list[str]:
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return []
    return sorted(group_name(gid) for gid in os.getgrouplist(name, user.pw_gid))


def listeners() -> list[dict[str, Any]]:
    """{"port", "address", "name" and "unit" of the process} of every TCP socket that listens."""
    sockets = []
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            rows = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for cells in (row.split() for row in rows):
            if cells[3] == LISTEN:
                sockets.append((cells[1], f"socket:[{cells[9]}]"))
    holders = holders_of({link for _, link in sockets})
    found = []
    for local, link in sockets:
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


def holders_of(sockets: set[str]) -> dict[str, int]:
    """{link of a socket: the oldest process that holds it}."""
    holders: dict[str, int] = {}
    pids = sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*"))
    for pid in pids:
        for link in sockets.intersection(links_of(pid)):
            holders.setdefault(link, pid)
    return holders


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


QUESTIONS = {
    "system": system,
    "release": release,
    "weights": weights,
    "server": server,
    "owners": owners,
    "foreign": foreign,
}


if __name__ == "__main__":
    print(json.dumps(QUESTIONS[sys.argv[1]](json.loads(sys.argv[2]))))
