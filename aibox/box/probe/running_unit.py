"""A unit of ours, what it stands on, and what it answers."""

from pathlib import Path
from typing import Any

from aibox.box.probe.files import changed_at
from aibox.box.probe.replies import status_of
from aibox.box.probe.units import process, unit_properties


def running_unit(asked: dict[str, Any]) -> dict[str, Any]:
    """A unit, when what it reads was laid down, and what it answers.

    asked: {"unit", "paths", "url": null where it answers nobody}. "started": of its process,
    "changed": of each path, both seconds since the epoch, null for nothing. "answers": HTTP status.
    """
    unit = unit_properties(asked["unit"])
    pid = int(unit.get("MainPID") or 0)
    running = process(pid, unit["ExecMainStartTimestamp"]) if pid else None
    return {
        "unit": unit,
        "started": running and running["started"],
        "answers": status_of(asked["url"]) if running and asked["url"] else None,
        "changed": {path: changed_at(Path(path)) for path in asked["paths"]},
    }


QUESTIONS = {"running_unit": running_unit}
