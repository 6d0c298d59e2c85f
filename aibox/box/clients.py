"""`aibox clients`: configuration for clients, from the record of what was laid down here."""

from __future__ import annotations

import ipaddress
import json
import re
import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aibox.box.status import DEPLOYED
from aibox.decide import clients as decide
from aibox.decide.clients import Door, Offer
from aibox.decide.doors import DOORS, GATEWAY

NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?", re.ASCII)


def clients(address: str | None) -> int:
    """Print the page. 1 where nothing was deployed yet, or the address is none."""
    name = address or socket.gethostname()
    if not NAME.fullmatch(name) and ip(name) is None:
        print(f"{name!r} is no host name and no address", file=sys.stderr)
        return 1
    try:
        deployed = json.loads(DEPLOYED.read_text())
        offer = offered(deployed, name)
    except (OSError, ValueError, LookupError, TypeError):
        print(f"{DEPLOYED} is not there or not whole: deploy to this box first", file=sys.stderr)
        return 1
    print(decide.page(offer), end="")
    return 0


def offered(deployed: Mapping[str, Any], name: str) -> Offer:
    """name: as clients reach the box, a host name or an IP address. A gateway that asks several
    boxes comes first, with all that it serves."""
    address, server = ip(name), deployed["server"]
    host = f"[{name}]" if address is not None and address.version == 6 else name
    standing = deployed["doors"]
    gateway = standing.get(GATEWAY.name, {})
    spreads = "models" in gateway
    told = gateway if spreads else server
    return Offer(
        box=(name if address is None else socket.gethostname()).partition(".")[0],
        models=told["models"],
        context=told["context"],
        vision=takes_images(Path(deployed["weights"]["folder"], "config.json")),
        doors=[
            Door(door.name, f"http://{host}:{one['port']}", one["key_file"])
            for door in (reversed(DOORS) if spreads else DOORS)
            if (one := standing.get(door.name))
        ],
    )


def ip(name: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(name)
    except ValueError:
        return None


def takes_images(config: Path) -> bool:
    """Whether a model has a vision tower; False where that can't be told."""
    try:
        return "vision_config" in json.loads(config.read_text())
    except (OSError, ValueError, TypeError):
        return False
