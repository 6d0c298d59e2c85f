"""Wait until the card is there and free enough for a server: the unit's ExecStartPre."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pynvml

from aibox.box import vram
from aibox.decide.spread import chosen
from aibox.decide.start_limits import Blocked, GpuState, Memory, Room, blocked

POLL_S = 0.5
MODULE = Path("/sys/module/nvidia")
DEVICES = Path("/dev")
NODES = ("nvidiactl", "nvidia-uvm")


def wait(uuids: Sequence[str], utilization: float, seconds: float) -> int:
    """0 once a server can have its share of its cards; 1 when time is over, or waiting can't help.

    uuids: the cards, none for the first. utilization: the share of its memory, 0 to 1. The journal
    gets a line when the waiting begins and whenever its reason changes, and the refusal at its end.
    """
    began = time.monotonic()
    said = None
    while (found := blocked(look(uuids), uuids, utilization)) is not None:
        left = began + seconds - time.monotonic()
        if not found.passing or left <= 0:
            print(found.refusal, file=sys.stderr, flush=True)
            return 1
        if found.about != said:
            said = tell(found, left)
        time.sleep(min(POLL_S, left))
    if said is not None:
        print(f"the card is free after {time.monotonic() - began:.1f} s", flush=True)
    return 0


def tell(found: Blocked, left: float) -> str:
    wanted = f"{found.refusal.found}; wanted: {found.refusal.expected}"
    print(f"waiting for the card, at most {left:.0f} s: {wanted}", flush=True)
    return found.about


def look(uuids: Sequence[str]) -> GpuState:
    """The driver, the cards and their memory as they are now."""
    missing, closed = nodes()
    state = GpuState(library=True, missing=missing, closed=closed)
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        code = error.value
        there = code != pynvml.NVML_ERROR_LIBRARY_NOT_FOUND
        torn = code == pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH
        return replace(state, library=there, error=str(error), mismatch=torn)
    try:
        return replace(state, **cards(uuids))
    except pynvml.NVMLError as error:  # the card fell off the bus in between, for one
        return replace(state, error=str(error))
    finally:
        pynvml.nvmlShutdown()


def cards(uuids: Sequence[str]) -> dict[str, Any]:
    """The cards, and what is on those that serve. Raises pynvml.NVMLError."""
    handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
    there = {pynvml.nvmlDeviceGetUUID(handle): handle for handle in handles}
    wanted = chosen(tuple(uuids or list(there)[:1]), {uuid: (uuid, there[uuid]) for uuid in there})
    rooms = [Room(uuid, memory_of(one), vram.holders(one)) for uuid, one in wanted]
    return {"uuids": tuple(there), "rooms": tuple(rooms)}


def memory_of(device: Any) -> Memory | None:
    """By the second version, which knows the reserved part; by the first for an old driver."""
    found = vram.supported(lambda: pynvml.nvmlDeviceGetMemoryInfo(device, pynvml.nvmlMemory_v2))
    if found is not None:
        return Memory(int(found.total), int(found.reserved), int(found.free))
    found = vram.supported(lambda: pynvml.nvmlDeviceGetMemoryInfo(device))
    return None if found is None else Memory(int(found.total), 0, int(found.free))


def nodes() -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(missing, closed): CUDA's nodes that are not there, and that the unit may not open.

    Nothing is expected of a module that is not loaded. Only "not permitted" counts: what else
    opening a node says is the driver's affair.
    """
    missing: list[str] = []
    closed: list[str] = []
    if not MODULE.exists():
        return (), ()
    for path in (DEVICES / name for name in NODES):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CLOEXEC))
        except FileNotFoundError:
            missing.append(str(path))
        except PermissionError:
            closed.append(str(path))
        except OSError:
            continue
    return tuple(missing), tuple(closed)
