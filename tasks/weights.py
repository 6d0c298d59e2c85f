"""The model's weights: one pinned commit, every file by its sum."""

from __future__ import annotations

import json

from pyinfra import host
from pyinfra.api import deploy, operation

from aibox.decide.weights import FileStamp, plan
from tasks.box import AIBOX, Box
from tasks.facts import Probe
from tasks.operations import Commands, job_command


@deploy("Weights")
def fetched(box: Box) -> None:
    """Starts the download; `arrived` waits for it, so that the release is built beside it."""
    weights_there(name=f"Weights of {box.settings.model}: start", box=box, wait=False)


@deploy("Weights")
def arrived(box: Box) -> None:
    weights_there(name=f"Weights of {box.settings.model}: verified", box=box, wait=True)


@operation()
def weights_there(box: Box, wait: bool) -> Commands:
    """Every file of the lock, with the size, time and inode of its last verification."""
    lock = box.settings.weights
    found = host.get_fact(Probe, "weights", json.dumps({"folder": box.weights_folder}))
    recorded = found["verified"] or {"files": {}}
    todo = plan(
        lock.files,
        {path: FileStamp(*stamp) for path, stamp in found["seen"].items()},
        {
            path: (FileStamp(*file["stamp"]), file["sha256"])
            for path, file in recorded["files"].items()
        },
    )
    if not todo.complete:
        yield job_command("weights", AIBOX, "weights", box.weights_spec, wait=wait)
    else:
        host.noop(f"{len(lock.files)} files of {lock.commit[:12]} are as verified")
