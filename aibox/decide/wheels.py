"""What a venv must hold when it was filled from a lock: versions, RECORDs, .pth files."""

from __future__ import annotations

import csv
import re
from base64 import urlsafe_b64decode
from binascii import Error as Base64Error
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from aibox.decide.refusal import Refusal, some

# A .pth file runs code in every start of Python; each that is expected is here with its reason.
EXPECTED_PTH = {
    "distutils-precedence.pth": "setuptools: its own distutils, which Python 3.12 has not",
    "nvidia_cutlass_dsl_packages.pth": "nvidia-cutlass-dsl: finds its packages in a folder below",
}
# Wheels whose own RECORD is wrong, by name and version: {…: (files, why)}. The lock's hash of the
# wheel still holds for them, and what lies there is written into the release's record.
WRONG_IN_THE_WHEEL = {
    ("pynvvideocodec", "2.0.4"): (
        "PyNvVideoCodec/PyNvVideoCodec_*.so",
        "changed by the wheel's maker after its RECORD was written, the same in the wheel itself",
    ),
}
# What the installer itself writes, and may write without a sum.
WITHOUT_SUM = {"RECORD", "RECORD.jws", "RECORD.p7s", "INSTALLER", "REQUESTED", "direct_url.json"}
SHOWN = 5  # faults of one kind that are named
DO_NOT_USE = (
    "do not use what was built: run the deploy again, and if it stays, empty uv's folder in "
    "cache_folder on the box and look at its disk and memory"
)


def normal(name: str) -> str:
    """A distribution's name as indexes compare it: "Flash_Infer.Python" -> "flash-infer-python"."""
    return re.sub(r"[-_.]+", "-", name).lower()


@dataclass(frozen=True)
class Locked:
    """One distribution in a lock. always: some line of it has no marker, so it is on every box.

    A lock for several Pythons may hold several versions of one, each with a marker.
    """

    versions: tuple[str, ...]
    always: bool


def locked(lock: str) -> dict[str, Locked]:
    """What a lock's text holds, by name."""
    row = r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)[ \t]*(;?)"
    found: dict[str, Locked] = {}
    for written, version, marker in re.findall(row, lock, re.MULTILINE):
        name = normal(written)
        before = found.get(name, Locked((), always=False))
        found[name] = Locked((*before.versions, version), before.always or not marker)
    return found


def locked_versions(lock: str) -> dict[str, str]:
    """{name: version} of a lock's text: of one with a version for each Python, the last."""
    return {name: one.versions[-1] for name, one in locked(lock).items()}


def locked_lines(lock: str, name: str) -> str:
    """The lines of one distribution in a lock, its hashes included; empty without it."""
    taken: list[str] = []
    for line in lock.splitlines():
        goes_on = bool(taken) and taken[-1].endswith("\\")
        if goes_on or normal(name) in locked(line):
            taken.append(line)
    return "".join(f"{line}\n" for line in taken)


def version_faults(wanted: Mapping[str, Locked], found: Mapping[str, str]) -> Refusal | None:
    """Installed distributions {name: version of the metadata} against the lock's."""
    rows = []
    for name in sorted(wanted.keys() | found.keys()):
        one = wanted.get(name, Locked((), always=False))
        if found.get(name) not in (one.versions if one.always or name in found else (None,)):
            versions = " or ".join(one.versions) or "not at all"
            rows.append(f"{name} {found.get(name, 'absent')}, locked {versions}")
    if not rows:
        return None
    return Refusal(
        f"in the new venv: {some(rows, SHOWN)}", "what the lock names, no more", DO_NOT_USE
    )


@dataclass(frozen=True)
class Row:
    """One file of a RECORD: its path as written, and its sha256 in hex; None without a sum."""

    path: str
    sha256: str | None


def record_rows(text: str) -> list[Row]:
    """The files of a RECORD. Raises ValueError for another hash than sha256, or a broken line."""
    rows = []
    for cells in csv.reader(text.splitlines()):
        if not cells:
            continue
        if len(cells) != 3:
            raise ValueError(f"a line of {len(cells)} cells")
        rows.append(Row(cells[0], sha256_of(cells[1])))
    return rows


def sha256_of(cell: str) -> str | None:
    """ "sha256=<urlsafe base64 without padding>" in hex; None for an empty cell."""
    if not cell:
        return None
    algorithm, _, digest = cell.partition("=")
    try:
        raw = urlsafe_b64decode(f"{digest}{'=' * (-len(digest) % 4)}")
    except (Base64Error, ValueError):
        raw = b""
    if algorithm != "sha256" or len(raw) != 32:
        raise ValueError(f"the sum {cell[:60]!r}, which is no sha256")
    return raw.hex()


def may_lack_a_sum(path: str) -> bool:
    return path.rpartition("/")[2] in WITHOUT_SUM or path.endswith(".pyc")


def contested(owners: Mapping[str, Mapping[str, str]]) -> dict[str, str]:
    """Files that several distributions bring with different content: {path: who must win}.

    owners: {path: {distribution: sha256}}. Whichever is installed last wins, by chance; the last
    by name is made the one, so that two boxes are the same.
    """
    return {path: max(by) for path, by in sorted(owners.items()) if len(set(by.values())) > 1}


def is_wrong_in_its_wheel(path: str, owners: Iterable[tuple[str, str]]) -> bool:
    """Whether a file that differs from its RECORD is known to. owners: (name, version)."""
    known = (WRONG_IN_THE_WHEEL[owner][0] for owner in owners if owner in WRONG_IN_THE_WHEEL)
    return any(fnmatchcase(path, f"*/site-packages/{pattern}") for pattern in known)


def pth_faults(found: Iterable[str], recorded: Iterable[str]) -> Refusal | None:
    """found: names of .pth files; recorded: those that a wheel's RECORD names with a sum."""
    strange = sorted(set(found) - (EXPECTED_PTH.keys() & set(recorded)))
    if not strange:
        return None
    return Refusal(
        f"{some(strange, SHOWN)} in the new venv, which would run code in every start of Python",
        f"none but {', '.join(sorted(EXPECTED_PTH))}, each from its own wheel",
        "see which package brings it, and whether that is meant; a new one that is goes into "
        "EXPECTED_PTH in aibox/decide/wheels.py, with its reason",
    )


def file_faults(wrong: Iterable[str]) -> Refusal | None:
    """wrong: files in words, such as "vllm/a.py is missing"."""
    rows = sorted(wrong)
    if not rows:
        return None
    found = f"{len(rows)} files that differ from the RECORD of their wheel: {some(rows, SHOWN)}"
    return Refusal(found, "every file as its wheel holds it", DO_NOT_USE)
