"""The doors' firewall on a box: who comes in, what survives, and rules that cut the way in."""

from __future__ import annotations

import shlex
import socket
import time
from collections.abc import Callable, Iterator

import pytest

from aibox.decide.doors import STREAM
from aibox.decide.firewall import RULES, TABLE, UNIT
from tasks.firewall import REVERT, REVERT_S, TRY
from tests.rehearsal import fingerprint
from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.jobs import until
from tests.rehearsal.provision import Deploy, HostData, deploy, download_caches, standin

ELSEWHERE = ["192.168.77.0/24"]  # where nobody is
NOBODY = (
    f"table {TABLE}\ndelete table {TABLE}\ntable {TABLE} "
    "{{ chain input {{ type filter hook input priority -5; tcp dport {port} drop; }}\n }}\n"
)


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("firewall", layer=layers("serving"), binds=download_caches(), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture(scope="module")
def data(hub: Hub) -> HostData:
    return {**standin(hub.url), "stream": True, "firewall": True}


def deployed(box: Box, data: HostData) -> Deploy:
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    return ended


def comes_in(box: Box, port: int) -> bool:
    """Whether this machine gets a connection."""
    try:
        with socket.create_connection((box.address, port), timeout=30):
            return True
    except ConnectionRefusedError:
        return False


def answers_inside(box: Box) -> bool:
    program = "import urllib.request as u; u.urlopen('http://127.0.0.1:4000/health', timeout=30)"
    return box.run(["python3", "-c", program], check=False).returncode == 0


def test_the_networks_of_the_box_come_in_and_nobody_else(box: Box, data: HostData) -> None:
    deployed(box, data)
    assert comes_in(box, 4000)  # this machine is in the box's own network
    assert deploy({box: data}, "--dry", "--json").planned == []
    narrow = {**data, "firewall_lan": ELSEWHERE}
    assert deploy({box: narrow}, "--dry", "--json").planned == [
        "Firewall | The rules are in force",
        "Firewall | The rules on the disk",
        "Proof | The record of what was laid down",
    ]
    deployed(box, narrow)
    assert not comes_in(box, 4000)
    assert answers_inside(box)
    assert box.run(f"systemctl is-active {REVERT}.timer", check=False).stdout.strip() != "active"
    assert deploy({box: narrow}, "--dry", "--json").planned == []
    box.reboot()
    assert not comes_in(box, 4000)
    box.run(f"systemctl start vllm-coder {STREAM.unit}")  # waits until both answer
    assert not comes_in(box, 4000)
    box.run("nft flush ruleset")
    assert deploy({box: narrow}, "--dry", "--json").planned == ["Firewall | The rules are in force"]
    deployed(box, narrow)
    assert not comes_in(box, 4000)


def rules(box: Box) -> str:
    return fingerprint.inside(box, f"nft -s list table {TABLE}")


@pytest.mark.long
def test_what_a_run_that_was_cut_off_has_tried_is_not_taken_for_the_rules_before(box: Box) -> None:
    before = rules(box)
    for port in ("9", "99"):
        box.run(["sh", "-ec", TRY], text=NOBODY.format(port=port))
        assert f"dport {port} " in rules(box)
    until(lambda: rules(box) == before, "the rules before are back", REVERT_S + 15)


CUT = """
until test -e /run/aibox/firewall.before; do sleep 0.02; done
nft 'add table inet cut; add chain inet cut input { type filter hook input priority -9; }'
nft add rule inet cut input tcp dport 22 ct state new reject
"""


@pytest.mark.long
def test_without_a_new_connection_the_run_fails_and_the_rules_go_back(
    box: Box, data: HostData
) -> None:
    """sshd takes no new connection once the rules are tried; the one that is open stays."""
    before = rules(box)
    fingerprint.inside(box, "rm -f /run/aibox/firewall.before")
    fingerprint.inside(box, f"systemd-run -q --unit=cut sh -ec {shlex.quote(CUT)}")
    try:
        ended = deploy({box: data}, "-y")
        assert ended.code == 1, ended.said
        assert "could not be reached over a new connection" in ended.said, ended.said
        assert "Traceback" not in ended.said, ended.said
        assert rules(box) != before
        until(lambda: rules(box) == before, "the rules before are back", REVERT_S + 15)
    finally:
        fingerprint.inside(box, "nft delete table inet cut")
    assert not comes_in(box, 4000)
    deployed(box, data)
    assert comes_in(box, 4000)


@pytest.mark.long
def test_the_very_rules_that_a_cut_off_run_has_tried_are_kept_by_the_next(
    box: Box, data: HostData
) -> None:
    deployed(box, data)
    wanted = rules(box)
    text = box.run(["cat", RULES]).stdout
    box.run(f"nft delete table {TABLE}")
    box.run(["sh", "-ec", TRY], text=text)
    assert rules(box) == wanted
    deployed(box, data)
    assert box.run(f"systemctl is-active {REVERT}.timer", check=False).stdout.strip() != "active"
    time.sleep(REVERT_S + 5)
    assert rules(box) == wanted
    assert deploy({box: data}, "--dry", "--json").planned == []


def test_turned_off_nothing_of_it_is_left(box: Box, data: HostData) -> None:
    deployed(box, {**data, "firewall": False})
    assert box.run(f"nft list table {TABLE}", check=False).returncode != 0
    assert box.run(f"ls {RULES} /etc/systemd/system/{UNIT}", check=False).stdout == ""
    assert comes_in(box, 4000)
    assert deploy({box: {**data, "firewall": False}}, "--dry", "--json").planned == []
