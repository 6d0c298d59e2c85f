"""`python -m tasks.roll` on rehearsal boxes, beside a test or to its end."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tasks.box import AIBOX
from tests.rehearsal.box import Box
from tests.rehearsal.jobs import Running, beside
from tests.rehearsal.provision import HERE, Deploy, HostData, environment

Boxes = Mapping[Box, HostData]


@contextmanager
def rolling(boxes: Boxes, *words: str) -> Iterator[Running]:
    """A roll that has begun."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "tasks.roll", *words, "-y", str(HERE / "inventory.py")]
        given = {**environment(boxes, Path(folder)), "XDG_STATE_HOME": folder}
        with beside(command, given, Path(folder) / "log") as run:
            yield run


def rolled(boxes: Boxes, *words: str) -> Deploy:
    """One to its end."""
    with rolling(boxes, *words) as running:
        ended = running.ended(timeout_s=1200)
    assert "Traceback" not in ended.said, ended.said
    return ended


def rotation(gateway: Box) -> dict[str, Any]:
    """How a gateway says that the boxes stand."""
    found: dict[str, Any] = json.loads(gateway.run([AIBOX, "rotation", "--json"]).stdout)["boxes"]
    return found


def out_at(gateway: Box) -> set[str]:
    return {name for name, of in rotation(gateway).items() if of["out"]}
