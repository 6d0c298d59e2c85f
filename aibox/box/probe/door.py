"""A door: its unit, and its files."""

import stat
from pathlib import Path
from typing import Any

from aibox.box.probe.files import record_in
from aibox.box.probe.owners import owner_and_mode
from aibox.box.probe.running_unit import running_unit


def door(asked: dict[str, Any]) -> dict[str, Any]:
    """A door's unit, what it stands on, and what it answers.

    asked: {"unit", "files": paths of texts, "keys": paths, "venv": its record, "record", "failed":
    paths, "url"}. Answers what "running_unit" does, and more.
    """
    paths = (*asked["files"], *asked["keys"], asked["venv"])
    return {
        **running_unit({**asked, "paths": paths}),
        "files": {path: file_text(path) for path in asked["files"]},
        "passed": (record_in(Path(asked["record"])) or {}).get("identity"),
        "failed": record_in(Path(asked["failed"])),
    }


def file_text(path: str) -> dict[str, str] | None:
    """{"text", "owner", "mode"} of a regular file."""
    try:
        status = Path(path).lstat()
        text = Path(path).read_text(errors="replace") if stat.S_ISREG(status.st_mode) else None
    except OSError:
        return None
    owner, mode = owner_and_mode(status)
    return None if text is None else {"text": text, "owner": owner, "mode": mode}


QUESTIONS = {"door": door}
