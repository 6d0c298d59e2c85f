"""What the doors have in common, and the GPU exporter: user, venv, a switch behind a gate, and
being turned off."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from typing import Any

import jinja2
from pyinfra import host, state
from pyinfra.api import QuoteString, StringCommand, operation

from aibox.box.good_units import sum_of
from aibox.decide import doors
from aibox.decide.doors import Door, Standing
from aibox.decide.preflight import BoxReport, Need
from aibox.decide.refusal import Refusal
from aibox.decide.unit import systemd_assignment
from aibox.settings import Settings
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

START_S = 180  # LiteLLM took 9 to 12 s, and 42 s on a busy machine
ROOTS = {"user": "root", "group": "root", "mode": "644"}
LOCKS = PROJECT / "group_data/locks"  # of the product itself, whatever locks vLLM comes from


@dataclass(frozen=True)
class Venv:
    """A door's venv. size, fetch: bytes on the disk and on the wire. wheels: a folder on the box
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
    """A door as this run wants it. files: {path: text}, its unit among them. key_file: with a key
    that opens it, None where it is open. keys: every file of keys that it reads when it starts.
    models: None where it knows of none. environment: names in its unit."""

    door: Door
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


def asked(settings: Settings) -> list[doors.Asked]:
    return [
        doors.Asked(doors.STREAM, settings.stream, settings.stream_port),
        doors.Asked(doors.GATEWAY, settings.gateway, settings.gateway_port),
    ]


def judged(settings: Settings, report: BoxReport) -> Standing:
    """Which doors stand, by what listens on the box now."""
    stream, gateway = (
        doors.judge(one, report.ports.get(one.port), report.units.get(one.door.unit))
        for one in asked(settings)
    )
    ports = {"stream": settings.stream_port, "server": settings.server_port}
    address = settings.doors_address
    asks = doors.upstream(settings.gateway_upstream, stream, address, ports)
    return Standing(stream, gateway, asks)


def refusals(standing: Standing) -> list[Refusal]:
    return [one.refusal for one in (standing.stream, standing.gateway) if one.refusal]


def needs(
    report: BoxReport, on: Mapping[Door, bool], venvs: Mapping[Door, Venv]
) -> tuple[Need, ...]:
    """Room for the venvs that are not there yet. on: which of them are to stand."""
    return tuple(
        Need(door.title, door.root, None, venv.size)
        for door, venv in venvs.items()
        if on[door] and not report.sizes.get(venv.folder)
    )


# --- what is laid down ---------------------------------------------------------------------------


@cache
def lock_text(name: str) -> str:
    return (LOCKS / f"{name}.txt").read_text()


def unit_text(template: str, door: Door, environment: Mapping[str, str], **more: Any) -> str:
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PROJECT / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  a unit file is no web page
    )
    return templates.get_template(template).render(
        user=door.user,
        home=door.home,
        aibox=AIBOX,
        seconds=START_S,
        environment=[systemd_assignment(name, value) for name, value in environment.items()],
        **more,
    )


def no_keys() -> None:
    """For what is open."""


def laid_out(wanted: Wanted, box: Box, keys: Callable[[], None] = no_keys) -> None:
    """The operations of a door that stands, in their order."""
    door = wanted.door
    service_user(name=f"User {door.user}", user=door.user, home=door.home)
    venv_there(name=f"Venv {wanted.venv.id} of {door.title}", wanted=wanted, box=box)
    roots_own(name=f"Owner of {door.title}", folders=[door.root, wanted.venv.folder])
    keys()
    retry = box.settings.retry_failed
    switched(name=f"{door.unit} runs what it is to run", wanted=wanted, retry=retry)
    starts_at_boot(name=f"{door.unit} starts at boot", unit=door.unit)


@operation()
def venv_there(wanted: Wanted, box: Box) -> Commands:
    """The folder exists only when it is whole."""
    venv, job = wanted.venv, f"{wanted.door.name}-venv"
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
    """The door runs from these files and has passed its gate; what was there comes back if not.

    retry: whether what has failed its gate before is tried again.
    """
    door, files = wanted.door, dict(wanted.files)
    for path, text in files.items():
        ledger.of(host).files[path] = {**ROOTS, "sha256": sum_of(text)}
    found = look(wanted)
    reasons = doors.reasons(door, files, found)
    say_differences(files, found["files"])
    if not is_due(host, reasons, f"{door.unit} runs what it is to run"):
        return
    if not state.is_executing:
        for reason in reasons:
            host.log(f"{door.unit}: {reason}")
    failed = doors.failed_before(files, found, door.name)
    if failed and not retry:
        because(host, failed.found, refused=True)
        yield refused(failed)
        return
    spec = {**switch_spec(wanted), "restart": reasons != [doors.STARTING]}
    yield job_command(f"{door.name}-switch", AIBOX, "door", spec)


def switch_spec(wanted: Wanted) -> dict[str, Any]:
    """The task of the switch, but for whether what runs is started anew."""
    door, files = wanted.door, dict(wanted.files)
    return {
        "unit": door.unit,
        "files": files,
        "url": wanted.url,
        "ready": door.ready,
        "key_file": wanted.key_file,
        "models": None if wanted.models is None else list(wanted.models),
        "seconds": START_S,
        "record": door.record,
        "failed": door.failed,
        "identity": doors.identity(files),
        "venv": wanted.venv.folder,
    }


def look(wanted: Wanted) -> dict[str, Any]:
    """The probe's answer about a door."""
    asked = {
        "unit": wanted.door.unit,
        "files": list(wanted.files),
        "keys": list(wanted.keys),
        "venv": wanted.venv.record,
        "record": wanted.door.record,
        "failed": wanted.door.failed,
        "url": wanted.url + wanted.door.ready,
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
def withdrawn(door: Door) -> Commands:
    """A door that does not stand: nothing of it is left but its keys. A stranger's is not touched.

    Its user stays until the teardown.
    """
    paths = [*door.files, door.record, door.failed]
    asked = {"unit": door.unit, "paths": paths, "root": door.root}
    found = host.get_fact(Probe, "door_left", json.dumps(asked))
    paths = [*found["paths"], *found["venvs"]]
    stands = found["unit"] == doors.OURS and found["stands"]
    if not paths and not stands:
        host.noop(f"{door.title} does not stand here")
        return
    because(host, f"{door.title} is not wanted any more")
    if stands:
        unit = QuoteString(door.unit)  # one without its file can only be stopped
        yield StringCommand("systemctl disable --now", unit, "|| systemctl stop", unit)
        yield StringCommand("rm -f", QuoteString(door.unit_file), "&& systemctl daemon-reload")
    if paths:
        yield StringCommand("rm -rf", *(QuoteString(path) for path in paths))
    yield StringCommand("rmdir --ignore-fail-on-non-empty", QuoteString(door.root), "|| true")
