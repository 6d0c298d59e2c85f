"""Is a venv what its lock and its wheels say? Read from the disk, file by file."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from aibox.box.contents import WORKERS, sha256
from aibox.box.job import JobError, Progress
from aibox.decide import wheels
from aibox.decide.refusal import Refusal

Reinstall = Callable[[str], None]


@dataclass
class Recorded:
    """What the RECORDs of a venv say together.

    versions: {distribution: version of its metadata}. owners: {path within the venv:
    {distribution: sha256}}. without_sum: files that are only named. broken: faults in words.
    """

    versions: dict[str, str] = field(default_factory=dict)
    owners: dict[str, dict[str, str]] = field(default_factory=dict)
    without_sum: set[str] = field(default_factory=set)
    broken: list[str] = field(default_factory=list)


def site_of(venv: Path) -> Path:
    """The venv's site-packages. Raises JobError when there is not exactly one."""
    found = list(venv.glob("lib/python3*/site-packages"))
    if len(found) != 1:
        raise JobError(f"{len(found)} site-packages in {venv}", "one", wheels.DO_NOT_USE)
    return found[0]


def prove(venv: Path, lock: str, progress: Progress, reinstall: Reinstall) -> dict[str, Any]:
    """Every file against its RECORD, every version against the lock, every .pth expected.

    reinstall: installs one distribution of the lock anew, so that its files are the last written.
    Returns {"distributions", "files": how many were compared, "contested": {path: whose it is},
    "wrong_in_their_wheel": {path: sha256}}. Raises JobError.
    """
    progress.step("checking every file")
    recorded = read_records(venv)
    refuse(wheels.version_faults(wheels.locked(lock), recorded.versions))
    contested = settle(venv, recorded, reinstall)
    wrong = wrong_files(venv, recorded, progress)
    known = {path: wrong[path] for path in sorted(wrong) if is_known(recorded, path, wrong[path])}
    others = [in_words(path, wrong[path]) for path in wrong.keys() - known.keys()]
    refuse(wheels.file_faults([*recorded.broken, *others]))
    no_stray_pth(venv, recorded.owners)
    return {
        "distributions": len(recorded.versions),
        "files": len(recorded.owners),
        "contested": contested,
        "wrong_in_their_wheel": known,
    }


def is_known(recorded: Recorded, path: str, found: str) -> bool:
    """Whether a file that is there differs because its wheel's own RECORD is wrong."""
    if not found:
        return False
    owners = recorded.owners.get(path, {})
    return wheels.is_wrong_in_its_wheel(path, [(name, recorded.versions[name]) for name in owners])


def in_words(path: str, found: str) -> str:
    return f"{path} {'is another' if found else 'is missing'}"


def no_stray_pth(venv: Path, recorded: Collection[str]) -> None:
    """recorded: the files, by path within the venv, that RECORDs name with a sum."""
    found = {path.name: str(path.relative_to(venv)) for path in site_of(venv).glob("*.pth")}
    refuse(wheels.pth_faults(found, [name for name, path in found.items() if path in recorded]))


def refuse(refusal: Refusal | None) -> None:
    if refusal is not None:
        raise JobError(refusal.found, refusal.expected, refusal.remedy)


def read_records(venv: Path) -> Recorded:
    recorded = Recorded()
    for folder in sorted(site_of(venv).glob("*.dist-info")):
        name, version = name_and_version(folder)
        recorded.versions[name] = version
        try:
            rows = wheels.record_rows((folder / "RECORD").read_text())
        except (OSError, ValueError) as error:
            recorded.broken.append(f"{folder.name}/RECORD can't be read: {error}")
            continue
        for row in rows:
            take(recorded, venv, folder, name, row)
    return recorded


def name_and_version(folder: Path) -> tuple[str, str]:
    try:
        said = HeaderParser().parsestr((folder / "METADATA").read_text(errors="replace"))
    except OSError:
        return wheels.normal(folder.name.partition("-")[0]), "without metadata"
    return wheels.normal(said["Name"] or ""), said["Version"] or ""


def take(recorded: Recorded, venv: Path, folder: Path, name: str, row: wheels.Row) -> None:
    """Paths are relative to site-packages, and may leave it for bin/, but not the venv."""
    path = os.path.relpath(os.path.normpath(folder.parent / row.path), venv)
    if path.startswith("..") or Path(row.path).is_absolute():
        recorded.broken.append(f"{folder.name}/RECORD names {row.path}, outside the venv")
    elif row.sha256 is not None:
        recorded.owners.setdefault(path, {})[name] = row.sha256
    elif wheels.may_lack_a_sum(path):
        recorded.without_sum.add(path)
    else:
        recorded.broken.append(f"{path} has no sum in {folder.name}/RECORD")


def settle(venv: Path, recorded: Recorded, reinstall: Reinstall) -> dict[str, str]:
    """Make files that two wheels bring the same on every box: {path: the distribution's}."""
    contested = wheels.contested(recorded.owners)
    lost = {
        owner
        for path, owner in contested.items()
        if not (venv / path).is_file() or sha256(venv / path) != recorded.owners[path][owner]
    }
    for owner in sorted(lost):
        reinstall(owner)
    for path, owner in contested.items():
        recorded.owners[path] = {owner: recorded.owners[path][owner]}
    return contested


def wrong_files(venv: Path, recorded: Recorded, progress: Progress) -> dict[str, str]:
    """{path: its sha256, or "" where it is missing} of what differs; read in parallel."""
    sizes = {path: size_of(venv / path) for path in recorded.owners}
    total, done = sum(size or 0 for size in sizes.values()), 0
    order = sorted(sizes, key=lambda path: -(sizes[path] or 0))
    gone = {path: "" for path in recorded.without_sum if size_of(venv / path) is None}
    wrong = {path: "" for path in gone if not path.endswith(".pyc")}
    with ThreadPoolExecutor(WORKERS) as pool:
        sums = pool.map(lambda path: sum_of(venv / path) if sizes[path] is not None else "", order)
        for at, (path, found) in enumerate(zip(order, sums, strict=True)):
            done += sizes[path] or 0
            if at % 500 == 0 or (sizes[path] or 0) > 1 << 24:
                progress.say(done, total, "bytes")
            if found not in recorded.owners[path].values():
                wrong[path] = found
    return wrong


def size_of(path: Path) -> int | None:
    """Bytes of a plain file; None for what is none."""
    try:
        return path.lstat().st_size if path.is_file() and not path.is_symlink() else None
    except OSError:
        return None


def sum_of(path: Path) -> str:
    """The sum, or "unreadable": a damaged disk is a wrong file, and no end of the program."""
    try:
        return sha256(path)
    except OSError:
        return "unreadable"
