"""What a deploy is to those who ask a box now: for its row on the screen, and for a roll."""

from __future__ import annotations

from pyinfra import host

from aibox.decide import driver
from aibox.decide.doors import GATEWAY, STREAM
from aibox.decide.drift import Serves
from aibox.decide.preflight import cut_off
from aibox.decide.summary import pause
from tasks import preflight
from tasks.box import Box
from tasks.preflight import Seen
from tasks.server import server_state, unit_text, what_is_due


def what_it_is_to_clients(box: Box) -> Serves:
    """Asked after the deploy was planned, of a box that was not refused."""
    seen = preflight.seen()[host.name]
    serves = any(one.manager == "system" and one.unit == box.unit for one in seen.report.serving)
    alone = [STREAM] if box.doors.stream.on else []
    alone += [GATEWAY] if box.doors.gateway.on and box.fleet is None else []
    return Serves(
        pause=pause(
            serves=serves,
            reboot=bool(driver.reboot_reasons(seen.evidence, box.driver)),
            restart=what_is_due(box, unit_text(box))[0].restart,
        ),
        theirs=theirs(box, seen),
        doors=tuple(one.title for one in alone),
        models=tuple(box.served_models),
    )


def theirs(box: Box, seen: Seen) -> str | None:
    """A server that the deploy would take over. One that serves beside ours is none."""
    if seen.report.foreign_unit:
        return f"{seen.report.foreign_unit.path}, which you wrote"
    own = "system", box.unit
    others = [one for one in seen.report.serving if (one.manager, one.unit) != own]
    if not others or server_state(box)["good"] is not None:
        return None
    return cut_off(others[0], box.settings.server_unit)[0]
