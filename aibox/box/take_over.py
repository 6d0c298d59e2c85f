"""Take weights over from a folder of the box's owner: checked by sum, linked or copied, left as is.

A hard link is one file under two names: it keeps the owner and mode that it has, and is taken only
where those will do (the server can read it, only its owner can write). Else the file is copied, by
a reflink where the file system can.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aibox.box import hashing
from aibox.box.job import JobError, Progress, Spec
from aibox.box.probe.accounts import can_be_shared
from aibox.box.probe.caches import weights_places
from aibox.decide import takeover
from aibox.decide.weights import LockedFile

FICLONE = 0x40049409  # ioctl_ficlone(2)


def places(spec: Spec) -> list[Path]:
    """Where to look: what spec["take_over"] names, and that only; else the usual places.

    Raises JobError for a named folder that is not there.
    """
    named = spec.get("take_over")
    if named is None:
        return [Path(place) for place in weights_places(spec["repository"])]
    lost = [source for source in named if not Path(source).is_dir()]
    if lost:
        raise JobError(
            f"no folder {lost[0]} on the box, which weights_from names",
            "a hub cache or a folder that holds the weights",
            "correct weights_from, or set it to None: then the usual places are looked at",
        )
    return [Path(source) for source in named]


def take_over(
    source: Path, work: Path, missing: list[str], spec: Spec, progress: Progress
) -> Taken:
    """Put into `work` what the source holds of the missing files, and say how.

    Raises JobError where the disk has no room for a copy.
    """
    found = {path: list(lying(source, path, spec)) for path in missing}
    if not any(found.values()):
        return Taken(work)
    progress.step(f"hashing what {source} holds")
    stamps = {file: stamp(file) for files in found.values() for file in files}
    sums = hashing.sums(stamps, progress)
    progress.step(f"taking over from {source}")
    taken = Taken(work)
    for path, files in found.items():
        wanted = spec["files"][path]["sha256"]
        right = [file for file in files if sums[file] == wanted and stamp(file) == stamps[file]]
        if right:
            taken.take(best(right, work), path)
    return taken


def lying(source: Path, path: str, spec: Spec) -> Iterator[Path]:
    """The files of the right size that may be it, each once, links resolved."""
    locked = LockedFile(spec["files"][path]["size"], spec["files"][path]["sha256"])
    seen = set()
    for pattern in takeover.patterns(spec["repository"], spec["commit"], path, locked):
        for name in sorted(source.glob(pattern)):
            file = name.resolve()
            if file not in seen and file.is_file() and file.stat().st_size == locked.size:
                seen.add(file)
                yield file


def stamp(file: Path) -> tuple[int, int, int, int] | None:
    """Size, time, inode and device; None for a file that is gone."""
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_size, found.st_mtime_ns, found.st_ino, found.st_dev


def best(files: list[Path], work: Path) -> Path:
    """One that can be shared, where there is one."""
    return next((file for file in files if is_shareable(file, work)), files[0])


def is_shareable(file: Path, work: Path) -> bool:
    status = file.stat()
    return status.st_dev == work.stat().st_dev and can_be_shared(status)


class Taken:
    """How files came into the folder: paths by way."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.linked: list[str] = []
        self.copied: list[str] = []

    def take(self, file: Path, path: str) -> None:
        target = self.work / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if is_shareable(file, self.work) and linked(file, target):
            self.linked.append(path)
        else:
            copy(file, target)
            self.copied.append(path)

    @property
    def paths(self) -> list[str]:
        return [*self.linked, *self.copied]

    def in_words(self, source: Path, wanted: int) -> list[str]:
        if not self.paths:
            return [f"nothing to take over in {source}: none of the {wanted} files is there"]
        ways = []
        if self.linked:
            ways.append(f"{len(self.linked)} hard-linked (owner and mode stay as they are)")
        if self.copied:
            ways.append(f"{len(self.copied)} copied")
        left = wanted - len(self.linked) - len(self.copied)
        rest = f"; {left} to be downloaded" if left else ""
        return [f"taken over from {source}: {', '.join(ways)}{rest}"]


def linked(file: Path, target: Path) -> bool:
    try:
        os.link(file, target)
    except OSError:  # another mount of the same file system, too many links, …
        return False
    return True


def copy(file: Path, target: Path) -> None:
    """A file of our own with the same content; it is hashed once more by who asked for it."""
    aside = target.with_name(f".{target.name}.copy")
    try:
        with file.open("rb") as content, aside.open("wb") as out:
            if not reflinked(content, out):
                need_room(aside.parent, os.fstat(content.fileno()).st_size)
                shutil.copyfileobj(content, out, 4 << 20)
        aside.chmod(0o644)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


def reflinked(content: Any, out: Any) -> bool:
    try:
        fcntl.ioctl(out.fileno(), FICLONE, content.fileno())
    except OSError:
        return False
    return True


def need_room(folder: Path, size: int) -> None:
    """Raises JobError where the disk under a folder has less than `size` bytes free."""
    space = os.statvfs(folder)
    free = space.f_bavail * space.f_frsize
    if free < size:
        raise JobError(
            f"{free / 1e9:.1f} GB free on the disk of {folder}",
            f"{size / 1e9:.1f} GB for what is still to come",
            "free space on the box and run the deploy again; what is there already is kept",
        )
