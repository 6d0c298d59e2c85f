"""What stands in files of the box, read without an error where they are not there."""

import json
import os
from pathlib import Path
from typing import Any

ROOT = Path("/")  # tests put a made-up one in its place
SERVER_STATE = Path("/var/lib/aibox/server")  # see good_units.py
DEPLOYED = Path("/var/lib/aibox/deployed.json")  # the record of the last deploy


def path_of(path: str) -> Path:
    """Where a path of the box is read."""
    return ROOT / path.lstrip("/")


def named(path: Path) -> str:
    """What `path_of` was given, from the root on."""
    return f"/{path.relative_to(ROOT)}"


def read_text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace")
    except OSError:
        return None


def content(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[:20_000]
    except OSError as error:
        return f"# cannot be read: {error.strerror}"


def record_in(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def changed_at(path: Path) -> float | None:
    """When a file was last written, in seconds since the epoch."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def paths_there(asked: dict[str, Any]) -> list[str]:
    """Those of {"paths"} that are there, as anything."""
    return [path for path in asked["paths"] if os.path.lexists(path)]


QUESTIONS = {"paths_there": paths_there}
