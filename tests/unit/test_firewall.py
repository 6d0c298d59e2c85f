"""The doors' firewall: its networks, and its rules as the kernel takes them."""

from __future__ import annotations

import ipaddress
import shutil
import subprocess
from typing import Any

import pytest

from aibox.decide import firewall
from aibox.decide.firewall import Firewall


def interface(name: str, *addresses: str, scope: str = "global") -> dict[str, Any]:
    """As `ip -j address` tells it."""
    split = (one.split("/") for one in addresses)
    rows = [{"local": one, "prefixlen": int(bits), "scope": scope} for one, bits in split]
    return {"ifname": name, "addr_info": rows}


HOME = interface("enp5s0", "192.168.1.20/24", "2001:db8:1:2::20/64", "fd00:1::20/64")


@pytest.mark.parametrize(
    ("interfaces", "said", "networks"),
    [
        pytest.param(
            [HOME],
            None,
            ["192.168.1.0/24", "2001:db8:1:2::/64", "fd00:1::/64", "fe80::/10"],
            id="a home, with the public IPv6 network of its own link",
        ),
        pytest.param([interface("eth0", "203.0.113.7/24")], None, [], id="a rented host"),
        pytest.param(
            [interface("eth0", "203.0.113.7/24", "2001:db8::7/64")], None, [], id="without a home"
        ),
        pytest.param(
            [
                interface("lo", "127.0.0.1/8", scope="host"),
                interface("docker0", "172.17.0.1/16"),
                interface("br-1a2b", "172.18.0.1/16"),
                interface("wlan0", "10.1.2.3/8"),
            ],
            None,
            ["10.0.0.0/8", "fe80::/10"],
            id="containers are nobody's home",
        ),
        pytest.param(
            [interface("a", "10.0.0.1/24"), interface("b", "10.0.1.1/24")],
            None,
            ["10.0.0.0/23", "fe80::/10"],
            id="neighbours become one",
        ),
        pytest.param([HOME], ["203.0.113.0/24"], ["203.0.113.0/24"], id="as it was said"),
        pytest.param([HOME], [], [], id="nobody, as it was said"),
        pytest.param([], None, [], id="no interface"),
        pytest.param([{"ifname": "x", "addr_info": [{}]}], None, [], id="an odd answer"),
    ],
)
def test_the_networks_of_a_person(
    interfaces: list[dict[str, Any]], said: list[str] | None, networks: list[str]
) -> None:
    assert [str(one) for one in firewall.lan(interfaces, said)] == networks


def wanted(**changes: Any) -> Firewall:
    networks = tuple(ipaddress.ip_network(one) for one in ("192.168.1.0/24", "fe80::/10"))
    monitors = (ipaddress.ip_network("10.0.0.9/32"),)
    usual = {"doors": (4001, 4000), "pages": (3000,), "metrics": (9100,), "closed": (8000,)}
    return Firewall(**{**usual, "lan": networks, "monitors": monitors, **changes})


def test_each_port_has_its_people() -> None:
    rules = [line.strip() for line in firewall.ruleset(wanted()).splitlines() if "dport" in line]
    assert rules == [
        "tcp dport 8000 reject with tcp reset",
        "tcp dport { 4000, 4001 } ip saddr { 10.0.0.9/32, 192.168.1.0/24 } accept",
        "tcp dport { 4000, 4001 } ip6 saddr { fe80::/10 } accept",
        "tcp dport { 4000, 4001 } reject with tcp reset",
        "tcp dport { 3000 } ip saddr { 192.168.1.0/24 } accept",
        "tcp dport { 3000 } ip6 saddr { fe80::/10 } accept",
        "tcp dport { 3000 } reject with tcp reset",
        "tcp dport { 9100 } ip saddr { 10.0.0.9/32 } accept",
        "tcp dport { 9100 } reject with tcp reset",
    ]


def test_without_doors_the_server_is_still_closed() -> None:
    text = firewall.ruleset(wanted(doors=(), pages=(), metrics=()))
    assert [line.strip() for line in text.splitlines() if "dport" in line] == [
        "tcp dport 8000 reject with tcp reset"
    ]


def test_metrics_without_a_monitor_are_for_nobody() -> None:
    text = firewall.ruleset(wanted(monitors=()))
    assert "9100 } reject" in text
    assert "9100 } ip" not in text


def test_a_monitor_in_the_lan_is_named_once() -> None:
    text = firewall.ruleset(wanted(monitors=(ipaddress.ip_network("192.168.1.9/32"),)))
    assert "4001 } ip saddr { 192.168.1.0/24 } accept" in text
    assert "9100 } ip saddr { 192.168.1.9/32 } accept" in text


@pytest.mark.skipif(shutil.which("nft") is None, reason="no nft on this machine")
@pytest.mark.parametrize(
    "changes", [{}, {"doors": (), "pages": (), "metrics": ()}, {"lan": (), "monitors": ()}]
)
def test_the_kernel_takes_it_twice_and_tells_the_same(changes: dict[str, Any]) -> None:
    text = firewall.ruleset(wanted(**changes))
    listed = f"nft -f - && nft -s list table {firewall.TABLE}"
    once = f"unshare -n sh -c '{listed}'"
    done = subprocess.run(once, shell=True, input=text, capture_output=True, text=True, check=True)
    twice = subprocess.run(
        once, shell=True, input=text + text, capture_output=True, text=True, check=True
    )
    assert done.stdout == twice.stdout
    assert done.stdout.count("dport") == text.count("dport")


def test_the_unit_comes_before_the_doors_and_after_what_flushes() -> None:
    lines = firewall.unit_text().splitlines()
    assert "After=nftables.service" in lines
    assert "PartOf=nftables.service" in lines
    assert "Before=vllm-stream.service litellm.service" in lines
    assert f"ExecStart={firewall.NFT} -f {firewall.RULES}" in lines


def test_gateways_of_another_network_come_in_at_the_doors_alone() -> None:
    wanted = Firewall(
        doors=[4000],
        pages=[3000],
        metrics=[9100],
        closed=[8000],
        lan=firewall.networks(["192.168.1.0/24"]),
        monitors=[],
        gateways=firewall.networks(["10.1.0.7/32"]),
    )
    lines = [line.strip() for line in firewall.ruleset(wanted).splitlines() if "10.1.0.7" in line]
    assert lines == ["tcp dport { 4000 } ip saddr { 10.1.0.7/32, 192.168.1.0/24 } accept"]
