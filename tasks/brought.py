"""Tells the box, before it happens, what this run brings to it: see aibox/box/brought.py."""

from __future__ import annotations

import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from aibox.box import brought
from aibox.decide.doors import DOORS
from aibox.decide.monitoring import DROP_IN_FILE, GPU_EXPORTER
from tasks.box import Box
from tasks.drift_report import because
from tasks.facts import LaidFile

SOURCE = Path(brought.__file__).read_text()


def told(verb: str, task: Any) -> StringCommand:
    """A command that writes it down. The task travels on standard input: sources may hold more."""
    words = QuoteString(SOURCE), QuoteString(verb)
    return StringCommand("python3 -c", *words, _stdin=json.dumps(task))


@operation()
def begun(box: Box) -> Generator[StringCommand, None, None]:
    """Where things of ours go, and which of those folders were there before."""
    asked = places_of(box)
    known = record()
    if brought.merged(known, more_of(asked)) == known:
        host.noop("the box knows where things of ours go")
        return
    because(host, "where things of ours go is not written down yet")
    yield told("begin", asked)


def record() -> dict[str, Any]:
    """What the box has written down so far; empty where there is nothing that can be read."""
    found = host.get_fact(LaidFile, path=str(brought.RECORD))
    try:
        known = json.loads(found["content"]) if found else {}
    except ValueError:
        known = {}
    return known if isinstance(known, dict) else {}


def places_of(box: Box) -> dict[str, Any]:
    settings = box.settings
    places = {
        name: str(getattr(settings, name))
        for name in ("server_unit", "releases_folder", "models_folder", "cache_folder")
    }
    of_unit = [f"/var/lib/{settings.server_unit}", f"/var/cache/{settings.server_unit}"]
    standing = [door for door in DOORS if box.doors.of(door).on]
    standing += [GPU_EXPORTER] if box.watched.gpu.on else []
    of_doors = [path for door in standing for path in door.folders]
    of_doors += [str(Path(DROP_IN_FILE).parent)] if box.watched.node.on else []
    folders = [*list(places.values())[1:], *of_unit, *of_doors]
    return {"places": places, "folders": folders}


def more_of(asked: dict[str, Any]) -> dict[str, Any]:
    """What the record must hold: whatever was told of a folder first stays."""
    return {
        "places": {name: [value] for name, value in asked["places"].items()},
        "folders": dict.fromkeys(brought.above(asked["folders"]), False),
        "nouveau_was_on": False,
    }
