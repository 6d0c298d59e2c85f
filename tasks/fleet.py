"""Several boxes behind one gateway: the inventory's group `gateways`."""

from __future__ import annotations

from collections.abc import Mapping

from pyinfra import host, state
from pyinfra.api import Host

from aibox.decide import doors, fleet, monitoring
from aibox.decide.fleet import Fleet, Member, Other
from aibox.decide.inventory import GATEWAYS
from aibox.decide.refusal import Refusal
from aibox.settings import Settings
from tasks import watching


def gateways() -> list[Host]:
    return list(state.inventory.groups.get(GATEWAYS, []))


def is_gateway(one: Host) -> bool:
    return one in gateways()


def refusals(settings: Settings, everywhere: Mapping[str, Settings]) -> list[Refusal]:
    """What is wrong with a gateway before anything is changed. everywhere: see of_this_box."""
    if not is_gateway(host):
        return []
    found = fleet.at_one_address([seen(one, everywhere[one.name]) for one in watching.boxes()])
    return [fleet.turned_off(host.name), *found] if settings.gateway is False else found


def of_this_box(
    settings: Settings, standing: doors.Standing, everywhere: Mapping[str, Settings]
) -> Fleet | None:
    """What this gateway asks; None where it is none. everywhere: the settings of every host."""
    if not is_gateway(host):
        return None
    others = [seen(one, everywhere[one.name]) for one in watching.boxes() if one.name != host.name]
    left_out = {one.box: why for one in others if (why := fleet.unreachable(one))}
    asked = [fleet.member(one) for one in others if one.box not in left_out]
    doubts = {one.box: one.doubt for one in others if one.doubt and one.box not in left_out}
    return Fleet((itself(settings, standing), *asked), left_out, doubts)


def itself(settings: Settings, standing: doors.Standing) -> Member:
    """The gateway's own box, which it asks as it would alone."""
    return fleet.itself(
        host.name,
        settings.served_models,
        settings.context,
        standing,
        filters=doors.own_filter(settings.doors_address, settings.stream_port),
        server=f"http://127.0.0.1:{settings.server_port}",
    )


def seen(one: Host, settings: Settings) -> Other:
    is_named = settings.is_pinned or "served-model-name" in settings.flags
    return Other(
        box=one.name,
        models=settings.served_models if is_named else (),
        address=watching.address_of(one),
        port=settings.stream_port,
        context=settings.context,
        stream=settings.stream is not False,
        listens=settings.doors_address,
        doubt=watching.doubt_of(one),
    )


def networks() -> list[str]:
    """Of gateways that are named by an address: they come in at the filter of every other box."""
    others = [one for one in gateways() if one.name != host.name]
    known = [monitoring.address_of(watching.address_of(one)) for one in others]
    return [one for one in known if one]
