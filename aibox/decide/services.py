"""Services of ours beside the server, the doors and the exporters: whether each stands, and what
makes it due.

A service is on unless a program that is not ours holds its port: then it is left out, and the plan
says so. One that was asked for is never left out without a word: the run is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from aibox.decide.manifest import STATE_FOLDER
from aibox.decide.preflight import PortOwner, port_remedy, shown_owner
from aibox.decide.refusal import Refusal
from aibox.decide.switching import AGAIN

RECORDS = f"{STATE_FOLDER}/doors"  # what of each has passed its gate
OURS, FOREIGN = "ours", "foreign"  # whose a unit file is


@dataclass(frozen=True)
class Service:
    """name: also how the setting of its port begins. title: in words. root: the folder of its
    venvs. ready: the path that answers 200 when it serves. files, keys: what is laid down for it
    beside its unit. switch: the setting that turns it off, where that is not its name."""

    name: str
    title: str
    unit: str
    user: str
    root: str
    ready: str
    files: tuple[str, ...]
    keys: tuple[str, ...]
    switch: str = ""

    @property
    def setting(self) -> str:
        return self.switch or self.name

    @property
    def port_setting(self) -> str:
        return f"{self.name.replace('-', '_')}_port"

    @property
    def unit_file(self) -> str:
        return f"/etc/systemd/system/{self.unit}"

    @property
    def home(self) -> str:
        return f"/var/lib/{self.user}"

    @property
    def folders(self) -> list[str]:
        """What is made for it."""
        return [self.root, self.home, *(path.rpartition("/")[0] for path in self.files)]

    @property
    def record(self) -> str:
        return f"{RECORDS}/{self.name}.json"

    @property
    def failed(self) -> str:
        """What of it has failed its gate last."""
        return f"{RECORDS}/{self.name}.failed"


# --- whether it stands ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What the settings say of a service. wish: None leaves it to what stands on its port."""

    service: Service
    wish: bool | None
    port: int


@dataclass(frozen=True)
class Verdict:
    """left_out: why a service that nobody turned off does not stand, in words."""

    on: bool
    left_out: str | None = None
    refusal: Refusal | None = None


def judge(asked: Asked, owner: PortOwner | None, unit: str | None) -> Verdict:
    """owner: who listens on its port now. unit: whose the file of its unit is, None without one."""
    if asked.wish is False:
        return Verdict(on=False)
    service = asked.service
    if unit == FOREIGN:
        found = f"{service.unit} is a unit that no deploy has written"
        remedy = f"rename yours, or set {service.setting} = False"
        return _stranger(asked, None, found, remedy)
    is_ours = owner is not None and owner.unit == service.unit and owner.manager == "system"
    if owner is None or (is_ours and unit == OURS):
        return Verdict(on=True)
    found = f"port {asked.port} belongs to {shown_owner(owner)}"
    free = port_remedy(owner, asked.port, service.port_setting)
    remedy = f"{free}; or set {service.setting} = False"
    return _stranger(asked, unit, found, remedy)


def _stranger(asked: Asked, unit: str | None, found: str, remedy: str) -> Verdict:
    """A service that stands already is not taken away because somebody has taken its port."""
    if asked.wish is None and unit is None:
        return Verdict(on=False, left_out=found)
    expected = f"a free port, or {asked.service.unit} of a deploy on it, for {asked.service.title}"
    return Verdict(on=False, refusal=Refusal(found, expected, remedy))


# --- what makes it due ---------------------------------------------------------------------------


STARTING = "it is starting by itself; waiting for it"  # alone, no reason to start it anew


def identity(files: Mapping[str, str]) -> str:
    """The sum of everything that a service is made of but its keys: {path: text}."""
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()


def reasons(service: Service, files: Mapping[str, str], found: Mapping[str, Any]) -> list[str]:
    """Why a service has to be switched. files: {path: text} as wanted. found: of the probe."""
    return [
        *(one for path, text in files.items() for one in _file_reasons(path, text, found["files"])),
        *process_reasons(service.ready, found),
        *([] if found["passed"] == identity(files) else ["this has not passed its gate yet"]),
    ]


def failed_before(
    files: Mapping[str, str], found: Mapping[str, Any], setting: str
) -> Refusal | None:
    """Why a service that runs is not stopped again for what has failed its gate already.

    Keys that were laid down since then may have been what it failed of.
    """
    failed = found["failed"] or {}
    runs = found["unit"].get("ActiveState") == "active"
    if not runs or failed.get("identity") != identity(files):
        return None
    keys = [path for path in found["changed"] if path not in files]
    if any((found["changed"][path] or 0) > failed["when"] for path in keys):
        return None
    return Refusal(
        f"this very door has failed its gate before: {failed['found']}",
        "one that has not failed: the one before it goes on serving",
        f"change the settings of {setting}, or mend the cause and try the same once more: {AGAIN}",
    )


def _file_reasons(path: str, text: str, there: Mapping[str, Any]) -> list[str]:
    file = there.get(path)
    if file is None:
        return [f"{path} is not there as a file"]
    found = [f"{path} has another content"] if file["text"] != text else []
    owner = f"{file['owner']} {file['mode']}"
    return found + ([f"{path} is {owner}, not root:root 644"] if owner != "root:root 644" else [])


def process_reasons(ready: str, found: Mapping[str, Any]) -> list[str]:
    """Why what runs is not what is laid down. ready: the path that is to answer 200."""
    unit = found["unit"]
    if unit.get("ActiveState") == "activating":
        return [STARTING]
    if unit.get("ActiveState") != "active" or found["started"] is None:
        return [f"it does not run ({unit.get('ActiveState', 'unknown')})"]
    if unit.get("NeedDaemonReload") == "yes":
        return ["systemd has not read its unit, or a drop-in of it, as it is now"]
    newer = [path for path, when in found["changed"].items() if when and when > found["started"]]
    if newer:
        return [f"it runs since before {path} was laid down" for path in newer]
    if found["answers"] != 200:
        return [f"{ready} answers {found['answers'] or 'nothing'}, not 200"]
    return []


# --- in words ------------------------------------------------------------------------------------


def plan_row(asked: Asked, verdict: Verdict) -> str:
    service = asked.service
    if verdict.on:
        return f"{service.title} on port {asked.port}"
    if verdict.left_out:
        return (
            f"{service.title} is left out: {verdict.left_out} "
            f"({service.port_setting} takes another, {service.setting} = False says no)"
        )
    return f"{service.title} is turned off"
