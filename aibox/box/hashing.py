"""The sums of many large files: on all cores, for hashlib lets other threads run while it works."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from aibox.box.job import Progress

CHUNK = 4 << 20
WORKERS = os.cpu_count() or 1
SAY_EVERY = 64 << 20  # bytes


def sums(files: Iterable[Path], progress: Progress) -> dict[Path, str | None]:
    """The sha256 of each file, None for one that is not there. Raises OSError."""
    sizes = {file: file.stat().st_size if file.is_file() else 0 for file in files}
    counter = Counter(progress, sum(sizes.values()))
    # The largest first, so that the last core is not left alone with one of them.
    order = sorted(sizes, key=lambda file: -sizes[file])
    with ThreadPoolExecutor(WORKERS) as pool:
        found = pool.map(lambda file: sha256(file, counter), order)
        return dict(zip(order, found, strict=True))


class Counter:
    """Bytes of all threads together, told to the progress now and then."""

    def __init__(self, progress: Progress, total: int) -> None:
        self.progress, self.total = progress, total
        self.done = self.said = 0
        self.lock = threading.Lock()

    def add(self, count: int) -> None:
        with self.lock:
            self.done += count
            if self.done == self.total or self.done - self.said >= SAY_EVERY:
                self.said = self.done
                self.progress.say(self.done, self.total, "bytes")


def sha256(file: Path, counter: Counter) -> str | None:
    digest = hashlib.sha256()
    room = memoryview(bytearray(CHUNK))
    try:
        with file.open("rb", buffering=0) as content:
            os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
            while count := content.readinto(room):
                digest.update(room[:count])
                counter.add(count)
    except FileNotFoundError:
        return None
    return digest.hexdigest()
