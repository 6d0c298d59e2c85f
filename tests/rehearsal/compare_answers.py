"""A deploy file that changes nothing: asks a host plainly and in a batch, and shows both answers.

What it asks stands in the file that $QUESTIONS names: rows of [arguments as JSON, command]. Writes
{"plain", "batched", "later"} rows of [ok, stdout lines, stderr lines] as JSON beside it; `later` is
plain once more, for what changes by itself.
"""

import json
import os
from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import StringCommand

from tasks.fact_pipelining import Answer, Batch, Ran, ask

connector = host.connector
run = type(connector).run_shell_command.__wrapped__  # type: ignore[attr-defined]
file = Path(os.environ["QUESTIONS"])
questions: list[tuple[str, str]] = json.loads(file.read_text())


def row(found: Ran) -> list[Any]:
    ok, output = found
    return [ok, output.stdout_lines, output.stderr_lines]


def plainly() -> list[Any]:
    return [
        row(run(connector, StringCommand(command), **json.loads(arguments)))
        for arguments, command in questions
    ]


def batched() -> list[Any]:
    """None for what the batch leaves to be asked plainly."""
    answers: dict[tuple[str, str], Answer] = {}
    for arguments in dict.fromkeys(arguments for arguments, _ in questions):
        commands = dict.fromkeys((command for words, command in questions if words == arguments), 1)
        batch = Batch(arguments, commands)
        found = ask(run, connector, batch, (), json.loads(arguments))
        answers |= {(asked.arguments, asked.command): one for asked, one in found.items()}
    return [
        row(answers[key].told(None)) if (key := (words, command)) in answers else None
        for words, command in questions
    ]


shown = {"plain": plainly(), "batched": batched(), "later": plainly()}
file.with_suffix(".answers").write_text(json.dumps(shown))
