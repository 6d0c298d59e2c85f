"""Build a venv from a lock, beside whatever runs: every file by its hash, complete or absent.

A folder of ours exists only when it is whole: its record, release.json, is the last thing written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from aibox.box import bytecode, wheels
from aibox.box.job import JobError, Progress, Spec, unit_of, write_whole
from aibox.decide.wheels import locked, locked_lines

UNITS = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
DOWNLOADING = re.compile(r"\s*Downloading (\S+) \(([\d.]+)(B|KiB|MiB|GiB)\)")
DOWNLOADED = re.compile(r"\s*Downloaded (\S+)")
Part = Callable[[Path], dict[str, Any]]  # from where the venv is built to a part of its record


def build(spec: Spec, progress: Progress, add: Part, prove: Part) -> dict[str, Any]:
    """Build the venv that `spec` describes and return its record.

    spec: {"folder", "lock" (text), "find_links" (url or null), "cache" (folder), "job" (its name)}.
    add: lays into it what the lock does not hold. prove: sees that it works. Raises JobError.
    """
    folder = Path(spec["folder"])
    aside = folder.with_name(f".building-{folder.name}")
    aside.parent.mkdir(parents=True, exist_ok=True)
    for half in aside.parent.glob(".building-*"):  # venvs of dead runs; uv's cache has the files
        remove_tree(half)
    try:
        record = fill(aside, spec, progress, add, prove)
    except (JobError, OSError):
        remove_tree(aside)
        raise
    progress.step("writing to the disk")
    subprocess.run(["sync", "--file-system", str(aside)], check=True)
    remove_tree(folder)
    aside.rename(folder)
    subprocess.run(["sync", str(folder.parent)], check=True)
    return record


def fill(aside: Path, spec: Spec, progress: Progress, add: Part, prove: Part) -> dict[str, Any]:
    make_venv(aside, spec, progress)
    sync(aside, spec, progress)
    proof = wheels.prove(aside, spec["lock"], progress, partial(reinstall, aside, spec))
    added = add(aside)
    wheels.no_stray_pth(aside, wheels.read_records(aside).owners)  # nor by what was added
    bytecode.compile_all(aside, Path(spec["folder"]), progress)
    progress.step("proving")
    record = {**prove(aside), "wheels": proof, **added}
    (aside / ".lock").unlink(missing_ok=True)  # uv's own, writable for everybody
    write_whole(aside / "release.json", json.dumps(record, indent=1))
    return record


def remove_tree(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def uv(*words: str) -> list[str]:
    return [str(Path(sys.executable).with_name("uv")), "--no-config", "--no-progress", *words]


def uv_environment(spec: Spec) -> dict[str, str]:
    cache = Path(spec["cache"])
    unpacking = cache / "unpacking"
    unpacking.mkdir(parents=True, exist_ok=True)
    return {
        **os.environ,
        "UV_CACHE_DIR": str(cache / "uv"),
        "UV_SYSTEM_CERTS": "1",
        "UV_HTTP_TIMEOUT": "120",
        "TMPDIR": str(unpacking),  # /tmp may be a small tmpfs
    }


def run(command: list[str], spec: Spec, failure: str, hear: Callable[[str], None]) -> None:
    """Run uv, each of its lines heard as it comes. Raises JobError with its own words."""
    lines = []
    with subprocess.Popen(
        command,
        env=uv_environment(spec),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            hear(lines[-1])
    if process.returncode == 0:
        return
    said = "\n".join(lines).strip()
    print(said, file=sys.stderr)
    if "No space left on device" in said:
        raise OSError(28, "No space left on device", spec["folder"])
    raise JobError(failure_of(said), failure, remedy_of(said, spec))


def failure_of(said: str) -> str:
    """What uv said, in at most six lines from its error on, without the steps that went well."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    begins = next((at for at, line in enumerate(lines) if line.startswith("error")), 0)
    return "\n".join(lines[begins : begins + 6])


def remedy_of(said: str, spec: Spec) -> str:
    if "Hash mismatch" in said:
        return (
            "do not install it: the lock and what the index serves differ. "
            "Restore the lock from git, or renew it with `make lock` and read what changed"
        )
    log = f"journalctl -u {unit_of(spec['job'])}"
    return f"run the deploy again; if it stays, look at `{log}` on the box"


def make_venv(aside: Path, spec: Spec, progress: Progress) -> None:
    progress.step("making the venv")
    command = uv("venv", "--relocatable", "--no-python-downloads", "--python", "/usr/bin/python3")
    run([*command, str(aside)], spec, "a new venv on the box's own python3", no_matter)


def no_matter(_line: str) -> None:
    """What uv says is kept for its failure only."""


def sync(aside: Path, spec: Spec, progress: Progress) -> None:
    """Install the lock, every file by its hash."""
    lock = aside / "lock.txt"
    lock.write_text(spec["lock"])
    watch = Watch(aside, len(locked(spec["lock"])), progress)
    command = [*installing(aside, spec, "sync"), str(lock)]
    with watch:
        run(command, spec, "the packages of the lock, with the lock's hashes", watch.hear)


def reinstall(aside: Path, spec: Spec, name: str) -> None:
    """Install one distribution of the lock anew, from uv's cache."""
    lock = aside / f".{name}.txt"
    lock.write_text(locked_lines(spec["lock"], name))
    command = [*installing(aside, spec, "install"), "--no-deps", "--reinstall", "-r", str(lock)]
    run(command, spec, f"{name} as the lock names it", no_matter)
    lock.unlink()


def installing(aside: Path, spec: Spec, verb: str) -> list[str]:
    command = uv("pip", verb, "--require-hashes", "--only-binary", ":all:")
    command += ["--python", str(aside / "bin/python")]
    return command + (["--find-links", spec["find_links"]] if spec["find_links"] else [])


class Watch:
    """How far uv is. Without a terminal it names the large downloads only: as they begin, with
    their size, and as they end. What it installs can be counted in the venv."""

    def __init__(self, venv: Path, packages: int, progress: Progress) -> None:
        self.venv, self.packages, self.progress = venv, packages, progress
        self.sizes: dict[str, float] = {}
        self.fetched: set[str] = set()
        self.finished = threading.Event()
        self.watcher = threading.Thread(target=self.watch)

    def __enter__(self) -> None:
        self.progress.step("downloading packages")
        self.watcher.start()

    def __exit__(self, *_ended: object) -> None:
        self.finished.set()
        self.watcher.join()

    def hear(self, line: str) -> None:
        began, ended = DOWNLOADING.match(line), DOWNLOADED.match(line)
        if began:
            self.sizes[began[1]] = float(began[2]) * UNITS[began[3]]
        elif ended:
            self.fetched.add(ended[1])

    def watch(self) -> None:
        while not self.finished.wait(1):
            installed = sum(1 for _ in self.venv.glob("lib/python3*/site-packages/*.dist-info"))
            if installed:
                if self.progress.step_name != "installing packages":
                    self.progress.step("installing packages")
                self.progress.say(installed, self.packages, "packages")
            elif self.sizes:
                done = sum(self.sizes[name] for name in self.fetched & self.sizes.keys())
                self.progress.say(done, sum(self.sizes.values()), "bytes")
            else:
                self.progress.say()
