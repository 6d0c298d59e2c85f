"""The cards as NVML names them, through nvidia-ml-py, and what CUDA itself says."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any, TypeVar

import pynvml

from aibox.box.probe.processes import name_of
from aibox.decide.vram import Card, Cuda, Holder

Answer = TypeVar("Answer")
# what a library or a card does not know: an old driver lacks whole functions
UNKNOWN = (
    pynvml.NVMLError_NotSupported,
    pynvml.NVMLError_FunctionNotFound,
    pynvml.NVMLError_NoPermission,
    pynvml.NVMLLibraryMismatchError,  # no NVMLError: the library lacks what the header promises
)
CU_INIT_S = 60  # without persistence the first start of a card takes seconds; a sick one hangs


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
    memory = supported(lambda: pynvml.nvmlDeviceGetMemoryInfo(device))
    bounds = supported(lambda: pynvml.nvmlDeviceGetPowerManagementLimitConstraints(device))
    return Card(
        index=index,
        name=pynvml.nvmlDeviceGetName(device),
        uuid=pynvml.nvmlDeviceGetUUID(device),
        memory_bytes=None if memory is None else int(memory.total),
        capability=supported(lambda: pair(pynvml.nvmlDeviceGetCudaComputeCapability(device))),
        mig=None if mig is None else ("enabled" if mig else "disabled"),
        free_bytes=None if memory is None else int(memory.free),
        processes=holders(device),
        power_limit_w=supported(lambda: watts(pynvml.nvmlDeviceGetPowerManagementLimit(device))),
        power_min_w=None if bounds is None else watts(bounds[0]),
        power_max_w=None if bounds is None else watts(bounds[1]),
    )


def holders(device: Any) -> tuple[Holder, ...]:
    """Processes that hold memory of a card, for computing and for a display, each once."""
    found: dict[int, Holder] = {}
    computing = supported(lambda: pynvml.nvmlDeviceGetComputeRunningProcesses(device))
    drawing = supported(lambda: pynvml.nvmlDeviceGetGraphicsRunningProcesses(device))
    for one in [*(computing or []), *(drawing or [])]:
        used = None if one.usedGpuMemory is None else int(one.usedGpuMemory)
        found.setdefault(one.pid, Holder(int(one.pid), process_name(one.pid), used))
    return tuple(found[pid] for pid in sorted(found))


def process_name(pid: int) -> str:
    """As NVML gives it, else as the kernel does. One of another container has neither: "?"."""
    try:
        name = str(pynvml.nvmlSystemGetProcessName(pid))
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError):
        name = ""
    return name or name_of(pid)


def watts(milliwatts: int) -> float:
    return milliwatts / 1000


def pair(numbers: list[int]) -> tuple[int, int]:
    return int(numbers[0]), int(numbers[1])


def supported(ask: Callable[[], Answer]) -> Answer | None:
    try:
        return ask()
    except UNKNOWN:
        return None


# --- CUDA itself -------------------------------------------------------------------------------

CU_INIT = """
import ctypes, json
try:
    cuda = ctypes.CDLL("libcuda.so.1")
except OSError:
    print("null")
    raise SystemExit
def words(ask, code):
    text = ctypes.c_char_p()
    return text.value.decode(errors="replace") if ask(code, ctypes.byref(text)) == 0 else ""
code = cuda.cuInit(0)
print(json.dumps({
    "code": code,
    "name": words(cuda.cuGetErrorName, code),
    "text": words(cuda.cuGetErrorString, code),
}))
"""


def cuda(program: str = CU_INIT, seconds: float = CU_INIT_S) -> Cuda | None:
    """What cuInit answers, None without libcuda. In a process of its own: one that crashes or
    hangs there is a finding, with the signal's negative number as its code."""
    with subprocess.Popen(
        [sys.executable, "-IS", "-c", program],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as child:
        try:
            said, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            return Cuda(-signal.SIGKILL, "no answer", f"cuInit did not return in {seconds:g} s")
    if child.returncode < 0:
        name = signal.Signals(-child.returncode).name
        return Cuda(child.returncode, name, "cuInit ended its process")
    try:
        found = json.loads(said)
    except ValueError:
        return Cuda(-1, "no answer", "the process that called cuInit said nothing")
    return None if found is None else Cuda(found["code"], found["name"], found["text"])
