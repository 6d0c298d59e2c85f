"""A deployed box, run again: nothing to do, nothing done; one change does one thing."""

from __future__ import annotations

import re

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation import gpu
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import Deploy, deploy, standin
from tests.rehearsal.refusal import the_one_refusal

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


@pytest.mark.long
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


@pytest.mark.long
def test_a_server_over_two_cards_is_pinned_to_both(box: Box, hub: Hub) -> None:
    one = gpu.CARDS["workstation"]
    second = "GPU-5bd1e9a4-0000-4000-8000-000000000003"
    (card,) = one["cards"]
    alike: gpu.Card = {**card, "uuid": second, "pci_bus_id": "00000000:41:00.0"}
    first = card["uuid"]
    gpu.write_state(box.root, {**one, "cards": [card, alike]})
    box.run("systemctl restart nvidia-persistenced")  # it keeps the cards that it found at boot
    data = {**standin(hub.url), "serve": {"tensor-parallel-size": 2}, "power_limit_w": 400}
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    unit = box.run(f"cat {UNIT}").stdout
    assert f"Environment=CUDA_VISIBLE_DEVICES={first},{second}\n" in unit
    assert f" gpu --uuid {first},{second} --utilization" in unit
    limits = box.run("nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits").stdout
    assert limits.split() == ["400.00", "400.00"]
    assert "GiB used on 2 cards" in box.run("/opt/aibox/current/bin/aibox status").stdout
    assert deploy({box: data}, "--dry", "--json").planned == []
    gpu.write_state(box.root, one)  # one falls off the bus
    refusal = the_one_refusal(deploy({box: data}, "-y"))
    assert refusal.found.startswith("1 card: card 0")
    assert "2 cards (tensor-parallel-size 2)" in refusal.expected
    wait = f"gpu --uuid {first},{second} --utilization 0.15 --seconds 0"
    ended_at = box.run(f"/opt/aibox/current/bin/aibox {wait}", check=False)
    assert (ended_at.returncode, f"the card {second}" in ended_at.stderr) == (1, True)


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
