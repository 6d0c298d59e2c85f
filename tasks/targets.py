"""The boxes of the inventory as a monitor sees them, by their settings."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import Host

from aibox.decide import monitoring, scraping
from aibox.decide.scraping import HERE, Seen
from aibox.settings import Settings
from tasks import preflight, watching


def seen_from_here() -> list[Seen]:
    """For the monitor that is worked on now."""
    return [seen(one, here=one.name == host.name) for one in watched()]


def seen_from_afar() -> list[Seen]:
    """For a Prometheus that a person runs somewhere. Raises ValueError for a box without an
    address."""
    found = [seen(one, here=False) for one in watched()]
    for one in found:
        if monitoring.is_no_address(one.address):
            raise ValueError(
                f"{one.box} has no address that another machine knows: set box_address"
            )
    return found


def watched() -> list[Host]:
    """Boxes with exporters; where monitoring is False, nothing is asked at all."""
    return [one for one in watching.boxes() if settings_of(one).monitoring is not False]


def settings_of(box: Host) -> Settings:
    return preflight.settings_of_all_boxes()[box.name]


def seen(box: Host, *, here: bool) -> Seen:
    settings = settings_of(box)
    if here:
        return Seen(box.name, HERE, ports(settings))
    return Seen(box.name, watching.address_of(box), ports(settings), watching.doubt_of(box))


def ports(settings: Settings) -> dict[str, int]:
    """Of all that may answer; what was left out on a box is a target that never did.

    The exporters too: who asks is a monitor, or somebody who is about to set monitoring = True.
    """
    found = {"server": settings.server_port}
    if settings.stream is not False:
        found["stream"] = settings.stream_port
    if settings.gateway is not False:
        found["gateway"] = settings.gateway_port
    return {**found, "node": settings.node_exporter_port, "gpu": settings.gpu_exporter_port}


def without_exporters() -> list[str]:
    """Boxes that are to be watched, by a setting that they lack as yet."""
    return [one.name for one in watched() if not watching.is_on(settings_of(one))]


def blind_spots() -> list[str]:
    """What this monitor can't see, in words."""
    words = (scraping.blind(one) for one in seen_from_here())
    return [one for one in words if one]


def doubts() -> list[str]:
    """Boxes that this monitor may not reach, in words."""
    return [scraping.asked_at(one) for one in seen_from_here() if one.doubt]
