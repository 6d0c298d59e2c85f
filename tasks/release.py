"""One release of vLLM: a venv from its lock, every file by its hash, complete or absent."""

from __future__ import annotations

import json

from pyinfra import host
from pyinfra.api import deploy, operation

from tasks.box import AIBOX, Box
from tasks.facts import Probe
from tasks.operations import Commands, job_command


@deploy("Release")
def built(box: Box) -> None:
    release_there(name=f"vLLM {box.release.release_id}", box=box)


@operation()
def release_there(box: Box) -> Commands:
    """A release folder exists only when it is whole: its record is the last thing written."""
    record = host.get_fact(Probe, "release", json.dumps({"folder": box.release_folder}))
    if record and record["lock_sha256"] == box.release.sha256:
        host.noop(f"{box.release_folder} is there")
        return
    yield job_command("release", AIBOX, "release", box.release_spec)
