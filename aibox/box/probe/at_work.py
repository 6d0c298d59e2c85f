"""What of a deploy is under way."""

import time
from pathlib import Path
from typing import Any

from aibox.box.probe.files import record_in
from aibox.box.probe.units import active_state


def at_work(asked: dict[str, Any]) -> dict[str, Any]:
    """What of a deploy is under way: {"jobs": their units, "by": who holds the lock of a deploy}.

    asked: {"jobs": folder, "lock": file}. "by" is what the holder has written there, with "seconds"
    that it has held it; empty where it has written nothing yet, null where nobody holds it.
    """
    folder = Path(asked["jobs"])
    units = [f"aibox-{one.name}.service" for one in sorted(folder.glob("*")) if one.is_dir()]
    ended = ("inactive", "failed")
    return {
        "jobs": [unit for unit in units if active_state(unit) not in ended],
        "by": holder_of(Path(asked["lock"])),
    }


def holder_of(lock: Path) -> dict[str, Any] | None:
    import fcntl  # noqa: PLC0415  for this question alone

    try:
        with lock.open() as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                said = record_in(lock) or {}
                return {**said, "seconds": time.time() - said["since"]} if said else {}
    except FileNotFoundError:
        pass
    return None


QUESTIONS = {"at_work": at_work}
