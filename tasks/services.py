"""What the services beside the server have in common, the doors and the GPU exporter: user, venv,
a switch behind a gate, and being turned off."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

from pyinfra import host, state
from pyinfra.api import QuoteString, StringCommand, operation

from aibox.box.good_units import sum_of
from aibox.decide import services
from aibox.decide.preflight import BoxReport, Need
from aibox.decide.services import Service
from tasks import ledger
from tasks.box import AIBOX, PROJECT, Box
from tasks.drift_report import because, difference, is_due
from tasks.facts import Probe
from tasks.operations import (
    Commands,
    job_command,
    refused,
    roots_own,
    service_user,
    show_difference,
    starts_at_boot,
)
from tasks.unit_text import rendered

START_S = 180  # LiteLLM took 9 to 12 s, and 42 s on a busy machine
ROOTS = {"user": "root", "group": "root", "mode": "644"}
LOCKS = PROJECT / "group_data/locks"  # of the product itself, whatever locks vLLM comes from


@dataclass(frozen=True)
class Venv:
    """A service's venv. size, fetch: bytes on the disk and on the wire. wheels: a folder on the box
    with what is added to the lock. modules: what must import in it."""

    folder: str
    lock: str
    size: int
    fetch: int
    modules: tuple[str, ...]
    wheels: str | None = None

    @property
    def id(self) -> str:
        return self.folder.rpartition("/")[2]

    @property
    def record(self) -> str:
        return f"{self.folder}/release.json"

    @property
    def sha256(self) -> str:
        return sha256(self.lock.encode()).hexdigest()


@dataclass(frozen=True)
class Wanted:
    """A service as this run wants it. files: {path: text}, its unit among them. key_file: with a
    key that opens it, None where it is open. keys: every file of keys that it reads when it starts.
    models: None where it knows of none. environment: names in its unit."""

    service: Service
    port: int
    url: str
    venv: Venv
    files: Mapping[str, str]
    key_file: str | None
    keys: Sequence[str]
    models: Sequence[str] | None
    environment: Sequence[str]
    extra: Mapping[str, str]


# --- before the first change ---------------------------------------------------------------------


def needs(
    report: BoxReport, on: Mapping[Service, bool], venvs: Mapping[Service, Venv]
) -> tuple[Need, ...]:
    """Room for the venvs that are not there yet. on: which of them are to stand."""
    return tuple(
        Need(service.title, service.root, None, venv.size)
        for service, venv in venvs.items()
        if on[service] and not report.sizes.get(venv.folder)
    )


# --- what is laid down ---------------------------------------------------------------------------


@cache
def lock_text(name: str) -> str:
    return (LOCKS / f"{name}.txt").read_text()


def unit_text(template: str, service: Service, environment: Mapping[str, str], **more: Any) -> str:
    own = {"user": service.user, "home": service.home, "seconds": START_S}
    return rendered(template, environment, **own, **more)


def no_keys() -> None:
    """For what is open."""


def laid_out(wanted: Wanted, box: Box, keys: Callable[[], None] = no_keys) -> None:
    """The operations of a service that stands, in their order."""
    service = wanted.service
    service_user(name=f"User {service.user}", user=service.user, home=service.home)
    venv_there(name=f"Venv {wanted.venv.id} of {service.title}", wanted=wanted, box=box)
    roots_own(name=f"Owner of {service.title}", folders=[service.root, wanted.venv.folder])
    keys()
    retry = box.settings.retry_failed
    switched(name=f"{service.unit} runs what it is to run", wanted=wanted, retry=retry)
    starts_at_boot(name=f"{service.unit} starts at boot", unit=service.unit)


@operation()
def venv_there(wanted: Wanted, box: Box) -> Commands:
    """The folder exists only when it is whole."""
    venv, job = wanted.venv, f"{wanted.service.name}-venv"
    found = host.get_fact(Probe, "door_venv", json.dumps({"folder": venv.folder}))
    is_there = found["record"] and found["record"]["lock_sha256"] == venv.sha256
    if is_there and not found["touched"]:
        host.noop(f"{venv.folder} is there")
        return
    changed = f"{venv.folder}/{found['touched']} was changed since the venv was built"
    because(host, changed if is_there else f"{venv.folder} is not there")
    spec = {
        "job": job,
        "folder": venv.folder,
        "lock": venv.lock,
        "lock_sha256": venv.sha256,
        "find_links": None,
        "cache": box.settings.cache_folder,
        "wheels": venv.wheels,
        "modules": venv.modules,
        "environment": dict(wanted.extra),
    }
    yield job_command(job, AIBOX, "door_venv", spec)


@operation()
def switched(wanted: Wanted, *, retry: bool) -> Commands:
    """The service runs from these files and has passed its gate; what was there comes back if not.

    retry: whether what has failed its gate before is tried again.
    """
    service, files = wanted.service, dict(wanted.files)
    for path, text in files.items():
        ledger.of(host).files[path] = {**ROOTS, "sha256": sum_of(text)}
    found = look(wanted)
    reasons = services.reasons(service, files, found)
    say_differences(files, found["files"])
    starts_alone = reasons == [services.STARTING]
    if starts_alone and not state.is_executing:  # after a reboot: a deploy waits, a look need not
        host.noop(f"{service.unit} starts by itself what it is to run")
        return
    if not is_due(host, reasons, f"{service.unit} runs what it is to run"):
        return
    if not state.is_executing:
        for reason in reasons:
            host.log(f"{service.unit}: {reason}")
    failed = services.failed_before(files, found, service.name)
    if failed and not retry:
        because(host, failed.found, refused=True)
        yield refused(failed)
        return
    spec = {**switch_spec(wanted), "restart": not starts_alone}
    yield job_command(f"{service.name}-switch", AIBOX, "door", spec)


def switch_spec(wanted: Wanted) -> dict[str, Any]:
    """The task of the switch, but for whether what runs is started anew."""
    service, files = wanted.service, dict(wanted.files)
    return {
        "unit": service.unit,
        "files": files,
        "url": wanted.url,
        "ready": service.ready,
        "key_file": wanted.key_file,
        "models": None if wanted.models is None else list(wanted.models),
        "seconds": START_S,
        "record": service.record,
        "failed": service.failed,
        "identity": services.identity(files),
        "venv": wanted.venv.folder,
    }


def look(wanted: Wanted) -> dict[str, Any]:
    """The probe's answer about a service."""
    asked = {
        "unit": wanted.service.unit,
        "files": list(wanted.files),
        "keys": list(wanted.keys),
        "venv": wanted.venv.record,
        "record": wanted.service.record,
        "failed": wanted.service.failed,
        "url": wanted.url + wanted.service.ready,
    }
    found: dict[str, Any] = host.get_fact(Probe, "door", json.dumps(asked))
    return found


def say_differences(files: Mapping[str, str], there: Mapping[str, Any]) -> None:
    if state.config.DIFF and not state.is_executing:
        for path, text in files.items():
            old = there[path]["text"] if there[path] else ""
            show_difference(difference(path, old.encode(), text.encode()))


# --- turned off ----------------------------------------------------------------------------------


@operation()
def withdrawn(service: Service) -> Commands:
    """One that does not stand: nothing of it is left but its keys. A stranger's is not touched.

    Its user stays until the teardown.
    """
    paths = [*service.files, service.record, service.failed]
    asked = {"unit": service.unit, "paths": paths, "root": service.root}
    found = host.get_fact(Probe, "door_left", json.dumps(asked))
    paths = [*found["paths"], *found["venvs"]]
    stands = found["unit"] == services.OURS and found["stands"]
    if not paths and not stands:
        host.noop(f"{service.title} does not stand here")
        return
    because(host, f"{service.title} is not wanted any more")
    if stands:
        unit = QuoteString(service.unit)  # one without its file can only be stopped
        yield StringCommand("systemctl disable --now", unit, "|| systemctl stop", unit)
        yield StringCommand("rm -f", QuoteString(service.unit_file), "&& systemctl daemon-reload")
    if paths:
        yield StringCommand("rm -rf", *(QuoteString(path) for path in paths))
    yield StringCommand("rmdir --ignore-fail-on-non-empty", QuoteString(service.root), "|| true")
