"""The weights of one commit: taken over or fetched, verified, proven, then there.

Everything happens in `<models>/<name>/.partial-<commit>`, which becomes `<models>/<name>/<commit>`
only when every file has its sum and the files hold what the card says. A complete folder has a list
of its content, written last: `.manifest.json`, the same on every box. Beside it, for root alone,
`.verified.json`: how each file looked when it was hashed, so that it need not be read again.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, cast

from aibox.box import hashing, tensors
from aibox.box.download import Download, journal_of
from aibox.box.job import JobError, Progress, Spec, read, write_whole
from aibox.box.probe.accounts import can_be_shared
from aibox.box.take_over import copy, need_room, places, take_over
from aibox.box.tensors import is_tensors
from aibox.decide.head import Head, index_of, judge_dtype, judge_head, judge_index
from aibox.decide.manifest import WEIGHTS_LIST, WEIGHTS_RECORD
from aibox.decide.refusal import Refusal
from aibox.decide.weights import LockedFile, content, index_complete, is_stray, strays_refusal

INDEX = "model.safetensors.index.json"

Stamp = list[int]  # size in bytes, modification time in ns, inode
Verified = dict[str, Any]  # path -> {"stamp", "sha256"}


def fetch(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Bring the folder to the lock's content.

    spec: {"folder", "hub", "repository", "commit", "files": {path: {"size", "sha256"}},
    "dtype", "head": {…} or null, "take_over": folders, or null for the usual places, "limit":
    bytes/s or null, "full": hash every file, "secret": the hub's token or null}. Raises JobError.
    """
    if spec.get("full"):
        os.nice(10)  # the server goes first
    folder = Path(spec["folder"])
    work = folder if folder.is_dir() else folder.with_name(f".partial-{spec['commit']}")
    work.mkdir(parents=True, exist_ok=True)
    judged(strays_refusal(str(work), [name for name in strays(work) if name not in spec["files"]]))
    verified = verify(work, spec, progress, keep_unfinished=True, known=known_in(work, spec))
    missing = [path for path in spec["files"] if path not in verified]
    notes: list[str] = []
    if missing:
        notes = taken_over(work, missing, spec, progress, verified)
    wanted = [path for path in missing if path not in verified]
    need_room(work, still_to_come(work, wanted, spec))
    # What is small tells whether the rest is worth its time.
    for paths in ([p for p in wanted if not is_tensors(p)], [p for p in wanted if is_tensors(p)]):
        verified |= obtain(work, paths, spec, progress)
        progress.step("reading the weights' headers")
        prove(work, spec, with_tensors=all(path in verified for path in spec["files"]))
    finish(work, folder, spec, {"files": verified, "changed": changed(folder, missing)})
    return {"fetched": wanted, "notes": notes}


def finish(work: Path, folder: Path, spec: Spec, record: dict[str, Any]) -> None:
    """Write down what is there, the list of the content last, and give the folder its name."""
    locked = {path: LockedFile(**file) for path, file in spec["files"].items()}
    write_whole(work / WEIGHTS_RECORD, json.dumps({"commit": spec["commit"], **record}), mode=0o600)
    subprocess.run(["sync", "--file-system", str(work)], check=True)
    listed = content(locked, spec["commit"])
    if read(work / WEIGHTS_LIST) != listed:
        write_whole(work / WEIGHTS_LIST, json.dumps(listed, indent=1) + "\n")
    if work != folder:
        work.rename(folder)
    subprocess.run(["sync", str(folder), str(folder.parent)], check=True)


def changed(folder: Path, missing: list[str]) -> float | None:
    """When a file was last replaced in a folder that a server may run from (epoch seconds)."""
    if missing and folder.is_dir():
        return time.time()
    return (read(folder / WEIGHTS_RECORD) or {}).get("changed")


def check(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Hash every file of the lock and change nothing: {"wrong": [path, …]}.

    spec: as for fetch. A file that is not there is wrong as well.
    """
    os.nice(10)  # the server goes first
    progress.step("hashing")
    folder, files = Path(spec["folder"]), spec["files"]
    found = hashing.sums((folder / path for path in files), progress)
    return {"wrong": [path for path in files if found[folder / path] != files[path]["sha256"]]}


def strays(work: Path) -> list[str]:
    return [file.name for file in work.iterdir() if is_stray(file.name)]


def judged(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise JobError(refusal.found, refusal.expected, refusal.remedy)


# --- what is there already ----------------------------------------------------------------------


def known_in(work: Path, spec: Spec) -> Verified:
    """What the last verification recorded; nothing where all is to be hashed anew."""
    if spec.get("full"):
        return {}
    found: Verified = (read(work / WEIGHTS_RECORD) or {}).get("files", {})
    return found


def verify(
    work: Path,
    spec: Spec,
    progress: Progress,
    *,
    only: Iterable[str] | None = None,
    keep_unfinished: bool = False,
    known: Mapping[str, Any] | None = None,
) -> Verified:
    """Hash what is there: {path: {"stamp", "sha256"}} of the files that are as the lock says.

    A file with a wrong sum is removed; one that is still being fetched (its journal beside it) is
    left for the download to go on with. known: what need not be read again as long as it looks so.
    """
    progress.step("verifying")
    paths = [path for path in (spec["files"] if only is None else only) if (work / path).is_file()]
    if keep_unfinished:
        paths = [path for path in paths if not journal_of(work / path).exists()]
    wanted = {path: spec["files"][path]["sha256"] for path in paths}
    verified: Verified = {}
    for path in paths:
        entry = {"stamp": stamp(work / path), "sha256": wanted[path]}
        if (known or {}).get(path) == entry and serves(work / path):
            verified[path] = entry
    unread = [path for path in paths if path not in verified]
    sizes = {path: (work / path).stat().st_size for path in unread}
    right = [path for path in unread if sizes[path] == spec["files"][path]["size"]]
    found = hashing.sums((work / path for path in right), progress)
    for path in unread:
        if found.get(work / path) == wanted[path]:
            made_readable(work / path)
            verified[path] = {"stamp": stamp(work / path), "sha256": wanted[path]}
        else:
            (work / path).unlink()  # our name of it: a person's own file keeps its other name
    return verified


def stamp(file: Path) -> Stamp:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def serves(file: Path) -> bool:
    """Whether the server can read a file; our own is set right, a shared one is not ours to set."""
    status = file.stat()
    return status.st_nlink == 1 or can_be_shared(status)


def made_readable(file: Path) -> None:
    """For everybody, and writable for its owner only: a shared file is left, and copied."""
    if file.stat().st_nlink == 1:
        file.chmod(0o644)
    elif not serves(file):
        copy(file, file)


# --- what is to come ----------------------------------------------------------------------------


def taken_over(
    work: Path, missing: list[str], spec: Spec, progress: Progress, verified: Verified
) -> list[str]:
    """Add to `verified` what lies on the box already; what was done, in words.

    A usual place that holds nothing is not worth a word; one that was named is.
    """
    notes: list[str] = []
    for source in places(spec):
        wanted = [path for path in missing if path not in verified]
        if not wanted:
            break
        taken = take_over(source, work, wanted, spec, progress)
        for path in taken.paths:
            journal_of(work / path).unlink(missing_ok=True)
        for path in taken.linked:  # hashed a moment ago, under its other name
            verified[path] = {"stamp": stamp(work / path), "sha256": spec["files"][path]["sha256"]}
        if taken.copied:
            verified |= verify(work, spec, progress, only=taken.copied)
        if taken.paths or spec.get("take_over"):
            notes += taken.in_words(source, len(wanted))
    return notes


def still_to_come(work: Path, wanted: list[str], spec: Spec) -> int:
    """Bytes that the disk still has to take."""
    total = 0
    for path in wanted:
        file = work / path
        there = file.stat().st_blocks * 512 if journal_of(file).exists() and file.exists() else 0
        total += max(0, spec["files"][path]["size"] - there)
    return total


def obtain(work: Path, missing: list[str], spec: Spec, progress: Progress) -> Verified:
    """Download files and verify them: {path: {"stamp", "sha256"}}. Raises JobError.

    What an earlier run had begun is fetched once more when it comes out wrong: something may have
    written to it in between.
    """
    begun = [path for path in missing if journal_of(work / path).exists()]
    verified: Verified = {}
    for paths in (missing, begun):
        wanted = [path for path in paths if path not in verified]
        if wanted:
            progress.step("downloading")
            downloaded(work, wanted, spec, progress)
            verified |= verify(work, spec, progress, only=wanted)
    wrong = [path for path in missing if path not in verified]
    if wrong:
        raise JobError(
            f"{', '.join(wrong)} came with another sha256 than the lock's and was removed",
            f"the files of commit {spec['commit'][:12]} as they were pinned",
            "run the deploy again; if it stays, pin the weights anew and read what changed",
        )
    return verified


def downloaded(work: Path, wanted: list[str], spec: Spec, progress: Progress) -> None:
    try:
        Download(work, spec, wanted).run(progress)
    except OSError as error:  # of the disk: the network's are told apart by the download
        error.filename = error.filename or str(work)
        raise


# --- what the files hold ------------------------------------------------------------------------


def prove(work: Path, spec: Spec, *, with_tensors: bool) -> None:
    """BF16 and the MTP head, from the files themselves; without the tensors what can be known."""
    config = read_json(work / "config.json")
    index = read_json(work / INDEX) if INDEX in spec["files"] else None
    head = Head(**spec["head"]) if spec["head"] is not None else None
    if index is not None:
        judged(index_complete(index, spec["files"]))
        judged(judge_head(config, index, head))
    if not with_tensors:
        return
    headers = {path: tensors.header(work / path) for path in spec["files"] if is_tensors(path)}
    if index is not None:
        judged(judge_index(index, headers))
    judged(judge_head(config, index_of(headers), head))
    judged(
        judge_dtype({path: tensors.dtypes(found) for path, found in headers.items()}, spec["dtype"])
    )


def read_json(path: Path) -> Mapping[str, Any]:
    try:
        return cast(Mapping[str, Any], json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise JobError(
            f"{path.name}: {error}", "a file that vLLM can read", "pin the weights anew"
        ) from None
