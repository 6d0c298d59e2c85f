"""Build the stand-in's wheels and keep its lock files.

    python -m tests.rehearsal.standin.build FOLDER    the wheels, into FOLDER
    python -m tests.rehearsal.standin.build --lock    write the lock files anew
    python -m tests.rehearsal.standin.build --check   0 when they name the wheels that are built

There are two: vllm, and nvidia-cuda-runtime, whose version says which CUDA the release wants.
Their sources decide every byte of the wheels (with one version of hatchling), so the hashes in the
lock files change with them and with nothing else.
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
CUDA_VERSION = "13.0.96+standin"  # the number as in the lock of vLLM 0.31.0
WHEEL = f"vllm-{VERSION}-py3-none-any.whl"
CUDA_WHEEL = f"nvidia_cuda_runtime-{CUDA_VERSION}-py3-none-any.whl"
PYTHONS = ("311", "312", "313", "314")


class BuildError(Exception):
    """hatchling did not build a wheel; the text is its own."""


def build(folder: Path) -> Path:
    """Build both wheels into `folder` and give the path of vllm's. Raises BuildError."""
    folder.mkdir(parents=True, exist_ok=True)
    for sources, wheel in ((HERE, WHEEL), (HERE / "cuda_runtime", CUDA_WHEEL)):
        result = subprocess.run(
            [
                sys.executable,
                "-m",
                "hatchling",
                "build",
                "-t",
                "wheel",
                "-d",
                str(folder.resolve()),
            ],
            cwd=sources,
            capture_output=True,
            text=True,
            check=False,
        )
        if result.returncode != 0 or not (folder / wheel).is_file():
            raise BuildError(f"{wheel} does not build:\n{result.stdout}{result.stderr}")
    return folder / WHEEL


def lock_text(wheel: Path) -> str:
    """The lines of a lock, with the sha256 that pip and uv demand. CUDA's wheel lies beside it."""
    return locked_line("vllm", VERSION, wheel) + locked_line(
        "nvidia-cuda-runtime", CUDA_VERSION, wheel.with_name(CUDA_WHEEL)
    )


def locked_line(name: str, version: str, wheel: Path) -> str:
    return f"{name}=={version} --hash=sha256:{hashlib.sha256(wheel.read_bytes()).hexdigest()}\n"


def lock_files() -> list[Path]:
    return [LOCKS / f"vllm-{VERSION}-py{python}.txt" for python in PYTHONS]


def write_locks(wheel: Path) -> None:
    LOCKS.mkdir(parents=True, exist_ok=True)
    for lock in lock_files():
        lock.write_text(lock_text(wheel))


def stale_locks(wheel: Path) -> list[Path]:
    """The lock files that are missing or name other wheels."""
    wanted = lock_text(wheel)
    return [lock for lock in lock_files() if not lock.is_file() or lock.read_text() != wanted]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.rehearsal.standin.build")
    parser.add_argument("folder", nargs="?", type=Path, help="where the wheels go")
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
