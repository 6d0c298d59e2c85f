"""The words around a switch: what came of it, what it cost, and what a found unit serves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import PurePosixPath
from typing import Any

from aibox.decide import memory_account
from aibox.decide.faults import Cause
from aibox.decide.history import Passed, release_of
from aibox.decide.launch import in_words, launched
from aibox.decide.manifest import AIBOX
from aibox.decide.refusal import Refusal
from aibox.decide.secrecy import without_secrets, words_without_secrets

AGAIN = "pyinfra inventory deploy.py --data retry_failed=true"
# Programs whose folder's parent is a venv, where it is not the system's own.
PROGRAMS = re.compile(r"(/.+)/bin/(?:vllm|python[0-9.]*)")
SYSTEM_FOLDERS = ("/usr", "/usr/local")


def facts_of(command: Sequence[str]) -> dict[str, Any]:
    """Release, weights, port and command of a server that nobody of us started.

    command: as in /proc: with the interpreter in front of the script or without, by `vllm serve`,
    the module, a shell or uv. release is the venv's folder, weights a folder or a repository's id;
    both are empty texts where they are not known, and so is the commit of a folder that names none.
    """
    start = launched(command)
    if start is None:
        unknown = dict.fromkeys(("release", "release_id", "weights", "commit"), "")
        return {"command": list(command), "port": None, **unknown}
    release = venv_of(command)
    program = f"{release}/bin/vllm" if release else "vllm"
    return {
        "command": [program, "serve", start.model, *start.without()],
        "port": start.port,
        "release": release,
        "release_id": PurePosixPath(release).name,
        "weights": start.model,
        "commit": PurePosixPath(start.model).name if start.model.startswith("/") else "",
    }


def venv_of(command: Sequence[str]) -> str:
    """The venv that a command line runs from; an empty text for the system's own python."""
    words = [part for word in command for part in ([word] if " " not in word else in_words(word))]
    found = [match[1] for word in words if (match := PROGRAMS.fullmatch(word))]
    return next((folder for folder in found if folder not in SYSTEM_FOLDERS), "")


def notes(entry: Passed, flags: Mapping[str, Any]) -> list[str]:
    """What the person reads after a switch that went well."""
    rows = []
    if entry.seconds_start is not None:
        rows.append(f"passed its gate; the server's own start took {entry.seconds_start:.1f} s")
    if entry.seconds_down is not None:
        rows.append(f"{entry.seconds_down:.1f} s without service")
    account = memory_account.of_record(entry.account)
    return rows + [
        f"{label}: {text}" for label, text in memory_account.rows(account, None, flags, serves=True)
    ]


def serves_again(entry: Passed) -> str:
    """What runs after the way back."""
    return (
        f"back to the last good unit ({entry.model}, {release_of(entry)}, unit "
        f"{entry.sha256[:12]}): it has passed its gate again and serves"
    )


def with_seconds(story: Refusal, seconds: float) -> Refusal:
    """The same, and how long nothing served."""
    return replace(story, found=f"{story.found}\n{seconds:.1f} s without service")


def not_recorded(unit: str, why: Refusal) -> Refusal:
    """It has passed, and that could not be written down."""
    return Refusal(
        f"{unit} has passed its gate and serves, but it was not recorded: {why.found}",
        "a disk that can be written",
        "mend this on the box and run the deploy again: nothing is started anew",
    )


def failure(
    command: Sequence[str], cause: Cause | None, said: Sequence[str], when: float
) -> dict[str, Any]:
    """What failed.json holds of a candidate, without secrets."""
    told = asdict(cause) if cause else {}
    for part in ("found", "remedy", "line") if cause else ():
        told[part] = without_secrets(told[part])
    return {
        "when": round(when, 3),
        "command": words_without_secrets(command),
        "cause": told or None,
        "lines": [without_secrets(line) for line in said],
    }


def failed(stopped_by: Refusal, causes: Sequence[Cause], said: Sequence[str], now: str) -> Refusal:
    """Why a candidate failed, and what runs now. said: the journal's last errors, bare."""
    if not causes:
        lines = [stopped_by.found, *(["the last it said:", *said] if said else []), now]
        found = "\n".join(without_secrets(line) for line in lines)
        remedy = f"{stopped_by.remedy}\nno known cause is in its journal: see `sudo {AIBOX} doctor`"
        return Refusal(found, stopped_by.expected, remedy)
    rows = [row for cause in causes for row in (cause.found, f"  {cause.line}")]
    found = "\n".join(without_secrets(row) for row in [stopped_by.found, *rows, now])
    remedies = list(dict.fromkeys(cause.remedy for cause in causes))
    if not causes[0].passing:
        remedies.append(f"the same unit is not tried again by itself; to try it: {AGAIN}")
    return Refusal(found, stopped_by.expected, "\n".join(remedies))
