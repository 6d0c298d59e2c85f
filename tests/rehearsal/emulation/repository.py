"""A folder seen as a repository of the model hub: its files, their sums and its commit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 20
# The hub keeps these, and everything above 10 MB, outside git (LFS), where a sha256 is published.
LFS_SUFFIXES = frozenset({".safetensors", ".bin", ".gguf", ".pt", ".pth", ".onnx"})
LFS_SIZE = 10_000_000


@dataclass(frozen=True)
class Entry:
    """One file of a repository; `git_blob` is the sha1 that git names its content by."""

    path: str
    file: Path
    size: int
    sha256: str
    git_blob: str

    @property
    def lfs(self) -> bool:
        """Whether the hub serves it from its file store rather than from git."""
        return Path(self.path).suffix in LFS_SUFFIXES or self.size > LFS_SIZE

    @property
    def etag(self) -> str:
        """What the hub calls this content: sha256 for LFS, git's blob id otherwise."""
        return self.sha256 if self.lfs else self.git_blob


@dataclass(frozen=True)
class Repository:
    """`name` is "org/name", `commit` 40 hex digits that change with any content."""

    name: str
    commit: str
    entries: dict[str, Entry]

    def with_sha256(self, sha256: str) -> Entry | None:
        return next((e for e in self.entries.values() if e.sha256 == sha256), None)


_known: dict[tuple[str, int, int], tuple[str, str]] = {}


def sums(file: Path) -> tuple[str, str]:
    """(sha256, git blob id) of a file; remembered until its size or its time changes."""
    stat = file.stat()
    key = (str(file), stat.st_size, stat.st_mtime_ns)
    if key not in _known:
        sha256 = hashlib.sha256()
        blob = hashlib.sha1(b"blob %d\0" % stat.st_size)
        with file.open("rb") as stream:
            while chunk := stream.read(CHUNK):
                sha256.update(chunk)
                blob.update(chunk)
        _known[key] = (sha256.hexdigest(), blob.hexdigest())
    return _known[key]


def load(models: Path, name: str) -> Repository | None:
    """The repository in the folder `models`/org/name, or None where there is none."""
    folder = models / name
    if name.count("/") != 1 or ".." in name.split("/") or not folder.is_dir():
        return None
    entries: dict[str, Entry] = {}
    for file in sorted(folder.rglob("*")):
        if not file.is_file():
            continue
        path = file.relative_to(folder).as_posix()
        sha256, blob = sums(file)
        entries[path] = Entry(path, file, file.stat().st_size, sha256, blob)
    return Repository(name, _commit(entries), entries)


def _commit(entries: dict[str, Entry]) -> str:
    """Forty hex digits derived from nothing but paths and contents."""
    digest = hashlib.sha1()
    for path, entry in sorted(entries.items()):
        digest.update(f"{path}\0{entry.size}\0{entry.sha256}\n".encode())
    return digest.hexdigest()
