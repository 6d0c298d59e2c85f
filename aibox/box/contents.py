"""What stands in a folder: every file with its sum, mode and owner."""

from __future__ import annotations

import grp
import hashlib
import os
import pwd
import stat
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

from aibox.decide.manifest import Entry

CHUNK = 1 << 20
# hashlib lets other threads run while it works: enough of them for the cores and for the disk.
WORKERS = min(16, 2 * (os.cpu_count() or 1))

Known = Callable[[str, os.stat_result], str | None]


def entries(
    folder: Path, left_out: Callable[[str], bool], known: Known = lambda _path, _status: None
) -> list[Entry] | None:
    """Everything in a folder, itself as ".", sorted by path; None where there is no folder.

    left_out says of a relative path whether it is passed over, with all that is below it. known
    says a file's sha256 where that is on record, so that the file is not read. Raises OSError.
    """
    if not folder.is_dir():
        return None
    found = {".": folder.stat(), **dict(walk(folder, left_out))}
    sums = {path: known(path, status) for path, status in found.items()}
    unread = [path for path in found if stat.S_ISREG(found[path].st_mode) and sums[path] is None]
    # The largest first, so that the last thread is not left alone with one of them.
    unread.sort(key=lambda path: -found[path].st_size)
    with ThreadPoolExecutor(WORKERS) as pool:
        read = pool.map(lambda path: sha256(folder / path), unread)
        sums.update(zip(unread, read, strict=True))
    return [entry(folder, path, found[path], sums) for path in sorted(found)]


def walk(
    folder: Path, left_out: Callable[[str], bool], inside: str = ""
) -> Iterator[tuple[str, os.stat_result]]:
    """(path relative to the folder, status), links not followed."""
    with os.scandir(folder / inside) as children:
        for child in children:
            path = f"{inside}{child.name}"
            if left_out(path):
                continue
            yield path, child.stat(follow_symlinks=False)
            if child.is_dir(follow_symlinks=False):
                yield from walk(folder, left_out, f"{path}/")


def sha256(file: Path) -> str:
    digest = hashlib.sha256()
    with file.open("rb", buffering=0) as content:
        while chunk := content.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def entry(folder: Path, path: str, status: os.stat_result, sums: Mapping[str, str | None]) -> Entry:
    if stat.S_ISREG(status.st_mode):
        kind, content = "file", sums[path] or ""
    elif stat.S_ISLNK(status.st_mode):
        kind, content = "link", str((folder / path).readlink())
    else:
        kind, content = ("folder" if stat.S_ISDIR(status.st_mode) else "special"), ""
    mode = f"{stat.S_IMODE(status.st_mode):o}"
    return Entry(path, kind, mode, user_name(status.st_uid), group_name(status.st_gid), content)


def one(path: Path) -> Entry | None:
    """A single file, or None where there is none. Raises OSError when it can't be read."""
    try:
        status = path.lstat()
    except FileNotFoundError:
        return None
    sums = {path.name: sha256(path) if stat.S_ISREG(status.st_mode) else None}
    return entry(path.parent, path.name, status, sums)


@cache
def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


@cache
def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
