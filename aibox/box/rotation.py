"""`aibox rotation`: how the boxes stand at this gateway, and one taken out or put back."""

from __future__ import annotations

import fcntl
import json
import os
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

from aibox.box.job import JobError, write_whole
from aibox.box.service import synced
from aibox.decide import doors
from aibox.decide import rotation as decide
from aibox.decide.refusal import Refusal
from aibox.decide.rotation import Boxes, Out
from aibox.gateway.rotation import boxes_in, out_in

FILE = Path(doors.ROTATION)
FLEET = Path(doors.FLEET)
PATIENCE_S = 5


@dataclass(frozen=True)
class Shown:
    """boxes: see decide.rotation.unasked. gateway: why it does not say how they are, or None.
    unserved: the names that no box is asked for now."""

    boxes: Boxes
    gateway: str | None
    unserved: list[str]


def rotation(act: str | None, box: str | None, why: str, by: str, *, as_json: bool) -> int:
    """Do it, and print how the boxes stand. 1: refused, or the gateway does not answer."""
    try:
        fleet = fleet_there()
        if act and box:
            changed(set(fleet["boxes"]), act, box, why, by)
        shown = looked(fleet)
    except (JobError, OSError) as error:
        told = error.refusal if isinstance(error, JobError) else decide.no_file(error)
        print(told, file=sys.stderr)
        return 1
    if as_json:
        print(json.dumps(asdict(shown)))
    else:
        say(shown)
    return 1 if shown.gateway else 0


def say(shown: Shown) -> None:
    print("\n".join(decide.rows(shown.boxes, time.time())), flush=True)
    lonely = decide.nobody_left(shown.unserved, shown.boxes)
    deaf = f"the gateway does not answer: {shown.gateway}" if shown.gateway else None
    for line in (lonely, deaf):
        if line:
            print(line, file=sys.stderr)


def fleet_there() -> dict[str, Any]:
    """The boxes as the deploy has laid them down. Raises JobError where this is no gateway."""
    try:
        fleet: dict[str, Any] = json.loads(FLEET.read_text())
        if fleet["boxes"] and all("models" in one for one in fleet["boxes"].values()):
            return fleet
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        pass
    raise refused(decide.no_gateway())


def looked(fleet: dict[str, Any]) -> Shown:
    """As the gateway sees them now; what is out is known without it."""
    try:
        direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        with direct.open(f"{fleet['url']}/rotation", timeout=PATIENCE_S) as answer:
            boxes = boxes_in(json.load(answer)["boxes"])
            return Shown(boxes, None, decide.unserved(boxes))
    except (OSError, HTTPException, ValueError, LookupError, TypeError, RecursionError) as error:
        boxes = decide.unasked(fleet["boxes"], out_there())
        return Shown(boxes, str(error), decide.unserved(boxes))


def changed(known: set[str], act: str, box: str, why: str, by: str) -> None:
    """One box taken out or put back, on the disk when it returns; twice is once."""
    with alone():
        out = out_there()
        refusal = decide.unknown(box, known if act == "out" else known | set(out))
        refusal = refusal or (decide.no_reason(why) if act == "out" else None)
        if refusal:
            raise refused(refusal)
        taken = decide.taken_out(out, box, why, by, time.time())
        new = taken if act == "out" else decide.put_back(out, box, by)
        if new != out:
            write_whole(FILE, decide.text(new))
            synced(FILE.parent)


def out_there() -> Out:
    """Raises JobError where the file is not whole, OSError where it can't be read."""
    try:
        return out_in(FILE.read_text())
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise refused(decide.broken(str(error))) from None


@contextmanager
def alone() -> Iterator[None]:
    """One at a time changes it."""
    if os.geteuid() != 0:
        raise JobError("another user than root", "root", "put sudo before it")
    with FILE.with_name(f".{FILE.name}.lock").open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def refused(refusal: Refusal) -> JobError:
    return JobError(refusal.found, refusal.expected, refusal.remedy)
