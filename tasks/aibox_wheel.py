"""The wheel of aibox: built on control, named by what is in it."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import tarfile
import tempfile
import tomllib
from functools import cache
from pathlib import Path

from tasks.box import PROJECT

LOCK = PROJECT / "group_data/locks/aibox.txt"


@cache
def identity() -> str:
    """`<version>-<lock8>`, where lock8 covers the lock and every file of aibox."""
    digest = hashlib.sha256(LOCK.read_bytes())
    for path in sources():
        digest.update(f"{path.relative_to(PROJECT)}\0".encode())
        digest.update(path.read_bytes())
    return f"{version()}-{digest.hexdigest()[:8]}"


def sources() -> list[Path]:
    """Programs, and the prompts of benchmarks."""
    folder = PROJECT / "aibox"
    return sorted([*folder.rglob("*.py"), *(folder / "prompts").iterdir()])


def version() -> str:
    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())
    return str(project["project"]["version"])


@cache
def parcel() -> str:
    """A tar of the wheel and its lock, in base64."""
    packed = io.BytesIO()
    with tempfile.TemporaryDirectory() as folder, tarfile.open(fileobj=packed, mode="w") as tar:
        wheel = Path(folder) / wheel_in(folder)
        tar.add(wheel, wheel.name)
        tar.add(LOCK, LOCK.name)
    return base64.b64encode(packed.getvalue()).decode()


def wheel_in(folder: str) -> str:
    """Build the wheel into a folder; hatchling reads the project in the working directory."""
    from hatchling.build import build_wheel  # noqa: PLC0415  slow, and seldom needed

    before = Path.cwd()
    os.chdir(PROJECT)
    try:
        return build_wheel(folder)
    finally:
        os.chdir(before)
