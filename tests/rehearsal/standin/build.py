"""Build the stand-in's wheel and keep its lock files.

    python -m tests.rehearsal.standin.build FOLDER    the wheel, into FOLDER
    python -m tests.rehearsal.standin.build --lock    write the lock files anew
    python -m tests.rehearsal.standin.build --check   0 when they name the wheel that is built

Its sources decide every byte of the wheel (with one version of hatchling), so the hash in the lock
files changes with them and with nothing else.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
LOCKS = HERE.parent / "group_data" / "locks"
VERSION = "0.31.0+standin"
WHEEL = f"vllm-{VERSION}-py3-none-any.whl"
PYTHONS = ("311", "312", "313", "314")


class BuildError(Exception):
    """hatchling did not build the wheel; the text is its own."""


def build(folder: Path) -> Path:
    """Build the wheel into `folder` and give its path. Raises BuildError."""
    folder.mkdir(parents=True, exist_ok=True)
    result = subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder.resolve())],
        cwd=HERE,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode != 0 or not (folder / WHEEL).is_file():
        raise BuildError(f"the stand-in release does not build:\n{result.stdout}{result.stderr}")
    return folder / WHEEL


def lock_text(wheel: Path) -> str:
    """The one line of a lock, with the sha256 that pip and uv demand."""
    return f"vllm=={VERSION} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def lock_files() -> list[Path]:
    return [LOCKS / f"vllm-{VERSION}-py{python}.txt" for python in PYTHONS]


def write_locks(wheel: Path) -> None:
    LOCKS.mkdir(parents=True, exist_ok=True)
    for lock in lock_files():
        lock.write_text(lock_text(wheel))


def stale_locks(wheel: Path) -> list[Path]:
    """The lock files that are missing or name another wheel."""
    wanted = lock_text(wheel)
    return [lock for lock in lock_files() if not lock.is_file() or lock.read_text() != wanted]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal.standin.build")
    parser.add_argument("folder", nargs="?", type=Path, help="where the wheel goes")
    parser.add_argument("--lock", action="store_true", help="write the lock files anew")
    parser.add_argument("--check", action="store_true", help="compare the lock files")
    given = parser.parse_args()
    try:
        with tempfile.TemporaryDirectory() as scratch:
            wheel = build(given.folder or Path(scratch))
            if given.lock:
                write_locks(wheel)
            stale = stale_locks(wheel)
            print(lock_text(wheel), end="")
    except BuildError as error:
        print(error)
        return 1
    if given.check and stale:
        print("stale, run with --lock: " + ", ".join(str(lock) for lock in stale))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
