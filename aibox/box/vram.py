"""The cards as NVML names them, through nvidia-ml-py."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pynvml

from aibox.decide.vram import Card

Answer = TypeVar("Answer")


def cards() -> list[Card]:
    """Every card of the box. Raises pynvml.NVMLError when the driver does not answer at all."""
    pynvml.nvmlInit()
    try:
        return [card(index) for index in range(pynvml.nvmlDeviceGetCount())]
    finally:
        pynvml.nvmlShutdown()


def card(index: int) -> Card:
    device = pynvml.nvmlDeviceGetHandleByIndex(index)
    mig = supported(lambda: pynvml.nvmlDeviceGetMigMode(device)[0])
    return Card(
        index=index,
        name=pynvml.nvmlDeviceGetName(device),
        uuid=pynvml.nvmlDeviceGetUUID(device),
        memory_bytes=supported(lambda: int(pynvml.nvmlDeviceGetMemoryInfo(device).total)),
        capability=supported(lambda: pair(pynvml.nvmlDeviceGetCudaComputeCapability(device))),
        mig=None if mig is None else ("enabled" if mig else "disabled"),
    )


def pair(numbers: list[int]) -> tuple[int, int]:
    return int(numbers[0]), int(numbers[1])


def supported(ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except pynvml.NVMLError_NotSupported:
        return None
