"""Is every box as a deploy would leave it? `python -m tasks.drift [inventory]` looks.

It changes nothing; a box that is watched is told what was found, for its monitor. Exit codes: 0 in
sync, with nothing foreign outside the setting `accepted`; 2 drift, or such foreign things; 1
anything else: a box that was not reached or was refused, an interrupted check, wrong usage.
"""

from __future__ import annotations

import argparse
import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from aibox.box.job import write_whole
from aibox.decide import drift
from aibox.decide.drift import Audit
from aibox.decide.refusal import Refusal, of_file
from aibox.parser import Parser
from tasks import drift_metrics, drift_timer
from tasks.drift_report import FOLDER, JUDGES

PROJECT = Path(__file__).resolve().parent.parent
PROGRESS = "] check: "  # of hashing, which may take minutes: the one thing shown while it lasts
STDOUT = Path("-")
SSH = ("ssh-user", "ssh-port", "ssh-key")


def main(words: list[str] | None = None) -> int:
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    for stream in (sys.stdout, sys.stderr):  # whatever a box is called, in whatever locale
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        given = sys.argv[1:] if words is None else words
        asked = parser().parse_args(given)
        if asked.install_timer or asked.remove_timer:
            return drift_timer.change(given, install=asked.install_timer)
        return checked(asked)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except BrokenPipeError:  # whoever read has gone; so must what is still to be written
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        remedy = "mend this and run the check again"
        print(Refusal(of_file(error), "a file that can be written", remedy), file=sys.stderr)
    return drift.FAILED


def parser() -> Parser:
    parser = Parser(prog="python -m tasks.drift", description=__doc__, allow_abbrev=False)
    parser.add_argument("inventory", nargs="?", default=str(PROJECT / "inventory"))
    parser.add_argument("--limit", action="append", default=[], metavar="BOX", help="only this box")
    parser.add_argument(
        "--json", metavar="FILE", type=writable, help="what was found, as JSON; - prints it"
    )
    parser.add_argument(
        "--textfile",
        metavar="FILE.prom",
        type=prometheus_file,
        help="for Prometheus' textfile collector",
    )
    for name in SSH:
        parser.add_argument(f"--{name}", metavar="X", help="handed to pyinfra")
    timer = parser.add_mutually_exclusive_group()
    timer.add_argument(
        "--install-timer", action="store_true", help="run this check every hour (systemd --user)"
    )
    timer.add_argument("--remove-timer", action="store_true", help="take the timer away again")
    return parser


def prometheus_file(text: str) -> Path:
    if not text.endswith(".prom"):
        raise argparse.ArgumentTypeError("the collector reads files that end with .prom")
    return writable(text)


def writable(text: str) -> Path:
    """Refused before the check, which may take long; "-" is no file."""
    path = Path(text).absolute()
    if text != "-" and not os.access(path.parent, os.W_OK):
        raise argparse.ArgumentTypeError(f"{path.parent} is no folder that can be written")
    return path if text != "-" else STDOUT


# --- the check ---------------------------------------------------------------------------------


def checked(asked: argparse.Namespace) -> int:
    """Look, say what was found, and return the exit code."""
    try:
        found, failure = look(asked)
    except KeyboardInterrupt:
        found, failure = [], "interrupted"
    now = time.time()
    document = json.dumps(drift.document(found, failure, now), indent=1)
    if asked.json and asked.json != STDOUT:
        write_whole(asked.json, f"{document}\n")
    if asked.textfile:
        write_whole(asked.textfile, drift.metrics(found, failure, now))
    if asked.json == STDOUT:
        print(document, flush=True)
    else:
        show(found, asked.inventory)
    if failure is not None:
        print(failure, file=sys.stderr)
    return drift.exit_code(found, failure)


def look(asked: argparse.Namespace, *, judges: bool = False) -> tuple[list[Audit], str | None]:
    """What was found on each box, and why that is not all of it (None: it is). judges: whether
    each release is asked for what it would refuse."""
    with tempfile.TemporaryDirectory(prefix="aibox-drift-") as text:
        folder = Path(text)
        code, said = run(command(asked), folder, judges=judges)
        reports = reports_in(folder)
        failure = in_short(said) or f"pyinfra ended with {code}" if code else None
        try:
            rows = drift.planned((folder / "plan").read_text(errors="replace"))
        except drift.UnfinishedError as error:
            return [], failure or str(error)
        found = drift.audits(rows, reports)
        watched = [one for one in found if reports[one.box]["watched"]]
        if watched:
            drift_metrics.tell(watched, inventory_of(asked), options_of(asked), folder)
        return found, failure or drift.gap(rows, reports)


def command(asked: argparse.Namespace) -> list[str]:
    return [
        *(sys.executable, "-m", "pyinfra", "--dry", "--json", *options_of(asked), "--"),
        *(inventory_of(asked), "deploy.py", "tasks/audit.py"),
    ]


def inventory_of(asked: argparse.Namespace) -> str:
    """As pyinfra is to be told."""
    inventory = Path(asked.inventory)
    return str(inventory.absolute()) if inventory.exists() else str(asked.inventory)


def options_of(asked: argparse.Namespace) -> list[str]:
    options = [f"--limit={name}" for name in asked.limit]
    for name in SSH:
        value = getattr(asked, name.replace("-", "_"))
        options += [f"--{name}={value}"] if value is not None else []
    return options


def run(words: list[str], folder: Path, *, judges: bool = False) -> tuple[int, str]:
    """Run pyinfra, with its plan into a file of the folder; its exit code and its log.

    It keeps our standard input: where sudo wants a password, the terminal is asked for it.
    """
    environment = {**os.environ, FOLDER: str(folder), "PYINFRA_PROGRESS": "off"}
    environment |= {JUDGES: "1"} if judges else {}
    environment.pop("PYINFRA_YES", None)  # with -y pyinfra plans nothing, and says nothing of it
    said: list[str] = []
    with (
        (folder / "plan").open("w") as plan,
        subprocess.Popen(
            words,
            cwd=PROJECT,
            env=environment,
            stdout=plan,
            stderr=subprocess.PIPE,
            encoding="utf-8",
            errors="replace",
        ) as child,
    ):
        try:
            for line in child.stderr or ():
                said.append(line)
                if PROGRESS in line:
                    print(line, end="", file=sys.stderr, flush=True)
            return child.wait(), "".join(said)
        except KeyboardInterrupt:
            child.terminate()
            raise


def in_short(log: str) -> str:
    """pyinfra's log without its own headings."""
    lines = (line.rstrip() for line in log.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("-->"))


def reports_in(folder: Path) -> dict[str, dict[str, Any]]:
    """Each box's report. One that is not whole is none."""
    reports = {}
    for path in folder.glob("*.json"):
        try:
            report = json.loads(path.read_text())
        except ValueError:
            continue
        reports[report["box"]] = report
    return reports


def show(found: Sequence[Audit], inventory: str) -> None:
    for line in (line for audit in found for line in drift.table(audit)):
        print(drift.printable(line))
    words = os.path.relpath(inventory) if Path(inventory).exists() else inventory
    for line in drift.next_steps(found, f"pyinfra {words} deploy.py"):
        print(drift.printable(line))
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
