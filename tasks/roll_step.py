"""A step of a rolling update on some hosts, within a run of pyinfra: `tasks/rotation.py`.

The roll leaves what it asks in a folder, and finds there what each host answered.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from paramiko import SSHException
from pyinfra.api import FunctionCommand, Host, QuoteString, State, StringCommand, operation
from pyinfra.api.exceptions import FactProcessError

from aibox.decide import roll
from aibox.decide.roll import Gateway, Left
from aibox.gateway.rotation import boxes_in
from tasks.box import AIBOX
from tasks.facts import Probe
from tasks.operations import Commands, connector_arguments
from tasks.progress import WITHOUT_TERMINAL_S

FOLDER = "AIBOX_ROLL"  # the name in the environment
# {"words": of aibox}; {"question", "of"} of the probe; or {"box", "seconds", "at": who is asked
# until the box is quiet}
ASKED = "asked.json"
AT_GATEWAY, AT_BOX = "gateway", "box"
WAITS = "waits: "  # how a line begins that a person is to see
POLL_S = 1.0
NOT_REACHED = "it was not reached"


@operation()
def done(folder: str) -> Commands:
    asked = json.loads(Path(folder, ASKED).read_text())
    yield FunctionCommand(answer, (folder, asked), {})


def answer(state: State, host: Host, folder: str, asked: dict[str, Any]) -> bool:
    """Leave what the host answered: {"host", "answer", "error": text or null}."""
    try:
        found = answered(host, asked)
    except (OSError, EOFError, ValueError, SSHException, FactProcessError) as error:
        found = {"answer": None, "error": str(error) or type(error).__name__}
    name = f"{list(state.inventory).index(host)}.answer"
    Path(folder, name).write_text(json.dumps({"host": host.name, **found}))
    return True


def answered(box: Host, asked: dict[str, Any]) -> dict[str, Any]:
    if "words" in asked:
        return said_by_aibox(box, asked["words"])
    if "question" in asked:
        return {"answer": probed(box, asked["question"], asked["of"]), "error": None}
    name, is_gateway = asked["box"], asked["at"] == AT_GATEWAY

    def look() -> Left:
        return left_at_gateway(box, name) if is_gateway else Left(**probed(box, "requests", {}))

    left = until_quiet(look, asked["seconds"], lambda words: box.log(f"{WAITS}{words}"))
    return {"answer": asdict(left), "error": None}


def said_by_aibox(box: Host, words: list[str]) -> dict[str, Any]:
    command = StringCommand(AIBOX, *(QuoteString(word) for word in words))
    _, output = box.run_shell_command(command, **connector_arguments(box))
    said = output.stdout_lines
    error = None if said else " ".join(output.stderr.split()) or "it says nothing"
    return {"answer": json.loads(said[-1]) if said else None, "error": error}


def probed(box: Host, question: str, asked: dict[str, Any]) -> Any:
    fact = Probe()
    command = StringCommand(fact.command(question, json.dumps(asked)))
    _, output = box.run_shell_command(command, **connector_arguments(box))
    return fact.process(output.stdout_lines)


def left_at_gateway(box: Host, name: str) -> Left:
    """What the gateway waits for at the box of this name."""
    gateway = gateway_of(box.name, said_by_aibox(box, ["rotation", "--json"]))
    return Left(roll.running_at(name, gateway))


def gateway_of(name: str, found: dict[str, Any] | None) -> Gateway:
    """found: as `answer` leaves it, to words of `aibox rotation`; None where nothing is there."""
    if found is None:
        return Gateway(name, None, NOT_REACHED)
    told = found["answer"] if isinstance(found["answer"], dict) else {}
    if told.get("gateway") or "boxes" not in told:
        said = told.get("gateway") or found["error"]
        return Gateway(name, None, said or "its aibox answers otherwise")
    try:
        return Gateway(name, boxes_in(told["boxes"]))
    except ValueError as error:
        return Gateway(name, None, f"its aibox answers otherwise: {error}")


def until_quiet(
    look: Callable[[], Left],
    seconds: float,
    say: Callable[[str], None],
    now: Callable[[], float] = time.monotonic,
    sleep: Callable[[float], None] = time.sleep,
) -> Left:
    """Until two looks in a row have found nothing that runs, or the seconds are over: what was
    found last. A look that fails has found what is not known; a lost connection ends it (OSError,
    EOFError, SSHException). say: is given words now and then."""
    began, shown, last = now(), 0.0, Left(None)
    while True:
        before, last = last, seen(look)
        passed = now() - began
        if before.running == last.running == 0:
            return last
        if last.running != 0 and passed >= seconds:
            return last
        if last.running and passed - shown >= WITHOUT_TERMINAL_S:
            shown = passed
            say(roll.still_runs(last.running, passed))
        sleep(POLL_S)


def seen(look: Callable[[], Left]) -> Left:
    try:
        return look()
    except (ValueError, LookupError, TypeError, FactProcessError):
        return Left(None)
