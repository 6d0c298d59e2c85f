"""The words around a switch: what came of it, what it cost, and what a found unit serves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import PurePosixPath
from typing import Any

from aibox.decide import memory_account
from aibox.decide.faults import Cause
from aibox.decide.history import Passed
from aibox.decide.refusal import Refusal
from aibox.decide.secrecy import without_secrets, words_without_secrets

UNKNOWN = ("release", "release_id", "weights", "commit")
AGAIN = "pyinfra inventory deploy.py --data retry_failed=true"


def facts_of(command: Sequence[str]) -> dict[str, Any]:
    """Release, weights and command of a server that nobody of us started; empty texts where it is
    no `vllm serve WEIGHTS`.

    command: as in /proc, with the interpreter in front of the script or without.
    """
    words = list(command)
    at = next((i for i, word in enumerate(words[:5]) if word.endswith("/bin/vllm")), None)
    if at is None or not serves_a_folder(words[at + 1 : at + 3]):
        return {"command": words, **dict.fromkeys(UNKNOWN, "")}
    release, weights = PurePosixPath(words[at]).parent.parent, PurePosixPath(words[at + 2])
    return {
        "command": words[at:],
        "release": str(release),
        "release_id": release.name,
        "weights": str(weights),
        "commit": weights.name,
    }


def serves_a_folder(words: Sequence[str]) -> bool:
    """Whether these are `serve WEIGHTS`, and no flag."""
    return len(words) == 2 and words[0] == "serve" and not words[1].startswith("-")


def notes(entry: Passed, flags: Mapping[str, Any]) -> list[str]:
    """What the person reads after a switch that went well."""
    rows = []
    if entry.seconds_start is not None:
        rows.append(f"passed its gate; the server's own start took {entry.seconds_start:.1f} s")
    if entry.seconds_down is not None:
        rows.append(f"{entry.seconds_down:.1f} s without service")
    account = memory_account.of_record(entry.account)
    return rows + [f"{label}: {text}" for label, text in memory_account.rows(account, None, flags)]


def serves_again(entry: Passed) -> str:
    """What runs after the way back."""
    return (
        f"back to the last good unit ({entry.model}, vLLM {entry.release_id}, unit "
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
        remedy = f"{stopped_by.remedy}\nno known cause is in its journal: see `sudo aibox doctor`"
        return Refusal(found, stopped_by.expected, remedy)
    rows = [row for cause in causes for row in (cause.found, f"  {cause.line}")]
    found = "\n".join(without_secrets(row) for row in [stopped_by.found, *rows, now])
    remedies = list(dict.fromkeys(cause.remedy for cause in causes))
    if not causes[0].passing:
        remedies.append(f"the same unit is not tried again by itself; to try it: {AGAIN}")
    return Refusal(found, stopped_by.expected, "\n".join(remedies))
