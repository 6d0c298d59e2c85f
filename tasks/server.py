"""The server: its user, its unit, and a process that runs exactly what the card says."""

from __future__ import annotations

import json
from typing import Any

import jinja2
from pyinfra import host
from pyinfra.api import deploy, operation

from aibox.decide.refusal import Refusal
from aibox.decide.server import is_starting, reasons_to_restart
from aibox.decide.unit import exec_start, systemd_assignment
from tasks.box import AIBOX, PROJECT, Box
from tasks.drift_report import because
from tasks.facts import Probe
from tasks.operations import (
    Commands,
    job_command,
    laid_down,
    refused,
    service_user,
    starts_at_boot,
)


@deploy("Server")
def running(box: Box) -> None:
    user = box.settings.server_user
    service_user(name=f"User {user}", user=user, home=f"/var/lib/{box.settings.server_unit}")
    laid_down(
        name=f"Unit {box.unit}",
        path=box.unit_file,
        content=unit_text(box).encode(),
    )
    starts_at_boot(name=f"{box.unit} starts at boot", unit=box.unit)
    switched(name=f"{box.unit} runs what the card says", box=box)
    unit_read(name=f"systemd has read {box.unit} as it is", box=box)


def unit_text(box: Box) -> str:
    """The unit file. Flags stand one a line, as `systemctl cat` shows them."""
    serving = box.serving
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PROJECT / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  a unit file is no web page
    )
    return templates.get_template("vllm-coder.service.j2").render(
        served=box.settings.model,
        unit=serving.unit,
        user=serving.user,
        port=serving.port,
        start_timeout=serving.start_timeout,
        weights=serving.weights,
        release=serving.release,
        aibox=AIBOX,
        environment=[
            systemd_assignment(name, value) for name, value in serving.environment.items()
        ],
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


@operation()
def switched(box: Box) -> Commands:
    """Restart the server where what runs is not what is wanted, and wait until it answers."""
    found = server_state(box)
    reasons = reasons_to_restart(found, box.serving)
    if not reasons and not is_starting(found):
        host.noop(f"{box.unit} runs what the card says")
        return
    for reason in reasons or ["it is starting by itself; waiting for it"]:
        host.log(f"{box.unit}: {reason}")
        because(host, reason)
    timeout = box.settings.start_timeout_s + 60
    spec = {"unit": box.unit, "restart": bool(reasons), "timeout": timeout}
    yield job_command("switch", AIBOX, "switch", spec)
    found = server_state(box)
    left = reasons_to_restart(found, box.serving)
    if left:
        yield refused(still_another(box, left, found["unit"].get("DropInPaths") or "none"))


def still_another(box: Box, left: list[str], drop_ins: str) -> Refusal:
    return Refusal(
        f"{box.unit} was started anew, and still {'; '.join(left)}",
        "a server that runs what the card says",
        f"look at what overrides its unit (drop-ins: {drop_ins}): systemctl cat {box.unit}",
    )


@operation()
def unit_read(box: Box) -> Commands:
    """systemd holds no other version of the unit than the one that lies there."""
    if server_state(box)["unit"].get("NeedDaemonReload") != "yes":
        host.noop(f"{box.unit} is read as it lies there")
        return
    because(host, "systemd has not read the unit, or a drop-in of it, as it is now")
    yield "systemctl daemon-reload"
