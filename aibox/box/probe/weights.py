"""The weights of one commit."""

from pathlib import Path
from typing import Any

from aibox.box.probe.accounts import can_be_shared
from aibox.box.probe.files import record_in


def weights(asked: dict[str, Any]) -> dict[str, Any]:
    """What stands in a weights folder, and what its last verification recorded of it.

    "shared": {a file that has another name elsewhere as well: whether that may be}.
    """
    folder = Path(asked["folder"])
    seen, shared = {}, {}
    for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
        if path.is_file() and path.name not in (".verified.json", ".manifest.json"):
            status = path.stat()
            seen[str(path.relative_to(folder))] = [
                status.st_size,
                status.st_mtime_ns,
                status.st_ino,
            ]
            if status.st_nlink > 1:
                shared[str(path.relative_to(folder))] = can_be_shared(status)
    return {
        "seen": seen,
        "shared": shared,
        "verified": record_in(folder / ".verified.json"),
        "listed": record_in(folder / ".manifest.json"),
    }


QUESTIONS = {"weights": weights}
