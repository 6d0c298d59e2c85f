"""The graphics card's metrics, by nvitop-exporter in a venv of its own."""

from __future__ import annotations

from functools import cache

from aibox.decide import monitoring
from aibox.decide.monitoring import GPU_EXPORTER
from aibox.decide.unit import exec_start
from aibox.decide.wheels import locked_versions
from tasks.box import Box
from tasks.services import Venv, Wanted, lock_text, unit_text

SIZE = 20_000_000
FETCH = 1_000_000
MODULES = ("nvitop_exporter", "prometheus_client")
INTERVAL_S = 5  # between two readings of the card; Prometheus asks every 15 s
ENVIRONMENT = {"HOME": GPU_EXPORTER.home, "PYTHONDONTWRITEBYTECODE": "1"}
# Its processes' names need no device, and of the card only what is there already is opened.
DEVICES = ("char-nvidia* rw",)


LOCK = lock_text("monitoring")
VERSION = locked_versions(LOCK)["nvitop-exporter"]


@cache
def venv() -> Venv:
    lock = LOCK
    unnamed = Venv("", lock, SIZE, FETCH, MODULES)
    folder = f"{GPU_EXPORTER.root}/{VERSION}-{unnamed.sha256[:8]}"
    return Venv(folder, lock, SIZE, FETCH, MODULES)


def wanted(box: Box) -> Wanted:
    port = box.settings.gpu_exporter_port
    unit = unit_text(
        "aibox-gpu-exporter.service.j2",
        GPU_EXPORTER,
        ENVIRONMENT,
        venv=venv().folder,
        exec_start=exec_start(command(box)),
        guard=monitoring.guard(box.watched.readers),
        devices=DEVICES,
    )
    return Wanted(
        service=GPU_EXPORTER,
        port=port,
        url=f"http://127.0.0.1:{port}",
        venv=venv(),
        files={GPU_EXPORTER.unit_file: unit},
        key_file=None,
        keys=(),
        models=None,
        environment=list(ENVIRONMENT),
        extra={},
    )


def command(box: Box) -> list[list[str]]:
    return [
        [f"{venv().folder}/bin/python", "-m", "nvitop_exporter"],
        ["--bind-address", box.watched.address],
        ["--port", str(box.settings.gpu_exporter_port)],
        ["--interval", str(INTERVAL_S)],
        ["--hostname", "box"],  # Prometheus' label `box` says which
    ]
