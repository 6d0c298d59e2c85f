"""The server: its unit, its process, and what passed the gate."""

import hashlib
import json
from pathlib import Path
from typing import Any

from aibox.box.probe.files import SERVER_STATE, changed_at, record_in
from aibox.box.probe.replies import health
from aibox.box.probe.units import process, unit_properties


def server(asked: dict[str, Any]) -> dict[str, Any]:
    """The unit, the process it runs and what that answers; what passed the gate, and what failed.

    "file" is the unit's file as systemd has it, "installed" the one that is there after a reboot.
    "good" is the sum of the unit that passed the gate last, "tried" a candidate's file in /run.
    """
    unit = unit_properties(asked["unit"])
    pid = int(unit.get("MainPID") or 0)
    return {
        "unit": unit,
        "process": process(pid, unit["ExecMainStartTimestamp"]) if pid else None,
        "file": file_stamp(unit.get("FragmentPath", "")),
        "installed": file_stamp(f"/etc/systemd/system/{asked['unit']}"),
        "health": health(asked["port"]) if pid else None,
        "proof": record_in(Path(asked["proof"])),
        "good": last_good("sha256"),
        "good_release": last_good("release_id"),
        "good_how": last_good("how"),
        "tried": file_stamp(f"/run/systemd/system.control/{asked['unit']}"),
        "failed": record_in(SERVER_STATE / "failed.json") or {},
        "changed": {
            "release": changed_at(Path(asked["release"]) / "release.json"),
            "weights": (record_in(Path(asked["weights"]) / ".verified.json") or {}).get("changed"),
        },
    }


def last_good(part: str) -> str | None:
    """A part of the history's newest entry."""
    try:
        newest = json.loads((SERVER_STATE / "history.json").read_text())[0][part]
    except (OSError, ValueError, LookupError, TypeError):
        return None
    return str(newest)


def file_stamp(path: str) -> dict[str, Any] | None:
    try:
        content = Path(path).read_bytes()
        changed = Path(path).stat().st_mtime
    except OSError:
        return None
    return {"path": path, "sha256": hashlib.sha256(content).hexdigest(), "changed": changed}


QUESTIONS = {"server": server}
