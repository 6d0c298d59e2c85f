"""The doors' firewall: one nftables table of our own, which says nothing about any other port."""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.refusal import Refusal

TABLE = "inet aibox"
UNIT = "aibox-firewall.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
RULES = "/etc/aibox/firewall.nft"
NFT = "/usr/sbin/nft"
DOORS = ("vllm-stream.service", "litellm.service")  # what may not be up without the rules
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# What a home calls its own: RFC 1918, unique local and link-local addresses.
PRIVATE = tuple(
    ipaddress.ip_network(one)
    for one in ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fe80::/10")
)
LINK_LOCAL = ipaddress.ip_network("fe80::/10")
# Bridges of containers and virtual machines: nobody sits behind them but the box itself.
INNER_INTERFACES = ("lo", "docker", "br-", "veth", "virbr", "cni", "lxc", "podman")


@dataclass(frozen=True)
class Firewall:
    """Who may come in at which TCP port; all other ports are nobody's matter here.

    doors: for the networks of `lan`, for `monitors`, which read the filter's /metrics there, and
    for `gateways` of other boxes, which ask the filter.
    pages: Grafana, for `lan`. metrics: for `monitors` alone. closed: for nobody but the box itself.
    """

    doors: Sequence[int]
    pages: Sequence[int]
    metrics: Sequence[int]
    closed: Sequence[int]
    lan: Sequence[Network]
    monitors: Sequence[Network]
    gateways: Sequence[Network] = ()


def ruleset(wanted: Firewall) -> str:
    """The text for `nft -f`, which replaces the table in one step."""
    rules = ['iif "lo" accept']
    rules += [f"tcp dport {port} reject with tcp reset" for port in sorted(wanted.closed)]
    for ports, networks in (
        (wanted.doors, merged([*wanted.lan, *wanted.monitors, *wanted.gateways])),
        (wanted.pages, wanted.lan),
        (wanted.metrics, wanted.monitors),
    ):
        if ports:
            rules += guarded(ports, networks)
    lines = "\n".join(f"        {rule}" for rule in rules)
    return f"""table {TABLE}
delete table {TABLE}
table {TABLE} {{
    chain input {{
        type filter hook input priority filter - 5; policy accept;
{lines}
    }}
}}
"""


def guarded(ports: Sequence[int], networks: Sequence[Network]) -> list[str]:
    """Rules that let these networks in at these ports, and refuse everybody else at once."""
    at = f"tcp dport {{ {', '.join(map(str, sorted(ports)))} }}"
    rules = []
    for word, version in (("ip", 4), ("ip6", 6)):
        inside = [str(one) for one in networks if one.version == version]
        if inside:
            rules.append(f"{at} {word} saddr {{ {', '.join(inside)} }} accept")
    return [*rules, f"{at} reject with tcp reset"]


def lan(interfaces: Iterable[Mapping[str, Any]], said: Sequence[str] | None) -> Sequence[Network]:
    """The networks that count as the person's own, without overlaps; none where none was found.

    interfaces: what `ip -j address` tells. said: the setting, which is taken as it is.
    """
    if said is not None:
        return merged(networks(said))
    found = [one for interface in interfaces for one in networks_of(interface)]
    return merged([*found, LINK_LOCAL]) if found else ()


def networks(said: Iterable[str]) -> list[Network]:
    """From addresses and networks, as settings have them."""
    return [ipaddress.ip_network(one) for one in said]


def networks_of(interface: Mapping[str, Any]) -> list[Network]:
    """The private networks of one interface, and the public IPv6 ones of a home's own link."""
    if str(interface.get("ifname", "")).startswith(INNER_INTERFACES):
        return []
    every = [
        ipaddress.ip_interface(f"{one['local']}/{one['prefixlen']}").network
        for one in interface.get("addr_info", ())
        if one.get("scope") == "global" and "local" in one
    ]
    private = [one for one in every if is_private(one)]
    at_home = any(one.version == 4 for one in private)
    return [one for one in every if is_private(one) or (at_home and one.version == 6)]


def is_private(network: Network) -> bool:
    return any(
        one.version == network.version and network.subnet_of(one)  # type: ignore[arg-type]
        for one in PRIVATE
    )


def merged(networks: Iterable[Network]) -> tuple[Network, ...]:
    every = list(networks)
    four = ipaddress.collapse_addresses(one for one in every if one.version == 4)
    six = ipaddress.collapse_addresses(one for one in every if one.version == 6)
    return (*four, *six)


def no_lan() -> Refusal:
    return Refusal(
        "the firewall is on, and the box is in no private network (10/8, 172.16/12, 192.168/16, "
        "fc00::/7)",
        "the networks from which the doors are used",
        'name them: firewall_lan = ["203.0.113.0/24"]; or firewall = False',
    )


def not_confirmed(seconds: int) -> Refusal:
    return Refusal(
        "with the new rules the box could not be reached over a new connection",
        "rules that leave ssh alone",
        f"the rules before are back within {seconds} s by themselves; see what else filters there "
        "(`sudo nft list ruleset` on the box), then run the deploy again",
    )


def not_laid(said: str) -> Refusal:
    return Refusal(
        f"the rules were not laid: {said}",
        "nftables that takes them",
        "nothing was changed for good; look at `sudo nft list ruleset` on the box, run it again",
    )


def unit_text() -> str:
    """The unit that lays the rules at each boot, before the doors open.

    Debian's nftables.service flushes every table there is, so ours follows it.
    """
    return (
        "# Laid down by the deploy; what you change here goes with the next one.\n"
        "[Unit]\nDescription=Who may use the doors of this box\n"
        "After=nftables.service\nPartOf=nftables.service\nReloadPropagatedFrom=nftables.service\n"
        f"Before={' '.join(DOORS)}\n\n"
        "[Service]\nType=oneshot\nRemainAfterExit=yes\n"
        f"ExecStart={NFT} -f {RULES}\nExecReload={NFT} -f {RULES}\n"
        f"ExecStop=-{NFT} delete table {TABLE}\n\n"
        "[Install]\nWantedBy=multi-user.target\n"
    )
