"""Long work on the box, as transient systemd units that outlive the connection that started them.

A job is a unit `aibox-<name>.service` and a folder `/run/aibox/jobs/<name>` with three files:
spec.json (what is to be done), progress.json (how far it is) and result.json (how it ended). Work
whose parts have a worth of their own adds kept.json, what it has done by now.
A secret is no part of the task: it lies beside it, for root alone, until the work has read it.
The folder is gone after a reboot, and so is the job: whoever wants the work done starts it again,
and the work itself knows what is already there.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from aibox.decide.refusal import Refusal, of_file

FOLDER = Path("/run/aibox/jobs")
SECRET = "secret"  # noqa: S105  a key of the task, no secret
SECRET_FILE = "secret.json"  # noqa: S105  a name, no secret
KEPT_FILE = "kept.json"
HOW = ("restart", "retry")
# Jobs with something to be done at their end, even after a kill: `aibox job ended NAME`.
WITH_AN_END = ("bench",)
Spec = dict[str, Any]


class JobError(Exception):
    """Work that can't be done, with the three things a person needs to know."""

    def __init__(self, found: str, expected: str, remedy: str) -> None:
        self.refusal = Refusal(found, expected, remedy)
        super().__init__(str(self.refusal))


def write_whole(path: Path, content: str, mode: int = 0o644) -> None:
    """Write a file so that a reader sees the old content or the new, also after a power cut."""
    aside = path.with_name(f".{path.name}.new")
    aside.unlink(missing_ok=True)
    handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(handle, "wb") as file:
        file.write(content.encode(errors="surrogateescape"))
        file.flush()
        os.fsync(file.fileno())
    aside.chmod(mode)
    aside.replace(path)


class Progress:
    """What a running job says of itself: a step, and how much of it is done."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "progress.json"
        self.step_name = ""
        self.began = time.time()
        self.done_at_begin: float | None = None
        self.last: float | None = None  # seconds that the same work took last time, if known

    def step(self, name: str) -> None:
        self.step_name, self.began, self.done_at_begin = name, time.time(), None
        self.say()

    def rename(self, name: str) -> None:
        """Another name for the step at work; its clock goes on."""
        self.step_name = name
        self.say()

    def say(self, done: float | None = None, total: float | None = None, unit: str = "") -> None:
        """`done` of `total`, in bytes or in things; rate and time left follow from the two."""
        if self.done_at_begin is None:
            self.done_at_begin = done
        seconds = time.time() - self.began
        rate = (
            (done - self.done_at_begin) / seconds
            if done is not None and self.done_at_begin is not None and seconds > 1
            else None
        )
        report = {
            "step": self.step_name,
            "seconds": round(seconds, 1),
            "done": done,
            "total": total,
            "unit": unit,
            "rate": rate,
            "last": self.last,
        }
        aside = self.path.with_name(".progress.json.new")
        with contextlib.suppress(OSError):  # a report that is lost must not stop the work
            aside.write_text(json.dumps(report))
            aside.replace(self.path)

    def keep(self, done: Mapping[str, Any]) -> None:
        """What is done by now, for `look`, should the work never come to its result."""
        with contextlib.suppress(OSError):  # see say
            write_whole(self.path.with_name(KEPT_FILE), json.dumps(done))


def unit_of(name: str) -> str:
    return f"aibox-{name}.service"


def is_active(name: str) -> bool:
    shown = subprocess.run(
        ["systemctl", "is-active", unit_of(name)], capture_output=True, text=True, check=False
    )
    return shown.stdout.strip() in ("active", "activating", "deactivating", "reloading")


def start(name: str, verb: str, spec: Spec) -> str:
    """Start a job, or find the same one already running: "started" or "attached".

    spec["secret"], if any, is kept out of the task and given to the work alone. Raises JobError
    when a job of this name is running with another task.
    """
    spec = dict(spec)
    secret = spec.pop(SECRET, None)
    folder = FOLDER / name
    wanted = {"verb": verb, **spec}
    if is_active(name):
        if the_task(read(folder / "spec.json") or {}) == the_task(wanted):
            return "attached"
        raise JobError(
            f"{unit_of(name)} is at work on another task",
            "one such job at a time",
            f"wait for it, or end it with: sudo systemctl stop {unit_of(name)}",
        )
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_whole(folder / "spec.json", json.dumps(wanted))
    if secret is not None:
        write_whole(folder / SECRET_FILE, json.dumps(secret), mode=0o600)
    subprocess.run(["systemctl", "reset-failed", unit_of(name)], capture_output=True, check=False)
    command = ["systemd-run", "--quiet", "--collect", f"--unit={unit_of(name)}"]
    command += ["--property=Type=exec", "--property=UMask=0022"]
    if name in WITH_AN_END:
        command += [f"--property=ExecStopPost={program()} job ended {name}"]
    command += [program(), "job", "work", name]
    try:
        subprocess.run(command, check=True)
    except (OSError, subprocess.CalledProcessError):
        (folder / SECRET_FILE).unlink(missing_ok=True)
        raise
    return "started"


def program() -> str:
    """The aibox that is at work: the installed one, or one that was only carried along."""
    return os.environ.get("AIBOX_PROGRAM") or str(Path(sys.executable).with_name("aibox"))


def the_task(spec: Spec) -> Spec:
    """What is to be done, without how: that depends on when a run looked at the box."""
    return {key: value for key, value in spec.items() if key not in HOW}


def look(name: str) -> dict[str, Any]:
    """Where a job stands: {"state": "running" | "ended" | "none", "progress": …, "result": …,
    "kept": what it had done, where it has ended without a good result}."""
    folder = FOLDER / name
    active = is_active(name)
    result = read(folder / "result.json")
    progress = read(folder / "progress.json")
    if active and result is None:
        return {"state": "running", "progress": progress, "result": None}
    if result is None and (folder / "spec.json").exists():
        refusal = Refusal(
            f"{unit_of(name)} was ended before it was done",
            "a job that ends with a result",
            f"see `journalctl -u {unit_of(name)}` on the box, then run the deploy again",
        )
        result = {"ok": False, "refusal": asdict(refusal)}
    kept = read(folder / KEPT_FILE) if result and not result["ok"] else None
    state = "ended" if result else "none"
    return {"state": state, "progress": progress, "result": result, "kept": kept}


def read(path: Path) -> dict[str, Any] | None:
    try:
        found: dict[str, Any] = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found


def work(
    name: str,
    verbs: Mapping[str, Callable[[Spec, Progress], dict[str, Any]]],
    jobs: Path = FOLDER,
) -> int:
    """Do a job's work in this process and leave its result behind. Returns the exit code."""
    folder = jobs / name
    spec = json.loads((folder / "spec.json").read_text())
    spec[SECRET] = read_secret(folder)
    try:
        result = {"ok": True, **verbs[spec["verb"]](spec, Progress(folder))}
    except FAILURES as error:
        result = {"ok": False, "refusal": asdict(refusal_of(error))}
    print(json.dumps(result))
    write_whole(folder / "result.json", json.dumps(result))
    return 0 if result["ok"] else 1


def read_secret(folder: Path) -> Any:
    """What was given beside the task, which is then nowhere but in this process."""
    try:
        return json.loads((folder / SECRET_FILE).read_text())
    except FileNotFoundError:
        return None
    finally:
        (folder / SECRET_FILE).unlink(missing_ok=True)


FAILURES = (JobError, OSError, subprocess.CalledProcessError)


def refusal_of(error: JobError | OSError | subprocess.CalledProcessError) -> Refusal:
    """What work was stopped by, in words."""
    if isinstance(error, JobError):
        return error.refusal
    if isinstance(error, subprocess.CalledProcessError):
        return Refusal(
            f"`{' '.join(map(str, error.cmd))}` ended with {error.returncode}",
            "a command that succeeds",
            "see `journalctl -e` on the box, then run the deploy again",
        )
    if error.errno == 28:
        return Refusal(
            of_file(error, "no space left on the disk"),
            "room for what is being fetched",
            "free space on the box and run the deploy again; what is there already is kept",
        )
    return Refusal(
        of_file(error),
        "a file system that can be written",
        "mend this on the box and run the deploy again",
    )
