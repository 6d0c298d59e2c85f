"""The venv of a door."""

from pathlib import Path
from typing import Any

from aibox.box.probe.commands import text_of
from aibox.box.probe.files import record_in


def door_venv(asked: dict[str, Any]) -> dict[str, Any]:
    """The record of a venv, null without one, and what in it was changed since that was written.

    asked: {"folder"}. "touched": one path within it, null where there is none. Bytecode is left
    out: python writes that by itself.
    """
    folder = Path(asked["folder"])
    record = record_in(folder / "release.json")
    newer = ["-newer", str(folder / "release.json"), "!", "-path", "*/__pycache__*"]
    command = ["find", str(folder), "-mindepth", "1", *newer, "-printf", "%P\\n", "-quit"]
    touched = (text_of(command) or "").strip() if record else ""
    return {"record": record, "touched": touched or None}


QUESTIONS = {"door_venv": door_venv}
