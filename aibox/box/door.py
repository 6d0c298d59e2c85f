"""Replace what a door runs: laid down, started, asked; and what was there comes back if it fails.

What was there is written down before anything is touched, and forgotten only once the new one has
passed: a switch that was killed anywhere is made good by the next one.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from aibox.box import venv
from aibox.box.found import text_in
from aibox.box.job import JobError, Progress, Spec, write_whole
from aibox.box.service import Service, Start, synced
from aibox.decide.secrecy import without_secrets

POLL_S = 0.5
ANSWER_S = 30.0  # for the names of the models, which the server itself may have to tell
SERVER_AWAY = (502, 503, 504)
SAID = 12  # lines of its journal that a failure shows


def switch(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Bring a door to what `spec` says. Returns {"seconds": until it had passed}.

    spec: {"unit", "files": {path: text}, "url": its base address, "ready": the path that
    answers 200, "key_file": with the key that opens it, or null, "models": names that it must know,
    null where it knows of none, "seconds": how long it may take, "record", "failed": paths,
    "identity", "venv": folder, "restart": false where its files are right and it is
    only waited for}. Raises JobError.
    """
    service = Service(spec["unit"])
    before = Before(Path(spec["record"]).with_suffix(".before"), service)
    before.keep(spec["files"])
    began = time.monotonic()
    try:
        progress.step(f"starting {spec['unit']}")
        if spec["restart"]:  # files that were laid anew would be newer than the process
            lay(spec["files"])
            service.reload()
        pass_gate(service, begun(service, spec["restart"]), spec, progress)
    except (JobError, OSError, subprocess.CalledProcessError) as error:
        progress.step("putting back what was there")
        then = before.put_back()
        failed = failure(spec, service, error, then)
        if not is_passing(error):
            remember(spec, failed)
        raise failed from None
    seconds = round(time.monotonic() - began, 1)
    before.forget()
    only_venv(Path(spec["venv"]))
    record = {"identity": spec["identity"], "took": seconds}
    Path(spec["failed"]).unlink(missing_ok=True)
    write_whole(Path(spec["record"]), json.dumps(record))  # the last: what lacks it is due again
    return {"seconds": seconds}


def begun(service: Service, restart: bool) -> Start:
    """The start that has to pass: a new one, or the one that is under way."""
    found = service.properties()
    if restart or found.get("ActiveState") not in ("activating", "active"):
        return service.restart()
    return Start(found["InvocationID"], time.time())


def failure(spec: Spec, service: Service, error: Exception, then: str) -> JobError:
    refusal = error.refusal if isinstance(error, JobError) else None
    found = refusal.found if refusal else str(error)
    expected = refusal.expected if refusal else f"{spec['unit']} that can be replaced"
    remedy = f"see `journalctl -u {service.name}` on the box; {then}"
    return JobError(found, expected, remedy)


class ServerAwayError(JobError):
    """The door's own failure was none: the server behind it did not answer."""


def is_passing(error: Exception) -> bool:
    """Whether it failed of what lies around the door, which is not held against it."""
    return isinstance(error, ServerAwayError) or not isinstance(error, JobError)


def remember(spec: Spec, failed: JobError) -> None:
    """That this has failed, and of what, for the next deploy."""
    row = {"identity": spec["identity"], "found": failed.refusal.found, "when": time.time()}
    write_whole(Path(spec["failed"]), json.dumps(row))


def lay(files: dict[str, str]) -> None:
    for name, text in files.items():
        path = Path(name)
        path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        write_whole(path, text)
        os.chown(path, 0, 0)
        synced(path.parent)


class Before:
    """What a door was before the switch: its files, and whether it ran."""

    def __init__(self, path: Path, service: Service) -> None:
        self.path, self.service = path, service

    def keep(self, files: dict[str, str]) -> None:
        """A record that is there is of a switch that was killed: what it holds has passed."""
        if self.path.exists():
            return
        self.path.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        runs = self.service.properties().get("ActiveState") in ("active", "activating")
        texts = {name: text_in(Path(name)) for name in files}
        write_whole(self.path, json.dumps({"files": texts, "runs": runs}))
        synced(self.path.parent)

    def put_back(self) -> str:
        """What became of it, in words."""
        kept = json.loads(self.path.read_text())
        lay({name: text for name, text in kept["files"].items() if text is not None})
        if not kept["runs"]:
            self.service.stop()
            self.service.run("disable", check=False)
        for name in [name for name, text in kept["files"].items() if text is None]:
            Path(name).unlink(missing_ok=True)
        self.service.reload()
        self.forget()
        if not kept["runs"]:
            return "none stood here before, and none does now"
        self.service.restart()
        return "the one before it was put back and started"

    def forget(self) -> None:
        self.path.unlink(missing_ok=True)


# --- the gate ------------------------------------------------------------------------------------


def pass_gate(service: Service, start: Start, spec: Spec, progress: Progress) -> None:
    """Its own process answers, knows the models, and lets nobody in without a key."""
    wait_until_ready(service, start, spec, progress)
    if spec["models"] is None:
        return
    key = key_in(spec["key_file"])
    status, said = ask(spec, "/v1/models", key)
    names = names_in(said)
    if status != 200 or not set(spec["models"]) <= names:
        found = f"{spec['unit']} names {', '.join(sorted(names)) or 'no models'} (HTTP {status})"
        kind = ServerAwayError if status in SERVER_AWAY else JobError
        raise kind(found, f"the models {', '.join(spec['models'])}", "")
    if key is not None:
        status, _ = ask(spec, "/v1/models", None)
        if status != 401:
            raise JobError(f"{spec['unit']} answers {status} without a key", "401", "")


def wait_until_ready(service: Service, start: Start, spec: Spec, progress: Progress) -> None:
    began = time.monotonic()
    while True:
        seconds = time.monotonic() - began
        found = service.properties()
        state = found.get("ActiveState")
        if found["InvocationID"] != start.invocation or state in ("failed", "inactive"):
            lasting = f"{spec['unit']} that goes on running"
            raise JobError(told(service, start, "ended"), lasting, "")
        if state == "active" and ask(spec, spec["ready"], None)[0] == 200:
            return
        if seconds > spec["seconds"]:
            silent = f"has not answered {spec['ready']} in {seconds:.0f} s"
            raise JobError(told(service, start, silent), "an answer of 200", "")
        progress.say()
        time.sleep(POLL_S)


def told(service: Service, start: Start, what: str) -> str:
    """What became of it, and the last lines of its journal, without what looks like a secret."""
    said = service.journal(start.asked, start.invocation or None)[-SAID:]
    return "\n".join([f"{service.name} {what}:", *map(without_secrets, said)])


def key_in(path: str | None) -> str | None:
    """The first key of a file of `name: key` lines, or its only word; None without one."""
    lines = (text_in(Path(path)) or "").split("\n") if path else []
    keys = [line.rpartition(":")[2].strip() for line in lines if line.strip()]
    return next(iter(keys), None)


def ask(spec: Spec, path: str, key: str | None) -> tuple[int | None, str]:
    """(status, body); no status where nothing answers."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    request = urllib.request.Request(spec["url"] + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=ANSWER_S) as answer:
            return int(answer.status), answer.read().decode(errors="replace")
    except urllib.error.HTTPError as error:
        return error.code, ""
    except (OSError, ValueError, HTTPException):
        return None, ""


def names_in(said: str) -> set[str]:
    try:
        return {str(one["id"]) for one in json.loads(said)["data"]}
    except (ValueError, LookupError, TypeError):
        return set()


def only_venv(folder: Path) -> None:
    """The others of this door go, now that nothing runs from them; `current` leads to this one."""
    link = folder.with_name(".current.new")
    link.unlink(missing_ok=True)
    link.symlink_to(folder.name)
    link.replace(folder.with_name("current"))
    for record in folder.parent.glob("*/release.json"):
        if record.parent not in (folder, folder.with_name("current")):
            venv.remove_tree(record.parent)
