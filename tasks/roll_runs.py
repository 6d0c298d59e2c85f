"""What a rolling update does, each a run of pyinfra in a process of its own."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from aibox.decide.drift import Audit
from aibox.decide.roll import Gateway
from tasks import drift
from tasks.roll_step import ASKED, FOLDER, WAITS

ENTRY = "tasks/rotation.py"
ENDS_S = 10  # seconds that an interrupted run has to end by itself
NOT_REACHED = "it was not reached"


def named(asked: argparse.Namespace) -> dict[str, list[str]] | str:
    """{"boxes", "gateways"}: names; or why the inventory has none, in words."""
    limits = [f"--limit={name}" for name in asked.limit]
    words = [sys.executable, "-m", "tasks.named", *limits, "--", drift.inventory_of(asked)]
    done = subprocess.run(words, cwd=drift.PROJECT, capture_output=True, text=True, check=False)
    if done.returncode:
        return done.stderr.strip()
    found: dict[str, list[str]] = json.loads(done.stdout)
    return found


def audits(asked: argparse.Namespace) -> tuple[dict[str, Audit], str | None]:
    """What a deploy would do on each box, and why that is not all of them (None: it is)."""
    found, failure = drift.look(asked)
    return {one.box: one for one in found}, failure


def ask(asked: argparse.Namespace, gateways: Sequence[str], *words: str) -> list[Gateway]:
    """Every gateway's answer to `aibox rotation …`."""
    answers = step(asked, gateways, {"words": ["rotation", *words, "--json"]})
    return [gateway(name, answers.get(name)) for name in gateways]


def gateway(name: str, found: Mapping[str, Any] | None) -> Gateway:
    """found: as tasks/roll_step.py left it; None where nothing is there."""
    if found is None:
        return Gateway(name, None, NOT_REACHED)
    answer = found["answer"]
    if not isinstance(answer, dict) or answer["gateway"]:
        return Gateway(name, None, (answer or {}).get("gateway") or found["error"] or "")
    return Gateway(name, answer["boxes"])


def wait(asked: argparse.Namespace, box: str, seconds: float) -> int | None:
    """Until a box runs no request; how many are left after so long, None where it does not say."""
    found = step(asked, [box], {"seconds": seconds}).get(box)
    return found["answer"] if found else None


def deploy(asked: argparse.Namespace, box: str, *, quiet: bool) -> int:
    """A whole deploy, on the screen; its exit code. quiet: the box runs no request, so that it may
    reboot although its server answers."""
    options = ["-y", *(["--data=reboot_while_serving=true"] if quiet else [])]
    words = [*pyinfra(asked, [box]), *options, "--", drift.inventory_of(asked), "deploy.py"]
    with subprocess.Popen(words, cwd=drift.PROJECT) as child:
        return ended(child)


def step(
    asked: argparse.Namespace, hosts: Sequence[str], wanted: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """One step on each host: what those answered that were reached."""
    if not hosts:  # without a limit every host would be asked
        return {}
    with tempfile.TemporaryDirectory(prefix="aibox-roll-") as text:
        folder = Path(text)
        folder.joinpath(ASKED).write_text(json.dumps(wanted))
        words = [*pyinfra(asked, hosts), "-y", "--", drift.inventory_of(asked), ENTRY]
        with subprocess.Popen(
            words,
            cwd=drift.PROJECT,
            env={**os.environ, FOLDER: text, "PYINFRA_PROGRESS": "off"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as child:
            ended(child)
        found = [json.loads(path.read_text()) for path in folder.glob("*.answer")]
    return {one["host"]: one for one in found}


def pyinfra(asked: argparse.Namespace, hosts: Sequence[str]) -> list[str]:
    """The same connection as everything else, to these hosts alone."""
    options = [one for one in drift.options_of(asked) if not one.startswith("--limit=")]
    limits = [f"--limit={name}" for name in hosts]
    return [sys.executable, "-m", "pyinfra", *options, *limits]


def ended(child: subprocess.Popen[Any]) -> int:
    """Its exit code; what it says of waiting is shown. An interrupted one has its time to end."""
    try:
        for line in child.stderr or ():
            if WAITS in line:
                print(line.replace(WAITS, ""), end="", flush=True)
        return child.wait()
    except KeyboardInterrupt:
        for number in (None, signal.SIGINT, signal.SIGKILL):  # the terminal has told it already
            if number is not None:
                child.send_signal(number)
            try:
                child.wait(ENDS_S)
                break
            except subprocess.TimeoutExpired:
                continue
        raise
