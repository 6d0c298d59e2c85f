"""What stands on a box that no deploy lays down or takes away; only a drift check looks for it."""

from __future__ import annotations

import json
from typing import Any

from pyinfra import host, state

from aibox.decide.foreign import Declared, Sorted, foreign_in, sort
from aibox.decide.refusal import Refusal
from tasks import drift_report, ledger, preflight, standing_services, watching
from tasks.box import Box
from tasks.facts import Probe
from tasks.operations import say_refusal
from tasks.pauses import what_it_is_to_clients
from tasks.weights import planned


def looked_for() -> None:
    """Look at this box, after its deploy was planned, and leave the report of the check."""
    if watching.is_only_monitor(host) and drift_report.is_wanted():
        drift_report.write(host, Sorted((), (), ()))  # only a box is looked through
        return
    box = preflight.judged().get(host.name)
    if box is None or not drift_report.is_wanted():
        alone = Refusal("an audit by itself", "a drift check", "run `python -m tasks.drift`")
        say_refusal(host, alone)
        state.fail_hosts({host})
        return
    declared = declared_of(box)
    found = host.get_fact(Probe, "foreign", json.dumps(asked(declared)))
    strays = [f"{box.weights_folder}/{path}" for path in strays_of(box)]
    sorted_things = sort(foreign_in(found, strays, declared), box.settings.accepted)
    if host not in state.failed_hosts:  # a report says: looked at to the end
        serves = what_it_is_to_clients(box)
        drift_report.write(host, sorted_things, watched=box.watched.node.on, serves=serves)


def strays_of(box: Box) -> list[str]:
    """Files among the weights that no deploy minds; the others are drift, and stop one."""
    todo = planned(box)
    return [path for path in todo.foreign if path not in todo.strays]


def declared_of(box: Box) -> Declared:
    told = ledger.of(host)
    variables: dict[str, list[str]] = {unit: [] for unit in told.units}
    variables[box.unit] = list(box.serving.environment)
    variables |= {one.service.unit: list(one.environment) for one in standing_services.wanted(box)}
    return Declared(
        files=list(told.files), groups=told.groups, users=list(told.users), variables=variables
    )


def asked(declared: Declared) -> dict[str, Any]:
    """The probe's question."""
    return {
        "units": sorted(declared.units),
        "groups": sorted(declared.groups),
        "users": sorted(declared.users),
    }
