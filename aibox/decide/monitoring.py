"""What a box shows to its monitor: which exporters stand, who may read them, what they run from.

On where the inventory has a monitor, or where it was asked for. An exporter is left out, and the
plan says so, where a program that is not ours holds its port, as every service of ours is.
"""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.doors import CONFIG_FOLDER
from aibox.decide.nearest import did_you_mean
from aibox.decide.refusal import Refusal
from aibox.decide.services import Asked, Service, Verdict, plan_row

FIRST_LINE = "# Laid down by the deploy: change the settings, not this file.\n"
NODE_PACKAGE = "prometheus-node-exporter"
NODE_UNIT = f"{NODE_PACKAGE}.service"
DROP_IN = f"{NODE_UNIT}.d/aibox.conf"
DROP_IN_FILE = f"/etc/systemd/system/{DROP_IN}"
TEXTFILES = "/var/lib/prometheus/node-exporter"  # what Debian's node exporter reads
FACTS = f"{TEXTFILES}/aibox.prom"
DRIFT = f"{TEXTFILES}/aibox-drift.prom"
FACTS_CONFIG = f"{CONFIG_FOLDER}/facts.json"
FACTS_UNIT = "aibox-facts.service"
FACTS_TIMER = "aibox-facts.timer"
SYSTEMD = "/etc/systemd/system"

NODE_EXPORTER = Service(
    name="node-exporter",
    title="the node exporter",
    unit=NODE_UNIT,
    user="prometheus",
    root="",  # the distribution's own
    ready="/metrics",
    files=(),
    keys=(),
    switch="monitoring",
)
GPU_EXPORTER = Service(
    name="gpu-exporter",
    title="the GPU exporter (nvitop)",
    unit="aibox-gpu-exporter.service",
    user="aibox-gpu",
    root="/opt/aibox-gpu-exporter",
    ready="/metrics",
    files=(),
    keys=(),
    switch="monitoring",
)
WITHOUT_NODE_EXPORTER = (
    "without it nobody watches restarts of the units, Xid errors, the next reboot, drift and the "
    "server's version; disk and memory where a Prometheus reads the other one"
)
EXPORTERS = (NODE_EXPORTER, GPU_EXPORTER)
# What is laid down beside the GPU exporter's unit, in the order in which it goes.
FILES = (FACTS_CONFIG, f"{SYSTEMD}/{FACTS_TIMER}", FACTS, DRIFT, DROP_IN_FILE)


# --- whether they stand --------------------------------------------------------------------------


@dataclass(frozen=True)
class Standing:
    """readers: networks beside the box itself that may read every /metrics of ours here."""

    on: bool
    node: Verdict
    gpu: Verdict
    readers: tuple[str, ...]

    def of(self, exporter: Service) -> Verdict:
        return self.node if exporter is NODE_EXPORTER else self.gpu

    @property
    def address(self) -> str:
        """What the exporters listen on."""
        return "0.0.0.0" if self.readers else "127.0.0.1"  # noqa: S104  IPAddressDeny= guards it


OFF = Standing(False, Verdict(on=False), Verdict(on=False), ())


@dataclass(frozen=True)
class Monitor:
    """A host of the group `monitor`, as control knows it. itself: it is the box."""

    name: str
    address: str
    itself: bool


def readers(said: Sequence[str], monitors: Sequence[Monitor]) -> tuple[str, ...]:
    """Networks that may read: those of metrics_from, and monitors that are named by an address."""
    known = [address_of(one.address) for one in monitors if not one.itself]
    return tuple(dict.fromkeys([*said, *(one for one in known if one)]))


def address_of(name: str) -> str | None:
    """The network of one address; None where it is a name, or the machine itself."""
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return None
    return None if address.is_loopback else str(ipaddress.ip_network(address))


def unknown_monitor(
    said: Sequence[str], monitors: Sequence[Monitor], boxes: Sequence[str]
) -> Refusal | None:
    """A monitor that could read nothing here: nobody told its address.

    said: metrics_from. boxes: the names that may have been meant.
    """
    others = [one for one in monitors if not one.itself]
    unknown = [one.name for one in others if address_of(one.address) is None]
    if said or not unknown:
        return None
    return Refusal(
        f"the monitor {unknown[0]} is known by a name only, and metrics_from is empty"
        f"{did_you_mean(unknown[0], boxes)}",
        "the address from which it reads the box's metrics",
        'set metrics_from = ["192.168.1.7"], with the address that the monitor has for the box; '
        "or monitoring = False",
    )


def is_no_address(name: str) -> bool:
    """Whether a host's name is only a way for pyinfra to reach it, as @local is."""
    return name.startswith("@")


def unknown_box(address: str, monitors: Sequence[Monitor]) -> Refusal | None:
    """A box that its monitor has no address of."""
    others = [one for one in monitors if not one.itself]
    if not others or not is_no_address(address):
        return None
    return Refusal(
        f"the monitor {others[0].name} can't reach a box that is called {address}",
        "the address by which the monitor reaches the box",
        'set box_address = "192.168.1.20", with the address of this box; or monitoring = False',
    )


def plan_rows(asked: Sequence[Asked], standing: Standing) -> list[str]:
    """What the plan says; nothing where it is off."""
    if not standing.on:
        return []
    who = f"for {', '.join(standing.readers)}" if standing.readers else "for this box only"
    rows = [plan_row(one, standing.of(one.service)) for one in asked]
    unseen = [] if standing.node.on else [WITHOUT_NODE_EXPORTER]
    return [*rows, *unseen, f"metrics are {who}"]


# --- what they run from --------------------------------------------------------------------------


def guard(reading: Sequence[str]) -> str:
    """Lines of a [Service] section by which only these networks and the box itself get in."""
    allowed = "".join(f"IPAddressAllow={network}\n" for network in reading)
    return f"IPAddressDeny=any\nIPAddressAllow=localhost\n{allowed}"


def node_drop_in(standing: Standing, port: int, units: Sequence[str]) -> str:
    """For Debian's unit: its own arguments stay. units: whose state and restarts it tells."""
    names = "|".join(one.replace(".", "[.]") for one in units)
    flags = [
        f"--web.listen-address={standing.address}:{port}",
        "--collector.systemd",
        "--collector.systemd.enable-restarts-metrics",
        f"--collector.systemd.unit-include=({names})",
    ]
    lines = " \\\n    ".join([f"/usr/bin/{NODE_PACKAGE} $ARGS", *flags])
    return f"{FIRST_LINE}[Service]\nExecStart=\nExecStart={lines}\n{guard(standing.readers)}"


def facts_unit(program: str) -> str:
    """The unit that writes FACTS once. It reads as root, and can write nowhere else."""
    return (
        f"{FIRST_LINE}[Unit]\nDescription=What this box is made of, as metrics\n\n"
        f"[Service]\nType=oneshot\nExecStart={program} facts\n"
        "Nice=19\nCPUSchedulingPolicy=idle\nIOSchedulingClass=idle\nTimeoutStartSec=50\n"
        f"ProtectSystem=strict\nReadWritePaths={TEXTFILES}\nProtectHome=yes\nPrivateTmp=yes\n"
        "NoNewPrivileges=yes\nRestrictAddressFamilies=AF_UNIX\n"
    )


def facts_timer() -> str:
    return (
        f"{FIRST_LINE}[Unit]\nDescription=Each minute, what this box is made of\n\n"
        "[Timer]\nOnCalendar=minutely\nAccuracySec=5s\n\n[Install]\nWantedBy=timers.target\n"
    )


def facts_config(
    unit: str, driver: Mapping[str, Any], speculative: bool, built: Mapping[str, str]
) -> str:
    """What `aibox facts` goes by. unit: the server's. driver: what is wanted of it. speculative:
    whether drafts are made. built: the labels of aibox_info."""
    told = {"unit": unit, "driver": driver, "speculative": speculative, "built": built}
    return json.dumps(told, indent=1, sort_keys=True) + "\n"
