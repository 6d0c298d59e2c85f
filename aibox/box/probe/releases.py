"""The releases of vLLM that stand on the box."""

from pathlib import Path
from typing import Any

from aibox.box.probe.files import changed_at, record_in


def release(asked: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a finished release, or None: without its record a release does not exist."""
    return record_in(Path(asked["folder"]) / "release.json")


def releases(asked: dict[str, Any]) -> dict[str, Any]:
    """What stands among the releases, and what the box's records say of them.

    asked: {"folder", "records": paths}. Answers {"standing": {name: when its record was written,
    or null without one}, "records": {path: content or null}}.
    """
    folder = Path(asked["folder"])
    found = folder.iterdir() if folder.is_dir() else ()
    names = sorted(path.name for path in found if path.is_dir() and not path.is_symlink())
    return {
        "standing": {name: changed_at(folder / name / "release.json") for name in names},
        "records": {path: record_in(Path(path)) for path in asked["records"]},
    }


def compiled(asked: dict[str, Any]) -> dict[str, Any] | None:
    """The record of a release's compiled kernels, with those only that are still there."""
    folder = Path(asked["folder"])
    record = record_in(folder / "kernels.json")
    if record is None:
        return None
    built = [each for each in record.get("built", []) if (folder / each["file"]).is_file()]
    return {**record, "built": built}


QUESTIONS = {"release": release, "releases": releases, "compiled": compiled}
