"""The model's weights: one pinned commit, every file by its sum."""

from __future__ import annotations

import json

from pyinfra import host, state
from pyinfra.api import deploy, operation

from aibox.decide.refusal import Refusal
from aibox.decide.weights import FileStamp, WeightsPlan, plan
from tasks import aibox_wheel, drift_report
from tasks.box import AIBOX, AIBOX_FOLDER, Box
from tasks.drift_report import because
from tasks.facts import Aibox, Probe
from tasks.operations import (
    Commands,
    call_aibox,
    follow_job,
    job_command,
    roots_own,
    say_refusal,
    start_job,
)
from tasks.progress import size


@deploy("Weights")
def fetched(box: Box) -> None:
    """Starts the download; `arrived` waits for it, so that the release is built beside it."""
    weights_there(name=f"Weights of {box.settings.model}: start", box=box, wait=False)


@deploy("Weights")
def arrived(box: Box) -> None:
    weights_there(name=f"Weights of {box.settings.model}: verified", box=box, wait=True)
    folder = box.weights_folder
    roots_own(
        name="Owners of the weights",
        folders=[folder],
        files=[f"{folder}/{path}" for path in box.settings.weights.files],
    )


@operation()
def weights_there(box: Box, wait: bool) -> Commands:
    """Every file of the lock, with the size, time and inode of its last verification.

    With verify_weights = "full" every file is hashed anew, in each run.
    """
    todo = planned(box)
    for path in todo.fetch:
        because(host, f"{path} is not there, or is another file")
    for path in todo.hash_again:
        because(host, f"{path} was touched since it was verified")
    hash_all = wait and todo.complete and box.settings.verify_weights == "full"
    if not todo.complete or (hash_all and not is_hashed_well(box)):
        yield job_command("weights", AIBOX, "weights", box.weights_spec, wait=wait)
    else:
        lock = box.settings.weights
        host.noop(f"{len(lock.files)} files of {lock.commit[:12]} are as verified")


def planned(box: Box) -> WeightsPlan:
    """What is to be done about the weights, by size, time and inode of what lies there."""
    found = host.get_fact(Probe, "weights", json.dumps({"folder": box.weights_folder}))
    recorded = found["verified"] or {"files": {}}
    return plan(
        box.settings.weights.files,
        {path: FileStamp(*stamp) for path, stamp in found["seen"].items()},
        {
            path: (FileStamp(*file["stamp"]), file["sha256"])
            for path, file in recorded["files"].items()
        },
    )


def is_hashed_well(box: Box) -> bool:
    """Whether a drift check, which may not mend, finds every sum right. A deploy hashes itself."""
    if not drift_report.is_wanted():
        because(host, "verify_weights is full: every file is hashed anew")
        return False
    if host.get_fact(Aibox, folder=AIBOX_FOLDER) != aibox_wheel.identity():
        because(host, "nothing was hashed: the box has another aibox")
        return False
    lock, wrong = box.settings.weights, None
    host.log(f"check: hashing {len(lock.files)} files of weights, {size(lock.total_bytes)}")
    try:
        started = start_job(host, AIBOX, "check", "check", box.weights_spec)
        if started and follow_job(host, AIBOX, "check"):
            wrong = call_aibox(host, AIBOX, ["job", "look", "check"])["result"]["wrong"]
    except ConnectionError as error:
        refusal = Refusal(f"no answer from the box ({error})", "every sum", "run the check again")
        say_refusal(host, refusal)
    if wrong is None:
        state.fail_hosts({host})
        return True
    for path in wrong:
        because(host, f"{path} has another content: its sha256 is not the lock's")
    return not wrong
