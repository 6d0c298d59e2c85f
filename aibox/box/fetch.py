"""Fetch the weights of one commit of a model: resumed after a kill, verified, proven, then there.

Everything happens in `<models>/<name>/.partial-<commit>`, which becomes `<models>/<name>/<commit>`
only when every file has its sum and the files hold what the card says.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import math
import os
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from aibox.box.job import JobError, Progress, Spec, write_whole
from aibox.decide.head import Head, judge_dtype, judge_head
from aibox.decide.weights import index_complete

CHUNK = 1 << 22
INDEX = "model.safetensors.index.json"
LONGEST_HEADER = 100_000_000  # safetensors' own limit, bytes
# aria2's exit codes that have a cause of their own (aria2c(1), EXIT STATUS)
ARIA2 = {
    3: "a file of the lock is not on the hub",
    6: "a network problem",
    19: "the hub's name can't be resolved",
    22: "the hub answered with an error",
    24: "the hub wants a login for this repository",
    29: "the hub is overloaded, or down for maintenance",
}
ARIA2_NOT_FOUND = 3
ARIA2_DISK_FULL = 9
# aria2's words for a control file that it can't go on from
READ_CONTROL = "Failed to read from the segment file"

Stamp = list[int]  # size in bytes, modification time in ns, inode


def fetch(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Bring the folder to the lock's content.

    spec: {"folder", "hub", "repository", "commit", "files": {path: {"size", "sha256"}},
    "dtype", "head": {…} or null}. Raises JobError.
    """
    folder = Path(spec["folder"])
    work = folder if folder.is_dir() else folder.with_name(f".partial-{spec['commit']}")
    work.mkdir(parents=True, exist_ok=True)
    verified = verify(work, spec, progress, keep_unfinished=True)
    missing = [path for path in spec["files"] if path not in verified]
    verified |= obtain(work, missing, spec, progress)
    progress.step("reading the weights' headers")
    prove(work, spec)
    record = {"commit": spec["commit"], "files": verified, "changed": changed(folder, missing)}
    write_whole(work / ".verified.json", json.dumps(record))
    subprocess.run(["sync", "--file-system", str(work)], check=True)
    if work != folder:
        work.rename(folder)
        subprocess.run(["sync", str(folder.parent)], check=True)
    return {"fetched": missing}


def changed(folder: Path, missing: list[str]) -> float | None:
    """When a file was last replaced in a folder that a server may run from (epoch seconds)."""
    if missing and folder.is_dir():
        return time.time()
    try:
        before: float | None = json.loads((folder / ".verified.json").read_text()).get("changed")
    except (OSError, ValueError):
        return None
    return before


def check(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Hash every file of the lock and change nothing: {"wrong": [path, …]}.

    spec: as for fetch. A file that is not there is wrong as well.
    """
    os.nice(10)  # the server goes first
    progress.step("hashing")
    folder, files = Path(spec["folder"]), spec["files"]
    total, done, wrong = sum(file["size"] for file in files.values()), 0, []
    for path, wanted in files.items():
        digest = hashlib.sha256()
        try:
            with (folder / path).open("rb") as content:
                while chunk := content.read(CHUNK):
                    digest.update(chunk)
                    done += len(chunk)
                    progress.say(done, total, "bytes")
        except FileNotFoundError:
            pass
        if digest.hexdigest() != wanted["sha256"]:
            wrong.append(path)
    return {"wrong": wrong}


def obtain(work: Path, missing: list[str], spec: Spec, progress: Progress) -> dict[str, Any]:
    """Download files and verify them: {path: {"stamp", "sha256"}}. Raises JobError.

    What an earlier run had begun is fetched once more when it comes out wrong: a power cut may
    have left holes in it.
    """
    begun = [path for path in missing if control_file(work / path).exists()]
    verified: dict[str, Any] = {}
    for paths in (missing, begun):
        wanted = [path for path in paths if path not in verified]
        if wanted:
            download(work, wanted, spec, progress)
            verified |= verify(work, spec, progress, only=wanted)
    wrong = [path for path in missing if path not in verified]
    if wrong:
        raise JobError(
            f"{', '.join(wrong)} came with another sha256 than the lock's and was removed",
            f"the files of commit {spec['commit'][:12]} as they were pinned",
            "run the deploy again; if it stays, pin the weights anew and read what changed",
        )
    return verified


def control_file(file: Path) -> Path:
    """Where aria2 keeps which parts of a file it has; there as long as the file is not whole."""
    return file.with_name(f"{file.name}.aria2")


def verify(
    work: Path,
    spec: Spec,
    progress: Progress,
    *,
    only: list[str] | None = None,
    keep_unfinished: bool = False,
) -> dict[str, Any]:
    """Hash what is there: {path: {"stamp", "sha256"}} of the files that are as the lock says.

    A file with a wrong sum is removed; one that is still being fetched (an .aria2 file beside it)
    is left for the download to go on with.
    """
    progress.step("verifying")
    paths = only if only is not None else list(spec["files"])
    there = [path for path in paths if (work / path).is_file()]
    total, done, verified = sum((work / path).stat().st_size for path in there), 0, {}
    for path in there:
        file, wanted = work / path, spec["files"][path]
        if keep_unfinished and control_file(file).exists():
            continue
        digest = hashlib.sha256()
        with file.open("rb") as content:
            while chunk := content.read(CHUNK):
                digest.update(chunk)
                done += len(chunk)
                progress.say(done, total, "bytes")
        if digest.hexdigest() == wanted["sha256"]:
            file.chmod(0o644)
            verified[path] = {"stamp": stamp(file), "sha256": wanted["sha256"]}
        else:
            file.unlink()
    return verified


def stamp(file: Path) -> Stamp:
    status = file.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ino]


def download(work: Path, paths: list[str], spec: Spec, progress: Progress) -> None:
    """Let aria2 fetch files, from where an earlier run was stopped."""
    progress.step("downloading")
    finished = threading.Event()
    watcher = threading.Thread(target=watch, args=(work, paths, spec, progress, finished))
    watcher.start()
    try:
        code, said = aria2(work, paths, spec)
        unreadable = [path for path in paths if f"{READ_CONTROL} {work / path}.aria2" in said]
        for path in unreadable:  # a power cut came while it was written: nothing to go on from
            control_file(work / path).unlink()
            (work / path).unlink(missing_ok=True)
        if unreadable:
            code, said = aria2(work, paths, spec)
    finally:
        finished.set()
        watcher.join()
    if code:
        print(said, file=sys.stderr)
        raise download_error(code, said, address_of(spec), work)


def address_of(spec: Spec) -> str:
    return f"{spec['hub']}/{spec['repository']}/resolve/{spec['commit']}"


def aria2(work: Path, paths: list[str], spec: Spec) -> tuple[int, str]:
    """Run aria2 on files of the commit: its exit code and what it said."""
    wanted = "".join(f"{address_of(spec)}/{path}\n  out={path}\n" for path in paths)
    command = ["aria2c", "--input-file=-", f"--dir={work}", "--continue=true"]
    command += ["--allow-overwrite=true", "--auto-file-renaming=false", "--file-allocation=none"]
    command += ["--max-concurrent-downloads=3", "--split=4", "--max-connection-per-server=4"]
    command += ["--max-tries=5", "--retry-wait=3", "--connect-timeout=20", "--timeout=60"]
    command += ["--auto-save-interval=5", "--console-log-level=warn", "--summary-interval=0"]
    command += ["--no-conf=true", "--ca-certificate=/etc/ssl/certs/ca-certificates.crt"]
    environment = {**os.environ, "LC_ALL": "C"}  # its words are read
    done = subprocess.run(
        command, input=wanted, text=True, capture_output=True, check=False, env=environment
    )
    return done.returncode, done.stdout + done.stderr


def download_error(code: int, said: str, address: str, work: Path) -> OSError | JobError:
    # aria2 ends with the code of the download that ended last, and another one may be to blame
    if code == ARIA2_DISK_FULL or os.strerror(errno.ENOSPC) in said:
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(work))
    reason = re.search(r"errorCode=\d+ (?!URI=)(.*)", said)
    found = ARIA2.get(code) or (reason[1] if reason else "the download stopped")
    remedy = "see that the box reaches the hub, then run the deploy again: it goes on from there"
    if code == ARIA2_NOT_FOUND:
        remedy = "see what became of this commit on the hub; if it is gone, pin the weights anew"
    return JobError(
        f"{found} (aria2 says {code}) at {address}", "every file of the pinned commit", remedy
    )


def watch(
    work: Path, paths: list[str], spec: Spec, progress: Progress, finished: threading.Event
) -> None:
    total = sum(spec["files"][path]["size"] for path in paths)
    while not finished.wait(1):
        done = 0
        for path in paths:
            with contextlib.suppress(OSError):
                done += (work / path).stat().st_blocks * 512  # the file is sparse while it grows
        progress.say(min(done, total), total, "bytes")


def prove(work: Path, spec: Spec) -> None:
    """BF16 and the MTP head, from the files themselves."""
    config, index = read_json(work / "config.json"), read_json(work / INDEX)
    refusal = index_complete(index, spec["files"])
    if refusal is None and spec["head"] is not None:
        refusal = judge_head(config, index, Head(**spec["head"]))
    if refusal is None:
        headers = {path: dtypes(work / path) for path in spec["files"] if is_tensors(path)}
        refusal = judge_dtype(headers, spec["dtype"])
    if refusal is not None:
        raise JobError(refusal.found, refusal.expected, refusal.remedy)


def is_tensors(path: str) -> bool:
    return path.endswith(".safetensors")


def read_json(path: Path) -> Mapping[str, Any]:
    try:
        return cast(Mapping[str, Any], json.loads(path.read_text()))
    except (OSError, ValueError) as error:
        raise JobError(
            f"{path.name}: {error}", "a file that vLLM can read", "pin the weights anew"
        ) from None


def dtypes(path: Path) -> dict[str, int]:
    """How many parameters of each dtype a safetensors file holds, from its header alone."""
    numbers: Counter[str] = Counter()
    try:
        with path.open("rb") as file:
            size = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(size)) if 0 < size < LONGEST_HEADER else {}
        for name, tensor in header.items():
            if name != "__metadata__":
                numbers[tensor["dtype"]] += math.prod(tensor["shape"])
    except (ValueError, KeyError, TypeError, AttributeError):
        raise JobError(
            f"{path.name} does not begin with a safetensors header",
            "a file that vLLM can read",
            "pin the weights anew",
        ) from None
    return dict(numbers)
