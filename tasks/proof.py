"""After a change a real completion, on an unchanged box only a look; then the last screen."""

from __future__ import annotations

import json
import shlex
from typing import Any

from pyinfra import host, state
from pyinfra.api import FunctionCommand, Host, State, deploy, operation

from aibox.decide import fleet, monitoring
from aibox.decide.doors import MASTER_KEY, plan_rows
from aibox.decide.plan import labelled
from aibox.decide.refusal import Refusal
from aibox.decide.server import proof_is_owed
from aibox.decide.standing import mtp, shortened, speed
from tasks import (
    deployed,
    doors,
    drift_metrics,
    left_out,
    monitor,
    page,
    release,
    watching,
    weights,
)
from tasks.box import AIBOX, Box
from tasks.door_keys import stream_keys
from tasks.drift_report import because
from tasks.operations import Commands, call_aibox, say_refusal
from tasks.server import server_state, unit_text, what_is_due

LABEL = 11  # columns


@deploy("Proof")
def served(box: Box) -> None:
    proven(name="A completion, with accepted drafts", box=box)
    weights.old_commits_removed(name="Weights that were superseded", box=box)
    deployed.recorded(name="The record of what was laid down", box=box)
    release.older_removed(name="Releases that nobody asks for", box=box)
    drift_metrics.mended(name="Figures of the last check for drift")
    last_screen(name="The last screen", box=box)


@operation()
def proven(box: Box) -> Commands:
    """The card's probe through /v1/chat/completions, once for each thing the server has been."""
    owed = proof_is_owed(server_state(box), box.serving)
    if owed and not state.is_executing and what_is_due(box, unit_text(box))[0].reasons:
        host.noop("the switch before it proves it")
        return
    if owed is None:
        host.noop("this very server has proven itself")
        return
    because(host, owed)
    yield FunctionCommand(prove, (box.proof_spec,), {})


def prove(state: State, host: Host, spec: dict[str, Any]) -> bool:
    try:
        answer = call_aibox(host, AIBOX, ["prove"], spec)
    except ConnectionError as error:
        remedy = "run the deploy again"
        say_refusal(host, Refusal(f"the box gave no answer ({error})", "a proof", remedy))
        return False
    if not answer["ok"]:
        say_refusal(host, Refusal(**answer["refusal"]))
    return bool(answer["ok"])


@operation()
def last_screen(box: Box) -> Commands:
    """What serves, how fast, how to reach it. Only shown: a generator that yields nothing."""
    if state.is_executing:
        rows = page.as_read(screen(box, server_state(box)), LABEL)
        commands = labelled("next", next_commands(box))  # whole, to be copied
        page.keep([*rows, *(page.labelled(*row, LABEL) for row in commands)])
    yield from ()


def screen(box: Box, found: dict[str, Any]) -> list[tuple[str, str]]:
    """The rows of the last screen but for its commands: (label, text)."""
    proof = found["proof"] or {}
    return [
        ("serves", f"{box.served_model} on http://localhost:{box.settings.server_port}/v1"),
        ("model", f"{box.settings.weights.repository} at {box.settings.weights.commit[:12]}"),
        ("release", f"vLLM {box.release.release_id}"),
        ("answered", f"{shortened(proof.get('text', ''))!r}"),
        ("speed", f"{speed(proof)} in the last proof"),
        ("MTP", mtp(box.speculative, proof)),
        *labelled("doors", door_rows(box)),
        *labelled("gateway", fleet.plan_rows(box.fleet)),
        *labelled("rotation", left_out.rows(box)),
        *labelled("metrics", monitoring.plan_rows(watching.asked(box.settings), box.watched)),
        *labelled("monitor", monitor.screen_rows(box.settings)),
    ]


def door_rows(box: Box) -> list[str]:
    """How other machines reach the server, and where the keys to it lie on the box."""
    rows = plan_rows(doors.asked(box.settings), box.doors)
    if box.doors.stream.on:
        keys = "with the keys of secrets/stream-keys" if stream_keys() else "without any key"
        rows.append(f"the filter is open to whoever reaches it {keys}")
    else:
        port = box.settings.server_port
        rows.append(f"without the filter only this box reads localhost:{port}/metrics")
    if box.doors.gateway.on:
        rows.append(f"LiteLLM's key: sudo cat {MASTER_KEY}")
    return rows


def next_commands(box: Box) -> list[str]:
    """What one types next: reach it, ask it, watch it."""
    port = box.settings.server_port
    here = host.name == "@local"
    there = "" if here else f"ssh -t {host.name} "
    question = {"model": box.served_model, "messages": [{"role": "user", "content": "Hello"}]}
    commands = [
        f"curl -s localhost:{port}/v1/chat/completions -H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(question))}",
        f"{there}sudo {AIBOX} status",
    ]
    if box.fleet:
        commands.append(f"{there}sudo {AIBOX} clients    the gateway's address, for your clients")
    reach = f"ssh -fNL {port}:localhost:{port} {host.name}    its API on this machine too"
    return [reach, *commands] if not here else [*commands, "python -m tasks.drift"]
