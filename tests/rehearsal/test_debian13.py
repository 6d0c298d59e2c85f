"""The same deploy on Debian 13: its Python is 3.13, so another lock, another release."""

from __future__ import annotations

import pytest

from aibox.decide.doors import DOORS, MASTER_KEY
from aibox.decide.firewall import TABLE
from aibox.decide.monitoring import GPU_EXPORTER
from aibox.decide.watcher import SCRAPES
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import RealStarts
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import deploy, download_caches, production, standin
from tests.rehearsal.test_doors import BODY, ask, bearer, deployed, exposure, is_up, planned
from tests.rehearsal.test_monitoring import at_home, got, up

pytestmark = pytest.mark.long


def test_a_bare_box_gets_its_driver_and_serves_in_one_run(hub: Hub) -> None:
    """From nouveau on the card to an answered request, with one reboot in between."""
    with Box.up("debian13", suite="trixie", owned=True) as box:
        assert box.run("ls /sys/module").stdout.split() == ["nouveau"]
        ended = deploy({box: standin(hub.url)}, "-y")
        assert ended.code == 0, ended.said
        assert ended.said.count("up again after") == 1, ended.said
        assert "96 GB verified" in ended.said
        loaded = box.run("cat /proc/driver/nvidia/version").stdout
        assert "Open Kernel Module for x86_64  580.178.04 " in loaded
        assert "release 13.0" in box.run("/usr/local/cuda-13.0/bin/nvcc --version").stdout
        source = box.run("cat /etc/apt/sources.list.d/aibox-nvidia.sources").stdout
        assert "/debian13/x86_64/" in source
        assert deploy({box: standin(hub.url)}, "--dry", "--json").planned == []


def test_boxes_of_two_systems_and_models_are_built_in_one_run(hub: Hub) -> None:
    """Side by side, each by its own host data; a row each at the end, silent the second time."""
    with (
        Box.up("mixed-12", owned=True) as twelve,
        Box.up("mixed-13", suite="trixie", owned=True) as thirteen,
    ):
        usual = standin(hub.url)
        named = {**usual, "serve": {"served-model-name": "another"}, "power_limit_w": 450}
        ended = deploy({twelve: usual, thirteen: named}, "-y", timeout_s=1200)
        assert ended.code == 0, ended.said
        last = ended.said.strip().splitlines()[-2:]
        assert [line.split()[:3] for line in last] == [
            ["mixed-12", "serves", "tiny-qwen3.5-mtp,"],
            ["mixed-13", "serves", "another,"],
        ]
        pythons = [box.run("ls /opt/vllm/releases/*/lib").stdout for box in (twelve, thirteen)]
        assert pythons == ["python3.11\n", "python3.13\n"]
        assert deploy({twelve: usual, thirteen: named}, "--dry", "--json").planned == []


def test_both_doors_and_their_firewall_stand_there(hub: Hub) -> None:
    """Their venvs come from the same locks, on another Python; nftables and systemd are newer."""
    with Box.up("debian13-doors", suite="trixie", binds=download_caches(), owned=True) as box:
        data = {**standin(hub.url), "stream": True, "gateway": True, "firewall": True}
        ended = deploy({box: data}, "-y")
        assert ended.code == 0, ended.said
        key = box.run(f"cat {MASTER_KEY}").stdout.strip()
        assert ask(box, 4000, "/v1/chat/completions", BODY)[0] == 200
        assert ask(box, 4001, "/v1/chat/completions", BODY, bearer(key))[0] == 200
        assert ask(box, 4001, "/v1/chat/completions", BODY)[0] == 401
        assert max(exposure(box, door.unit) for door in DOORS) <= 2.0
        rules = box.run(f"nft -s list table {TABLE}").stdout
        assert deploy({box: data}, "--dry", "--json").planned == []
        box.reboot()
        box.until(lambda: is_up(box, bearer(key)), 300)
        assert box.run(f"nft -s list table {TABLE}").stdout == rules
        assert deploy({box: data}, "--dry", "--json").planned == []


def test_it_watches_itself_there(hub: Hub) -> None:
    """Prometheus of another Debian takes our files, and sees every part of the box."""
    with Box.up("debian13-monitor", suite="trixie", binds=download_caches(), owned=True) as box:
        data = {**standin(hub.url), "stream": True, "monitoring": None, "_monitor": "too"}
        deployed(box, data)
        parts = {f"aibox-{one}" for one in ("vllm", "stream", "node", "gpu")}
        box.until(lambda: up(box) == dict.fromkeys(parts, "up"), 90)
        box.run(f"promtool check config {SCRAPES}")
        assert exposure(box, GPU_EXPORTER.unit) <= 2.0
        assert planned(box, data) == []
        box.reboot()
        box.until(lambda: "is Ready" in got(box, at_home(9090, "/-/ready")), 300)
        box.until(lambda: up(box) == dict.fromkeys(parts, "up"), 300)
        assert planned(box, data) == []


def test_the_production_lock_serves_with_mtp(hub: Hub, real_starts: RealStarts) -> None:
    with Box.up("debian13-real", suite="trixie", binds=download_caches(), owned=True) as box:
        data = production(hub.url, python="3.13")
        ended = deploy({box: data}, "-y", timeout_s=1500)
        real_starts.count(box)
        assert ended.code == 0, ended.said
        assert "draft tokens accepted" in ended.said
        assert deploy({box: data}, "--dry", "--json").planned == []
