"""The job that builds the driver's kernel modules where dkms has left a kernel out."""

from __future__ import annotations

import subprocess
from typing import Any

from aibox.box import apt
from aibox.box.job import Progress, Spec
from aibox.decide import apt as read


def build(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Build and install the modules of a driver for kernels whose headers are there.

    spec: {"version": "580.178.04", "kernels": [releases]}. Returns {"built": [releases]}. Raises
    JobError with dkms' own words.
    """
    for kernel in spec["kernels"]:
        progress.step(f"building the modules for kernel {kernel}, some minutes")
        command = ["dkms", "install", f"nvidia/{spec['version']}", "-k", kernel]
        done = subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
            env=apt.environment(),
        )
        if done.returncode:
            raise apt.refused(read.explained(done.stdout))
    return {"built": spec["kernels"]}
