"""The network of the boxes: one bridge with a way out for dns, http and https, nothing else.

The machine's own address on the bridge (`Subnet.bridge_address`, 10.77.0.1) is where stand-in
servers listen: a box reaches it on every port, but never the machine's loopback.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from dataclasses import dataclass
from pathlib import Path

from tests.rehearsal.machine import RehearsalError, command

BRIDGE = "aibox0"
# fixed: it would change with the boxes that come and go, and their ARP tables would be wrong
BRIDGE_MAC = "02:a1:b0:00:00:01"
TABLE = "rehearsal_boxes"
SUBNETS = ("10.77.0.0/24", "10.78.0.0/24", "172.29.77.0/24", "192.168.177.0/24")
FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")

RULES = """\
table ip {table}
delete table ip {table}
table ip {table} {{
  chain forward {{
    type filter hook forward priority 0; policy accept;
    iifname != "{bridge}" oifname != "{bridge}" accept
    ct state established,related accept
    iifname "{bridge}" oifname "{bridge}" accept
    iifname "{bridge}" tcp dport {{ 53, 80, 443 }} accept
    iifname "{bridge}" udp dport 53 accept
    iifname "{bridge}" reject
  }}
  chain postrouting {{
    type nat hook postrouting priority 100;
    ip saddr {subnet} oifname != "{bridge}" masquerade
  }}
}}
"""


@dataclass(frozen=True)
class Subnet:
    """The /24 of the bridge, as text: "10.77.0.0/24"."""

    text: str

    @property
    def bridge_address(self) -> str:
        return self.address(1)

    @property
    def box_addresses(self) -> list[str]:
        return [self.address(last) for last in range(2, 251)]

    def address(self, last: int) -> str:
        return str(ipaddress.ip_network(self.text)[last])


def free_subnet() -> Subnet:
    """The first subnet of our list that no route of the machine touches."""
    taken = [
        ipaddress.ip_network(route["dst"])
        for route in json.loads(command("ip", "-j", "-4", "route", "show") or "[]")
        if route["dst"] != "default" and route.get("dev") != BRIDGE
    ]
    # halves of the whole internet are a tunnel's way of saying "default"
    taken = [network for network in taken if network.prefixlen > 1]
    for text in SUBNETS:
        if not any(ipaddress.ip_network(text).overlaps(network) for network in taken):
            return Subnet(text)
    raise RehearsalError(
        f"All networks that the boxes could use ({', '.join(SUBNETS)}) are routed elsewhere by"
        " this machine. Leave the VPN that does so, or add a free one to SUBNETS in"
        " tests/rehearsal/network.py."
    )


def forwarding() -> str:
    """The machine's net.ipv4.ip_forward, "0" or "1"."""
    return FORWARDING.read_text().strip()


def bring_up(subnet: Subnet) -> None:
    """Lay the bridge, the routes and the rules down; what is there already stays."""
    if BRIDGE not in links():
        lines = [
            f"link add {BRIDGE} address {BRIDGE_MAC} mtu {machine_mtu()} type bridge",
            f"addr add {subnet.bridge_address}/24 dev {BRIDGE}",
            f"link set {BRIDGE} up",
        ]
        command("ip", "-batch", "-", text="\n".join(lines))
    # what is sent to a box that is off must never leave this machine
    command("ip", "route", "replace", "blackhole", subnet.text, "metric", "1000")
    command("nft", "-f", "-", text=RULES.format(table=TABLE, bridge=BRIDGE, subnet=subnet.text))
    if forwarding() != "1":
        FORWARDING.write_text("1")


def take_down(subnet: Subnet, forwarding_before: str) -> None:
    """Undo bring_up. What is gone already is no error."""
    command("nft", "delete", "table", "ip", TABLE, check=False)
    command("ip", "route", "del", "blackhole", subnet.text, "metric", "1000", check=False)
    command("ip", "link", "del", BRIDGE, check=False)
    if forwarding() != forwarding_before:
        FORWARDING.write_text(forwarding_before)


def remove_remnants() -> None:
    """Take away a bridge that no record knows any more: it may have another subnet's address."""
    if BRIDGE in links():
        for text in SUBNETS:
            take_down(Subnet(text), forwarding())


def machine_mtu() -> int:
    """The largest packet, in bytes, of the machine's way out: a box must not send larger ones."""
    sizes = links()
    for route in json.loads(command("ip", "-j", "-4", "route", "show", "default") or "[]"):
        if route.get("dev") in sizes:
            return sizes[route["dev"]]
    return 1400


def links() -> dict[str, int]:
    """The machine's network links with their largest packet in bytes."""
    return {link["ifname"]: link["mtu"] for link in json.loads(command("ip", "-j", "link"))}


def link_name(machine_name: str) -> str:
    """The machine's end of the box's cable; 15 characters are the kernel's limit."""
    return "rb" + hashlib.sha256(machine_name.encode()).hexdigest()[:10]


def plug_in(machine_name: str, address: str, subnet: Subnet, namespace: Path, holder: int) -> None:
    """Make a new network namespace at the file `namespace` and connect it to the bridge.

    `holder` is a process of the machine's own network, where the other end of the cable goes.
    """
    link = link_name(machine_name)
    unplug(machine_name)
    command("umount", "-l", namespace, check=False)
    namespace.parent.mkdir(parents=True, exist_ok=True)
    namespace.touch()
    command("unshare", f"--net={namespace}", "true")
    # the same hardware address at each boot: neighbours remember it
    mac = "02:" + ":".join(f"{int(part):02x}" for part in ("161", *address.split(".")))
    mtu = machine_mtu()
    inside = [
        f"link add eth0 address {mac} mtu {mtu} type veth"
        f" peer name {link} mtu {mtu} netns {holder}",
        "link set lo up",
        f"addr add {address}/24 dev eth0",
        "link set eth0 up",
        f"route add default via {subnet.bridge_address}",
    ]
    command("nsenter", f"--net={namespace}", "ip", "-batch", "-", text="\n".join(inside))
    command("ip", "link", "set", link, "master", BRIDGE, "up")


def unplug(machine_name: str) -> None:
    command("ip", "link", "del", link_name(machine_name), check=False)
