"""A teardown: what is ours goes, and what was there before comes back. No setting is validated."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import click
from gevent.lock import BoundedSemaphore  # type: ignore[import-untyped]
from pyinfra import host, state
from pyinfra.api import (
    FactBase,
    FunctionCommand,
    Host,
    QuoteString,
    State,
    StringCommand,
    operation,
)

from aibox.decide import teardown
from aibox.decide.refusal import Refusal
from aibox.decide.teardown import Plan, Wish
from tasks import aibox_wheel, drift_timer, invocation
from tasks.box import AIBOX_FOLDER
from tasks.facts import Login, parsed
from tasks.operations import Commands, follow_job, refused, say_refusal, start_job
from tasks.preflight import refusals_of_login
from tasks.sent_along import PYTHON, argument, packed

AGREED = "teardown_agreed"  # in a box's connector data: the Wish
PLACES = ("server_unit", "releases_folder", "models_folder", "cache_folder")
CARRIED = f"{AIBOX_FOLDER}/{teardown.CARRIED}"
TRACES = (CARRIED, "/run/aibox", "/run/aibox-install.lock", "/run/aibox-brought.lock")
JOB = "teardown"
_one_at_a_time = BoundedSemaphore()  # boxes are looked at beside each other; a person is asked once
AGAIN = "run the teardown again: it goes on from what is there"


class Ours(FactBase[Any]):
    """One answer of aibox/box/ours.py, which is sent along: a box may hold no aibox any more."""

    def command(self, question: str, asked: str = "{}") -> StringCommand:
        words = QuoteString(question), argument(asked)
        return StringCommand(
            PYTHON, *words, "<<'END_OF_OURS'\n" + packed("aibox.box.ours") + "END_OF_OURS\n"
        )

    def process(self, output: list[str]) -> Any:
        return parsed(output)


class Exists(FactBase[bool]):
    """Whether something is there, a link included."""

    def command(self, path: str) -> StringCommand:
        quoted = QuoteString(path)
        return StringCommand("if test -e", quoted, "|| test -L", quoted, "; then echo yes; fi")

    def process(self, output: list[str]) -> bool:
        return output[-1:] == ["yes"]


# --- before the plan -----------------------------------------------------------------------------


def agreed() -> bool:
    """Whether there is something to do that may be done; shows it, and asks where that is due."""
    refusals = refusals_of_login(host.get_fact(Login, _sudo=False))
    wish = wish_of(host.data.get("remove_weights"), host.data.get("remove_driver"))
    plan = None if refusals else planned(wish if isinstance(wish, Wish) else Wish())
    refusals += [wish] if isinstance(wish, Refusal) else []
    refusals += plan if isinstance(plan, list) else []
    if refusals or not isinstance(plan, Plan) or not isinstance(wish, Wish):
        for refusal in refusals:
            say_refusal(host, refusal)
        state.fail_hosts({host})
        return False
    asked = wish_asked(plan, wish)
    if asked != wish:
        plan = again(asked)
    host.connector_data[AGREED] = asked
    show(plan)
    return True


def wish_of(weights: object, driver: object) -> Wish | Refusal:
    """From `--data`; None where nothing was said."""
    for name, value in (("remove_weights", weights), ("remove_driver", driver)):
        if value not in (None, True, False):
            found = f"{name}={value}"
            return Refusal(found, "true or false", f"say --data {name}=true, or leave it out")
    return Wish(weights=bool(weights), driver=bool(driver))


def planned(wish: Wish) -> Plan | list[Refusal]:
    """What is to be done now, by the box's records and what lies there."""
    records = host.get_fact(Ours, "records")
    asked = teardown.question(records, places())
    if isinstance(asked, list):
        return asked
    return teardown.plan(records, host.get_fact(Ours, "look", json.dumps(asked)), wish)


def again(wish: Wish) -> Plan:
    plan = planned(wish)
    assert isinstance(plan, Plan)  # nothing was refused a moment ago
    return plan


def places() -> dict[str, str]:
    """The folders and the unit of today's settings, unjudged, where they are texts at all."""
    values = {name: host.data.get(name) for name in PLACES}
    texts = {name: value for name, value in values.items() if isinstance(value, str)}
    return {**texts, "aibox": AIBOX_FOLDER}


def wish_asked(plan: Plan, wish: Wish) -> Wish:
    """The wish once the person was asked about what would stay, where a person is there to ask."""
    if not invocation.can_ask():
        return wish
    weights, driver = wish.weights, wish.driver
    with _one_at_a_time:
        if plan.kept_weights and host.data.get("remove_weights") is None:
            weights = said_yes(f"Remove the weights too ({plan.kept_weights})?")
        if plan.kept_driver and host.data.get("remove_driver") is None:
            driver = said_yes(f"Remove {plan.kept_driver} too?")
    return Wish(weights=weights, driver=driver)


def said_yes(question: str) -> bool:
    """Anything but a yes leaves it where it is."""
    try:
        return click.confirm(f"\n    {host.name}: {question}", default=False, err=True)
    except click.Abort:  # the end of the input
        return False


def timer() -> Path:
    """The hourly drift check of this user, on control."""
    folder = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser()
    return folder / f"systemd/user/{drift_timer.NAME}.timer"


def show(plan: Plan) -> None:
    if plan.is_done:
        say_last_words(plan)
        return
    heads = ("goes", plan.removes), ("back", plan.comes_back), ("stays", plan.stays)
    for head, rows in heads:
        for label, text in rows:
            host.log(f"{head:<6} {label:<9} {text}")


def say_last_words(plan: Plan) -> None:
    for line in teardown.nothing(plan):
        host.log(line)


# --- the work ----------------------------------------------------------------------------------


def wish_agreed() -> Wish:
    wish: Wish = host.connector_data[AGREED]
    return wish


@operation()
def taken_down() -> Commands:
    """A job on the box, from an aibox that is carried along: the installed one goes with the rest.

    It decides anew from what is there, by the same words as the plan that was shown.
    """
    wish = wish_agreed()
    plan = planned(wish)
    if isinstance(plan, list):
        yield refused(plan[0])
        return
    if plan.is_done:
        host.noop("nothing is left to be removed")
        return
    spec = {"weights": wish.weights, "driver": wish.driver, "places": places()}
    folder = f"{CARRIED}/{aibox_wheel.identity()}"
    yield StringCommand(
        *("sh -c", QuoteString(CARRY), "carry", QuoteString(folder)), _stdin=aibox_wheel.parcel()
    )
    yield FunctionCommand(work, (f"{folder}/aibox", spec), {})


# $1 folder; wheel and lock come as a tar on standard input. What a job runs from is left alone.
CARRY = """set -e
umask 022
test ! -x "$1/aibox" || exit 0
rm -rf "$1"
mkdir -p "$1"
base64 -d | tar -x -C "$1"
mv "$1"/aibox-*.whl "$1/aibox.whl"
cat >"$1/aibox.new" <<END
#!/bin/sh
export AIBOX_PROGRAM='$1/aibox' PYTHONPATH='$1/aibox.whl' PYTHONDONTWRITEBYTECODE=1
exec /usr/bin/python3 -m aibox.box "\\$@"
END
chmod 755 "$1/aibox.new"
mv "$1/aibox.new" "$1/aibox"
"""


def work(state: State, host: Host, program: str, spec: dict[str, Any]) -> bool:
    try:
        return start_job(host, program, JOB, JOB, spec) and follow_job(host, program, JOB)
    except ConnectionError as error:
        found = f"the box no longer answers ({error})"
        say_refusal(host, Refusal(found, "a connection to the end of the work", AGAIN))
        return False


@operation()
def traces_gone() -> Commands:
    """The carried aibox, the folder of the jobs and the locks, once nothing runs from them."""
    there = [path for path in TRACES if host.get_fact(Exists, path=path)]
    if not there:
        host.noop("the teardown has left nothing of its own")
        return
    yield f"rm -rf {' '.join(there)}; rmdir {AIBOX_FOLDER} 2>/dev/null || true"


@operation()
def said() -> Commands:
    """Only words: a generator that yields nothing."""
    plan = planned(Wish())
    if state.is_executing and isinstance(plan, Plan):
        say_last_words(plan)
        if timer().exists():
            host.log(f"{timer().name} still looks at it: python -m tasks.drift --remove-timer")
    yield from ()
