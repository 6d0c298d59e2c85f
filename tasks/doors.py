"""Which doors stand, by the settings and by what listens on the box."""

from __future__ import annotations

from aibox.decide import doors
from aibox.decide.doors import GATEWAY, STREAM, Standing
from aibox.decide.preflight import BoxReport
from aibox.decide.refusal import Refusal
from aibox.decide.services import Asked, judge
from aibox.settings import Settings


def asked(settings: Settings) -> list[Asked]:
    return [
        Asked(STREAM, settings.stream, settings.stream_port),
        Asked(GATEWAY, settings.gateway, settings.gateway_port),
    ]


def judged(settings: Settings, report: BoxReport) -> Standing:
    """Which doors stand, by what listens on the box now."""
    stream, gateway = (
        judge(one, report.ports.get(one.port), report.units.get(one.service.unit))
        for one in asked(settings)
    )
    ports = {"stream": settings.stream_port, "server": settings.server_port}
    address = settings.doors_address
    asks = doors.upstream(settings.gateway_upstream, stream, address, ports)
    return Standing(stream, gateway, asks)


def refusals(standing: Standing) -> list[Refusal]:
    return [one.refusal for one in (standing.stream, standing.gateway) if one.refusal]
