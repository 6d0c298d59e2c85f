"""The folders of a model's commits."""

from pathlib import Path
from typing import Any


def commits(asked: dict[str, Any]) -> list[dict[str, Any]]:
    """The folders of a model's commits, each with the time at which it was complete."""
    folder = Path(asked["folder"])
    found = []
    for path in sorted(folder.iterdir()) if folder.is_dir() else []:
        if path.is_dir() and not path.is_symlink():
            listed = path / ".manifest.json"
            finished = listed.stat().st_mtime if listed.is_file() else None
            found.append({"name": path.name, "finished": finished})
    return found


QUESTIONS = {"commits": commits}
