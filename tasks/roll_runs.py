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
from typing import Any, Protocol

from aibox.box import deploy_lock, job
from aibox.decide.drift import Audit
from aibox.decide.roll import Gateway, Left
from tasks import drift
from tasks.roll_step import ASKED, FOLDER, WAITS, gateway_of

ENTRY = "tasks/rotation.py"
ENDS_S = 10  # seconds that an interrupted run has to end by itself


class Runs(Protocol):
    """What a roll needs of the boxes; tests have boxes that are made up."""

    def named(self) -> dict[str, list[str]] | str:
        """{"boxes", "gateways", "every"}: names; or why the inventory has none, in words."""

    def audits(self) -> tuple[dict[str, Audit], str | None]:
        """What a deploy would do on each host, its flags judged by its release; and why that is
        not all of them (None: it is)."""

    def ask(self, gateways: Sequence[str], *words: str) -> list[Gateway]:
        """Every gateway's answer to `aibox rotation …`."""

    def wait(self, hosts: Sequence[str], at: str, box: str, seconds: float) -> list[Left | None]:
        """Until each host finds the box quiet; what was left after so long. None: not reached, or
        the connection was lost. at: AT_GATEWAY or AT_BOX."""

    def at_work(self, box: str) -> dict[str, Any] | None:
        """The probe's answer to "at_work"; None where there is none."""

    def deploy(self, box: str, *, may_reboot: bool) -> int:
        """A whole deploy, on the screen; its exit code. may_reboot: although a server answers."""


class PyinfraRuns:
    """asked: the roll's own command line."""

    def __init__(self, asked: argparse.Namespace) -> None:
        self._asked = asked

    def named(self) -> dict[str, list[str]] | str:
        limits = [f"--limit={name}" for name in self._asked.limit]
        words = [sys.executable, "-m", "tasks.named", *limits, "--", self._inventory]
        done = subprocess.run(
            words, cwd=drift.PROJECT, capture_output=True, text=True, errors="replace", check=False
        )
        if done.returncode:
            return done.stderr.strip()
        *_, answer = done.stdout.splitlines()  # what the inventory has started may print too
        found: dict[str, list[str]] = json.loads(answer)
        return found

    def audits(self) -> tuple[dict[str, Audit], str | None]:
        found, failure = drift.look(self._asked, judges=True)
        return {one.box: one for one in found}, failure

    def ask(self, gateways: Sequence[str], *words: str) -> list[Gateway]:
        answers = self._step(gateways, {"words": ["rotation", *words, "--json"]})
        return [gateway_of(name, answers.get(name)) for name in gateways]

    def wait(self, hosts: Sequence[str], at: str, box: str, seconds: float) -> list[Left | None]:
        answers = self._step(hosts, {"at": at, "box": box, "seconds": seconds})
        told = [answers.get(name, {}).get("answer") for name in hosts]
        return [Left(**one) if one else None for one in told]

    def at_work(self, box: str) -> dict[str, Any] | None:
        of = {"jobs": str(job.FOLDER), "lock": str(deploy_lock.LOCK)}
        answers = self._step([box], {"question": "at_work", "of": of})
        found: dict[str, Any] | None = answers.get(box, {}).get("answer")
        return found

    def deploy(self, box: str, *, may_reboot: bool) -> int:
        options = ["-y", *(["--data=reboot_while_serving=true"] if may_reboot else [])]
        words = [*self._pyinfra([box]), *options, "--", self._inventory, "deploy.py"]
        with subprocess.Popen(words, cwd=drift.PROJECT) as child:
            return ended(child)

    @property
    def _inventory(self) -> str:
        return drift.inventory_of(self._asked)

    def _step(self, hosts: Sequence[str], wanted: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """One step on each host: what those answered that were reached."""
        if not hosts:  # without a limit every host would be asked
            return {}
        with tempfile.TemporaryDirectory(prefix="aibox-roll-") as text:
            folder = Path(text)
            folder.joinpath(ASKED).write_text(json.dumps(wanted))
            with subprocess.Popen(
                [*self._pyinfra(hosts), "-y", "--", self._inventory, ENTRY],
                cwd=drift.PROJECT,
                env={**os.environ, FOLDER: text, "PYINFRA_PROGRESS": "off"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                encoding="utf-8",
                errors="replace",
            ) as child:
                ended(child)
            return answers_in(folder)

    def _pyinfra(self, hosts: Sequence[str]) -> list[str]:
        """The same connection as everything else, to these hosts alone."""
        options = [one for one in drift.options_of(self._asked) if not one.startswith("--limit=")]
        limits = [f"--limit={name}" for name in hosts]
        return [sys.executable, "-m", "pyinfra", *options, *limits]


def answers_in(folder: Path) -> dict[str, dict[str, Any]]:
    """What each host answered. An answer that is not whole is none."""
    found = {}
    for path in folder.glob("*.answer"):
        try:
            one = json.loads(path.read_text())
            found[one["host"]] = one
        except (ValueError, LookupError, TypeError):
            continue
    return found


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
