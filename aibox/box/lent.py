"""A server that is lent to a benchmark: other flags for a while, from /run, and then what it was.

Its unit stands where a candidate stands until it has passed (see service.py), so a reboot forgets
it. It is never installed, never the last good one and in no history. What is installed is started
again by whoever comes first: the benchmark itself, systemd when its job has ended in whatever way
(ExecStopPost, see job.py), the next benchmark, or the next switch.
"""

from __future__ import annotations

import json
from pathlib import Path

from aibox.box import job
from aibox.box.adoption import clear_beside
from aibox.box.job import JobError, write_whole
from aibox.box.probe.files import record_in
from aibox.box.service import Service

RECORD = Path("/run/aibox/lent.json")
JOB = "bench"


def begun(service: Service) -> None:
    """From now on the server may be another one. Written before anything is changed."""
    RECORD.parent.mkdir(parents=True, exist_ok=True)
    write_whole(RECORD, json.dumps({"unit": service.name}))


def is_lent() -> bool:
    return RECORD.exists()


def is_at_work() -> bool:
    """Whether a benchmark measures the server now, or holds it."""
    return is_lent() or job.is_active(JOB)


def is_known() -> bool:
    """The same, or one has left a report that nobody has fetched yet."""
    return is_at_work() or (job.FOLDER / JOB).exists()


def over() -> None:
    RECORD.unlink(missing_ok=True)


def returned() -> None:
    """The installed unit is what systemd has again, and it is being started; waits for nothing.

    Nothing is done where no server is lent. Cut off anywhere it can be done once more.
    """
    record = record_in(RECORD)
    if record is not None:
        service = Service(str(record["unit"]))
        cleared(service)
        service.run("reset-failed", check=False)
        service.run("restart", "--no-block", check=False)
    over()


def cleared(service: Service) -> None:
    """Nothing of what was lent is left in /run."""
    clear_beside(service)
    service.tried.unlink(missing_ok=True)
    service.reload()


def refused_while_lent() -> None:
    """Asked before a switch: a benchmark that is under way keeps the server. Raises JobError.

    What a benchmark left that is no longer there is taken back.
    """
    if not is_lent():
        return
    if job.is_active(JOB):
        raise JobError(
            "a benchmark is at work on this server",
            "nobody else who changes what runs",
            f"wait for its end, or end it: sudo systemctl stop {job.unit_of(JOB)}; then run this "
            "again",
        )
    returned()
