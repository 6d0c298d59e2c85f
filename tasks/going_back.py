"""A rollback: the box itself knows what has passed its gate, so no setting is asked."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import click
from pyinfra import host, state
from pyinfra.api import operation

from aibox.decide.history import DEPLOY, Passed, changes, chosen, last_screen, read, release_of
from aibox.decide.refusal import Refusal
from tasks import page, watching
from tasks.box import AIBOX
from tasks.facts import AiboxAnswer, Login
from tasks.operations import Commands, job_command, refused, say_refusal
from tasks.preflight import refusals_of_login

WENT = "went_back"  # in a box's connector data: the unit
NOTHING: dict[str, Any] = {"history": [], "there": [], "installed": None, "serves": False}


def can_work() -> bool:
    """Whether we may work on the box, and an aibox is there to ask. A monitor serves nothing."""
    if watching.is_only_monitor(host):
        return False
    refusals = refusals_of_login(host.get_fact(Login, _sudo=False))
    if not refusals and history_of_box() is None:
        refusals = [Refusal("no aibox on this box", "a box that was deployed to", DEPLOY)]
    for refusal in refusals:
        say_refusal(host, refusal)
    if refusals:
        state.fail_hosts({host})
    return not refusals


def history_of_box() -> dict[str, Any] | None:
    """{"history": entries, "there": what is still on the box, "installed": the unit's sum,
    "found": the entry of a person's own unit or null, "kept": that and older ones, "serves",
    "port": of what is installed}."""
    found: dict[str, Any] | None = host.get_fact(
        AiboxAnswer, program=AIBOX, words="status --history --json"
    )
    return found


def is_well_asked() -> bool:
    """Whether there is what `--data to=` names, or something that served before: so that --dry
    says it too. Asked of a box that can work."""
    target = target_of(history_of_box() or NOTHING)
    if isinstance(target, Refusal):
        say_refusal(host, target)
        state.fail_hosts({host})
    return isinstance(target, Passed)


def target_of(found: dict[str, Any]) -> Passed | Refusal:
    """What to go back to. found: see history_of_box."""
    name = host.data.get("to")
    return chosen(
        read(found["history"]),
        found["there"],
        found["installed"],
        None if name is None else str(name),
        serves=found["serves"],
        found=own_unit(found),
        kept=read(found.get("kept")),
    )


@operation()
def went_back() -> Commands:
    """Switch to an older unit through the same gate; if it fails, to what ran before."""
    found = history_of_box() or NOTHING
    target, own, now = target_of(found), own_unit(found), found["installed"]
    if isinstance(target, Refusal):
        yield refused(target)
        return
    if target.sha256 == now and found["serves"]:
        host.noop("it is what this box serves")
        his = own is not None and own.sha256 == now
        which = "your own unit" if his else f"unit {target.sha256[:12]}"
        show_last(found, target, f"{which} serves already: there is nothing to do")
        return
    say(read(found["history"]), target, now)
    host.connector_data[WENT] = target
    yield job_command("switch", AIBOX, "back", {"sha256": target.sha256})


def own_unit(found: dict[str, Any]) -> Passed | None:
    return next(iter(read([found.get("found")])), None)


def say(history: list[Passed], target: Passed, now: str | None) -> None:
    """Which one, and what it changes."""
    when = datetime.fromtimestamp(target.when, UTC).strftime("%Y-%m-%d %H:%M UTC")
    host.log(f"back to unit {target.sha256[:12]} of {when}: {release_of(target)}")
    current = next((entry for entry in history if entry.sha256 == now), None)
    for row in changes(target, current) if current else []:
        host.log(f"  {row}")


@operation()
def said() -> Commands:
    """Only words: a generator that yields nothing."""
    went = host.connector_data.get(WENT)
    if state.is_executing and went is not None:
        show_last(history_of_box() or {}, went)
    yield from ()


def show_last(found: dict[str, Any], unit: Passed, *first: str) -> None:
    """What serves now, as the last thing on the screen. found: see history_of_box."""
    own = own_unit(found)
    his = own is not None and own.sha256 == unit.sha256
    rows = last_screen(unit, found.get("port"), his=his)
    page.keep(
        [*first, *(f"{click.style(f'{label:<11}', bold=True)} {text}" for label, text in rows)]
    )
