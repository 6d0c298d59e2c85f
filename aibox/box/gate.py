"""The gate: a server that was just started has to show that it serves what was asked."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from aibox.box.job import JobError, Progress, Spec
from aibox.box.probe.replies import health
from aibox.box.probe.sockets import holds, listening, ports_of_unit
from aibox.box.probe.units import process
from aibox.box.prove import ask
from aibox.box.service import Service, Start
from aibox.decide.secrecy import without_secrets
from aibox.decide.unit import differences


def passes(
    spec: Spec, service: Service, start: Start, progress: Progress, *, strict: bool = True
) -> dict[str, Any] | None:
    """Health of this very process, its command line, the model's name, a sane answer with drafts.

    A spec whose "probe" is null, of a unit that was found serving, is asked for the rest only.
    strict: whether command line and environment count. Returns the proof, see prove.py. Raises
    JobError.
    """
    progress.step("proving that it serves")
    pid = same_process(service, start)
    if not answers(spec, pid):
        raise not_served(spec, f"/health on port {spec['port']} is not its main process's own")
    if strict:
        running_as_wanted(spec, service)
    model = model_served(spec["port"])
    if spec["model"] is not None and model != spec["model"]:
        raise JobError(
            f"the server on port {spec['port']} serves {model!r}",
            f"the model {spec['model']!r}",
            "see served-model-name in the model card, and what else listens there",
        )
    proof = ask(spec) if spec["probe"] is not None else None
    if same_process(service, start) != pid:
        raise not_served(spec, "its main process was replaced while it was asked")
    return proof


def answers(spec: Spec, pid: int) -> bool:
    """Whether this very process, and no other, answers /health with 200.

    A unit that a person wrote may start its server through a shell or uv: there any process of the
    unit's own control group counts. One in a container is in none.
    """
    port = spec["port"]
    if spec["probe"] is None:
        return port in ports_of_unit(spec["unit"]) and health(port) == 200
    return holds(pid, listening(port)) and health(port) == 200


def same_process(service: Service, start: Start) -> int:
    """The main process of this start. Raises JobError when the unit is in another one by now."""
    found = service.properties()
    pid = int(found["MainPID"] or 0)
    if found["InvocationID"] != start.invocation or found["ActiveState"] != "active" or not pid:
        raise JobError(
            f"{service.name} ended right after it had answered",
            "a server that stays up",
            f"mend the cause; the whole log: sudo journalctl -u {service.name}",
        )
    return pid


def running_as_wanted(spec: Spec, service: Service) -> None:
    found = service.properties()
    running = process(int(found["MainPID"]), found["ExecMainStartTimestamp"])
    rows = ["nothing of the kind"]
    if running is not None:
        rows = differences(running["command"], spec["command"])
        rows += [
            f"with {name}={running['environment'].get(name, '(unset)')}, not {value}"
            for name, value in spec["environment"].items()
            if running["environment"].get(name) != value
        ]
    if rows:
        drop_ins = found["DropInPaths"] or "none"
        runs = without_secrets("; ".join(rows))
        raise JobError(
            f"{service.name} was started anew, and still it runs {runs}",
            "a server that runs what the card says",
            f"look at what overrides its unit (drop-ins: {drop_ins}): systemctl cat {service.name}",
        )


def model_served(port: int) -> str | None:
    """The first model that the server names; None when it names none."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/v1/models", timeout=10) as answer:
            found: Any = json.loads(answer.read())
            return str(found["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError, HTTPException):
        return None


def not_served(spec: Spec, found: str) -> JobError:
    return JobError(
        f"{spec['unit']}: {found}",
        "a server that answers by itself",
        f"look at who listens on port {spec['port']}, and at `journalctl -u {spec['unit']}`",
    )
