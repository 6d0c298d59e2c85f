"""The box's processes: their names, their words, and who keeps them."""

import re
from itertools import pairwise
from pathlib import Path

CONTAINER = re.compile(r"(?:docker|libpod|libpod-payload|crio|cri-containerd)[-/]([0-9a-f]{12,64})")


def words_of(pid: int) -> list[str]:
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return []
    return [word.decode(errors="replace") for word in command.split(b"\0")[:-1]]


def name_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "?"


def groups_of_process(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""


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


def unit_of(pid: int) -> str | None:
    """The unit of the system that a process belongs to; a person's own units are none of them."""
    manager, unit = manager_of(groups_of_process(pid))
    return unit if manager == "system" else None


def pids_of_unit(unit: str) -> list[int]:
    """The processes in the control group of a unit of the system, and below it."""
    pids = [int(folder.name) for folder in Path("/proc").glob("[0-9]*")]
    return [pid for pid in pids if is_within(groups_of_process(pid), unit)]


def is_within(groups: str, unit: str) -> bool:
    """Whether a process is in the control group of a unit of the system, or below it."""
    paths = [line.split(":", 2)[-1] for line in groups.splitlines()]
    return any(f"/{unit}/" in f"{path}/" for path in paths if "/user@" not in path)


def servers_of_vllm() -> list[tuple[int, list[str]]]:
    """(pid, words) of every process that a vLLM's server was started as."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        words = words_of(int(folder.name))
        if is_vllm(words):
            found.append((int(folder.name), words))
    return sorted(found)


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
