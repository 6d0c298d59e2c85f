"""Build one release of vLLM: a venv from a lock, beside the running one, complete or absent."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from functools import partial
from pathlib import Path
from typing import Any

from aibox.box import patches, venv, wheels
from aibox.box.job import JobError, Progress, Spec
from aibox.decide import releases
from aibox.decide.wheels import locked_versions

CHUNK = 1 << 20


def build(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Build the release that `spec` describes and return its record.

    spec: {"folder", "version", "lock" (text), "lock_sha256", "find_links" (url or null),
    "extra_files": [{"url", "sha256", "path"}], "patches": [{"file", "sha256", "upstream",
    "text"}], "cuda" (the toolkit's minor, or null), "environment" (of the server), "cache"
    (folder)}. Raises JobError.
    """
    return venv.build(
        {**spec, "job": "release"},
        progress,
        add=partial(add, spec, progress),
        prove=partial(prove, spec),
    )


def add(spec: Spec, progress: Progress, aside: Path) -> dict[str, Any]:
    """Extra files and patches."""
    for extra in spec["extra_files"]:
        progress.step(f"fetching {Path(extra['path']).name}")
        fetch_file(extra["url"], extra["sha256"], aside / extra["path"], progress)
    return {"patches": [patches.apply(wheels.site_of(aside), one) for one in spec["patches"]]}


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
import importlib, importlib.metadata, json, sys
failed, cuda = {}, None
for module in sys.argv[1:]:
    try:
        importlib.import_module(module)
    except BaseException as error:
        failed[module] = f"{type(error).__name__}: {error}"[:300]
try:
    version = importlib.metadata.version("vllm")
    [script] = importlib.metadata.entry_points(group="console_scripts", name="vllm")
    script.load()
except importlib.metadata.PackageNotFoundError:
    version = None
except BaseException as error:
    failed["the command vllm"] = f"{type(error).__name__}: {error}"[:300]
torch = sys.modules.get("torch")
cuda = torch.version.cuda if torch else None
answer = {"version": version, "failed": failed, "torch": torch is not None, "cuda": cuda}
print(json.dumps(answer))
"""


def prove(spec: Spec, aside: Path) -> dict[str, Any]:
    """The release's record, when all that the server needs imports and is what was asked for."""
    environment = {**os.environ, "VLLM_NO_USAGE_STATS": "1", "HOME": spec["cache"]}
    environment |= spec["environment"]
    modules = releases.modules_to_import(locked_versions(spec["lock"]))
    done = subprocess.run(
        [str(aside / "bin/python"), "-IB", "-c", PROOF, *modules],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.stderr:
        print(done.stderr, file=sys.stderr)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        raise JobError(f"the new venv's Python fails: {last}", "one that imports", releases.LOG)
    found = json.loads(done.stdout.strip().splitlines()[-1])
    wheels.refuse(releases.proof_refusal(found, spec["version"], spec["cuda"]))
    return {
        "version": found["version"],
        "lock_sha256": spec["lock_sha256"],
        "extra_files": [{"path": e["path"], "sha256": e["sha256"]} for e in spec["extra_files"]],
        "python": f"{sys.version_info.major}.{sys.version_info.minor}",
        "cuda": spec["cuda"],
        "torch_cuda": found["cuda"],
        "imports": modules,
    }
