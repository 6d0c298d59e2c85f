"""Both doors together, for what asks about each of them."""

from __future__ import annotations

from aibox.decide.doors import GATEWAY, STREAM, Door
from tasks import gateway, stream
from tasks.box import Box
from tasks.doors import Venv, Wanted


def venvs() -> dict[Door, Venv]:
    return {STREAM: stream.venv(), GATEWAY: gateway.venv()}


def wanted(box: Box) -> list[Wanted]:
    """Those that stand, in the order of the deploy."""
    both = {STREAM: stream.wanted, GATEWAY: gateway.wanted}
    return [make(box) for door, make in both.items() if box.doors.of(door).on]
