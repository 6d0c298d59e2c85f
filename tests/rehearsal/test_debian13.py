"""The same deploy on Debian 13: its Python is 3.13, so another lock, another release."""

from __future__ import annotations

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.conftest import RealStarts
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import deploy, download_caches, production, standin

pytestmark = pytest.mark.long


def test_the_standin_is_built_and_then_left_alone(hub: Hub) -> None:
    with Box.up("debian13", suite="trixie", owned=True) as box:
        ended = deploy({box: standin(hub.url)}, "-y")
        assert ended.code == 0, ended.said
        assert deploy({box: standin(hub.url)}, "--dry", "--json").planned == []


def test_the_production_lock_serves_with_mtp(hub: Hub, real_starts: RealStarts) -> None:
    with Box.up("debian13-real", suite="trixie", binds=download_caches(), owned=True) as box:
        data = production(hub.url, python="3.13")
        ended = deploy({box: data}, "-y", timeout_s=1500)
        real_starts.count(box)
        assert ended.code == 0, ended.said
        assert "draft tokens accepted" in ended.said
        assert deploy({box: data}, "--dry", "--json").planned == []
