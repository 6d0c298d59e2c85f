"""A step of a rolling update on one host, within a run of pyinfra: `tasks/rotation.py`.

The roll leaves what it asks in a folder, and finds there what each host answered.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from paramiko import SSHException
from pyinfra.api import FunctionCommand, Host, QuoteString, State, StringCommand, operation
from pyinfra.api.exceptions import FactProcessError

from aibox.decide import roll
from tasks.box import AIBOX
from tasks.facts import Probe
from tasks.operations import Commands, connector_arguments
from tasks.progress import WITHOUT_TERMINAL_S

FOLDER = "AIBOX_ROLL"  # the name in the environment
ASKED = "asked.json"  # {"words": of aibox} or {"seconds": until the box has to be quiet}
WAITS = "waits: "  # how a line begins that a person is to see
POLL_S = 1.0


@operation()
def done(folder: str) -> Commands:
    asked = json.loads(Path(folder, ASKED).read_text())
    yield FunctionCommand(answer, (folder, asked), {})


def answer(state: State, host: Host, folder: str, asked: dict[str, Any]) -> bool:
    """Leave what the host answered: {"host", "answer", "error": text or null}."""
    try:
        found = said_by_aibox(host, asked["words"]) if "words" in asked else waited(host, asked)
    except (OSError, EOFError, ValueError, SSHException, FactProcessError) as error:
        found = {"answer": None, "error": str(error) or type(error).__name__}
    name = f"{list(state.inventory).index(host)}.answer"
    Path(folder, name).write_text(json.dumps({"host": host.name, **found}))
    return True


def said_by_aibox(box: Host, words: list[str]) -> dict[str, Any]:
    command = StringCommand(AIBOX, *(QuoteString(word) for word in words))
    _, output = box.run_shell_command(command, **connector_arguments(box))
    said = output.stdout_lines
    error = None if said else " ".join(output.stderr.split()) or "it says nothing"
    return {"answer": json.loads(said[-1]) if said else None, "error": error}


def waited(box: Host, asked: dict[str, Any]) -> dict[str, Any]:
    """Until the box has run nothing for two looks, or the seconds are over: "answer" is how many
    requests were left, 0 where it is quiet."""
    fact, began, shown, last = Probe(), time.monotonic(), 0.0, None
    while (seconds := time.monotonic() - began) < asked["seconds"]:
        command = StringCommand(fact.command("requests"))
        _, output = box.run_shell_command(command, **connector_arguments(box))
        before, last = last, fact.process(output.stdout_lines)["running"]
        if before == last == 0:
            break
        if seconds - shown >= WITHOUT_TERMINAL_S and last:
            shown = seconds
            box.log(f"{WAITS}{roll.still_runs(last, seconds)}")
        time.sleep(POLL_S)
    return {"answer": last, "error": None}
