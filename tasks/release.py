"""One release of vLLM: a venv from its lock, every file by its hash, complete or absent."""

from __future__ import annotations

import json

from pyinfra import host, logger
from pyinfra.api import deploy, operation

from aibox.decide import kernels
from aibox.decide.releases import Standing, served, superfluous
from tasks.box import AIBOX, Box
from tasks.drift_report import because
from tasks.facts import Probe
from tasks.operations import Commands, job_command, roots_own
from tasks.server import server_state


@deploy("Release")
def built(box: Box) -> None:
    say_left_out(box)
    release_there(name=f"vLLM {box.release.release_id}", box=box)
    roots_own(name="Owner of the release's folder", folders=[box.release_folder])
    if box.kernels:
        kernels_there(name="FlashInfer's kernels", box=box)


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


def say_left_out(box: Box) -> None:
    """Patches vanish on an upgrade by themselves, and not without a word."""
    for patch in box.settings.patches_left_out:
        version = box.settings.vllm_version
        host.log(
            f"patch {patch.file} is for vLLM {patch.vllm} and left out of {version}"
            f" ({patch.upstream})",
            logger.warning,
        )


@operation()
def kernels_there(box: Box) -> Commands:
    """Compiled before the first start, by the toolkit that the server would use itself."""
    asked = json.dumps({"folder": box.release_folder})
    todo = kernels.missing(box.kernels, host.get_fact(Probe, "compiled", asked))
    if not todo:
        host.noop(f"{len(box.kernels)} kernels are compiled")
        return
    for kernel in todo:
        because(host, f"not compiled yet: {kernels.described(kernel)}")
    yield job_command("kernels", AIBOX, "kernels", box.kernels_spec)


@operation()
def older_removed(box: Box) -> Commands:
    """The current release stays, the one that served before it, and those that a record names.

    It comes after the proof: by then the server runs from the current one.
    """
    asked = {"folder": box.settings.releases_folder, "records": [box.proof_record]}
    found = host.get_fact(Probe, "releases", json.dumps(asked))
    standing = [Standing(name, made) for name, made in found["standing"].items()]
    proven = served(found["records"][box.proof_record])
    good = server_state(box)["good_release"]
    named = {good: "last good"} if good else {}
    names = superfluous(standing, box.release.release_id, proven, named)
    if not names:
        host.noop("no release is left over")
        return
    for name in names:
        because(host, f"{box.settings.releases_folder}/{name} is no longer needed")
    spec = {"folder": box.settings.releases_folder, "names": names}
    yield job_command("remove_releases", AIBOX, "remove_releases", spec)
