"""The server that a person built by hand: kept before anything of it is touched, and set aside.

Each text, drop-in and link of theirs that a deploy meets is kept for ever, see found.py. While a
candidate is on trial, `lay_beside` gives it the drop-ins that it is to have.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from aibox.box import found
from aibox.box.found import Record, is_ours, text_in
from aibox.box.good_units import sum_of
from aibox.box.job import write_whole
from aibox.box.probe import units
from aibox.box.service import Service

PRIVATE, READABLE = 0o600, 0o644


# --- kept ----------------------------------------------------------------------------------------


def of(service: Service) -> Record | None:
    """How a person's unit of this name stood last; a box can have had units of two names."""
    return found.newest(service.name)


def of_text(service: Service, text: str | None) -> Record | None:
    """The newest record of this very text; None for a text of ours."""
    kept = reversed(found.records(service.name))
    return next((one for one in kept if one["text"] == text), None)


def in_force(service: Service) -> Record | None:
    """The record of the person's unit that a reboot would start, once it is kept; None for ours."""
    here = found.standing_parts(service.name)
    return None if here is None else of_text(service, here["text"])


def has_run(service: Service, here: Record) -> bool:
    """Whether the process that is up was started from this unit and these drop-ins as they stand.

    What was written, moved there or linked after its start has never run; nor has what systemd
    has not read.
    """
    shown = service.properties()
    running = units.process(int(shown["MainPID"] or 0), shown["ExecMainStartTimestamp"])
    if running is None or shown.get("NeedDaemonReload") == "yes":
        return False
    files = [Path(path) for path in (here["path"], *here["drop_ins"]) if os.path.lexists(path)]
    times = [one.lstat().st_ctime for one in files]
    times += [one.stat().st_ctime for one in files if one.exists()]
    return max(times, default=0) <= float(running["started"])


def keep(service: Service) -> Record | None:
    """Write down a person's unit that stands under this name. Raises OSError.

    Where it is otherwise than it was kept last it gets a further record. Answers the newest; None
    where no person's unit was ever found.
    """
    known, here = of(service), looked_at(service)
    if here is None or (known is not None and found.is_same(known, here)):
        return known
    found.STATE.mkdir(parents=True, exist_ok=True)
    write_whole(found.next_file(), json.dumps(here, indent=1), mode=PRIVATE)
    return here


def looked_at(service: Service) -> Record | None:
    """A person's unit as it stands, see found.records; None without one, or where it is ours."""
    here = found.standing_parts(service.name)
    if here is None:
        return None
    path = Path(here["path"])
    shown = service.properties()
    running = units.process(int(shown["MainPID"] or 0), shown["ExecMainStartTimestamp"])
    return {
        "unit": service.name,
        **here,
        "sha256": sum_of(here["text"]),
        "mode": f"{path.lstat().st_mode & 0o7777:o}",
        "enabled": shown.get("UnitFileState") or "disabled",
        "active": shown["ActiveState"] in ("active", "activating"),
        "when": round(time.time(), 3),
        "command": running["command"] if running else [],
        "files": {str(one): found.attributes(one) for one in (path, *map(Path, here["drop_ins"]))},
    }


# --- beside a candidate --------------------------------------------------------------------------


def set_aside(service: Service) -> dict[str, str]:
    """{path: text} of his drop-ins that go when ours is accepted; none once it has been."""
    here = found.standing_parts(service.name)
    drop_ins: dict[str, str] = {} if here is None else here["drop_ins"]
    return drop_ins


def changes_hands(service: Service, text: str) -> bool:
    """Whether a unit of his is loaded and another comes, or ours is and his comes.

    What runs is stopped by its own unit then, before systemd reads the other.
    """
    loaded = service.text()
    return loaded not in (None, text) and not (is_ours(loaded) and is_ours(text))


def lay_beside(service: Service, text: str) -> None:
    """Give a candidate with this text the drop-ins it is to have, in /run: a reboot forgets them.

    An empty file takes the place of each that goes. His own has those that /etc lacks.
    """
    clear_beside(service)
    record = of_text(service, text)
    wanted = dict.fromkeys(set_aside(service), "")
    wanted |= record["drop_ins"] if record else {}
    for path, content in wanted.items():
        if is_to_be(service, path, content):
            service.tried_drop_ins.mkdir(parents=True, exist_ok=True)
            mode = mode_of(record, path) if record else READABLE
            write_whole(service.tried_drop_ins / Path(path).name, content, mode)


def is_to_be(service: Service, path: str, content: str) -> bool:
    """Whether a drop-in is not there yet and may be: a stranger's in its place is not replaced."""
    if not os.path.lexists(path):
        return True
    return path in set_aside(service) and text_in(Path(path)) != content


def clear_beside(service: Service) -> None:
    names = {Path(path).name for one in found.records(service.name) for path in one["drop_ins"]}
    for name in names:
        (service.tried_drop_ins / name).unlink(missing_ok=True)
    remove_if_empty(service.tried_drop_ins)


def mode_of(record: Record, path: str | None = None) -> int:
    """The mode of a copy of his unit, or of a drop-in: nobody reads more than of his own file."""
    mode = record["files"].get(path or record["path"], [0, 0, 0])[2]
    return READABLE if mode & found.WORLD_READABLE else PRIVATE


def remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # it holds something, or is not there
        return
