"""One release of vLLM: a venv from its lock, every file by its hash, complete or absent."""

from __future__ import annotations

import json

from pyinfra import host
from pyinfra.api import deploy, operation

from tasks.box import AIBOX, Box
from tasks.drift_report import because
from tasks.facts import Probe
from tasks.operations import Commands, job_command, roots_own


@deploy("Release")
def built(box: Box) -> None:
    release_there(name=f"vLLM {box.release.release_id}", box=box)
    roots_own(name="Owner of the release's folder", folders=[box.release_folder])


@operation()
def release_there(box: Box) -> Commands:
    """A release folder exists only when it is whole: its record is the last thing written."""
    record = host.get_fact(Probe, "release", json.dumps({"folder": box.release_folder}))
    if record and record["lock_sha256"] == box.release.sha256:
        host.noop(f"{box.release_folder} is there")
        return
    lock = record["lock_sha256"][:8] if record else None
    why = (
        f"was built from the lock {lock}…, not {box.release.sha256[:8]}…"
        if lock
        else "is not there"
    )
    because(host, f"{box.release_folder} {why}")
    yield job_command("release", AIBOX, "release", box.release_spec)
