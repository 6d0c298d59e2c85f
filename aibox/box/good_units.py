"""What the box remembers of its server: the units that passed the gate, and those that did not.

/var/lib/aibox/server/history.json        what passed, the newest first; see decide/history.py
/var/lib/aibox/server/failed.json         {sum of a unit: when it failed and why}
/var/lib/aibox/server/units/<sum>.service  the unit itself, for a person to copy back
/var/lib/aibox/server/units/<sum>.json     all that the gate asks of it
/var/lib/aibox/server/spec.json           the newest candidate, passed or not
/var/lib/aibox/server/found*.json          what a person had built by hand; see found.py
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from aibox.box import found
from aibox.box.job import Spec, write_whole
from aibox.box.probe.files import SERVER_STATE, record_in
from aibox.decide import history
from aibox.decide.history import Passed
from aibox.decide.memory_account import Account
from aibox.decide.secrecy import without_secrets, words_without_secrets

MOST_FAILED = 20
NO_NAME = "a model that it did not name"
OF_ONE_RUN = ("verb", "secret", "restart", "retry", "how")


def sum_of(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogateescape")).hexdigest()


# --- units -----------------------------------------------------------------------------------


def keep(spec: Spec) -> None:
    """Lay aside what a unit is, before anything stops: where the disk is full it ends here."""
    folder, name = SERVER_STATE / "units", sum_of(spec["text"])
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / f"{name}.service", spec["text"], mode=0o600)
    write_whole(folder / f"{name}.json", as_text(spec), mode=0o600)


def as_text(spec: Spec) -> str:
    """Without what only one run was told."""
    return json.dumps({key: value for key, value in spec.items() if key not in OF_ONE_RUN})


def kept(name: str) -> Spec | None:
    """All that is known of a unit by its sum; None when it is no longer there, or not whole."""
    spec = record_in(SERVER_STATE / "units" / f"{name}.json")
    return spec if spec and sum_of(str(spec.get("text"))) == name else None


def forget_the_rest() -> None:
    """Only what the history names stays, and what was found, for ever."""
    named = {entry.sha256 for entry in passed()}
    named |= {str(record["sha256"]) for record in found.records()}
    for path in (SERVER_STATE / "units").glob("*"):
        if path.stem not in named:
            path.unlink()


# --- what was found --------------------------------------------------------------------------


def found_units(unit: str | None = None) -> list[Passed]:
    """Those of them that can be tried, as entries of a history, the newest first; a text once."""
    newest: dict[str, Passed] = {}
    for record in reversed(found.records(unit)):
        spec = kept(record["sha256"])
        of_unit = spec is not None and spec.get("unit") == record["unit"]
        if spec is not None and of_unit and record["sha256"] not in newest:
            entry = entry_of(spec, None, None, Account())
            his = replace(entry, when=record["when"], how=history.AS_FOUND)
            newest[record["sha256"]] = his
    return list(newest.values())


# --- what passed -----------------------------------------------------------------------------


def passed(unit: str | None = None) -> list[Passed]:
    """The history, the newest first; empty where there is none, or none that can be read.

    unit: without entries that are known to be of a unit of another name.
    """
    try:
        entries = history.read(json.loads((SERVER_STATE / "history.json").read_text()))
    except (OSError, ValueError):
        return []
    return [one for one in entries if unit in (None, unit_of(one, unit))]


def unit_of(entry: Passed, unknown: str | None) -> str | None:
    spec = kept(entry.sha256)
    return unknown if spec is None else spec.get("unit", unknown)


def entry_of(spec: Spec, took: float | None, down: float | None, memory: Account) -> Passed:
    """The history's entry of a unit that passes now. took, down: seconds, see history.py."""
    return Passed(
        sha256=sum_of(spec["text"]),
        when=round(time.time(), 3),
        release=spec["release"],
        release_id=spec["release_id"],
        weights=spec["weights"],
        commit=spec["commit"],
        model=spec["model"] or NO_NAME,
        speculative=spec["speculative"],
        command=words_without_secrets(spec["command"]),
        how=spec.get("how", history.BY_DEPLOY),
        seconds_start=None if took is None else round(took, 1),
        seconds_down=None if down is None else round(down, 1),
        account=memory.record(),
        environment=shown(spec.get("environment") or {}) or None,
    )


def shown(environment: Mapping[str, str]) -> dict[str, str]:
    """A unit's variables for whoever reads the history: the values of secrets are left out."""
    told = {name: without_secrets(f"{name}={value}") for name, value in environment.items()}
    return {name: text.partition("=")[2] for name, text in told.items()}


def mark_good(entry: Passed) -> None:
    rows = history.with_newest(passed(), entry)
    SERVER_STATE.mkdir(parents=True, exist_ok=True)
    write_whole(SERVER_STATE / "history.json", json.dumps(rows, indent=1))
    forget_failure(entry.sha256)
    forget_the_rest()


def still_there() -> set[str]:
    """The folders of the history's releases and weights, and the units, that the box still has."""
    there = {path.stem for path in (SERVER_STATE / "units").glob("*.json") if kept(path.stem)}
    entries = passed()
    his = {entry.sha256 for entry in entries if entry.how == history.AS_FOUND}
    his |= {str(record["sha256"]) for record in found.records()}
    for entry in [*entries, *found_units()]:
        theirs = entry.sha256 in his  # no record of ours lies in it
        there |= {entry.release} if is_there(entry.release, "release.json", theirs) else set()
        there |= {entry.weights} if is_there(entry.weights, ".verified.json", theirs) else set()
    return there


def is_there(folder: str, record: str, theirs: bool) -> bool:
    """Ours with its record; of one that was found the folder is enough.

    What is no whole path of it can't be gone: a repository's id, or nothing that is known.
    """
    if theirs:
        return not folder.startswith("/") or Path(folder).is_dir()
    return Path(folder, record).is_file()


# --- what failed -----------------------------------------------------------------------------


def failures() -> dict[str, Any]:
    return record_in(SERVER_STATE / "failed.json") or {}


def remember_failure(name: str, failure: dict[str, Any]) -> None:
    rest = {key: value for key, value in failures().items() if key != name}
    rows = dict([*rest.items(), (name, failure)][-MOST_FAILED:])
    SERVER_STATE.mkdir(parents=True, exist_ok=True)
    write_whole(SERVER_STATE / "failed.json", json.dumps(rows, indent=1))


def forget_failure(name: str) -> None:
    rest = failures()
    if rest.pop(name, None) is not None:
        write_whole(SERVER_STATE / "failed.json", json.dumps(rest, indent=1))
