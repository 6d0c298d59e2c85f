"""Holds the lock of one deploy at a time for as long as the connection that asked for it is open.

Control sends this file along and the box's python3 runs it: standard library only. The first line
of its output is the answer, {"held": true}, or {"held": false, "by": {...}} with what the holder
said of itself, "since" (epoch seconds), "seconds" and "holder" (the process that holds it here).
"""

from __future__ import annotations

import fcntl
import json
import os
import select
import sys
import time
from pathlib import Path
from typing import IO, Any

LOCK = Path("/run/aibox-deploy.lock")
PATIENCE_S = 2.0  # a run that has just ended may still be letting go
BEAT_S = 15.0


def main(who: str) -> int:
    """Take the lock in the name of `who` (JSON) and hold it; 1 when another one has it."""
    with LOCK.open("a+") as file:
        if not taken(file):
            print(json.dumps({"held": False, "by": holder(file)}), flush=True)
            return 1
        said = {**json.loads(who), "since": time.time(), "holder": os.getpid()}
        file.truncate(0)
        file.write(json.dumps(said))
        file.flush()
        print(json.dumps({"held": True}), flush=True)
        hold()
    return 0


def taken(file: IO[str]) -> bool:
    end = time.monotonic() + PATIENCE_S
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                return False
            time.sleep(0.1)
        else:
            return True


def holder(file: IO[str]) -> dict[str, Any]:
    file.seek(0)
    try:
        said: dict[str, Any] = json.loads(file.read())
    except ValueError:  # it has the lock, and has not written yet
        return {}
    return {**said, "seconds": time.time() - said["since"]}


def hold() -> None:
    """Wait until the connection ends.

    Its end is the end of standard input. A control that went away without a word (no power, no
    network) says none: what is written now and then is never taken, and the connection dies of it.
    """
    while True:
        ready, _, _ = select.select([sys.stdin], [], [], BEAT_S)
        try:
            if not ready:
                os.write(sys.stdout.fileno(), b"\n")
            elif not os.read(sys.stdin.fileno(), 4096):
                return
        except OSError:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
