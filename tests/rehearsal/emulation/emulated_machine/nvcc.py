"""nvcc: its version, and a compiler that only sees whether compiling could work."""

from __future__ import annotations

import json
import os
import re
import shutil
from pathlib import Path

from .commands import CommandError
from .files import state

COMPILES_TO = {
    "-c": ".o",
    "--compile": ".o",
    "-cubin": ".cubin",
    "--cubin": ".cubin",
    "-ptx": ".ptx",
}
FIRST_WITH_SM_120 = (12, 8)
NEWEST_GLIBC_OF_CUDA_13_0 = (2, 41)  # NVIDIA facts, row 6: not against 2.42 or newer
RSQRT = """\
/usr/include/x86_64-linux-gnu/bits/mathcalls.h(206): error: exception specification is \
incompatible with that of previous function "rsqrt" (declared at line 629 of \
{toolkit}/targets/x86_64-linux/include/crt/math_functions.h)
   extern double rsqrt (double __x) noexcept (true);
                 ^

1 error detected in the compilation of "{source}"."""


def nvcc(words: list[str], called: str) -> int:
    toolkit = Path(shutil.which(called) or called).absolute().parents[1].resolve()
    release = json.loads((toolkit / "version.json").read_text())["cuda_nvcc"]["version"]
    if {"--version", "-V"} & set(words):
        print(version_text(release))
        return 0
    source, target, architecture = read(words)
    numbers = tuple(int(part) for part in release.split(".")[:2])
    if (
        architecture
        and int(re.sub(r"\D", "", architecture) or 0) >= 120
        and numbers < FIRST_WITH_SM_120
    ):
        raise CommandError("nvcc fatal   : Unsupported gpu architecture 'compute_120'")
    if not shutil.which("g++"):
        raise CommandError("nvcc fatal   : Failed to preprocess host compiler properties.")
    includes = re.findall(r"^\s*#\s*include\s*<(\w+)", source.read_text(), re.M)
    if {"cmath", "math"} & set(includes) and glibc() > NEWEST_GLIBC_OF_CUDA_13_0:
        raise CommandError(RSQRT.format(toolkit=toolkit, source=source), 2)
    target.write_bytes(b"\x7fELF emulated object of " + str(source).encode() + b"\n")
    return 0


def version_text(release: str) -> str:
    short = ".".join(release.split(".")[:2])
    return (
        "nvcc: NVIDIA (R) Cuda compiler driver\n"
        "Copyright (c) 2005-2025 NVIDIA Corporation\n"
        "Built on Wed_Aug_20_01:58:59_PM_PDT_2025\n"
        f"Cuda compilation tools, release {short}, V{release}\n"
        f"Build cuda_{short}.r{short}/compiler.36424714_0"
    )


def read(words: list[str]) -> tuple[Path, Path, str]:
    """The source, the file to write, and the architecture asked for."""
    sources, target, architecture, suffix = [], "", "", ""
    rest = iter(words)
    for word in rest:
        name, _, value = word.partition("=")
        if word in COMPILES_TO:
            suffix = COMPILES_TO[word]
        elif name in ("-o", "--output-file"):
            target = value or next(rest, "")
        elif name in ("-arch", "--gpu-architecture", "-gencode", "-code"):
            architecture = value or next(rest, "")
        elif name in ("-I", "-x", "-std", "--std", "-ccbin"):
            _ = value or next(rest, "")
        elif not word.startswith("-"):
            sources.append(word)
    if not sources:
        raise CommandError(
            "nvcc fatal   : No input files specified; use option --help for more information"
        )
    source = Path(sources[0])
    if not source.exists():
        raise CommandError(
            f"gcc: error: {source}: No such file or directory\n"
            f"nvcc fatal   : Failed to preprocess {source}"
        )
    return source, Path(target or (source.stem + suffix if suffix else "a.out")), architecture


def glibc() -> tuple[int, int]:
    """The box's, or the one that the state puts in its place."""
    text = state().get("glibc") or str(os.confstr("CS_GNU_LIBC_VERSION")).split()[-1]
    major, minor = text.split(".")[:2]
    return int(major), int(minor)
