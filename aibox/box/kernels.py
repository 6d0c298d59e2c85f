"""Compile FlashInfer's kernels into a release, so that no start of the server waits for nvcc.

FlashInfer looks for a kernel in its own package first (data/aot/NAME/NAME.so) and loads it from
there as it is: no ninja, no lock, nothing to write, which suits a release that is root's. Only
what is not there is compiled at run time, in the service's own FLASHINFER_WORKSPACE_BASE.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from aibox.box.contents import sha256
from aibox.box.job import JobError, Progress, Spec, write_whole
from aibox.decide.figures import GB
from aibox.decide.kernels import ARCHITECTURE, described, missing
from aibox.decide.nvcc import explained

RECORD = "kernels.json"  # in the release's folder
PROGRAM = Path(__file__).with_name("flashinfer_modules.py")
COMPILER_BYTES = 3 * GB  # memory that one compiler may take
NINJA = re.compile(r"\[(\d+)/(\d+)\]")


def build(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Compile the kernels that a release does not hold yet, and record them.

    spec: {"release" (folder), "kernels", "cuda_home", "environment" (further, for the compiler)}.
    Returns the release's record of kernels. Raises JobError.
    """
    release = Path(spec["release"])
    before = recorded(release)
    todo = missing(spec["kernels"], before)
    if not todo:
        return before
    workspace = release.with_name(f".building-kernels-{release.name}")
    try:
        progress.step(f"compiling {len(todo)} kernels")
        answer = compile_them(release, todo, spec, workspace, progress)
        built = [put(Path(answer["folder"]), each) for each in answer["built"]]
    finally:
        shutil.rmtree(workspace, ignore_errors=True)
    refuse_unless_found(release, todo, spec)
    record = {
        "flashinfer": answer["version"],
        "architecture": ARCHITECTURE,
        "built": [*before.get("built", []), *built],
    }
    write_whole(release / RECORD, json.dumps(record, indent=1))
    return record


def recorded(release: Path) -> dict[str, Any]:
    """The record of the kernels that are still there as they were built."""
    try:
        record: dict[str, Any] = json.loads((release / RECORD).read_text())
    except (OSError, ValueError):
        return {}
    there = [each for each in record["built"] if (release / each["file"]).exists()]
    return {**record, "built": there}


def environment(release: Path, spec: Spec, workspace: Path) -> dict[str, str]:
    """Every core, as far as memory goes; the compilers make way for a server that runs."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    jobs = max(1, min(os.cpu_count() or 1, memory // COMPILER_BYTES))
    cuda = spec["cuda_home"]
    return {
        **os.environ,
        "HOME": str(workspace),
        "TMPDIR": str(workspace),
        "PATH": f"{release}/bin:{cuda}/bin:{os.environ.get('PATH', '/usr/bin:/bin')}",
        "CUDA_HOME": cuda,
        "FLASHINFER_WORKSPACE_BASE": str(workspace),
        "FLASHINFER_CUDA_ARCH_LIST": ARCHITECTURE,
        "MAX_JOBS": str(jobs),
        **spec["environment"],
    }


def compile_them(
    release: Path, kernels: list[dict[str, Any]], spec: Spec, workspace: Path, progress: Progress
) -> dict[str, Any]:
    workspace.mkdir(parents=True, exist_ok=True)
    words = ["nice", str(release / "bin/python"), "-IB", str(PROGRAM)]
    with subprocess.Popen(
        words,
        env=environment(release, spec, workspace),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps({"kernels": kernels}))
        process.stdin.close()
        said = follow(process.stdout, progress)
    if process.returncode:
        print("\n".join(said[-200:]), file=sys.stderr)
        raise failed(kernels, "\n".join(said), spec["cuda_home"])
    answer: dict[str, Any] = json.loads(said[-1])
    return answer


def follow(stream: Iterable[str], progress: Progress) -> list[str]:
    """ninja counts its steps: [3/17]. Returns every line."""
    said = []
    for line in stream:
        said.append(line.rstrip())
        counted = NINJA.match(line)
        if counted:
            progress.say(int(counted[1]), int(counted[2]), "steps")
    return said


def failed(kernels: list[dict[str, Any]], said: str, cuda_home: str) -> JobError:
    if "No space left on device" in said:
        raise OSError(28, "No space left on device", cuda_home)
    glibc = os.confstr("CS_GNU_LIBC_VERSION") or "?"
    why = explained(said, cuda_home.rpartition("-")[2], glibc.rpartition(" ")[2])
    names = "; ".join(described(kernel) for kernel in kernels)
    return JobError(
        f"FlashInfer's kernels do not compile ({names}): {why.found}",
        "kernels for the card, compiled by the toolkit before the server starts",
        f"{why.remedy}; flashinfer_prebuild = False leaves them to the server's first start",
    )


def put(folder: Path, built: dict[str, Any]) -> dict[str, Any]:
    """Move one kernel to where FlashInfer looks first; it is there whole or not at all."""
    target = folder / built["name"] / f"{built['name']}.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.new")
    shutil.copyfile(built["file"], aside)
    aside.chmod(0o644)
    with aside.open("rb") as file:
        os.fsync(file.fileno())
    aside.replace(target)
    release = next(parent for parent in target.parents if (parent / "pyvenv.cfg").exists())
    file_name = str(target.relative_to(release))
    return {"kernel": built["kernel"], "file": file_name, "sha256": sha256(target)}


def refuse_unless_found(release: Path, kernels: list[dict[str, Any]], spec: Spec) -> None:
    """FlashInfer itself must find them, as the server will."""
    folder = release.with_name(f".building-kernels-{release.name}")
    done = subprocess.run(
        [str(release / "bin/python"), "-IB", str(PROGRAM), "look"],
        env=environment(release, spec, folder),
        input=json.dumps({"kernels": kernels}),
        capture_output=True,
        text=True,
        check=False,
    )
    shutil.rmtree(folder, ignore_errors=True)
    lines = done.stdout.splitlines()
    found = json.loads(lines[-1])["found"] if done.returncode == 0 and lines else []
    lost = [described(kernel) for kernel, ready in zip(kernels, found, strict=False) if not ready]
    if len(found) == len(kernels) and not lost:
        return
    print(done.stderr, file=sys.stderr)
    raise JobError(
        f"FlashInfer does not find what was compiled: {'; '.join(lost) or done.stderr[-300:]}",
        "kernels that the server finds ready",
        "another FlashInfer may look elsewhere: set flashinfer_prebuild = False, and report it",
    )
