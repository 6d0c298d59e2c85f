"""Who serves on the box, and how much it has to do."""

import re
from pathlib import Path
from typing import Any

from aibox.box.probe.files import DEPLOYED, record_in
from aibox.box.probe.port_owners import owner
from aibox.box.probe.processes import groups_of_process, is_vllm, is_within, words_of
from aibox.box.probe.sockets import ports_of


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


QUESTIONS = {"serving": serving, "requests": lambda _asked: requests()}
