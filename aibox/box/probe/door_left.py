"""A door that is turned off."""

import os
from pathlib import Path
from typing import Any

from aibox.box.probe.files import DEPLOYED, paths_there
from aibox.box.probe.unit_files import unit_of_whom
from aibox.box.probe.units import active_state


def door_left(asked: dict[str, Any]) -> dict[str, Any]:
    """What is left of a door that is turned off. asked: {"unit", "paths", "root": of its venvs}.

    Answers whose its unit is, whether that runs or has a file, which of the paths are there, and
    the venvs that a deploy has built.
    """
    root = Path(asked["root"])
    venvs = [path for path in root.glob("*") if (path / "release.json").is_file()]
    venvs += [
        *root.glob(".building-*"),
        *(path for path in [root / "current"] if path.is_symlink()),
    ]
    return {
        "unit": unit_of_whom(asked["unit"], DEPLOYED),
        "stands": active_state(asked["unit"]) not in ("inactive", "failed")
        or os.path.lexists(f"/etc/systemd/system/{asked['unit']}"),
        "paths": paths_there(asked),
        "venvs": sorted(map(str, venvs)),
    }


QUESTIONS = {"door_left": door_left}
