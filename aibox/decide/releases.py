"""What makes a release exist, and which releases stay on a box."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.refusal import Refusal

LOG = "look at `journalctl -u aibox-release` on the box"
# {distribution: module} that the server cannot start without; each is tried where the lock has it.
SERVER_NEEDS = {
    "vllm": "vllm",
    "torch": "torch",
    "transformers": "transformers",
    "triton": "triton",
    "flashinfer-python": "flashinfer",
    "safetensors": "safetensors",
    "tokenizers": "tokenizers",
    "xgrammar": "xgrammar",
    "fastapi": "fastapi",
    "uvicorn": "uvicorn",
    "uvloop": "uvloop",
    "prometheus-client": "prometheus_client",
}
HALF = (".building-", ".removing-")  # how folders of runs that were cut off begin


def modules_to_import(locked: Mapping[str, str]) -> list[str]:
    """locked: {distribution: version}."""
    return [module for name, module in SERVER_NEEDS.items() if name in locked]


def proof_refusal(found: Mapping[str, Any], version: str, cuda: str | None) -> Refusal | None:
    """What the new venv's own Python said, against what was asked for.

    found: {"version" of vllm's metadata or None, "failed": {module: error}, "cuda" that torch was
    built for or None, "torch": bool}. cuda: the toolkit's minor, such as "13.0"; None without one.
    """
    if found["version"] != version:
        return Refusal(f"vllm {found['version'] or 'absent'} in the venv", f"vllm {version}", LOG)
    for module, error in found["failed"].items():
        return Refusal(f"the new venv can't import {module}: {error}", f"{module} imports", LOG)
    if cuda is not None and found["torch"] and found["cuda"] != cuda:
        return Refusal(
            f"torch built for CUDA {found['cuda'] or '(none)'}, and a toolkit of CUDA {cuda}",
            "one CUDA minor: kernels that the server compiles would not fit",
            "renew the lock with `make lock`, so that torch and nvidia-cuda-runtime agree",
        )
    return None


# --- which stay --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """One folder among the releases. made: when its record was written, seconds since the epoch;
    None without a record."""

    name: str
    made: float | None


def served(record: Mapping[str, Any] | None) -> list[str]:
    """The releases that have passed a proof, by name, the newest first, as its record says."""
    names = (record or {}).get("served")
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def served_now(record: Mapping[str, Any] | None, name: str, most: int = 10) -> list[str]:
    """What the next proof's record says: `name` has served, then those before it."""
    return [name, *(one for one in served(record) if one != name)][:most]


def kept(
    standing: Sequence[Standing],
    current: str,
    proven: Sequence[str],
    named: Mapping[str, str] | None = None,
) -> dict[str, str]:
    """{name: why it stays}: the current one, the previous one, and whatever else is named.

    proven: releases that served, the newest first. named: {name: why} of further ones, such as
    the last good one's. Where nothing else has served, the newest other one is the previous.
    """
    there = {
        one.name: one.made
        for one in standing
        if one.made is not None and not one.name.startswith(HALF)
    }
    others = [name for name in proven if name in there and name != current]
    by_age = sorted(there.keys() - {current}, key=lambda name: -(there[name] or 0))
    why = {current: "current"}
    why |= dict.fromkeys((others or by_age)[:1], "previous")
    return {**(named or {}), **why}


def superfluous(
    standing: Sequence[Standing],
    current: str,
    proven: Sequence[str],
    named: Mapping[str, str] | None = None,
) -> list[str]:
    """What may be removed, by name: whole releases that nobody asks for, and halves of dead runs.

    A release that was made after the current one and never served stays: somebody tries it. A
    folder without a record is not ours.
    """
    stays = kept(standing, current, proven, named)
    halves = [one.name for one in standing if one.name.startswith(HALF)]
    made = {one.name: one.made for one in standing if one.name not in halves}
    now = made.get(current)
    old = [
        name
        for name, when in made.items()
        if when is not None
        and name not in stays
        and (name in proven or (now is not None and when < now))
    ]
    return sorted([*old, *halves])
