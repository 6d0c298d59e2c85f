"""What the server should be, and whether what runs is that."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from aibox.decide.candidate import failure_of, is_passing
from aibox.decide.history import BY_ROLLBACK
from aibox.decide.launch import settings
from aibox.decide.manifest import AIBOX
from aibox.decide.secrecy import without_secrets
from aibox.decide.switching import AGAIN
from aibox.decide.unit import differences

DOCTOR = f"{AIBOX} doctor"
OLDER_THAN_FILE = "it is older than its unit file"
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Serving:
    """A server as it should run: its command line (a list of words a line) and environment."""

    unit: str
    user: str
    port: int
    start_timeout: int  # seconds
    release: str  # folder
    weights: str  # folder
    lines: list[list[str]]
    environment: dict[str, str]

    @property
    def command(self) -> list[str]:
        return [word for line in self.lines for word in line]

    @property
    def identity(self) -> str:
        """Changes with whatever could change an answer: a new proof is owed then."""
        content = json.dumps([self.command, sorted(self.environment.items())])
        return hashlib.sha256(content.encode()).hexdigest()


def environment(
    unit: str,
    release: str,
    gpu_uuids: Sequence[str],
    extra: Mapping[str, str],
    cuda_home: str | None = None,
) -> dict[str, str]:
    """The server's environment: nothing phones home, and every cache has a writable place.

    gpu_uuids: the cards, in the order in which CUDA is to count them; none on a box with one card
    that nobody named. cuda_home: the toolkit that kernels are compiled with; None for a release
    without CUDA.
    """
    cache = f"/var/cache/{unit}"
    programs = [f"{release}/bin"] + ([f"{cuda_home}/bin"] if cuda_home else [])
    wanted = {
        "HOME": f"/var/lib/{unit}",
        "PATH": ":".join([*programs, SYSTEM_PATH]),
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/torchinductor",
        "FLASHINFER_WORKSPACE_BASE": f"{cache}/flashinfer",
        "TORCH_EXTENSIONS_DIR": f"{cache}/torch_extensions",
        "NUMBA_CACHE_DIR": f"{cache}/numba",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "XDG_CACHE_HOME": f"{cache}/other",  # whatever else keeps one: ~/.cache, /.cache
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    if cuda_home is not None:
        wanted["CUDA_HOME"] = cuda_home
    if gpu_uuids:
        wanted["CUDA_VISIBLE_DEVICES"] = ",".join(gpu_uuids)
    return {**wanted, **extra}


def reasons_to_restart(state: Mapping[str, Any] | None, wanted: Serving) -> list[str]:
    """Why the server must be restarted to be what is wanted; empty when it is that already.

    `state` is the probe's answer to "server"; None where it could not be asked.
    """
    if state is None or state["process"] is None:
        active = state["unit"].get("ActiveState", "inactive") if state else "not there yet"
        return [f"it is {active}"]
    process, file = state["process"], state["file"]
    if file is None:
        return ["its unit file is gone"]
    reasons = [f"it runs {row}" for row in differences(process["command"], wanted.command)]
    reasons += [
        f"its environment has {name}={process['environment'].get(name, '(unset)')}, not {value}"
        for name, value in wanted.environment.items()
        if process["environment"].get(name) != value
    ]
    if not reasons and process["started"] < file["changed"]:
        reasons.append(OLDER_THAN_FILE)
    reasons += [
        f"it is older than its {part}"
        for part in ("release", "weights")
        if not reasons and process["started"] < (state["changed"][part] or 0)
    ]
    if not reasons and state["unit"]["ActiveState"] not in ("active", "activating"):
        reasons.append(f"it is {state['unit']['ActiveState']}")
    return [without_secrets(reason) for reason in reasons]


@dataclass(frozen=True)
class Switching:
    """What a deploy does about the server. No reasons: nothing. restart: its process must go."""

    reasons: list[str]
    restart: bool


def switching(
    state: Mapping[str, Any] | None, wanted: Serving, text: str, installed: str | None
) -> Switching:
    """From the server as it is to the unit with this text, with a restart only where one is due.

    state: the probe's answer to "server". installed: the text of the unit in /etc, None without.
    """
    sum_wanted = hashlib.sha256(text.encode()).hexdigest()
    reasons = reasons_to_restart(state, wanted)
    good = state is not None and state["good"] == sum_wanted
    if state is None or state["file"] is None:
        lost_only = good and not reasons_to_restart(with_a_file(state), wanted)
        return Switching(reasons, restart=not lost_only)
    runs_from = state["file"]
    edited_only = (
        good and runs_from["sha256"] != sum_wanted and reasons == [OLDER_THAN_FILE]
    )  # by hand, and never started: what runs is what passed
    reasons = [] if edited_only else reasons
    restart = bool(reasons)
    if not restart and not edited_only and runs_from["sha256"] != sum_wanted:
        restart = settings(installed or "") != settings(text)
    if installed != text:
        reasons.append("its unit file is not the wanted one")
    elif runs_from["path"] != state["installed"]["path"]:
        reasons.append(f"it runs from {runs_from['path']}: a switch was cut off")
    elif state["tried"] is not None:
        reasons.append(f"{state['tried']['path']} is left of a switch that was cut off")
    if not reasons and not good:
        reasons.append("it has not passed its gate yet")
    if not good and state["good_how"] == BY_ROLLBACK and runs_from["sha256"] == state["good"]:
        reasons.append("you went back to it by a rollback; a deploy goes forward again")
    return Switching(reasons, restart)


def refused_by_a_deploy(state: Mapping[str, Any] | None, text: str) -> str | None:
    """Why a deploy does not try the unit with this text: when it failed, of what, and the two ways
    out. None where it would try it. state: the probe's answer to "server"."""
    failure = failure_of((state or {}).get("failed") or {}, text)
    if not failure or is_passing(failure):
        return None
    when = datetime.fromtimestamp(failure["when"], UTC).strftime("%Y-%m-%d %H:%M UTC")
    unknown = {"found": "no known cause", "remedy": f"see `sudo {DOCTOR}` on the box"}
    cause = failure.get("cause") or unknown
    why = f"a deploy refuses this unit: it failed its gate at {when} ({cause['found']})"
    ways = f"{cause['remedy']}, or try the same once more: {AGAIN}"
    return without_secrets(" ".join(f"{why}; {ways}".split()))


def with_a_file(state: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """The same server, had its unit's file not been taken away."""
    return state and {**state, "file": {"changed": 0.0}}


def is_starting(state: Mapping[str, Any] | None) -> bool:
    """Whether the server is on its way up by itself, after a reboot for instance."""
    return state is not None and state["unit"].get("ActiveState") == "activating"


def proof_is_owed(state: Mapping[str, Any] | None, wanted: Serving) -> str | None:
    """Why a completion must be made now; None when this very server has proven itself."""
    if state is None or state["process"] is None:
        return "the server does not run yet"
    if state["health"] != 200:
        return f"/health answers {state['health'] or 'nothing'}"
    if state["proof"] is None or state["proof"].get("identity") != wanted.identity:
        return "this command line has not been proven yet"
    return None
