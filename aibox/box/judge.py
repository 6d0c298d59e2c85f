"""Judge a candidate before anything stops: by its release's own parser, and by arithmetic.

The release's parser runs beside the serving server: as the service user, with low priority, without
a card, a network or a place to write. What it said of a command line, an environment and a release
is kept, so that nobody waits for it twice.
"""

from __future__ import annotations

import hashlib
import json
import os
import pwd
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aibox.box import adoption, argv, tensors
from aibox.box.job import JobError, Progress, Spec, write_whole
from aibox.box.probe import drop_ins
from aibox.box.probe.files import SERVER_STATE, changed_at, record_in
from aibox.box.probe.port_owners import owner_of
from aibox.box.probe.processes import unit_of
from aibox.box.service import Service
from aibox.box.surroundings import cards_now
from aibox.decide import candidate
from aibox.decide.candidate import Evidence, Owner, Verdict
from aibox.decide.head import index_of
from aibox.decide.refusal import Refusal
from aibox.decide.weights import is_loaded

JUDGED = SERVER_STATE / "judged.json"
MOST_KEPT = 20
# 19 to 26 s of CPU measured with 0.31.0 (torch and vLLM are read); a busy box has less of it.
LIMIT_S = 300
WORDS = ("-s", "-P", "-B")  # neither the user's packages nor this folder's, and no bytecode

# Over the candidate's own environment: no card, no network, and every cache in a private /tmp.
AROUND = {
    "VLLM_TARGET_DEVICE": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    "VLLM_LOGGING_LEVEL": "WARNING",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HOME": "/tmp",  # noqa: S108  the unit's own
    "TMPDIR": "/tmp",  # noqa: S108
    "XDG_CACHE_HOME": "/tmp/cache",  # noqa: S108
    "XDG_CONFIG_HOME": "/tmp/config",  # noqa: S108
    "VLLM_CACHE_ROOT": "/tmp/vllm",  # noqa: S108
    "VLLM_CONFIG_ROOT": "/tmp/vllm",  # noqa: S108
    "TRITON_CACHE_DIR": "/tmp/triton",  # noqa: S108
    "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor",  # noqa: S108
    "FLASHINFER_WORKSPACE_BASE": "/tmp/flashinfer",  # noqa: S108
}
HURTS = ("LD_PRELOAD", "PYTHONSTARTUP", "PYTHONPYCACHEPREFIX", "PYTHONINSPECT")
PROPERTIES = (
    *("Nice=15", "CPUWeight=50", "IOSchedulingClass=idle", "OOMScoreAdjust=900"),
    *("PrivateDevices=yes", "PrivateNetwork=yes", "PrivateTmp=yes", "ProtectSystem=strict"),
    *("ProtectHome=yes", "NoNewPrivileges=yes", "UMask=0077", "WorkingDirectory=/tmp"),
)


def looked(spec: Spec) -> dict[str, Any]:
    """What judge() says, for who only looks: the verdict is not kept. Raises JobError."""
    with tempfile.TemporaryDirectory() as folder:
        return judge(spec, Progress(Path(folder)), keep=False)


def judge(spec: Spec, progress: Progress, *, keep: bool = True) -> dict[str, Any]:
    """Whether a candidate may be tried: {"warnings": [text], "resolved": {…}}.

    spec: see `Box.candidate_spec`. keep: write down what the parser said. "resolved" is what the
    release's parser made of the flags. Raises JobError with every fault in one answer; nothing has
    been stopped or changed then.
    """
    progress.step("judging the command line")
    verdict = verdict_of(spec, progress, keep=keep)
    progress.step("judging the rest")
    evidence = evidence_for(spec, verdict)
    faults = candidate.refusals(evidence, spec)
    if faults:
        raise together(faults)
    return {
        "warnings": candidate.warnings(evidence, spec),
        "resolved": dict(verdict.resolved),
    }


def together(faults: Sequence[Refusal]) -> JobError:
    """Every fault in one answer, numbered alike in its three parts."""
    if len(faults) == 1:
        return JobError(faults[0].found, faults[0].expected, faults[0].remedy)
    parts = (
        "\n".join(f"{number}. {getattr(fault, part)}" for number, fault in enumerate(faults, 1))
        for part in ("found", "expected", "remedy")
    )
    return JobError(*parts)


# --- the release's own parser ------------------------------------------------------------------


def verdict_of(spec: Spec, progress: Progress, *, keep: bool = True) -> Verdict:
    """What the release said of this command line, asked only where it has not said it yet."""
    key = key_of(spec)
    kept = (record_in(JUDGED) or {}).get("verdicts")
    verdicts = kept if isinstance(kept, dict) else {}
    answer = verdicts.get(key)
    if not isinstance(answer, dict):
        answer = asked(spec, progress)
        if keep and all(
            fault["flag"] for fault in answer["faults"]
        ):  # else it may be the surroundings'
            newest = [*verdicts.items()][-(MOST_KEPT - 1) :]
            JUDGED.parent.mkdir(parents=True, exist_ok=True)
            write_whole(JUDGED, json.dumps({"verdicts": {**dict(newest), key: answer}}))
    return Verdict.of(answer)


def key_of(spec: Spec) -> str:
    """Changes with whatever could change the verdict; a release built anew under its name too."""
    content = [
        spec["command"],
        sorted(spec["environment"].items()),
        spec["user"],
        changed_at(Path(spec["release"]) / "release.json"),
        Path(argv.__file__).read_text(),
    ]
    return hashlib.sha256(json.dumps(content).encode()).hexdigest()


def asked(spec: Spec, progress: Progress) -> dict[str, Any]:
    """The answer of argv.py. Raises JobError where vLLM itself could not be asked."""
    python = f"{spec['release']}/bin/python"
    command = ["systemd-run", "--quiet", "--collect", "--wait", "--pipe"]
    properties = (f"User={user_for(spec['user'])}", f"RuntimeMaxSec={LIMIT_S}", *PROPERTIES)
    command += [f"--property={each}" for each in properties]
    command += [f"--setenv={name}={text}" for name, text in AROUND.items()]
    command += [python, *WORDS, argv.__file__]
    words = json.dumps({"words": spec["command"][1:], "environment": surroundings(spec)})
    try:
        done = told(command, words, progress)
    except subprocess.TimeoutExpired:
        raise unasked(python, f"no answer within {LIMIT_S} s") from None
    try:
        answer: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        last = " ".join(done.stderr.strip().splitlines()[-1:])
        raise unasked(python, f"it ended with {done.returncode}: {last:.400}") from None
    if "error" in answer:
        raise unasked(python, str(answer["error"]))
    return answer


def told(command: list[str], words: str, progress: Progress) -> subprocess.CompletedProcess[str]:
    """What a command prints, with a sign of life each second. Raises TimeoutExpired."""
    end = time.monotonic() + LIMIT_S + 30  # systemd ends it first
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as child:
        given: str | None = words
        while True:
            try:
                said, faults = child.communicate(given, timeout=1)
                return subprocess.CompletedProcess(command, child.returncode, said, faults)
            except subprocess.TimeoutExpired:
                given = None
                if time.monotonic() > end:
                    child.kill()
                    raise
                progress.say()


def surroundings(spec: Spec) -> Mapping[str, str]:
    own = {name: text for name, text in spec["environment"].items() if name not in HURTS}
    return {**own, **AROUND}


def user_for(name: str) -> str:
    try:
        pwd.getpwnam(name)
    except KeyError:  # before the first deploy has made it
        return "nobody"
    return name


def unasked(python: str, why: str) -> JobError:
    return JobError(
        f"the release's own parser could not be asked: {why}",
        f"{python} that reads a command line, as vLLM does when it starts",
        "this is no fault of a flag: run the deploy again; when it comes again, take the release "
        f"away ({Path(python).parent.parent}), so that the deploy builds it anew",
    )


# --- what arithmetic needs ---------------------------------------------------------------------


def evidence_for(spec: Spec, verdict: Verdict) -> Evidence:
    weights = Path(spec["weights"])
    ours = pids_of(spec["unit"])
    cards, error = cards_now()
    return Evidence(
        verdict=verdict,
        config=record_in(weights / "config.json"),
        index=index(weights),
        weights_bytes=loaded_bytes(weights),
        port_owner=port_owner(spec["port"]),
        own_pids=ours,
        cards=cards,
        nvml_error=error,
        drop_ins=drop_ins_that_stay(spec["unit"]),
        failed=record_in(SERVER_STATE / "failed.json") or {},
    )


def drop_ins_that_stay(unit: str) -> dict[str, str]:
    """Without those of a person's own unit, which go with it."""
    going = adoption.set_aside(Service(unit))
    there = drop_ins.surroundings(unit)["drop_ins"]
    return {path: text for path, text in there.items() if path not in going}


def index(weights: Path) -> Mapping[str, Any] | None:
    """The weights' index, or what their files' own headers say; None where neither is read."""
    found = record_in(weights / "model.safetensors.index.json")
    if found is not None:
        return found
    files = sorted(weights.glob("*.safetensors"))
    try:
        return index_of({file.name: list(tensors.header(file)) for file in files})
    except (JobError, OSError):
        return None


def loaded_bytes(weights: Path) -> int:
    """Of the files that vLLM reads as weights."""
    return sum(
        file.stat().st_size for file in weights.glob("*.safetensors") if is_loaded(file.name)
    )


def port_owner(port: int) -> Owner | None:
    found = owner_of(port)
    return None if found is None else Owner(found["pid"], found["name"], found["unit"])


def pids_of(unit: str) -> frozenset[int]:
    """Every process of a unit, the engine's too: NVML names that one."""
    pids = (int(name) for name in os.listdir("/proc") if name.isdigit())  # noqa: PTH208  names only
    return frozenset(pid for pid in pids if unit_of(pid) == unit)
