"""Who watches whom: the inventory's group `monitor`, and what of it a box has to know."""

from __future__ import annotations

from pyinfra import host, state
from pyinfra.api import Host

from aibox.decide import monitoring
from aibox.decide.inventory import MONITOR
from aibox.decide.monitoring import DROP_IN, GPU_EXPORTER, NODE_EXPORTER, Monitor, Standing
from aibox.decide.preflight import BoxReport
from aibox.decide.refusal import Refusal
from aibox.decide.services import Asked, judge
from aibox.settings import Settings
from tasks import inventory_names, invocation, ssh_names

UNITS = (DROP_IN, GPU_EXPORTER.unit)  # files that say whose an exporter is


def monitors() -> list[Host]:
    return list(state.inventory.groups.get(MONITOR, []))


def is_monitor(one: Host) -> bool:
    return one in monitors()


def is_only_monitor(one: Host) -> bool:
    """Whether it serves nothing: in no group beside `monitor` and those that hold every host."""
    return is_monitor(one) and set(one.groups) <= {
        MONITOR,
        *inventory_names.of_all(invocation.inventory()),
    }


def boxes() -> list[Host]:
    return [one for one in state.inventory if not is_only_monitor(one)]


def address_of(one: Host) -> str:
    """How other machines reach a host: as the setting says, else as far as the inventory or
    control's own ssh configuration does."""
    return str(one.data.get("box_address") or ssh_names.address_of(one))


def doubt_of(one: Host) -> str | None:
    """Why other machines may not reach a host at address_of, in words."""
    return None if one.data.get("box_address") else ssh_names.doubt_of(one)


def monitors_of_this_box() -> list[Monitor]:
    return [Monitor(one.name, address_of(one), one.name == host.name) for one in monitors()]


def is_on(settings: Settings) -> bool:
    return bool(monitors()) if settings.monitoring is None else settings.monitoring


def asked(settings: Settings) -> list[Asked]:
    """None leaves an exporter to what stands on its port."""
    wish = settings.monitoring if is_on(settings) else False
    return [
        Asked(NODE_EXPORTER, wish, settings.node_exporter_port),
        Asked(GPU_EXPORTER, wish, settings.gpu_exporter_port),
    ]


def judged(settings: Settings, report: BoxReport) -> Standing:
    """Which exporters stand, by what listens on the box now, and who may read them."""
    if not is_on(settings):
        return monitoring.OFF
    node, gpu = (
        judge(one, report.ports.get(one.port), report.units.get(unit))
        for one, unit in zip(asked(settings), UNITS, strict=True)
    )
    readers = monitoring.readers(settings.metrics_from, monitors_of_this_box())
    return Standing(True, node, gpu, readers)


def refusals(settings: Settings, standing: Standing) -> list[Refusal]:
    if not standing.on:
        return []
    around = monitors_of_this_box()
    unknown = monitoring.unknown_monitor(
        settings.metrics_from, around, [one.name for one in boxes()]
    )
    hidden = monitoring.unknown_box(address_of(host), around)
    found = [standing.node.refusal, standing.gpu.refusal, unknown, hidden]
    return [one for one in found if one]
