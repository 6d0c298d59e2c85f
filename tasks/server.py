"""The server: its user, its unit, and a process that runs exactly what the card says."""

from __future__ import annotations

import json
from typing import Any

from pyinfra import host, state
from pyinfra.api import deploy, operation

from aibox.box.good_units import sum_of
from aibox.decide.driver_sources import POWER_UNIT
from aibox.decide.fitting import given_share
from aibox.decide.server import Switching, is_starting, refused_by_a_deploy, switching
from aibox.decide.start_limits import unit_limits
from aibox.decide.unit import exec_start
from tasks import known_issues, ledger
from tasks.box import AIBOX, Box
from tasks.drift_report import because, difference
from tasks.facts import LaidFile, Probe
from tasks.operations import (
    Commands,
    job_command,
    roots_own,
    service_user,
    show_difference,
    starts_at_boot,
)
from tasks.unit_text import rendered

SWITCH = "runs what the card says"  # how its operation's name ends
MOST_REASONS = 5  # that a plan shows; a unit that a person wrote differs in everything


@deploy("Server")
def running(box: Box) -> None:
    known_issues.show(box)
    user = box.settings.server_user
    service_user(name=f"User {user}", user=user, home=f"/var/lib/{box.settings.server_unit}")
    switched(name=f"{box.unit} {SWITCH}", box=box)
    roots_own(name=f"Owner of {box.unit}", files=[box.unit_file])
    starts_at_boot(name=f"{box.unit} starts at boot", unit=box.unit)
    unit_read(name=f"systemd has read {box.unit} as it is", box=box)


def unit_text(box: Box) -> str:
    """The unit file. Flags stand one a line, as `systemctl cat` shows them."""
    serving = box.serving
    return rendered(
        "vllm-coder.service.j2",
        serving.environment,
        served=box.settings.model,
        unit=serving.unit,
        user=serving.user,
        port=serving.port,
        start_timeout=serving.start_timeout,
        power_unit=POWER_UNIT,
        limits=unit_limits(serving.start_timeout),
        gpu_uuids=",".join(box.gpu_uuids),
        utilization=given_share(box.settings.flags),
        weights=serving.weights,
        release=serving.release,
        exec_start=exec_start(serving.lines),
    )


def server_state(box: Box) -> dict[str, Any]:
    """The probe's answer about the server (unit, process, health, last proof)."""
    asked = {
        "unit": box.unit,
        "port": box.settings.server_port,
        "proof": box.proof_record,
        "release": box.release_folder,
        "weights": box.weights_folder,
    }
    state: dict[str, Any] = host.get_fact(Probe, "server", json.dumps(asked))
    return state


def what_is_due(box: Box, text: str) -> tuple[Switching, str | None]:
    """What the server needs to run this unit, and the text of the one that is installed."""
    there = host.get_fact(LaidFile, path=box.unit_file)
    installed = there["content"].decode(errors="replace") if there else None
    return switching(server_state(box), box.serving, text, installed), installed


@operation()
def switched(box: Box) -> Commands:
    """The unit is what the card says, and has passed its gate: judged first, undone where it fails.

    The job installs the file only once it has passed, so the plan shows here what it will be.
    """
    text = unit_text(box)
    told: dict[str, str | None] = {
        "user": "root",
        "group": "root",
        "mode": "644",
        "sha256": sum_of(text),
    }
    ledger.of(host).files[box.unit_file] = told
    wanted, installed = what_is_due(box, text)
    if not wanted.reasons and not is_starting(server_state(box)):
        host.noop(f"{box.unit} runs what the card says")
        return
    differs = difference(box.unit_file, (installed or "").encode(), text.encode())
    say_reasons(box, wanted.reasons, [] if installed is None else differs)
    refusal = refused_by_a_deploy(server_state(box), text) if wanted.restart else None
    if refusal is not None and not box.settings.retry_failed:
        because(host, refusal, refused=True)
    spec = {**box.candidate_spec, "text": text, "restart": wanted.restart}
    if wanted.restart:
        yield job_command("judge", AIBOX, "judge", spec)
    yield job_command("switch", AIBOX, "switch", spec)


def say_reasons(box: Box, reasons: list[str], differs: list[str]) -> None:
    """Why, and how the unit will differ: for the plan, --diff and a drift check."""
    if state.config.DIFF and not state.is_executing:
        show_difference(differs)
    for at, reason in enumerate(reasons or ["it is starting by itself; waiting for it"]):
        if at < MOST_REASONS:
            host.log(f"{box.unit}: {reason}")
        because(host, reason, differs if reason.startswith("its unit file") else ())
    if len(reasons) > MOST_REASONS:
        host.log(f"{box.unit}: and {len(reasons) - MOST_REASONS} more; --diff shows the whole unit")


@operation()
def unit_read(box: Box) -> Commands:
    """systemd holds no other version of the unit than the one that lies there."""
    if server_state(box)["unit"].get("NeedDaemonReload") != "yes":
        host.noop(f"{box.unit} is read as it lies there")
        return
    because(host, "systemd has not read the unit, or a drop-in of it, as it is now")
    yield "systemctl daemon-reload"
