"""The same deploy on Debian 13: its Python is 3.13, so another lock, another release."""

from __future__ import annotations

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.conftest import RealStarts
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import deploy, download_caches, production, standin

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


def test_the_production_lock_serves_with_mtp(hub: Hub, real_starts: RealStarts) -> None:
    with Box.up("debian13-real", suite="trixie", binds=download_caches(), owned=True) as box:
        data = production(hub.url, python="3.13")
        ended = deploy({box: data}, "-y", timeout_s=1500)
        real_starts.count(box)
        assert ended.code == 0, ended.said
        assert "draft tokens accepted" in ended.said
        assert deploy({box: data}, "--dry", "--json").planned == []
