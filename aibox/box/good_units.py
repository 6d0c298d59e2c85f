"""What the box remembers of its server: the units that passed the gate, and those that did not.

/var/lib/aibox/server/history.json        what passed, the newest first; see decide/history.py
/var/lib/aibox/server/failed.json         {sum of a unit: when it failed and why}
/var/lib/aibox/server/units/<sum>.service  the unit itself, for a person to copy back
/var/lib/aibox/server/units/<sum>.json     all that the gate asks of it
/var/lib/aibox/server/spec.json           the newest candidate, passed or not
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from aibox.box.job import Spec, write_whole
from aibox.box.probe import SERVER_STATE, record_in
from aibox.decide import history
from aibox.decide.history import Passed

MOST_FAILED = 20
OF_ONE_RUN = ("verb", "secret", "restart", "retry", "how")


def sum_of(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


# --- units -----------------------------------------------------------------------------------


def keep(spec: Spec) -> None:
    """Lay aside what a unit is, before anything stops: where the disk is full it ends here."""
    folder, name = SERVER_STATE / "units", sum_of(spec["text"])
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.service", spec["text"], mode=0o600)
    write_whole(folder / f"{name}.json", as_text(spec), mode=0o600)


def as_text(spec: Spec) -> str:
    """Without what only one run was told."""
    return json.dumps({key: value for key, value in spec.items() if key not in OF_ONE_RUN})


def kept(name: str) -> Spec | None:
    """All that is known of a unit by its sum; None when it is no longer there, or not whole."""
    spec = record_in(SERVER_STATE / "units" / f"{name}.json")
    return spec if spec and sum_of(str(spec.get("text"))) == name else None


def forget_the_rest() -> None:
    """Only what the history names stays."""
    named = {entry.sha256 for entry in passed()}
    for path in (SERVER_STATE / "units").glob("*"):
        if path.stem not in named:
            path.unlink()


# --- what passed -----------------------------------------------------------------------------


def passed() -> list[Passed]:
    """The history, the newest first; empty where there is none, or none that can be read."""
    try:
        return history.read(json.loads((SERVER_STATE / "history.json").read_text()))
    except (OSError, ValueError):
        return []


def mark_good(entry: Passed) -> None:
    rows = history.with_newest(passed(), entry)
    SERVER_STATE.mkdir(parents=True, exist_ok=True)
    write_whole(SERVER_STATE / "history.json", json.dumps(rows, indent=1))
    forget_failure(entry.sha256)
    forget_the_rest()


def still_there() -> set[str]:
    """The folders of the history's releases and weights, and the units, that the box still has."""
    there = {path.stem for path in (SERVER_STATE / "units").glob("*.json") if kept(path.stem)}
    for entry in passed():
        found = entry.how == history.AS_FOUND  # somebody else's: no record of ours lies in it
        there |= {entry.release} if is_there(entry.release, "release.json", found) else set()
        there |= {entry.weights} if is_there(entry.weights, ".verified.json", found) else set()
    return there


def is_there(folder: str, record: str, found: bool) -> bool:
    """Ours with its record; of one that was found the folder is enough, or that none is known."""
    if found:
        return not folder or Path(folder).is_dir()
    return Path(folder, record).is_file()


# --- what failed -----------------------------------------------------------------------------


def failures() -> dict[str, Any]:
    return record_in(SERVER_STATE / "failed.json") or {}


def remember_failure(name: str, failure: dict[str, Any]) -> None:
    rest = {key: value for key, value in failures().items() if key != name}
    rows = dict([*rest.items(), (name, failure)][-MOST_FAILED:])
    SERVER_STATE.mkdir(parents=True, exist_ok=True)
    write_whole(SERVER_STATE / "failed.json", json.dumps(rows, indent=1))


def forget_failure(name: str) -> None:
    rest = failures()
    if rest.pop(name, None) is not None:
        write_whole(SERVER_STATE / "failed.json", json.dumps(rest, indent=1))
