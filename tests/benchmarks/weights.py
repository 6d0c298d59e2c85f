"""What weights cost: to hash, to look at again, to fetch after a kill, to check unchanged.

    python -m tests.benchmarks.weights [--gb 4] [--folder FOLDER]

Without root and without a box. --folder is where files of --gb decimal GB are written: on the disk
that is to be measured. Figures beside each other were taken one after the other on one machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from aibox.box import hashing
from aibox.box.job import Progress
from aibox.box.probe import weights
from aibox.decide.weights import FileStamp, LockedFile, plan
from tests.rehearsal import checkpoints
from tests.rehearsal.emulation.hub import PROJECT, Hub

FILES = 8
CHUNK = 4 << 20
SUM = "0" * 64
FETCH = """import json, sys
from pathlib import Path
from aibox.box import fetch
from aibox.box.job import Progress
fetch.fetch(json.load(sys.stdin), Progress(Path(sys.argv[1])))
"""
BALLAST, BALLAST_BYTES = "ballast.bin", 256 << 20


def seconds(run: Callable[[], object]) -> float:
    began = time.monotonic()
    run()
    return time.monotonic() - began


# --- every sum ----------------------------------------------------------------------------------


def hashes(folder: Path, gigabytes: float) -> None:
    files = [folder / f"{number}.safetensors" for number in range(FILES)]
    block = random.Random(1).randbytes(CHUNK)
    for file in files:
        with file.open("wb") as content:
            for _ in range(int(gigabytes * 1e9 / FILES / CHUNK)):
                content.write(block)
            os.fsync(content.fileno())
    total = sum(file.stat().st_size for file in files)
    ways: dict[str, Callable[[], object]] = {
        "the disk alone (dd)": lambda: each(files, "dd", "of=/dev/null", "bs=4M", key="if="),
        "sha256sum, one core": lambda: each(files, "sha256sum"),
        f"ours, {hashing.WORKERS} threads": lambda: hashing.sums(files, Progress(folder)),
    }
    for way, run in ways.items():
        for state in ("from the disk", "from memory"):
            if state == "from the disk":
                drop(files)
            rate = total / seconds(run) / 1e6
            print(f"{way:<24} {state:<14} {rate:8.0f} MB/s, 55 GB in {55e3 / rate:6.1f} s")


def each(files: list[Path], *words: str, key: str = "") -> None:
    for file in files:
        subprocess.run([*words, f"{key}{file}"], check=True, capture_output=True)


def drop(files: list[Path]) -> None:
    """Take files out of the page cache."""
    for file in files:
        with file.open("rb") as content:
            os.posix_fadvise(content.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


# --- a look -------------------------------------------------------------------------------------


def looks(folder: Path) -> None:
    """The probe's question and the decision, over sparse files that make 55 GB together."""
    for count in (25, 100, 1000, 10_000):
        place = folder / f"look-{count}"
        place.mkdir()
        lock, record = {}, {}
        for number in range(count):
            path = f"model-{number:05}.safetensors"
            (place / path).touch()
            os.truncate(place / path, 55_000_000_000 // count)
            status = (place / path).stat()
            lock[path] = LockedFile(status.st_size, SUM)
            stamp = [status.st_size, status.st_mtime_ns, status.st_ino]
            record[path] = {"stamp": stamp, "sha256": SUM}
        (place / ".verified.json").write_text(json.dumps({"files": record}))
        walls = [seconds(lambda: look(place, lock)) for _ in range(5)]  # noqa: B023  called here
        print(f"a look at {count:>6} files of 55 GB: {1000 * statistics.median(walls):8.1f} ms")


def look(place: Path, lock: dict[str, LockedFile]) -> None:
    found = weights.weights({"folder": str(place)})
    recorded = {
        path: (FileStamp(*file["stamp"]), file["sha256"])
        for path, file in found["verified"]["files"].items()
    }
    seen = {path: FileStamp(*stamp) for path, stamp in found["seen"].items()}
    if not plan(lock, seen, recorded).complete:
        raise SystemExit("the look found something to do")


# --- a kill -------------------------------------------------------------------------------------


def kills(folder: Path) -> None:
    models, cards = folder / "models", folder / "cards"
    cards.mkdir()
    (checkpoints.copy(models, "wide") / BALLAST).write_bytes(os.urandom(BALLAST_BYTES))
    checkpoints.write_card(models, "wide", cards)
    lock = json.loads((cards / "wide.lock.json").read_text())
    with Hub(models=models) as hub:
        for share in (0.1, 0.5, 0.9):
            spec = {**lock, "hub": hub.url, "dtype": "bfloat16", "head": None}
            spec["folder"] = str(folder / f"kill-{share}" / lock["commit"])
            print(killed_and_again(hub, spec, folder, share))


def killed_and_again(hub: Hub, spec: dict[str, Any], folder: Path, share: float) -> str:
    hub.ctl(reset=True, clear_log=True, slow=25_000_000, only=BALLAST)
    with started(spec, folder) as process:
        while sent(hub) < share * BALLAST_BYTES:
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
    first = sent(hub)
    hub.ctl(reset=True, clear_log=True)
    with started(spec, folder) as process:
        process.wait()
    total = sum(file["size"] for file in spec["files"].values())
    twice = (first + sent(hub) - total) / (1 << 20)
    return (
        f"killed at {share:.0%} of {total / 1e6:.0f} MB: {first / 1e6:.1f} MB sent before, "
        f"{sent(hub) / 1e6:.1f} MB after, {twice:.1f} MiB twice"
    )


def started(spec: dict[str, Any], folder: Path) -> subprocess.Popen[str]:
    words = [sys.executable, "-c", FETCH, str(folder)]
    process = subprocess.Popen(words, cwd=PROJECT, stdin=subprocess.PIPE, text=True)
    if process.stdin is not None:
        process.stdin.write(json.dumps(spec))
        process.stdin.close()
        process.stdin = None
    return process


def sent(hub: Hub) -> int:
    return sum(line["bytes"] for line in hub.log())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.weights", description=__doc__)
    parser.add_argument("--gb", type=float, default=4.0, help="decimal GB to hash")
    parser.add_argument("--folder", type=Path, help="where the files are written")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as name:
        for part in (lambda at: hashes(at, given.gb), looks, kills):
            place = Path(name) / str(id(part))
            place.mkdir()
            part(place)
    return 0


if __name__ == "__main__":
    sys.exit(main())
