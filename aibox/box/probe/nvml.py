"""Graphics cards, asked of NVML itself."""

import ctypes
from typing import Any

NVML_SUCCESS = 0


class NvmlMemory(ctypes.Structure):
    _fields_ = (
        ("total", ctypes.c_ulonglong),
        ("free", ctypes.c_ulonglong),
        ("used", ctypes.c_ulonglong),
    )


def gpu() -> dict[str, Any]:
    """The cards as the driver's own library names them. An error is NVML's own text."""
    answer: dict[str, Any] = {"library": False, "error": None, "driver": None, "cards": []}
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
    except OSError:
        return answer
    answer["library"] = True
    nvml.nvmlErrorString.restype = ctypes.c_char_p
    code = nvml.nvmlInit_v2()
    if code != NVML_SUCCESS:
        answer["error"] = nvml.nvmlErrorString(code).decode(errors="replace")
        return answer
    try:
        version = ctypes.create_string_buffer(96)
        if nvml.nvmlSystemGetDriverVersion(version, 96) == NVML_SUCCESS:
            answer["driver"] = version.value.decode()
        count = ctypes.c_uint(0)
        nvml.nvmlDeviceGetCount_v2(ctypes.byref(count))
        answer["cards"] = [card(nvml, index) for index in range(count.value)]
    finally:
        nvml.nvmlShutdown()
    return answer


def card(nvml: ctypes.CDLL, index: int) -> dict[str, Any]:
    """One card; what it does not support is null."""
    device = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
    name, uuid = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
    nvml.nvmlDeviceGetName(device, name, 96)
    nvml.nvmlDeviceGetUUID(device, uuid, 96)
    memory = NvmlMemory()
    major, minor = ctypes.c_int(), ctypes.c_int()
    mig, pending = ctypes.c_uint(), ctypes.c_uint()
    has_memory = nvml.nvmlDeviceGetMemoryInfo(device, ctypes.byref(memory))
    has_capability = nvml.nvmlDeviceGetCudaComputeCapability(
        device, ctypes.byref(major), ctypes.byref(minor)
    )
    least, most = ctypes.c_uint(), ctypes.c_uint()  # milliwatts
    has_bounds = nvml.nvmlDeviceGetPowerManagementLimitConstraints(
        device, ctypes.byref(least), ctypes.byref(most)
    )
    has_mig = nvml.nvmlDeviceGetMigMode(device, ctypes.byref(mig), ctypes.byref(pending))
    return {
        "index": index,
        "name": name.value.decode(errors="replace"),
        "uuid": uuid.value.decode(errors="replace"),
        "memory_bytes": memory.total if has_memory == NVML_SUCCESS else None,
        "capability": [major.value, minor.value] if has_capability == NVML_SUCCESS else None,
        "mig": ("enabled" if mig.value else "disabled") if has_mig == NVML_SUCCESS else None,
        "power_min_w": least.value / 1000 if has_bounds == NVML_SUCCESS else None,
        "power_max_w": most.value / 1000 if has_bounds == NVML_SUCCESS else None,
    }


QUESTIONS = {"cards": lambda _asked: gpu()}
