"""Who listens on a port, and what keeps it running."""

from pathlib import Path
from typing import Any

from aibox.box.probe.containers import starter_of
from aibox.box.probe.owners import user_name
from aibox.box.probe.processes import groups_of_process, is_vllm, manager_of, name_of, words_of
from aibox.box.probe.sockets import holds, listening

# What listens for a container on the host.
PORT_KEEPERS = ("docker-proxy", "rootlessport", "conmon", "slirp4netns", "pasta", "pasta.avx2")


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
