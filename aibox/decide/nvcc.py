"""Why nvcc did not compile the proof, in words."""

from __future__ import annotations

from aibox.decide.refusal import Refusal

EXPECTED = "a CUDA toolkit that compiles a small kernel for sm_120 on this box"
LONGEST = 300  # characters of nvcc's own words


def missing(path: str) -> Refusal:
    return Refusal(
        f"no nvcc that answers at {path}",
        EXPECTED,
        "see with `apt-cache policy` which cuda-toolkit package is installed, then deploy again",
    )


def too_slow(seconds: int) -> Refusal:
    return Refusal(
        f"nvcc did not end in {seconds} s",
        EXPECTED,
        "see what keeps the box busy (`top`), then run the deploy again",
    )


def explained(said: str, toolkit: str, glibc: str) -> Refusal:
    """Read what nvcc printed. toolkit: "13.0"; glibc: "2.43"."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    telling = next((line for line in lines if "error" in line or "fatal" in line), "")
    first = (telling or (lines[0] if lines else "it said nothing"))[:LONGEST]
    found = f"nvcc of CUDA {toolkit} fails on glibc {glibc}: {first}"
    return Refusal(found, EXPECTED, _remedy(said, glibc))


def _remedy(said: str, glibc: str) -> str:
    if "No space left on device" in said:
        return "free space on the box's /tmp, then run the deploy again"
    if "rsqrt" in said or "exception specification" in said:
        return (
            f"this toolkit does not know glibc {glibc} (2.42 and later declare rsqrt too): use"
            " Debian 12, 13 or Ubuntu 24.04; no way is proven yet on a newer system"
        )
    if "host compiler" in said or "cc1plus" in said or "gcc: " in said or "g++" in said:
        return "install the box's C++ compiler: `sudo apt-get install g++`, then deploy again"
    if "unsupported GNU version" in said:
        return "this toolkit does not know the box's gcc: install an older g++, then deploy again"
    if "gpu-architecture" in said or "gpu architecture" in said:
        return "this toolkit is too old for the card: sm_120 needs CUDA 12.9 or 13.0 and later"
    return "look at `journalctl -u 'aibox-*'` on the box for all that nvcc said"
