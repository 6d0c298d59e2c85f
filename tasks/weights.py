"""The model's weights: one pinned commit, every file by its sum."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any

from pyinfra import host, state
from pyinfra.api import QuoteString, StringCommand, deploy, operation

from aibox.decide.figures import size
from aibox.decide.manifest import DEPLOYED
from aibox.decide.refusal import Refusal
from aibox.decide.server import proof_is_owed
from aibox.decide.weights import (
    CommitFolder,
    FileStamp,
    WeightsPlan,
    content,
    plan,
    superseded,
)
from tasks import aibox_wheel, drift_report, first_pin
from tasks.box import AIBOX, AIBOX_FOLDER, Box
from tasks.drift_report import because
from tasks.facts import Aibox, LaidFile, Probe
from tasks.given_secrets import SecretError
from tasks.hub_token import token
from tasks.operations import (
    Commands,
    call_aibox,
    follow_job,
    is_under_way,
    job_command,
    roots_own,
    say_refusal,
    start_job,
)
from tasks.server import server_state


@deploy("Weights")
def fetched(box: Box) -> None:
    """Starts the download; `arrived` waits for it, so that the release is built beside it."""
    first_pin.recorded(name=f"{box.settings.model} is pinned", settings=box.settings)
    weights_there(name=f"Weights of {box.settings.model}: start", box=box, wait=False)


@deploy("Weights")
def arrived(box: Box) -> None:
    weights_there(name=f"Weights of {box.settings.model}: verified", box=box, wait=True)
    weights_owned(name="Owners of the weights", box=box)


@operation()
def weights_there(box: Box, wait: bool) -> Commands:
    """Every file of the lock, with the size, time and inode of its last verification.

    With verify_weights = "full" every file is hashed anew, in each run.
    """
    todo = planned(box)
    for reason in reasons(todo, box.weights_folder):
        because(host, reason)
    hash_all = wait and todo.complete and box.settings.verify_weights == "full"
    begun = wait and is_under_way(host, "weights")  # how it ended is still to be told
    if begun or not todo.complete or (hash_all and not is_hashed_well(box)):
        yield job_command(
            "weights", AIBOX, "weights", box.weights_spec, wait=wait, secret=hub_token
        )
    else:
        lock = box.settings.weights
        host.noop(f"{len(lock.files)} files of {lock.commit[:12]} are as verified")


def hub_token() -> str | Refusal | None:
    try:
        return token()
    except SecretError as error:
        return error.refusal


def reasons(todo: WeightsPlan, folder: str) -> list[str]:
    """Why the weights are not as they should be, a line each."""
    found = [f"{path} is not there, or is another file" for path in todo.fetch]
    found += [f"{path} was touched since it was verified" for path in todo.hash_again]
    found += [f"{path} is no file of this commit, and vLLM may load it" for path in todo.strays]
    if not found and not todo.listed:
        found.append(f"{folder} has no list of its content, or another one")
    return found


def planned(box: Box) -> WeightsPlan:
    """What is to be done about the weights, by size, time and inode of what lies there."""
    found, lock = look(box), box.settings.weights
    recorded = found["verified"] or {"files": {}}
    unfit = {path for path, may_be in found["shared"].items() if not may_be}
    return plan(
        lock.files,
        {path: FileStamp(*stamp) for path, stamp in found["seen"].items()},
        {
            path: (FileStamp(*file["stamp"]), file["sha256"])
            for path, file in recorded["files"].items()
            if path not in unfit  # hashed again, it becomes a file of our own
        },
        listed=found["listed"] == content(lock.files, lock.commit),
    )


def look(box: Box) -> dict[str, Any]:
    found: dict[str, Any] = host.get_fact(
        Probe, "weights", json.dumps({"folder": box.weights_folder})
    )
    return found


@operation()
def weights_owned(box: Box) -> Commands:
    """Root's, but for files that are hard-linked with a person's own: those are left alone."""
    folder, shared = box.weights_folder, look(box)["shared"]
    ours = [f"{folder}/{path}" for path in box.settings.weights.files if path not in shared]
    yield from roots_own._inner(folders=[folder], files=ours)


# --- commits that are no longer served -----------------------------------------------------------


@operation()
def old_commits_removed(box: Box) -> Commands:
    """Once the server has proven itself on this commit, one other is kept and the rest goes."""
    folder, commit = str(PurePosixPath(box.weights_folder).parent), box.settings.weights.commit
    found = host.get_fact(Probe, "commits", json.dumps({"folder": folder}))
    going = superseded([CommitFolder(**one) for one in found], commit, served_before(commit))
    if not going or proof_is_owed(server_state(box), box.serving) is not None:
        host.noop("no commit of the weights has been superseded")
        return
    for name in going:
        because(host, f"{folder}/{name} is served no more")
        aside = name if name.startswith(".") else f".removed-{name}"
        old, new = (QuoteString(f"{folder}/{one}") for one in (name, aside))
        move = () if name == aside else ("mv -T", old, new, "&&")
        yield StringCommand(*move, "rm -rf --one-file-system", new)


def served_before(commit: str) -> str | None:
    """The commit that the last finished deploy served, where it was another one."""
    record = host.get_fact(LaidFile, path=DEPLOYED)
    try:
        found = json.loads(record["content"])["weights"]["commit"] if record else None
    except (ValueError, KeyError, TypeError):
        return None
    return str(found) if found and found != commit else None


# --- every sum ------------------------------------------------------------------------------------


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
