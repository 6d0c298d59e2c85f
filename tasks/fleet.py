"""Several boxes behind one gateway: the inventory's group `gateways`."""

from __future__ import annotations

from pyinfra import state
from pyinfra.api import Host

GROUP = "gateways"


def gateways() -> list[Host]:
    return list(state.inventory.groups.get(GROUP, []))


def is_gateway(one: Host) -> bool:
    return one in gateways()
