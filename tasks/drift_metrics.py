"""A drift check's figures on the box itself, where its node exporter reads them."""

from __future__ import annotations

import base64
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

from pyinfra import host, state
from pyinfra.api import FactBase, QuoteString, StringCommand, operation

from aibox.decide import drift
from aibox.decide.drift import Audit
from aibox.decide.monitoring import DRIFT, DROP_IN_FILE
from tasks.drift_report import FOLDER
from tasks.facts import LaidFile
from tasks.operations import Commands, write_command, written

ENTRY = "tasks/drift_told.py"
LONGEST_S = 120


class UserNumber(FactBase[int]):
    """Who we are on the box before any sudo."""

    def command(self) -> str:
        return "id -u"

    def process(self, output: list[str]) -> int:
        return int(output[-1])


def name_of(box: str) -> str:
    """Of the file with a box's figures. A box may be called anything."""
    return f"{sha256(box.encode()).hexdigest()}.prom"


@operation()
def told(folder: str) -> Commands:
    """Nothing where a box is not among those of the check, or has no node exporter of ours."""
    path = Path(folder, name_of(host.name))
    if not path.is_file():
        host.noop("nothing to tell")
        return
    content = path.read_bytes()
    writing = write_command(DRIFT, "root", "root", "644", len(content))
    is_there = "if test -e", QuoteString(DROP_IN_FILE), "; then"
    yield StringCommand(*is_there, writing, "; fi", _stdin=base64.b64encode(content).decode())


@operation()
def mended() -> Commands:
    """At the end of a deploy: the figures of an older check are no more than that. A check itself,
    which carries nothing out, finds nothing to do here."""
    found = host.get_fact(LaidFile, path=DRIFT)
    text = found["content"].decode(errors="replace") if found else ""
    if not state.is_executing or drift.deployed(text) == text:
        host.noop("no figure of a check is out of date")
        return
    yield written(DRIFT, drift.deployed(text).encode())


# --- from the check ------------------------------------------------------------------------------


def tell(watched: Sequence[Audit], inventory: str, options: Sequence[str], folder: Path) -> None:
    """A run of its own that writes the figures to these boxes; a failure is said in one line."""
    for one in watched:
        text = drift.metrics([one], None, time.time())
        folder.joinpath(name_of(one.box)).write_text(text)
    words = [sys.executable, "-m", "pyinfra", "-y", *options, "--", inventory, ENTRY]
    environment = {**os.environ, FOLDER: str(folder), "PYINFRA_PROGRESS": "off"}
    try:
        done = subprocess.run(
            words,
            cwd=Path(__file__).resolve().parent.parent,
            env=environment,
            capture_output=True,
            timeout=LONGEST_S,
            check=False,
        )
        failed = done.returncode != 0
    except subprocess.TimeoutExpired:
        failed = True
    if failed:
        names = ", ".join(one.box for one in watched)
        print(f"the monitor does not learn of this check: {names} took no file", file=sys.stderr)
