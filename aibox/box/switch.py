"""Make the server run what its unit file says: restart it and wait until it answers."""

from __future__ import annotations

import json
import re
import subprocess
import time
from typing import Any

from aibox.box.job import JobError, Progress, Spec
from aibox.box.probe import unit_properties

# What a starting vLLM is doing, by the words in its journal, in the order they appear.
STEPS = (
    (re.compile(r"Loading safetensors|Loading weights|Starting to load model"), "loading weights"),
    # not just "torch.compile": an eager start says that it is off
    (
        re.compile(
            r"for the compilation|Dynamo bytecode|Compiling a graph|AOT compile|torch.compile takes"
        ),
        "compiling",
    ),
    (re.compile(r"Capturing CUDA graphs|Graph capturing|CUDA graph capture"), "capturing graphs"),
    (re.compile(r"Starting vLLM server|Application startup complete"), "opening the port"),
)
LOG_PREFIX = re.compile(r"^\([^)]* pid=\d+\) (?:\w+ [\d-]+ [\d:]+ \[[^\]]*\] ?)?")
# An exception as Python prints it, or a refused flag: `vllm serve: error: argument --port: …`.
FAULT = re.compile(r"^(?:[\w.]*(?:Error|Exception|error)\b.*|[\w./ -]+: error): .")
# Said by every failed start, whatever the cause.
CONSEQUENCES = ("Engine core initialization failed", "WorkerProc initialization failed")


def switch(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Start the unit anew, or only wait for a start that is under way, until it is active.

    spec: {"unit", "restart": bool, "timeout" in seconds}. Active means that ExecStartPost saw
    /health of the new main process answer. Raises JobError when the process ends before that, or
    the time is over.
    """
    unit, began = spec["unit"], time.time()
    if unit_properties(unit).get("NeedDaemonReload") == "yes":
        subprocess.run(["systemctl", "daemon-reload"], check=True)
    progress.step("starting")
    before = ""
    if spec["restart"]:
        before = unit_properties(unit)["InvocationID"]
        subprocess.run(["systemctl", "reset-failed", unit], capture_output=True, check=False)
        subprocess.run(["systemctl", "restart", "--no-block", unit], check=True)
    ours = None  # each start has an invocation of its own: a second one is systemd's next try
    while time.time() - began < spec["timeout"]:
        time.sleep(0.5)
        found = unit_properties(unit)
        if ours is None and found["InvocationID"] in ("", before):
            continue
        ours = ours or found["InvocationID"]
        if found["InvocationID"] != ours or has_ended(found):
            raise ended(unit, began)
        if found["ActiveState"] == "active":
            return {"seconds": round(time.time() - began, 1)}
        say(unit, began, progress)
    raise JobError(
        f"{unit} did not answer within {spec['timeout']} s",
        "a server that answers /health",
        f"look at `journalctl -u {unit}` on the box; start_timeout_s is the limit",
    )


def has_ended(found: dict[str, str]) -> bool:
    return (
        found["ActiveState"] in ("failed", "inactive")
        or found["SubState"] == "auto-restart"
        or found["Result"] != "success"
    )


def say(unit: str, began: float, progress: Progress) -> None:
    step = "starting"
    for line in journal(unit, began):
        step = next((name for pattern, name in STEPS if pattern.search(line)), step)
    if step == progress.step_name:
        progress.say()
    else:
        progress.step(step)


def journal(unit: str, since: float) -> list[str]:
    """The unit's own lines since a moment, oldest first."""
    command = ["journalctl", "-u", unit, "--since", f"@{since:.0f}", "-o", "json", "--no-pager"]
    shown = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    lines = []
    for row in shown.splitlines():
        entry = json.loads(row)
        message = entry.get("MESSAGE")
        if isinstance(message, str) and entry.get("_SYSTEMD_UNIT") == unit:
            lines.append(message)
    return lines


def ended(unit: str, began: float) -> JobError:
    lines = journal(unit, began)
    said = "\n".join(faults_in(lines) or lines[-3:]) or "nothing"
    return JobError(
        f"{unit} ended before it served. The last it said:\n{said}",
        "a server that stays up and answers /health",
        f"mend the cause; the whole log: sudo journalctl -u {unit}",
    )


def faults_in(lines: list[str]) -> list[str]:
    """The last five different errors of a log, without the log's own prefixes."""
    bare = (LOG_PREFIX.sub("", line).strip() for line in lines)
    errors = [
        line
        for line in bare
        if FAULT.match(line) and not any(words in line for words in CONSEQUENCES)
    ]
    return list(dict.fromkeys(errors))[-5:]
