"""Build one release of vLLM: a venv from a lock, beside the running one, complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from aibox.box.job import JobError, Progress, Spec, write_whole

CHUNK = 1 << 20


def build(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Build the release that `spec` describes and return its record.

    spec: {"folder", "version", "lock" (text), "lock_sha256", "find_links" (url or null),
    "extra_files": [{"url", "sha256", "path"}], "environment" (of the server), "cache" (folder)}.
    Raises JobError.
    """
    folder = Path(spec["folder"])
    aside = folder.with_name(f".building-{folder.name}")
    aside.parent.mkdir(parents=True, exist_ok=True)
    for half in aside.parent.glob(".building-*"):  # venvs of dead runs; uv's cache has the files
        remove_tree(half)
    try:
        record = fill(aside, spec, progress)
    except (JobError, OSError):
        remove_tree(aside)
        raise
    progress.step("writing to the disk")
    subprocess.run(["sync", "--file-system", str(aside)], check=True)
    remove_tree(folder)
    aside.rename(folder)
    subprocess.run(["sync", str(folder.parent)], check=True)
    return record


def fill(aside: Path, spec: Spec, progress: Progress) -> dict[str, Any]:
    make_venv(aside, spec, progress)
    sync(aside, spec, progress)
    for extra in spec["extra_files"]:
        progress.step(f"fetching {Path(extra['path']).name}")
        fetch_file(extra["url"], extra["sha256"], aside / extra["path"], progress)
    progress.step("proving")
    record = prove(aside, spec)
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


def run(command: list[str], spec: Spec, failure: str) -> None:
    done = subprocess.run(
        command, env=uv_environment(spec), capture_output=True, text=True, check=False
    )
    if done.returncode == 0:
        return
    said = done.stderr.strip() or done.stdout.strip()
    print(said, file=sys.stderr)
    if "No space left on device" in said:
        raise OSError(28, "No space left on device", spec["folder"])
    raise JobError(failure_of(said), failure, remedy_of(said))


def failure_of(said: str) -> str:
    """What uv said, in at most six lines from its error on, without the steps that went well."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    begins = next((at for at, line in enumerate(lines) if line.startswith("error")), 0)
    return "\n".join(lines[begins : begins + 6])


def remedy_of(said: str) -> str:
    if "Hash mismatch" in said:
        return (
            "do not install it: the lock and what the index serves differ. "
            "Restore the lock from git, or renew it with `make lock` and read what changed"
        )
    return "run the deploy again; if it stays, look at `journalctl -u aibox-release` on the box"


def make_venv(aside: Path, spec: Spec, progress: Progress) -> None:
    progress.step("making the venv")
    command = uv("venv", "--relocatable", "--no-python-downloads", "--python", "/usr/bin/python3")
    run([*command, str(aside)], spec, "a new venv on the box's own python3")


def sync(aside: Path, spec: Spec, progress: Progress) -> None:
    """Install the lock, every file by its hash. Progress is what the disk took so far."""
    progress.step("downloading and installing packages")
    lock = aside / "lock.txt"
    lock.write_text(spec["lock"])
    command = uv("pip", "sync", "--require-hashes", "--only-binary", ":all:")
    command += ["--python", str(aside / "bin/python")]
    if spec["find_links"]:
        command += ["--find-links", spec["find_links"]]
    finished = threading.Event()
    watcher = threading.Thread(target=watch_disk, args=(aside, progress, finished))
    watcher.start()
    try:
        run([*command, str(lock)], spec, "the packages of the lock, with the lock's hashes")
    finally:
        finished.set()
        watcher.join()


def watch_disk(aside: Path, progress: Progress, finished: threading.Event) -> None:
    """The disk fills as uv works; uv itself tells nothing without a terminal."""
    before = shutil.disk_usage(aside).free
    while not finished.wait(1):
        written = max(0, before - shutil.disk_usage(aside).free)
        progress.say(written, None, "bytes")


def fetch_file(url: str, sha256: str, target: Path, progress: Progress) -> None:
    """Fetch one file; it stands at its place only with the right sum."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.new")
    digest, done = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=60) as answer, aside.open("wb") as file:
            total = int(answer.headers.get("Content-Length") or 0) or None
            while chunk := answer.read(CHUNK):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                progress.say(done, total, "bytes")
    except (urllib.error.URLError, TimeoutError, ValueError) as error:
        reason = getattr(error, "reason", error)
        remedy = "see that the address in release_extra_files answers, then run the deploy again"
        raise JobError(f"{url}: {reason}", "a file to fetch", remedy) from None
    if digest.hexdigest() != sha256:
        aside.unlink()
        raise JobError(
            f"{url} has sha256 {digest.hexdigest()}",
            f"sha256 {sha256}",
            "do not use it; compare release_extra_files with where the file comes from",
        )
    aside.rename(target)


PROOF = """
import importlib.metadata, json, sys
import vllm
print(json.dumps({"version": importlib.metadata.version("vllm"), "file": vllm.__file__}))
"""


def prove(aside: Path, spec: Spec) -> dict[str, Any]:
    """The release's record, when its vLLM imports and has the version that was asked for."""
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HOME": spec["cache"]}
    environment |= spec["environment"]
    done = subprocess.run(
        [str(aside / "bin/python"), "-IB", "-c", PROOF],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    remedy = "look at `journalctl -u aibox-release` on the box"
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise JobError(f"the new venv can't import vllm: {last}", "a vllm that imports", remedy)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    if found["version"] != spec["version"]:
        raise JobError(f"vllm {found['version']} in the venv", f"vllm {spec['version']}", remedy)
    return {
        "version": found["version"],
        "lock_sha256": spec["lock_sha256"],
        "extra_files": [{"path": e["path"], "sha256": e["sha256"]} for e in spec["extra_files"]],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
    }
