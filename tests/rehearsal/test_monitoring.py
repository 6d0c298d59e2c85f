"""The box's own exporters, and the monitor that reads them, on boxes with the stand-in release."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import HostData, download_caches, standin
from tests.rehearsal.test_doors import deployed, planned
from tests.rehearsal.test_drift import check


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    name = layers("serving")
    with Box.up("monitoring", layer=name, binds=download_caches(), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture
def data(hub: Hub) -> HostData:
    return {**standin(hub.url), "stream": True, "monitoring": True}


def metrics(box: Box, port: int, path: str = "/metrics") -> str:
    """As the box itself reads them."""
    asked = f"u.urlopen('http://127.0.0.1:{port}{path}', timeout=20).read().decode()"
    return box.run(["python3", "-c", f"import urllib.request as u; print({asked})"]).stdout


def test_exporters_are_for_the_box_alone_until_somebody_may_read(box: Box, data: HostData) -> None:
    said = deployed(box, data).said
    assert "the node exporter on port 9100" in said
    assert 'node_systemd_service_restart_total{name="vllm-coder.service"}' in metrics(box, 9100)
    assert "aibox_next_reboot_keeps_card 1" in metrics(box, 9100)
    assert "gpu_temperature_C" in metrics(box, 9835)
    assert planned(box, data) == []
    assert check({box: data}).code == 0
