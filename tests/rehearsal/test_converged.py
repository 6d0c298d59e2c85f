"""A deployed box, run again: nothing to do, nothing done; one change does one thing."""

from __future__ import annotations

import re

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import Deploy, deploy, standin

# active means that /health of the main process answered
ACTIVE = "systemctl is-active -q vllm-coder"
UNIT = "/etc/systemd/system/vllm-coder.service"


@pytest.fixture
def box(make_box: MakeBox) -> Box:
    return make_box("converged")


def planned(box: Box, hub: Hub, **data: object) -> list[str]:
    """The operations that a run would change, by pyinfra's own JSON plan."""
    return deploy({box: {**standin(hub.url), **data}}, "--dry", "--json").planned


def restarts(box: Box) -> tuple[str, str]:
    """What changes with every start of the server: its invocation and its main process."""
    shown = box.run("systemctl show vllm-coder -p InvocationID -p MainPID --value").stdout.split()
    return shown[0], shown[1]


def changed(ended: Deploy) -> int:
    """Operations that did something, from the table at the end of a run."""
    total = re.search(r"Grand total +\d+ +(\S+) ", ended.said)
    assert total, ended.said
    return 0 if total[1] == "-" else int(total[1])


def test_a_second_deploy_changes_nothing(box: Box, hub: Hub) -> None:
    before = restarts(box)
    assert planned(box, hub) == []
    ended = deploy({box: standin(hub.url)}, "-y")
    assert ended.code == 0, ended.said
    assert changed(ended) == 0, ended.said
    assert restarts(box) == before
    assert "draft tokens accepted" in ended.said  # the last screen is shown all the same


def test_one_flag_is_one_line_and_one_restart(box: Box, hub: Hub) -> None:
    before, unit = restarts(box), box.run(f"cat {UNIT}").stdout.splitlines()
    data = {**standin(hub.url), "serve": {"max-num-seqs": 3}}
    shown = deploy({box: data}, "--dry", "--diff").said
    lines = [
        line.split("]", 1)[1].strip() for line in shown.splitlines() if re.search(r"\] [+-] ", line)
    ]
    assert lines == ["-    --max-num-seqs 4 \\", "+    --max-num-seqs 3 \\"], shown
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    assert changed(ended) == 2, ended.said  # the switch, which proves it, and the record
    after = box.run(f"cat {UNIT}").stdout.splitlines()
    assert [(a, b) for a, b in zip(unit, after, strict=True) if a != b] == [
        ("    --max-num-seqs 4 \\", "    --max-num-seqs 3 \\")
    ]
    assert restarts(box) != before
    assert box.run("systemctl show vllm-coder -p NRestarts --value").stdout.strip() == "0"
    assert planned(box, hub, serve={"max-num-seqs": 3}) == []


def test_after_a_reboot_the_server_is_back_by_itself(box: Box, hub: Hub) -> None:
    boot = box.run("cat /proc/sys/kernel/random/boot_id").stdout
    box.reboot()
    box.run(f"timeout 120 sh -c 'until {ACTIVE}; do sleep 0.2; done'")
    assert box.run("cat /proc/sys/kernel/random/boot_id").stdout != boot
    assert planned(box, hub) == []


@pytest.mark.long
def test_a_killed_engine_comes_back(box: Box, hub: Hub) -> None:
    before = restarts(box)
    box.run("pkill -9 -f VLLM::EngineCore")
    same = f"systemctl show vllm-coder -p InvocationID --value | grep -q {before[0]}"
    box.run(f"timeout 120 sh -c 'while {same}; do sleep 0.2; done'")
    box.run(f"timeout 120 sh -c 'until {ACTIVE}; do sleep 0.2; done'")
    assert restarts(box) != before
    assert planned(box, hub) == []
