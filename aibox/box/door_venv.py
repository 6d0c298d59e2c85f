"""Build the venv of a door: its lock, and where it is ours, aibox's own wheel."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from functools import partial
from pathlib import Path
from typing import Any

from aibox.box import venv, wheels
from aibox.box.job import JobError, Progress, Spec


def build(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Build it and return its record.

    spec: as `venv.build`, and {"lock_sha256", "wheels": a folder with wheels to be added, or null,
    "modules": what must import, "environment": with which}. Raises JobError.
    """
    return venv.build(spec, progress, add=partial(add, spec), prove=partial(prove, spec))


def add(spec: Spec, aside: Path) -> dict[str, Any]:
    """Pure wheels are unpacked: an installer would write down the time, and no box is the same."""
    for wheel in sorted(Path(spec["wheels"]).glob("*.whl")) if spec["wheels"] else ():
        with zipfile.ZipFile(wheel) as packed:
            packed.extractall(wheels.site_of(aside))
    return {}


def prove(spec: Spec, aside: Path) -> dict[str, Any]:
    """What it must run imports, by the venv's own Python."""
    words = "; ".join(f"import {module}" for module in spec["modules"])
    done = subprocess.run(
        [str(aside / "bin/python"), "-IB", "-c", words],
        env={**os.environ, "HOME": spec["cache"], **spec["environment"]},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        print(done.stderr, file=sys.stderr)
        last = (done.stderr.strip().splitlines() or ["no word"])[-1]
        log = f"look at `journalctl -u aibox-{spec['job']}` on the box"
        raise JobError(f"the new venv can't import what it is for: {last}", "one that can", log)
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return {"lock_sha256": spec["lock_sha256"], "python": python, "imports": spec["modules"]}
