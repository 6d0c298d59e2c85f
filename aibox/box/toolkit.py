"""Does the CUDA toolkit compile for this card against this box's C library?"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from aibox.box.job import JobError, Progress, Spec, write_whole
from aibox.box.probe.driver import nvcc_version
from aibox.box.probe.files import path_of
from aibox.decide import nvcc
from aibox.decide.refusal import Refusal

RECORD = Path("/var/lib/aibox/cuda.json")
ARCHITECTURE = "sm_120"  # the workstation and server Blackwell
LONGEST_S = 300
# <cmath> on purpose: glibc 2.42 and nvcc 13.0 declare rsqrt differently, and only that shows it.
KERNEL = """\
#include <cmath>

__global__ void proof(float *values, int count) {
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < count) values[at] = std::sqrt(values[at]) + 1.0f;
}

void launch(float *values, int count) { proof<<<(count + 255) / 256, 256>>>(values, count); }
"""


def prove(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Compile one small kernel with the toolkit and record that it went well.

    spec: {"toolkit": "13.0"}. Returns and records {"nvcc": "13.0.88", "glibc": "2.36",
    "toolkit": "13.0"}; an older record is gone when it fails. Raises JobError.
    """
    progress.step("compiling a kernel for the card")
    RECORD.unlink(missing_ok=True)
    folder = path_of(f"usr/local/cuda-{spec['toolkit']}")
    version = nvcc_version(spec["toolkit"])
    if version is None:
        raise refused(nvcc.missing(f"{folder}/bin/nvcc"))
    glibc = platform.libc_ver()[1]
    compile_kernel(folder, glibc)
    record = {"nvcc": version, "glibc": glibc, "toolkit": spec["toolkit"]}
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    write_whole(RECORD, json.dumps(record))
    return record


def compile_kernel(folder: Path, glibc: str) -> None:
    environment = {**os.environ, "LC_ALL": "C", "CUDA_HOME": str(folder)}
    # named, or a full disk would only be "no usable temporary directory"
    with tempfile.TemporaryDirectory(prefix="aibox-cuda-", dir="/var/tmp") as aside:
        source, target = Path(aside, "proof.cu"), Path(aside, "proof.o")
        source.write_text(KERNEL)
        command = [f"{folder}/bin/nvcc", f"-arch={ARCHITECTURE}"]
        command += ["-c", str(source), "-o", str(target)]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                errors="replace",
                check=False,
                env=environment | {"TMPDIR": aside},
                timeout=LONGEST_S,
            )
        except subprocess.TimeoutExpired:
            raise refused(nvcc.too_slow(LONGEST_S)) from None
        if done.returncode == 0 and target.exists() and target.stat().st_size:
            return
    said = done.stderr + done.stdout
    print(said, file=sys.stderr)
    raise refused(nvcc.explained(said, folder.name.removeprefix("cuda-"), glibc))


def refused(refusal: Refusal) -> JobError:
    return JobError(refusal.found, refusal.expected, refusal.remedy)
