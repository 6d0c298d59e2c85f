"""Versions of the NVIDIA driver, and what a CUDA release demands of them."""

import re

# NVIDIA's CUDA compatibility table: the first driver that runs any release of the major version.
FLOOR_OF_CUDA = {13: "580.65.06", 12: "525.60.13"}

_VERSION = re.compile(r"\d{3,4}\.\d{1,3}(\.\d{1,3})?", re.ASCII)


def version_tuple(text: str) -> tuple[int, ...]:
    """ "580.65.06" -> (580, 65, 6), for comparing. Raises ValueError for anything else."""
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is not a driver version such as 580.178.04")
    return tuple(int(part) for part in text.split("."))


def floor_for_cuda(cuda: str | None) -> str | None:
    """The oldest driver for a CUDA version such as "13.0".

    None without CUDA, and for a major version older than the table. A newer one than the table
    knows demands at least what the newest known one does.
    """
    if cuda is None:
        return None
    major = int(cuda.split(".")[0])
    return FLOOR_OF_CUDA.get(min(major, max(FLOOR_OF_CUDA)))


def too_old(driver: str, floor: str | None) -> bool:
    """Whether a driver is older than a floor; no floor, never. ValueError if it is no version."""
    return floor is not None and version_tuple(driver) < version_tuple(floor)
