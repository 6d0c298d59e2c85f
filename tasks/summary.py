"""One row a box on the screen, after everything else, where a run works on several."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import click
from pyinfra import state
from pyinfra.api import Host
from pyinfra.api.operation import OperationMeta
from pyinfra.api.state import StateStage
from pyinfra.context import ctx_host

from aibox.decide.plan import PlanFacts
from aibox.decide.summary import Seen, out_of_rotation, pausing_together, rows
from aibox.decide.summary import pause as paused
from tasks import drift_report, fleet, invocation, left_out, page, preflight
from tasks.operations import AT, SAID

PLANNED = "planned"  # in a box's connector data: the facts of its plan, where one was shown
INDENT = "    "

_shown: set[bool] = set()


def show() -> None:
    """What would be done, before the prompt or at the end of --dry; what was, at the end."""
    if not (state.initialised and invocation.deploys()) or drift_report.is_wanted():
        return
    carried_out = state.current_stage >= StateStage.Execute
    boxes = [box for box in state.inventory if state.is_host_in_limit(box)]
    looked_at = bool(state.failed_hosts) or any(state.ops[box] for box in boxes)
    if len(boxes) < 2 or not looked_at or carried_out in _shown:
        return
    if not (carried_out or state.should_check_for_changes()):  # --dry -y: nothing was planned
        return
    _shown.add(carried_out)
    run = [seen(box, carried_out=carried_out) for box in boxes]
    found = rows(run, page.width() - len(INDENT), carried_out=carried_out)
    wide = max(len(name) for name, _ in found)
    click.echo(err=True)
    for name, text in found:
        click.echo(f"{INDENT}{click.style(f'{name:<{wide}}', bold=True)}  {text}", err=True)
    together = pausing_together(run) if fleet.gateways() else None
    if together and not carried_out:
        click.echo(err=True)
        for line in textwrap.wrap(together, page.width() - len(INDENT)):
            click.echo(f"{INDENT}{click.style(line, fg='yellow')}", err=True)


def seen(box: Host, *, carried_out: bool) -> Seen:
    """What this run knows of a box now."""
    operations = [one.operation_meta for one in state.ops[box].values()]
    judged = preflight.judged().get(box.name)
    # Among the failed, one that was refused stands under the name of whoever is at work just now.
    data, failed = box.connector_data, box not in state.active_hosts
    return Seen(
        box=box.name,
        reached=box in state.activated_hosts,
        failed=failed,
        refusals=[one.found for one in data.get(SAID, ())],
        at=next(iter(state.op_meta[data[AT]].names)) if AT in data else None,
        due=0 if carried_out or failed else due(box, operations),
        done=sum(one.is_complete() and one.did_change() for one in operations),
        ended=bool(operations) and all(one.is_complete() for one in operations),
        model=judged.served_model if judged else None,
        pause=pause(data[PLANNED]) if PLANNED in data else None,
        models=judged.served_models if judged else (),
        out=out_of_rotation(box.name, left_out.noted()),
    )


def due(box: Host, operations: Sequence[OperationMeta]) -> int:
    """How many have something to do, by the plan that was made."""
    with ctx_host.use(box):
        return sum(one.will_change for one in operations)


def pause(facts: PlanFacts) -> str | None:
    """What the server's clients will meet, where it serves now."""
    service = facts.service
    return paused(serves=service.serves, reboot=bool(facts.reboot), restart=service.restart)
