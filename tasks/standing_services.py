"""The doors and the GPU exporter together: every service of ours with a venv of its own."""

from __future__ import annotations

from aibox.decide.doors import GATEWAY, STREAM
from aibox.decide.monitoring import GPU_EXPORTER
from aibox.decide.services import Service
from tasks import gateway, gpu_exporter, stream
from tasks.box import Box
from tasks.services import Venv, Wanted


def venvs() -> dict[Service, Venv]:
    return {
        STREAM: stream.venv(),
        GATEWAY: gateway.venv(),
        GPU_EXPORTER: gpu_exporter.venv(),
    }


def wanted(box: Box) -> list[Wanted]:
    """Those that stand, in the order of the deploy."""
    both = {STREAM: stream.wanted, GATEWAY: gateway.wanted}
    standing = [make(box) for door, make in both.items() if box.doors.of(door).on]
    return [*standing, *([gpu_exporter.wanted(box)] if box.watched.gpu.on else [])]
