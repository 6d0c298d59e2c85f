"""Jobs of a box without a whole deploy, and deploys that run beside a test."""

from __future__ import annotations

import json
import runpy
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aibox.settings import ReleaseLock, driver_wanted_from, load_settings, release_lock
from tasks.box import AIBOX
from tasks.box import Box as Wanted
from tests.rehearsal.box import Box
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import HERE, Deploy, HostData, command_line, environment

Answer = dict[str, Any]


def wanted(data: HostData, python: str = "3.11") -> Wanted:
    """A box as settings want it, loaded as a deploy loads them; `data` is the host's own."""
    every: HostData = {}
    for folder in (CHECKOUT, HERE):
        every |= runpy.run_path(str(folder / "group_data/all.py"))
    public = {name: value for name, value in every.items() if not name.startswith("_")}
    loaded = load_settings({"box": public | data}, CHECKOUT, ())["box"]
    lock = release_lock(loaded, python)
    assert isinstance(lock, ReleaseLock), lock
    return Wanted(loaded, lock, driver_wanted_from(loaded, lock, "debian", "12"), "")


def start(box: Box, name: str, spec: Mapping[str, Any]) -> Answer:
    """Ask the box's aibox to start a job: {"ok", "how"} or {"ok", "refusal"}."""
    text = json.dumps({"verb": name, **spec})
    answer: Answer = json.loads(box.run([AIBOX, "job", "start", name], text=text).stdout)
    return answer


def look(box: Box, name: str) -> Answer:
    answer: Answer = json.loads(box.run([AIBOX, "job", "look", name]).stdout)
    return answer


def finish(box: Box, name: str, timeout_s: float = 600) -> Answer:
    """The result of a job, once it has ended."""
    active = f"systemctl is-active -q aibox-{name}"
    box.run(f"timeout {timeout_s} sh -c 'while {active}; do sleep 0.1; done'")
    result: Answer = look(box, name)["result"]
    return result


def work(box: Box, name: str, spec: Mapping[str, Any]) -> Answer:
    """Do a job from beginning to end."""
    answer = start(box, name, spec)
    assert answer["ok"], answer
    return finish(box, name)


@dataclass
class Running:
    """A deploy that runs beside the test."""

    process: subprocess.Popen[str]
    log: Path

    def said(self) -> str:
        return self.log.read_text()

    def ended(self, timeout_s: float = 900) -> Deploy:
        code = self.process.wait(timeout_s)
        return Deploy(code, self.said(), "")


@contextmanager
def beside(command: Sequence[str], environment: Mapping[str, str], log: Path) -> Iterator[Running]:
    """Start a program of the project; what still runs of it at the end is killed."""
    with log.open("w") as stream:
        process = subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=subprocess.STDOUT,
            text=True,
        )
    try:
        yield Running(process, log)
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


@contextmanager
def deploying(box: Box, data: HostData, *words: str, entry: str = "deploy.py") -> Iterator[Running]:
    """A deploy, or another entry."""
    with tempfile.TemporaryDirectory() as folder:
        given = environment({box: data}, Path(folder))
        with beside(command_line("-y", *words, entry=entry), given, Path(folder) / "log") as run:
            yield run


def until(true: Callable[[], object], what: str, timeout_s: float = 300) -> None:
    """Wait until something is so; fails with `what` when it takes too long."""
    end = time.monotonic() + timeout_s
    while not true():
        assert time.monotonic() < end, what
        time.sleep(0.1)
