"""What a box is and holds, as JSON. Standard library only: it runs before anything is laid down.

Control sends this file's text to the box's own python3 and gives one question with its arguments:

    python3 - system '{"folders": ["/opt/vllm/releases"], "ports": [8000], "sizes": {}}'

Each question is a function below that takes the arguments and returns something JSON can hold.
It never changes anything, and what it can't find out is null, never a guess.
"""

import base64
import contextlib
import ctypes
import fnmatch
import grp
import hashlib
import ipaddress
import json
import os
import platform
import pwd
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

NVML_SUCCESS = 0
NVML_NOT_SUPPORTED = 3
LISTEN = "0A"  # the state column of /proc/net/tcp
SERVER_STATE = Path("/var/lib/aibox/server")  # see good_units.py
DEPLOYED = Path("/var/lib/aibox/deployed.json")  # the record of the last deploy
FIRST_WORDS = "# Laid down by the deploy"  # how every unit of ours begins
ROOT = Path("/")  # tests put a made-up one in its place


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


def linkable(asked: dict[str, Any] | None) -> int:
    """Bytes that need no room, because a hard link to what is there already will do.

    asked: {"from": folder or null for the usual places, "repository", "to": folders that may hold
    the file already, "files": {path: [size in bytes, patterns below a place]}}.
    """
    if asked is None:
        return 0
    missing = [
        path
        for path in asked["files"]
        if not any((Path(folder) / path).exists() for folder in asked["to"])
    ]
    if not missing:
        return 0
    named = asked["from"]
    places = [Path(one) for one in ([named] if named else weights_places(asked["repository"]))]
    target = Path(asked["to"][0])
    while not target.exists():
        target = target.parent
    device, total = target.stat().st_dev, 0
    for path in missing:
        size, patterns = asked["files"][path]
        names = (name for place in places for one in patterns for name in place.glob(one))
        if any(is_linkable(name, size, device) for name in names):
            total += size
    return total


def is_linkable(name: Path, size: int, device: int) -> bool:
    try:
        found = name.stat()
    except OSError:
        return False
    return can_be_shared(found) and (found.st_size, found.st_dev) == (size, device)


def can_be_shared(found: os.stat_result) -> bool:
    """Whether a person's file can be ours as well by a hard link, which shares owner and mode.

    The server must be able to read it, nobody but its owner may write to it. The group may, where
    it is the owner's alone: Ubuntu's logins have the umask 0002 for that.
    """
    bits = stat.S_IMODE(found.st_mode)
    fits = stat.S_ISREG(found.st_mode) and bits & 0o444 == 0o444 and not bits & 0o7002
    return fits and (not bits & 0o020 or is_owners_alone(found.st_uid, found.st_gid))


def is_owners_alone(uid: int, gid: int) -> bool:
    """Whether a group has its owner's name and no other member."""
    name = group_name(gid)
    return name == user_name(uid) and members(name) == [name]


HUB_CACHE = ".cache/huggingface/hub"  # below a home; the client's own default
# How a process says where its hub cache is, and what of that place comes below it.
HUB_VARIABLES = {
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "hub",
    "XDG_CACHE_HOME": "huggingface/hub",
    "HOME": HUB_CACHE,
}
FIRST_PERSON = 1000  # Debian and Ubuntu give people's logins numbers from here on


def weights_places(repository: str) -> list[str]:
    """Folders that may hold a repository's weights, best first, each once, only those there are.

    What a running vLLM uses, by its environment and its command line, then the hub caches of root
    and of each person. A hub cache comes whole, whatever it holds; a folder of a command line only
    with a config.json in it, and where it is not one of ours. A place that does not answer, as a
    home on a file server that is off, is passed over.
    """
    cached = f"models--{repository.replace('/', '--')}"
    found = [place for pid, words in servers_of_vllm() for place in places_of(pid, words)]
    people = [one for one in pwd.getpwall() if one.pw_uid == 0 or one.pw_uid >= FIRST_PERSON]
    found += [Path(one.pw_dir, HUB_CACHE) for one in people]
    there: dict[str, Path] = {}
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  slow to import

    with ThreadPoolExecutor(8) as pool:
        for place, answers in zip(found, pool.map(answering, found), strict=True):
            if answers:
                there.setdefault(str(place.resolve()), place)
    return sorted(map(str, there.values()), key=lambda one: not Path(one, cached).is_dir())


FOLDER_ANSWERS_S = 3.0


def answering(folder: Path) -> bool:
    """Whether a folder is there and can be looked at; on a dead file server that never ends.

    A process of its own asks. One that hangs is killed and not waited for.
    """
    try:
        asking = subprocess.Popen(
            ["test", "-r", f"{folder}/."], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError):
        return False
    try:
        return asking.wait(FOLDER_ANSWERS_S) == 0
    except subprocess.TimeoutExpired:
        asking.kill()
        return False


def servers_of_vllm() -> list[tuple[int, list[str]]]:
    """(pid, words) of every process that a vLLM's server was started as."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        words = words_of(int(folder.name))
        if is_vllm(words):
            found.append((int(folder.name), words))
    return sorted(found)


def words_of(pid: int) -> list[str]:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in command.split(b"\0")[:-1]]


def is_vllm(words: list[str]) -> bool:
    """Whether a process is vLLM's server, by its command line; what starts one (uv) is none."""
    if not Path(words[0] if words else "").name.startswith(("python", "pypy", "vllm")):
        return False
    serves = any(
        re.search(r"(^|/)vllm$|^vllm\.entrypoints\.cli\.main$", word) and following == "serve"
        for word, following in pairwise(words)
    )
    return serves or any(
        re.search(r"\bvllm[./]entrypoints[./](openai[./])?api_server", word) for word in words
    )


def places_of(pid: int, words: list[str]) -> list[Path]:
    """Where a server's weights come from: a folder that it was given, its own hub cache."""
    try:
        here = Path(f"/proc/{pid}/cwd").readlink()
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
    variables = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs)
    given = [here / word.partition("=")[2] for word in words if word.startswith("--model=")]
    given += [here / word for word in words if not word.startswith("-") and len(word) < 1000]
    folders = [folder for folder in given if is_model(folder)]
    hubs = [
        Path(variables[name], rest) for name, rest in HUB_VARIABLES.items() if variables.get(name)
    ]
    return folders + [hub for hub in hubs if hub.is_absolute()]


def is_model(folder: Path) -> bool:
    """A model's folder that is a person's: ours has a list of its content in it."""
    if not answering(folder):
        return False
    try:
        ours = (folder / ".manifest.json").exists()
        return not ours and (folder / "config.json").is_file()
    except OSError:
        return False


def account(name: str) -> dict[str, Any] | None:
    """A user of the box: number and login shell; None when there is no such user."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return {"uid": found.pw_uid, "shell": found.pw_shell}


def foreign_unit(name: str) -> dict[str, Any] | None:
    """A unit that a person would lose, for no deploy has written it.

    {"path", "starts_container", "starts_vllm"}. Ours say so in their first line, also where it was
    changed by hand. A masked unit has none.
    """
    path = unit_file(name)
    text = (read_text(path) if path else None) or ""
    is_ours = text.startswith(FIRST_WORDS)
    if path is None or not text.strip() or is_ours:
        return None
    return {
        "path": f"/{path.relative_to(ROOT)}",
        "starts_container": starts_container(text),
        "starts_vllm": starts_vllm(name, text),
    }


def unit_file(name: str) -> Path | None:
    """The file of a unit of the system that counts, which need not be loaded: the first one."""
    there = (ROOT / folder.lstrip("/") / name for folder in PLACES_OF_UNITS)
    return next((path for path in there if path.exists()), None)


# docker and its like, at the start of a command or behind a path, a quote or a blank.
_CONTAINERS = re.compile(
    r"^ExecStart\s*=\s*(?:.*[\s/'\"])?[-@:+!|]*(?:docker|docker-compose|podman|nerdctl)\s",
    re.MULTILINE,
)


ENGINES = ("docker.service", "containerd.service", "podman.service")  # all containers' own


def starts_container(text: str) -> bool:
    """Whether a unit's file starts a container, which is then in no control group of the unit."""
    return _CONTAINERS.search(joined(text)) is not None


_VLLM = re.compile(r"(^|[\s/'\"])vllm['\"]?\s+serve\b|\bvllm[./]entrypoints[./]", re.MULTILINE)


def starts_vllm(name: str, text: str) -> bool:
    """Whether a unit serves vLLM, by its file, its drop-ins, a script that they run, or by the
    processes that it has now."""
    folders = [ROOT / folder.lstrip("/") / f"{name}.d" for folder in PLACES_OF_UNITS]
    texts = [text, *(content(one) for folder in folders for one in folder.glob("*.conf"))]
    starts = re.findall(r"^ExecStart\s*=.*", joined("\n".join(texts)), re.MULTILINE)
    words = [word for line in starts for word in re.findall(r"(?<![\w.-])/[\w./@+-]+", line)]
    texts += [script for word in words if (script := script_in(ROOT / word.lstrip("/")))]
    if any(_VLLM.search(joined(one)) for one in texts):
        return True
    own = pids_of_unit(name)
    return any(is_vllm(words_of(pid)) or name_of(pid).startswith("VLLM") for pid in own)


def joined(text: str) -> str:
    """With the lines that go on in the next made one."""
    return re.sub(r"\\\n", " ", text)


MOST_OF_A_SCRIPT = 100_000  # bytes


def script_in(path: Path) -> str | None:
    """The text of a program that an interpreter runs; None for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_OF_A_SCRIPT:
            return None
        text = path.read_text(errors="replace")
    except OSError:
        return None
    return text if text.startswith("#!") else None


def starter_of(pid: int, port: int | None) -> str | None:
    """The unit of the system that started a container: podman's holds it, for docker's the files
    of running units are read. None where it is none, or could be one of several."""
    for line in groups_of_process(pid).splitlines():
        path = line.split(":", 2)[-1]
        units = re.findall(r"(?<=/)[^/]+\.service(?=/)", path)
        if units and "/user@" not in path and units[-1] not in ENGINES:
            return str(units[-1])
    texts: dict[str, str] = {}
    for folder in PLACES_OF_UNITS:
        for file in (ROOT / folder.lstrip("/")).glob("*.service"):
            texts.setdefault(file.name, read_text(file) or "")
    starting = {name: text for name, text in texts.items() if starts_container(text)}
    running = [name for name in sorted(starting) if active_state(name) == "active"]
    told = [one for one in running if re.search(rf"vllm|\b{port}\b", starting[one])]
    found = told or running
    return found[0] if len(found) == 1 else None


def unit_of_whom(name: str, deployed: Path) -> str | None:
    """Whose a unit is: "ours" or "foreign"; None without a file that says anything.

    One of a deploy stays ours where its file was taken away or masked since.
    """
    if name in (record_in(deployed) or {}).get("units", {}):
        return "ours"
    return of_whom(unit_file(name))


def of_whom(path: Path | None) -> str | None:
    """Whose a file of systemd's is, by what it says itself: "ours", "foreign", None for nothing."""
    text = (read_text(path) if path else None) or ""
    if not text.strip():
        return None
    return "ours" if text.startswith(FIRST_WORDS) else "foreign"


def owner_of(port: int) -> dict[str, Any] | None:
    """The process that listens on a TCP port on any address, or None.

    {"pid", "name", "unit": of the system or of its user, null without one, "manager": see
    manager_of, "user": its name, "vllm": whether it is a server of vLLM, "starter": see
    starter_of, of a container only}.
    """
    listen = listening(port)
    if not listen:
        return None
    for folder in Path("/proc").glob("[0-9]*"):
        pid = int(folder.name)
        if holds(pid, listen):
            return owner(pid, port)
    hidden = {"pid": 0, "name": "a process that can't be seen", "vllm": False}
    return {**hidden, "unit": None, "manager": None, "user": None, "starter": None}


def owner(pid: int, port: int | None = None) -> dict[str, Any]:
    name = name_of(pid)
    manager, unit = manager_of(groups_of_process(pid))
    if name in PORT_KEEPERS:
        manager, unit = "container", None
    try:
        user = user_name(Path(f"/proc/{pid}").stat().st_uid)
    except OSError:
        user = None
    vllm = is_vllm(words_of(pid)) or name.startswith(("vllm", "VLLM"))
    starter = starter_of(pid, port) if manager == "container" else None
    kept = {"unit": unit, "manager": manager, "user": user, "starter": starter}
    return {"pid": pid, "name": name, **kept, "vllm": vllm}


# What listens for a container on the host.
PORT_KEEPERS = ("docker-proxy", "rootlessport", "conmon", "slirp4netns", "pasta", "pasta.avx2")
CONTAINER = re.compile(r"(?:docker|libpod|libpod-payload|crio|cri-containerd)[-/]([0-9a-f]{12,64})")


def manager_of(groups: str) -> tuple[str, str | None]:
    """Who keeps a process, by its control group: ("system" or "user", the unit), ("container",
    how its id begins), ("none", None) for one of a login."""
    for line in groups.splitlines():
        path = line.split(":", 2)[-1]
        container = CONTAINER.search(path)
        if container or "/kubepods" in path:
            return "container", container[1][:12] if container else None
        below = path.partition("/user@")[2].partition("/")[2] if "/user@" in path else None
        units = re.findall(r"(?<=/)[^/]+\.service(?=/|$)", f"/{path if below is None else below}")
        if units:
            return ("system" if below is None else "user"), units[-1]
    return "none", None


def groups_of_process(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


def serving(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """Whoever would be cut off if the box went down: asked["unit"], and every vLLM, that listens.

    As owner() tells it, once for each keeper, with "ports": in a container those of its own.
    """
    found: dict[tuple[Any, ...], dict[str, Any]] = {}
    for pid in sorted(int(folder.name) for folder in Path("/proc").glob("[0-9]*")):
        is_units = is_within(groups_of_process(pid), asked["unit"])
        ports = ports_of(pid) if is_units or is_vllm(words_of(pid)) else set()
        if ports:
            one = owner(pid)
            keeper = (one["manager"], one["unit"] or pid, one["user"])
            ports |= set(found.setdefault(keeper, {**one, "ports": []})["ports"])
            found[keeper]["ports"] = sorted(ports)
    return list(found.values())


def ports_of_unit(unit: str) -> set[int]:
    """The TCP ports that processes of a unit of the system listen on, its own control group's."""
    return {port for pid in pids_of_unit(unit) for port in ports_of(pid)}


def pids_of_unit(unit: str) -> list[int]:
    """The processes in the control group of a unit of the system, and below it."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if is_within(groups_of_process(pid), unit)]


def is_within(groups: str, unit: str) -> bool:
    """Whether a process is in the control group of a unit of the system, or below it."""
    paths = [line.split(":", 2)[-1] for line in groups.splitlines()]
    return any(f"/{unit}/" in f"{path}/" for path in paths if "/user@" not in path)


def ports_of(pid: int) -> set[int]:
    """The TCP ports that a process listens on, in its own network."""
    held = set(links_of(pid))
    return {
        int(local.rpartition(":")[2], 16) for local, link in sockets(f"/proc/{pid}") if link in held
    }


def listening(port: int) -> set[str]:
    """The sockets that listen on a TCP port, as links in /proc/PID/fd name them."""
    return {link for local, link in sockets() if int(local.rpartition(":")[2], 16) == port}


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
    """The unit of the system that a process belongs to; a person's own units are none of them."""
    manager, unit = manager_of(groups_of_process(pid))
    return unit if manager == "system" else None


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
    least, most = ctypes.c_uint(), ctypes.c_uint()  # milliwatts
    has_bounds = nvml.nvmlDeviceGetPowerManagementLimitConstraints(
        device, ctypes.byref(least), ctypes.byref(most)
    )
    has_mig = nvml.nvmlDeviceGetMigMode(device, ctypes.byref(mig), ctypes.byref(pending))
    return {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "uuid": uuid.value.decode(errors="replace"),
        "memory_bytes": memory.total if has_memory == NVML_SUCCESS else None,
        "capability": [major.value, minor.value] if has_capability == NVML_SUCCESS else None,
        "mig": ("enabled" if mig.value else "disabled") if has_mig == NVML_SUCCESS else None,
        "power_min_w": least.value / 1000 if has_bounds == NVML_SUCCESS else None,
        "power_max_w": most.value / 1000 if has_bounds == NVML_SUCCESS else None,
    }


# --- the question "release" --------------------------------------------------------------------


def release(asked: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a finished release, or None: without its record a release does not exist."""
    return record_in(Path(asked["folder"]) / "release.json")


def releases(asked: dict[str, Any]) -> dict[str, Any]:
    """What stands among the releases, and what the box's records say of them.

    asked: {"folder", "records": paths}. Answers {"standing": {name: when its record was written,
    or null without one}, "records": {path: content or null}}.
    """
    folder = Path(asked["folder"])
    found = folder.iterdir() if folder.is_dir() else ()
    names = sorted(path.name for path in found if path.is_dir() and not path.is_symlink())
    return {
        "standing": {name: changed_at(folder / name / "release.json") for name in names},
        "records": {path: record_in(Path(path)) for path in asked["records"]},
    }


def compiled(asked: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a release's compiled kernels, with those only that are still there."""
    folder = Path(asked["folder"])
    record = record_in(folder / "kernels.json")
    if record is None:
        return None
    built = [each for each in record.get("built", []) if (folder / each["file"]).is_file()]
    return {**record, "built": built}


def record_in(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


# --- the question "weights" --------------------------------------------------------------------


def weights(asked: dict[str, Any]) -> dict[str, Any]:
    """What stands in a weights folder, and what its last verification recorded of it.

    "shared": {a file that has another name elsewhere as well: whether that may be}.
    """
    folder = Path(asked["folder"])
    seen, shared = {}, {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        if path.is_file() and path.name not in (".verified.json", ".manifest.json"):
            status = path.stat()
            seen[str(path.relative_to(folder))] = [
                status.st_size,
                status.st_mtime_ns,
                status.st_ino,
            ]
            if status.st_nlink > 1:
                shared[str(path.relative_to(folder))] = can_be_shared(status)
    return {
        "seen": seen,
        "shared": shared,
        "verified": record_in(folder / ".verified.json"),
        "listed": record_in(folder / ".manifest.json"),
    }


def commits(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The folders of a model's commits, each with the time at which it was complete."""
    folder = Path(asked["folder"])
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_dir() and not path.is_symlink():
            listed = path / ".manifest.json"
            finished = listed.stat().st_mtime if listed.is_file() else None
            found.append({"name": path.name, "finished": finished})
    return found


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
    """The unit, the process it runs and what that answers; what passed the gate, and what failed.

    "file" is the unit's file as systemd has it, "installed" the one that is there after a reboot.
    "good" is the sum of the unit that passed the gate last, "tried" a candidate's file in /run.
    """
    unit = unit_properties(asked["unit"])
    pid = int(unit.get("MainPID") or 0)
    return {
        "unit": unit,
        "process": process(pid, unit["ExecMainStartTimestamp"]) if pid else None,
        "file": file_stamp(unit.get("FragmentPath", "")),
        "installed": file_stamp(f"/etc/systemd/system/{asked['unit']}"),
        "health": health(asked["port"]) if pid else None,
        "proof": record_in(Path(asked["proof"])),
        "good": last_good("sha256"),
        "good_release": last_good("release_id"),
        "good_how": last_good("how"),
        "tried": file_stamp(f"/run/systemd/system.control/{asked['unit']}"),
        "failed": record_in(SERVER_STATE / "failed.json") or {},
        "changed": {
            "release": changed_at(Path(asked["release"]) / "release.json"),
            "weights": (record_in(Path(asked["weights"]) / ".verified.json") or {}).get("changed"),
        },
    }


def last_good(part: str) -> str | None:
    """A part of the history's newest entry."""
    try:
        newest = json.loads((SERVER_STATE / "history.json").read_text())[0][part]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return str(newest)


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
    return status_of(f"http://127.0.0.1:{port}/health")


def status_of(url: str) -> int | None:
    """The HTTP status that a URL answers with, or None when nothing answers; past any proxy."""
    from http.client import HTTPConnection, HTTPException  # noqa: PLC0415  slow to import

    where = urlsplit(url)
    asking = HTTPConnection(where.hostname or "", where.port, timeout=3)
    try:
        asking.request("GET", where.path or "/")
        return asking.getresponse().status
    except (OSError, ValueError, HTTPException):
        return None
    finally:
        asking.close()


# --- the question "requests" -------------------------------------------------------------------


def requests() -> dict[str, Any]:
    """How many requests the server works on or keeps waiting: {"running", "ours"}.

    "running": 0 where nobody serves at all, null where it is not told. "ours": whether the server
    that was deployed has told it, and no other one serves here.
    """
    deployed = (record_in(DEPLOYED) or {}).get("server") or {"unit": None, "port": None}
    here = serving(deployed)
    told = running_at(deployed["port"]) if here and deployed["port"] else None
    return {"running": told if here else 0, "ours": told is not None and is_alone(here, deployed)}


def is_alone(here: list[dict[str, Any]], server: dict[str, Any]) -> bool:
    """Whether nobody but the deployed server serves. here: see serving()."""
    return {(one["manager"], one["unit"]) for one in here} == {("system", server["unit"])}


def running_at(port: int) -> int | None:
    """What a server of vLLM tells at its own metrics; None where it does not."""
    from http.client import HTTPException  # noqa: PLC0415  slow to import
    from urllib.request import ProxyHandler, build_opener  # noqa: PLC0415

    try:
        url = f"http://127.0.0.1:{port}/metrics"
        with build_opener(ProxyHandler({})).open(url, timeout=10) as answer:
            return running_in(answer.read().decode(errors="replace"))
    except (OSError, ValueError, HTTPException):
        return None


def running_in(metrics: str) -> int | None:
    rows = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", metrics, re.MULTILINE)
    return int(sum(map(float, rows))) if rows else None


# --- the question "at_work" --------------------------------------------------------------------


def at_work(asked: dict[str, Any]) -> dict[str, Any]:
    """What of a deploy is under way: {"jobs": their units, "by": who holds the lock of a deploy}.

    asked: {"jobs": folder, "lock": file}. "by" is what the holder has written there, with "seconds"
    that it has held it; empty where it has written nothing yet, null where nobody holds it.
    """
    folder = Path(asked["jobs"])
    units = [f"aibox-{one.name}.service" for one in sorted(folder.glob("*")) if one.is_dir()]
    ended = ("inactive", "failed")
    return {
        "jobs": [unit for unit in units if active_state(unit) not in ended],
        "by": holder_of(Path(asked["lock"])),
    }


def holder_of(lock: Path) -> dict[str, Any] | None:
    import fcntl  # noqa: PLC0415  for this question alone

    try:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                said = record_in(lock) or {}
                return {**said, "seconds": time.time() - said["since"]} if said else {}
    except FileNotFoundError:
        pass
    return None


# --- the question "running_unit" ---------------------------------------------------------------


def running_unit(asked: dict[str, Any]) -> dict[str, Any]:
    """A unit, when what it reads was laid down, and what it answers.

    asked: {"unit", "paths", "url": null where it answers nobody}. "started": of its process,
    "changed": of each path, both seconds since the epoch, null for nothing. "answers": HTTP status.
    """
    unit = unit_properties(asked["unit"])
    pid = int(unit.get("MainPID") or 0)
    running = process(pid, unit["ExecMainStartTimestamp"]) if pid else None
    return {
        "unit": unit,
        "started": running and running["started"],
        "answers": status_of(asked["url"]) if running and asked["url"] else None,
        "changed": {path: changed_at(Path(path)) for path in asked["paths"]},
    }


# --- the question "door" -----------------------------------------------------------------------


def door(asked: dict[str, Any]) -> dict[str, Any]:
    """A door's unit, what it stands on, and what it answers.

    asked: {"unit", "files": paths of texts, "keys": paths, "venv": its record, "record", "failed":
    paths, "url"}. Answers what "running_unit" does, and more.
    """
    paths = (*asked["files"], *asked["keys"], asked["venv"])
    return {
        **running_unit({**asked, "paths": paths}),
        "files": {path: file_text(path) for path in asked["files"]},
        "passed": (record_in(Path(asked["record"])) or {}).get("identity"),
        "failed": record_in(Path(asked["failed"])),
    }


def door_venv(asked: dict[str, Any]) -> dict[str, Any]:
    """The record of a venv, null without one, and what in it was changed since that was written.

    asked: {"folder"}. "touched": one path within it, null where there is none. Bytecode is left
    out: python writes that by itself.
    """
    folder = Path(asked["folder"])
    record = record_in(folder / "release.json")
    newer = ["-newer", str(folder / "release.json"), "!", "-path", "*/__pycache__*"]
    command = ["find", str(folder), "-mindepth", "1", *newer, "-printf", "%P\\n", "-quit"]
    touched = (text_of(command) or "").strip() if record else ""
    return {"record": record, "touched": touched or None}


def door_left(asked: dict[str, Any]) -> dict[str, Any]:
    """What is left of a door that is turned off. asked: {"unit", "paths", "root": of its venvs}.

    Answers whose its unit is, whether that runs or has a file, which of the paths are there, and
    the venvs that a deploy has built.
    """
    root = Path(asked["root"])
    venvs = [path for path in root.glob("*") if (path / "release.json").is_file()]
    venvs += [
        *root.glob(".building-*"),
        *(path for path in [root / "current"] if path.is_symlink()),
    ]
    return {
        "unit": unit_of_whom(asked["unit"], DEPLOYED),
        "stands": active_state(asked["unit"]) not in ("inactive", "failed")
        or os.path.lexists(f"/etc/systemd/system/{asked['unit']}"),
        "paths": paths_there(asked),
        "venvs": sorted(map(str, venvs)),
    }


def paths_there(asked: dict[str, Any]) -> list[str]:
    """Those of {"paths"} that are there, as anything."""
    return [path for path in asked["paths"] if os.path.lexists(path)]


def file_text(path: str) -> dict[str, str] | None:
    """{"text", "owner", "mode"} of a regular file."""
    try:
        status = Path(path).lstat()
        text = Path(path).read_text(errors="replace") if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None
    owner = f"{user_name(status.st_uid)}:{group_name(status.st_gid)}"
    mode = f"{status.st_mode & 0o7777:o}"
    return None if text is None else {"text": text, "owner": owner, "mode": mode}


def programs(asked: dict[str, Any]) -> dict[str, Any]:
    """Whose the programs of a monitor are. asked: {package: {"port", "drop_in": as systemd names
    ours}}. "changed": files of the package in /etc that are not as it brought them, null where it
    is not installed."""
    return {
        package: {
            "owner": owner_of(one["port"]),
            "whose": of_whom(Path("/etc/systemd/system", one["drop_in"])),
            "changed": changed_by_hand(package),
        }
        for package, one in asked.items()
    }


def changed_by_hand(package: str) -> list[str] | None:
    form = "${db:Status-Status}\n${Conffiles}\n"
    state, *rows = (text_of(["dpkg-query", "-W", "-f", form, package]) or "").splitlines() or [""]
    if state in ("", "not-installed", "config-files"):
        return None
    told = [row.split()[:2] for row in rows if len(row.split()) >= 2]
    return [path for path, sum_ in told if md5_of(Path(path)) not in (sum_, None)]


def md5_of(path: Path) -> str | None:
    """As dpkg sums its files up."""
    try:
        return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()
    except OSError:
        return None


def signing_key(asked: dict[str, Any]) -> dict[str, Any]:
    """The key that lies beside a repository: {"text", "fingerprint", "error"}."""
    text, error = fetched(asked["url"])
    return {"text": text, "fingerprint": fingerprint(text or ""), "error": error}


def secret(asked: dict[str, Any]) -> dict[str, Any] | None:
    """Owner, mode and a salted sum of a file that only root may read: its content stays here."""
    path = Path(asked["path"])
    try:
        content, status = path.read_bytes(), path.stat()
    except OSError:
        return None
    salt = os.urandom(16).hex()
    return {
        "owner": f"{user_name(status.st_uid)}:{group_name(status.st_gid)}",
        "mode": f"{status.st_mode & 0o7777:o}",
        "salt": salt,
        "sum": hashlib.sha256(salt.encode() + content).hexdigest(),
        "is_empty": not content.strip(),
    }


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
PLACES_OF_UNITS = UNIT_FOLDERS[2:]  # those of control are a switch's own


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
    fragment = shown.get("FragmentPath", "")
    paths = {Path(path) for path in shown.get("DropInPaths", "").split()}
    for folder in UNIT_FOLDERS:
        for name in drop_in_folders(unit):
            paths |= set(Path(folder, name).glob("*.conf"))
    pid = int(shown.get("MainPID") or 0)
    running = process(pid, shown["ExecMainStartTimestamp"]) if pid else None
    return {
        "fragment": fragment,
        "theirs": is_a_persons(Path(fragment)),
        "given": given_by(Path(fragment), sorted(paths)),
        "drop_ins": {str(path): content(path) for path in sorted(paths)},
        "variables": sorted(running["environment"]) if running else [],
    }


def is_a_persons(file: Path) -> bool:
    """Whether a unit's file says something, and no deploy has written it."""
    text = (read_text(file) if file.is_file() else None) or ""
    return bool(text.strip()) and not text.startswith(FIRST_WORDS)


def given_by(file: Path, drop_ins: list[Path]) -> list[str]:
    """The names of the variables that a unit's own file sets or lets through, and of those in the
    EnvironmentFile of it or of a drop-in; no value leaves the box."""
    names = set()
    for path in [file, *drop_ins]:
        text = re.sub(r"\\\n", " ", (read_text(path) if path.is_file() else None) or "")
        for key, value in re.findall(r"^\s*(\w*Environment\w*)\s*=(.*)$", text, re.MULTILINE):
            if key == "EnvironmentFile":
                names |= variables_in(value.strip().removeprefix("-"))
            elif path == file and key in ("Environment", "PassEnvironment"):
                names |= {word.partition("=")[0] for word in split(value)}
    return sorted(names)


def variables_in(pattern: str) -> set[str]:
    """The names that an EnvironmentFile= sets; its path may be a pattern."""
    if not pattern.startswith("/"):
        return set()
    texts = [read_text(path) or "" for path in Path("/").glob(pattern.lstrip("/"))]
    return set(re.findall(r"^\s*([A-Za-z_]\w*)\s*=", "\n".join(texts), re.MULTILINE))


def split(line: str) -> list[str]:
    """Words as systemd reads them; as good as can be where quotes do not close."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()


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


# --- the question "driver" ---------------------------------------------------------------------

NVIDIA = "0x10de"  # PCI vendor
DISPLAY = "0x03"  # PCI class: a display controller
SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# the machine's own keys that dkms signs modules with: Debian's place, Ubuntu's place
MOK_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
UNINSTALLERS = ("usr/bin/nvidia-uninstall", "usr/local/bin/nvidia-uninstall")
RUNFILE_LOG = "var/log/nvidia-installer.log"
OUR_MODPROBE = "etc/modprobe.d/aibox-nvidia.conf"
CUDA_PROOF = "var/lib/aibox/cuda.json"
PACKAGE_FAMILIES = ("cuda-toolkit", "cuda-nvcc", "cuda-drivers", "linux-headers-")
PACKAGE_FORM = "${db:Status-Abbrev}\t${Package}\t${Architecture}\t${Version}\t${source:Package}\n"


def driver(asked: dict[str, Any]) -> dict[str, Any]:
    """Kernels, modules, packages and sources of the NVIDIA driver.

    asked: {"key_file": path of the repository's key, "cuda": "13.0" or null}. The commands run at
    the same time: a compressed module takes modinfo tenths of a second.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  slow to import

    with ThreadPoolExecutor(8) as pool:
        modules = {one: pool.submit(module, one) for one in kernels()}
        listing = pool.submit(text_of, ["dpkg-query", "-W", "-f", PACKAGE_FORM])
        cache = pool.submit(text_of, ["ldconfig", "-p"])
        log = pool.submit(kernel_log)
        persistence = pool.submit(active_state, "nvidia-persistenced.service")
        compiler = pool.submit(nvcc_version, asked["cuda"]) if asked.get("cuda") else None
        secure_boot = secure_boot_on()
        library = library_file(cache.result() or "")
        key = read_text(ROOT / asked["key_file"].lstrip("/"))
        nvcc = compiler.result() if compiler else None
        return {
            "kernel": platform.release(),
            "kernels": [kernel(one, built.result()) for one, built in modules.items()],
            "pci": cards_on_the_bus(),
            "secure_boot": secure_boot,
            "mok_enrolled": mok_enrolled() if secure_boot else None,
            "loaded": loaded_module(),
            "uvm": (ROOT / "dev/nvidia-uvm").exists(),
            "uvm_disable_hmm": uvm_disable_hmm(),
            "nouveau": (ROOT / "sys/module/nouveau").is_dir(),
            "library": library_version(library),
            "packages": driver_packages(listing.result() or ""),
            "runfile": runfile(library),
            "sources": sources(),
            "key_fingerprint": fingerprint(key or ""),
            "key": key,
            "modprobe_changed": changed_at(ROOT / OUR_MODPROBE),
            "boot_id": (read_text(ROOT / "proc/sys/kernel/random/boot_id") or "").strip(),
            "persistenced": persistence.result() or "unknown",
            "kernel_log": log.result(),
            "nvcc": {asked["cuda"]: nvcc} if nvcc else {},
            "glibc": platform.libc_ver()[1] or None,
            "cuda_proof": record_in(ROOT / CUDA_PROOF),
        }


def read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def kernels() -> list[str]:
    """Kernels that can boot, and the one that runs; the newest last."""
    running = platform.release()
    found = [
        folder.name
        for folder in (ROOT / "lib/modules").glob("*")
        if folder.name == running or (ROOT / f"boot/vmlinuz-{folder.name}").exists()
    ]
    return sorted(found, key=kernel_order)


def kernel_order(release: str) -> list[tuple[int, int, str]]:
    """Numbers count as numbers, and a release candidate comes before its release."""
    words = re.findall(r"\d+|\D+", release.replace("-rc", "!rc"))
    return [(1, int(word), "") if word.isdigit() else (0, 0, word) for word in words]


def kernel(release: str, built: dict[str, str] | None) -> dict[str, Any]:
    return {
        "release": release,
        "headers": (ROOT / "lib/modules" / release / "build").exists(),
        "module": built,
        "initrd_changed": changed_at(ROOT / f"boot/initrd.img-{release}"),
    }


def module(release: str) -> dict[str, str] | None:
    """Version and licence of the nvidia module that is built for a kernel."""
    said = text_of(["modinfo", "-k", release, "nvidia"])
    if said is None:
        return None
    fields = dict(re.findall(r"^(version|license): *(.*?) *$", said, re.MULTILINE))
    if "version" not in fields:
        return None
    return {"version": fields["version"], "license": fields.get("license", "")}


def cards_on_the_bus() -> list[dict[str, Any]]:
    found = []
    for device in sorted((ROOT / "sys/bus/pci/devices").glob("*")):
        vendor, kind = (read_text(device / name) or "" for name in ("vendor", "class"))
        if vendor.strip() != NVIDIA or not kind.startswith(DISPLAY):
            continue
        identity = (read_text(device / "device") or "").strip().removeprefix("0x")
        link = device / "driver"
        held_by = link.resolve().name if link.is_symlink() else None
        found.append({"slot": device.name, "id": f"10de:{identity}", "driver": held_by})
    return found


def secure_boot_on() -> bool | None:
    """As the firmware's own variable says; a box that was not booted by EFI has none."""
    firmware = ROOT / "sys/firmware/efi"
    if not firmware.is_dir():
        return False
    try:
        return (firmware / "efivars" / SECURE_BOOT).read_bytes()[-1] == 1
    except (OSError, IndexError):
        pass
    said = ran(["mokutil", "--sb-state"])
    words = said.stdout.lower() if said is not None else ""
    if "secureboot enabled" in words:
        return True
    return False if "secureboot disabled" in words else None


def mok_enrolled() -> bool | None:
    """Whether the firmware trusts the key that dkms signs with; without such a key: no."""
    keys = [ROOT / path for path in MOK_KEYS if (ROOT / path).exists()]
    if not keys:
        return False
    said = ran(["mokutil", "--test-key", str(keys[0])])
    words = said.stdout + said.stderr if said is not None else ""
    if "already enrolled" in words:
        return True
    return False if "not enrolled" in words else None


def loaded_module() -> dict[str, Any] | None:
    """The nvidia module that runs. The open one says so in its own line in /proc."""
    version = (read_text(ROOT / "sys/module/nvidia/version") or "").strip()
    line = (read_text(ROOT / "proc/driver/nvidia/version") or "").partition("\n")[0]
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\S+)", line)
    if not version and found is None:
        return None
    return {
        "version": version or (found[1] if found else ""),
        "open": "Open Kernel Module" in line,
    }


def uvm_disable_hmm() -> bool | None:
    said = read_text(ROOT / "sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    return {"Y": True, "1": True, "N": False, "0": False}.get((said or "").strip())


def library_file(cache: str) -> Path | None:
    """The driver's NVML as the loader finds it, from `ldconfig -p`."""
    found = re.search(
        r"^\s*libnvidia-ml\.so\.1 \(libc6,(?:x86-64|AArch64)[^)]*\) => (\S+)", cache, re.MULTILINE
    )
    return (ROOT / found[1].lstrip("/")).resolve() if found else None


def library_version(path: Path | None) -> str | None:
    found = re.search(r"\.so\.(\d+\.[\d.]+)$", path.name) if path else None
    return found[1] if found else None


def driver_packages(listing: str) -> dict[str, Any]:
    """{name: {"version", "source", "held"}} of installed packages that concern the driver.

    A package of another architecture than the box's own is "name:architecture".
    """
    own = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    found = {}
    for line in listing.splitlines():
        state, name, architecture, version, source = line.split("\t")
        meta = re.match(r"linux-image-(?!\d|unsigned-)", name)
        ours = "nvidia" in name or "nvidia" in source or name.startswith(PACKAGE_FAMILIES)
        if state[1:2] == "i" and (meta or ours):
            shown = name if architecture in (own, "all") else f"{name}:{architecture}"
            found[shown] = {"version": version, "source": source, "held": state[0] == "h"}
    return found


def runfile(library: Path | None) -> list[str]:
    """Traces of NVIDIA's own installer. Its log stays behind after an orderly removal, so it only
    counts while a library is there that no package owns."""
    found = [f"/{path}" for path in UNINSTALLERS if (ROOT / path).exists()]
    if (ROOT / RUNFILE_LOG).exists() and library is not None and not owned(library):
        found.append(f"/{RUNFILE_LOG}")
    return found


def owned(path: Path) -> bool:
    """Whether a package holds a file; /usr/lib may be listed as /lib."""
    names = [str(path), str(path).removeprefix("/usr")]
    return any(text_of(["dpkg-query", "-S", name]) is not None for name in names)


def sources() -> dict[str, str]:
    """{path: whole text} of apt's sources."""
    folder = ROOT / "etc/apt/sources.list.d"
    paths = [ROOT / "etc/apt/sources.list", *sorted(folder.glob("*.list"))]
    paths += sorted(folder.glob("*.sources"))
    texts = {path: read_text(path) for path in paths}
    return {f"/{path.relative_to(ROOT)}": text for path, text in texts.items() if text is not None}


def active_state(unit: str) -> str | None:
    said = text_of(["systemctl", "show", "-p", "ActiveState", "--value", unit])
    return said.strip() if said else None


def kernel_log() -> list[str]:
    """What this boot's kernel said of the card: NVRM and Xid, refused modules, nouveau's errors.

    The last 20 lines.
    """
    said = kernel_lines("NVRM|nouveau|nvidia|Key was rejected|unavailable key")
    telling = re.compile(
        r"NVRM|Xid|[Kk]ey|(?:nouveau|nvidia).*(?:fail|error|unknown|unsupported|timeout|reject)"
    )
    return [line for line in said if telling.search(line)][-20:]


def kernel_lines(pattern: str) -> list[str]:
    """All that this boot's kernel said that matches."""
    command = ["journalctl", "-b", "-o", "cat", "-t", "kernel", "--no-pager", "-q"]
    return (text_of([*command, "--grep", pattern]) or "").splitlines()


def nvcc_version(toolkit: str) -> str | None:
    """The full version of a toolkit's compiler: "13.0" -> "13.0.88"."""
    path = ROOT / f"usr/local/cuda-{toolkit}/bin/nvcc"
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text_of([str(path), "--version"]) or "")
    return found[1] if found else None


def fingerprint(armored: str) -> str | None:
    """The OpenPGP v4 fingerprint of the first key in an armored text: 40 hex digits.

    RFC 4880, 12.2: SHA-1 over 0x99, two octets of length, and the public key packet's body.
    """
    found = re.search(
        r"-----BEGIN PGP PUBLIC KEY BLOCK-----\s*?\n(?:[A-Za-z]+:.*\n)*\s*\n(.+?)\n(?:=\S{4}\s*\n)?"
        r"-----END",
        armored.replace("\r\n", "\n"),
        re.DOTALL,
    )
    if found is None:
        return None
    try:
        body = first_packet(base64.b64decode("".join(found[1].split()), validate=True))
    except (ValueError, IndexError):
        return None
    if body is None or body[0] != 4:
        return None
    digest = hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body, usedforsecurity=False)
    return digest.hexdigest().upper()


def first_packet(data: bytes) -> bytes | None:
    """The body of the first packet, when it is a public key (RFC 4880, 4.2). Raises IndexError."""
    head, first = data[0], data[1]
    if head & 0x40:  # the new format
        tag, at = head & 0x3F, 2
        if first < 192:
            length = first
        elif first < 224:
            length, at = ((first - 192) << 8) + data[2] + 192, 3
        else:
            length, at = int.from_bytes(data[2:6], "big"), 6
    else:
        octets = 1 << (head & 3)
        tag, at = (head >> 2) & 0xF, 1 + octets
        length = int.from_bytes(data[1:at], "big")
    whole = len(data) >= at + length and length > 0
    return data[at : at + length] if head & 0x80 and tag == 6 and whole else None


# --- the question "repository" -----------------------------------------------------------------

KEY_NAME = "3bf863cc.pub"  # beside NVIDIA's Release file
APT_SECONDS = 60
OTHERS_SECONDS = 150  # the distribution's own lists may have to come along
APT_CONF = """\
#clear APT::Update::Pre-Invoke;
#clear APT::Update::Post-Invoke;
#clear APT::Update::Post-Invoke-Success;
Dir::State::lists "{folder}/lists/";
Dir::Cache "{folder}/cache/";
Dir::Cache::archives "archives/";
Dir::Etc::sourcelist "/dev/null";
Dir::Etc::sourceparts "{folder}/sources/";
Dir::Etc::preferences "/dev/null";
Dir::Etc::preferencesparts "{folder}/preferences/";
Acquire::Languages "none";
Acquire::Retries "0";
Acquire::http::Timeout "15";
Acquire::https::Timeout "15";
APT::Get::List-Cleanup "false";
APT::Ignore-Hold "true";
quiet "1";
"""


def repository(asked: dict[str, Any]) -> dict[str, Any]:
    """What NVIDIA's repository offers this box, and what apt would do with it.

    All in a folder that is thrown away, with the box's own list of installed packages. asked:
    {"url": the flat folder, "fingerprint": of its key, "sources": {path: text} of the other
    sources, "source": the text of ours with @KEY@ where its key's path belongs, "preferences":
    text, "packages": ["name=glob of a version"], "toolkit": name or null, "headers": [names],
    "also": [names whose offers are told, no more]}.
    """
    answer: dict[str, Any] = {
        "key": None,
        "key_fingerprint": None,
        "error": None,
        "offers": {},
        "removes": [],
        "download_bytes": None,
        "disk_bytes": None,
        "unresolved": None,
    }
    key, answer["error"] = fetched(asked["url"].rstrip("/") + f"/{KEY_NAME}")
    if key is None:
        return answer
    answer |= {"key": key, "key_fingerprint": fingerprint(key)}
    if answer["key_fingerprint"] != asked["fingerprint"].upper():
        return answer
    keep = ROOT / "var/tmp"  # the lists take more than a small /tmp may have
    with tempfile.TemporaryDirectory(
        prefix="aibox-repository-",
        dir=keep if keep.is_dir() else None,
        ignore_cleanup_errors=True,  # an apt that took too long may still be ending
    ) as folder:
        lay_out(Path(folder), asked, key)
        answer["error"] = update_error(Path(folder), asked["url"])
        if answer["error"] is None:
            answer |= tried(str(Path(folder) / "apt.conf"), asked)
    return answer


def fetched(url: str) -> tuple[str | None, str | None]:
    """(text, None), or (None, why it could not be fetched)."""
    from urllib.error import HTTPError  # noqa: PLC0415  slow to import
    from urllib.request import urlopen  # noqa: PLC0415

    try:
        with urlopen(url, timeout=20) as reply:
            return reply.read(1 << 20).decode(errors="replace"), None
    except HTTPError as error:
        return None, f"{url}: HTTP {error.code} {error.reason}"
    except (OSError, ValueError) as error:
        return None, f"{url}: {getattr(error, 'reason', error)}"


def lay_out(folder: Path, asked: dict[str, Any], key: str) -> None:
    """A world of its own for apt: the box's configuration without its hooks, other sources."""
    folder.chmod(0o755)  # apt fetches as a user of its own
    places = ("lists/partial", "cache/archives/partial", "preferences", "conf")
    for name in (*places, "sources", "others", "ours"):
        (folder / name).mkdir(parents=True)
    etc = ROOT / "etc/apt"
    parts = [*sorted((etc / "apt.conf.d").glob("*")), etc / "apt.conf"]
    copy(parts, folder / "conf")
    copy((etc / "preferences.d").glob("*"), folder / "preferences")
    copy([etc / "preferences"], folder / "preferences")
    # what the box has read already need not come again
    copy((ROOT / "var/lib/apt/lists").glob("*"), folder / "lists")
    (folder / "conf/zzz-probe").write_text(APT_CONF.format(folder=folder))
    (folder / "apt.conf").write_text(
        f'Dir::Etc::Parts "{folder}/conf/";\nDir::Etc::Main "/dev/null";\n'
    )
    (folder / "key.asc").write_text(key)
    ours = asked["source"].replace("@KEY@", str(folder / "key.asc"))
    for place in ("ours", "sources"):
        (folder / place / "aibox-nvidia.sources").write_text(ours)
    for path, text in asked["sources"].items():
        for place in ("others", "sources"):
            (folder / place / Path(path).name).write_text(text)
    (folder / "preferences/aibox-nvidia").write_text(asked["preferences"])


def copy(paths: Iterable[Path], folder: Path) -> None:
    for path in paths:
        if path.is_file() and path.name != "lock":
            with contextlib.suppress(OSError):  # a list that apt has just replaced
                shutil.copy2(path, folder / path.name)


def apt(
    configuration: str, *words: str, seconds: float = APT_SECONDS
) -> subprocess.CompletedProcess[str] | None:
    return ran(list(words), seconds, APT_CONFIG=configuration, DEBIAN_FRONTEND="noninteractive")


def update_error(folder: Path, url: str) -> str | None:
    """Why our repository can't be read, in apt's words.

    The others are read apart from it: their troubles are not ours, and one that does not answer
    must not take the time away.
    """
    ours = update(folder, "ours", APT_SECONDS)
    if ours is None:
        return f"{url}: apt-get update did not end in {APT_SECONDS} s"
    if ours.returncode or complaint_of(ours.stdout + ours.stderr, url):
        said = ours.stdout + ours.stderr
        return complaint_of(said, url) or unresolved(said)
    update(folder, "others", OTHERS_SECONDS)
    return None


def update(folder: Path, place: str, seconds: float) -> subprocess.CompletedProcess[str] | None:
    words = ["apt-get", "update", "-o", f"Dir::Etc::sourceparts={folder}/{place}/"]
    return apt(str(folder / "apt.conf"), *words, seconds=seconds)


def complaint_of(said: str, url: str) -> str | None:
    """apt's lines that concern a url: Err: with the cause below it, E: and W: that name it."""
    lines, found = said.splitlines(), []
    place = url.rstrip("/")
    for at, line in enumerate(lines):
        if not re.match(r"(Err:\d+|E:|W:|Error:|Warning:) ", line) or place not in line:
            continue
        found.append(line.strip())
        for below in lines[at + 1 :]:
            if not line.startswith("Err:") or not below.startswith(" "):
                break
            if not re.match(r"\s+(?:-|Hashes|Last modification|Release file created)", below):
                found.append(below.strip())
    mild = re.compile(r"(W|Warning): .*(?:weak|SHA1|[Pp]olicy)")
    failing = [line for line in found if not mild.match(line)]
    return "\n".join(failing[:8]) or None


def tried(configuration: str, asked: dict[str, Any]) -> dict[str, Any]:
    """Offers of every package asked for, and a simulated installation of those that fit."""
    globs = dict(one.partition("=")[::2] for one in asked["packages"])
    others = [*([asked["toolkit"]] if asked["toolkit"] else []), *asked["headers"]]
    names = list(dict.fromkeys([*globs, *others, *asked["also"]]))
    done = apt(configuration, "apt-cache", "madison", *names)
    if done is None or done.returncode:
        return {"error": unresolved(done.stderr) if done else "apt-cache does not answer"}
    found = madison(done.stdout)
    offers = {name: found.get(name, []) for name in names}
    exact = {name: fitting(glob, offers[name]) for name, glob in globs.items()}
    if None in exact.values():
        return {"offers": offers}
    wanted = [f"{name}={version}" for name, version in exact.items()]
    wanted += [name for name in others if offers[name]]
    return {"offers": offers, **simulated(configuration, wanted)}


def simulated(configuration: str, wanted: list[str]) -> dict[str, Any]:
    command = ["apt-get", "-y", "--no-install-recommends", "--allow-downgrades"]
    command += ["--allow-change-held-packages", "install", *wanted]
    done = apt(configuration, *command, "-s")
    if done is None:
        return {"unresolved": f"apt-get did not end in {APT_SECONDS} s"}
    if done.returncode:
        return {"unresolved": unresolved(done.stdout + done.stderr)}
    plan = simulation(done.stdout)
    uris = apt(configuration, *command, "-qq", "--print-uris")
    return {
        "removes": plan["removed"],
        "download_bytes": download_size(uris.stdout) if uris and not uris.returncode else None,
        "disk_bytes": disk_size(configuration, plan),
    }


def unresolved(said: str) -> str:
    """apt's account of what can't be satisfied, or its errors."""
    lines = said.splitlines()
    block = [at for at, line in enumerate(lines) if "have unmet dependencies" in line]
    if block:
        return "\n".join(line.rstrip() for line in lines[block[0] :][:12])
    errors = [line for line in lines if re.match(r"(E|Error):", line)]
    return "\n".join(errors[:6] or lines[-3:])


def madison(said: str) -> dict[str, list[str]]:
    """{package: its versions, newest first} from `apt-cache madison`."""
    found: dict[str, list[str]] = {}
    for line in said.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 3 and not cells[2].endswith(" Sources"):
            versions = found.setdefault(cells[0], [])
            if cells[1] not in versions:
                versions.append(cells[1])
    return found


def fitting(glob: str, versions: list[str]) -> str | None:
    """The first version that fits, with or without its epoch."""
    return next(
        (
            version
            for version in versions
            if fnmatch.fnmatchcase(version, glob)
            or fnmatch.fnmatchcase(version.partition(":")[2], glob)
        ),
        None,
    )


def simulation(said: str) -> dict[str, Any]:
    """{"installed": {name: version}, "removed": [names]} from `apt-get -s`."""
    installed = re.findall(r"^Inst (\S+)(?: \[[^]]*\])? \((\S+)", said, re.MULTILINE)
    removed = re.findall(r"^(?:Remv|Purg) (\S+)", said, re.MULTILINE)
    return {"installed": dict(installed), "removed": sorted(set(removed))}


def download_size(said: str) -> int:
    """Bytes, from `apt-get --print-uris`: 'URL' NAME SIZE SUM."""
    return sum(int(size) for size in re.findall(r"^'[^']*' \S+ (\d+)", said, re.MULTILINE))


def disk_size(configuration: str, plan: dict[str, Any]) -> int | None:
    """Bytes that the disk will hold more (never less than 0), by Installed-Size in KiB."""
    wanted = [f"{name}={version}" for name, version in plan["installed"].items()]
    if not wanted:
        return 0
    shown = apt(configuration, "apt-cache", "show", *wanted)
    if shown is None or shown.returncode:
        return None
    sizes = re.findall(r"^Installed-Size: (\d+)", shown.stdout, re.MULTILINE)
    leaving = [*plan["installed"], *plan["removed"]]
    # it fails for names that are not installed, and still prints the others
    there = ran(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Installed-Size}\n", *leaving])
    freed = re.findall(r"^installed (\d+)", there.stdout if there else "", re.MULTILINE)
    return max(0, 1024 * (sum(map(int, sizes)) - sum(map(int, freed))))


QUESTIONS = {
    "system": system,
    "release": release,
    "releases": releases,
    "compiled": compiled,
    "weights": weights,
    "commits": commits,
    "server": server,
    "serving": serving,
    "requests": lambda _asked: requests(),
    "at_work": at_work,
    "running_unit": running_unit,
    "door": door,
    "door_left": door_left,
    "paths_there": paths_there,
    "door_venv": door_venv,
    "secret": secret,
    "programs": programs,
    "signing_key": signing_key,
    "owners": owners,
    "foreign": foreign,
    "dpkg": lambda _asked: dpkg(),
    "cards": lambda _asked: gpu(),
    "driver": driver,
    "repository": repository,
}


if __name__ == "__main__":
    print(json.dumps(QUESTIONS[sys.argv[1]](json.loads(sys.argv[2]))))
