"""nvidia-smi: what it shows it asks the installed libnvidia-ml.so.1, as the real one does."""

from __future__ import annotations

import ctypes
import os
from typing import Any

from .commands import CommandError
from .files import changing_boot, kernel_log, state
from .persistence import set_persistence

NOT_LOADED, MISMATCH = 9, 18
NVML_MEMORY_V2 = 40 | 2 << 24
USAGE = 2  # exit code for words that it does not take


class Memory(ctypes.Structure):
    _fields_ = [
        ("version", ctypes.c_uint),
        *((name, ctypes.c_ulonglong) for name in ("total", "reserved", "free", "used")),
    ]


class Nvml:
    """The library, initialised. CommandError, in nvidia-smi's words, when it does not answer."""

    def __init__(self) -> None:
        try:
            self.library = ctypes.CDLL("libnvidia-ml.so.1")
        except OSError:
            raise CommandError(
                "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure"
                " that the NVIDIA Display Driver is properly installed and present in your system.",
                12,
            ) from None
        code = self.library.nvmlInit_v2()
        if code == NOT_LOADED:
            raise CommandError(
                "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make"
                " sure that the latest NVIDIA driver is installed and running.\n",
                code,
            )
        if code:
            self.library.nvmlErrorString.restype = ctypes.c_char_p
            words = self.library.nvmlErrorString(code).decode()
            if code == MISMATCH:
                kernel_log(f"NVRM: API mismatch: the client has the version {library_version()},")
            raise CommandError(f"Failed to initialize NVML: {words}", code)

    def text(self, name: str, *before: Any) -> str:
        out = ctypes.create_string_buffer(96)
        failed = getattr(self.library, name)(*before, out, 96)
        return "[N/A]" if failed else out.value.decode()

    def number(self, name: str, device: Any, *also: Any) -> int | None:
        out = ctypes.c_uint()
        return None if getattr(self.library, name)(device, *also, ctypes.byref(out)) else out.value

    def pair(self, name: str, device: Any) -> tuple[int, int] | None:
        first, second = ctypes.c_uint(), ctypes.c_uint()
        failed = getattr(self.library, name)(device, ctypes.byref(first), ctypes.byref(second))
        return None if failed else (first.value, second.value)

    def memory(self, device: Any) -> Memory | None:
        out = Memory(version=NVML_MEMORY_V2)
        return None if self.library.nvmlDeviceGetMemoryInfo_v2(device, ctypes.byref(out)) else out

    def devices(self) -> list[Any]:
        count = ctypes.c_uint()
        self.library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        found = [ctypes.c_void_p() for _ in range(count.value)]
        for index, device in enumerate(found):
            self.library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(device))
        return found


def library_version() -> str:
    """The version in the name of the library's file."""
    path = os.path.realpath("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1")
    return path.rpartition(".so.")[2]


def fields(nvml: Nvml, index: int, device: Any) -> dict[str, tuple[str, str]]:
    """What --query-gpu knows, as (value, unit)."""
    memory = nvml.memory(device)
    mig = nvml.pair("nvmlDeviceGetMigMode", device)
    limits = nvml.pair("nvmlDeviceGetPowerManagementLimitConstraints", device)
    capability = nvml.pair("nvmlDeviceGetCudaComputeCapability", device)
    persistence = nvml.number("nvmlDeviceGetPersistenceMode", device)
    temperature = nvml.number("nvmlDeviceGetTemperature", device, 0)
    bus = next(
        card for card in state()["cards"] if card["uuid"] == nvml.text("nvmlDeviceGetUUID", device)
    )

    def mib(size: int | None) -> tuple[str, str]:
        return ("[N/A]", "") if size is None else (str(size >> 20), "MiB")

    def watts(limit: int | None) -> tuple[str, str]:
        return ("[N/A]", "") if limit is None else (f"{limit / 1000:.2f}", "W")

    return {
        "index": (str(index), ""),
        "count": (str(len(nvml.devices())), ""),
        "name": (nvml.text("nvmlDeviceGetName", device), ""),
        "uuid": (nvml.text("nvmlDeviceGetUUID", device), ""),
        "pci.bus_id": (bus["pci_bus_id"], ""),
        "driver_version": (nvml.text("nvmlSystemGetDriverVersion"), ""),
        "memory.total": mib(memory.total if memory else None),
        "memory.reserved": mib(memory.reserved if memory else None),
        "memory.used": mib(memory.used if memory else None),
        "memory.free": mib(memory.free if memory else None),
        "mig.mode.current": (("Disabled", "Enabled")[mig[0]] if mig else "[N/A]", ""),
        "power.limit": watts(nvml.number("nvmlDeviceGetPowerManagementLimit", device)),
        "power.default_limit": watts(
            nvml.number("nvmlDeviceGetPowerManagementDefaultLimit", device)
        ),
        "power.min_limit": watts(limits[0] if limits else None),
        "power.max_limit": watts(limits[1] if limits else None),
        "persistence_mode": ("Enabled" if persistence else "Disabled", ""),
        "compute_cap": (f"{capability[0]}.{capability[1]}" if capability else "[N/A]", ""),
        "temperature.gpu": ("[N/A]" if temperature is None else str(temperature), ""),
    }


def nvidia_smi(words: list[str]) -> int:
    given, rest = read(words)
    if rest:
        raise CommandError(
            f"Invalid combination of input arguments: {rest[0]}."
            ' Please run "nvidia-smi -h" for help.',
            USAGE,
        )
    nvml = Nvml()
    cards = [fields(nvml, index, device) for index, device in enumerate(nvml.devices())]
    if not cards:
        print("No devices were found")
        return 6
    chosen = [card for card in cards if chosen_by(given.get("id"), card)]
    if not chosen:
        raise CommandError("No devices were found", 6)
    if "list" in given:
        for card in chosen:
            print(f"GPU {card['index'][0]}: {card['name'][0]} (UUID: {card['uuid'][0]})")
    elif "query" in given:
        query(chosen, given["query"], given.get("format", ""))
    elif "power" in given or "persistence" in given:
        change(chosen, given)
    else:
        table(nvml, chosen)
    return 0


NAMES = {
    "-i": "id", "--id": "id", "-pl": "power", "--power-limit": "power",
    "-pm": "persistence", "--persistence-mode": "persistence",
    "--query-gpu": "query", "--format": "format", "-L": "list", "--list-gpus": "list",
}  # fmt: skip


def read(words: list[str]) -> tuple[dict[str, str], list[str]]:
    """The options, as {what: value}, and the words that are none."""
    given: dict[str, str] = {}
    unknown: list[str] = []
    rest = iter(words)
    for word in rest:
        name, has_value, value = word.partition("=")
        if name not in NAMES:
            unknown.append(word)
        elif has_value or NAMES[name] == "list":
            given[NAMES[name]] = value
        else:
            given[NAMES[name]] = next(rest, "")
    return given, unknown


def chosen_by(wanted: str | None, card: dict[str, tuple[str, str]]) -> bool:
    return wanted is None or wanted in {card[name][0] for name in ("index", "uuid", "pci.bus_id")}


def query(cards: list[dict[str, tuple[str, str]]], wanted: str, form: str) -> None:
    names = [name.strip() for name in wanted.split(",")]
    options = form.split(",")
    if "csv" not in options:
        raise CommandError('"--format=" must be specified with "csv".', USAGE)
    for name in names:
        if name not in cards[0]:
            raise CommandError(f'Field "{name}" is not a valid field to query.\n', USAGE)
    bare = "nounits" in options
    if "noheader" not in options:
        units = {name: cards[0][name][1] for name in names}
        print(", ".join(f"{name} [{units[name]}]" if units[name] else name for name in names))
    for card in cards:
        values = (card[name] for name in names)
        print(", ".join(value if bare or not unit else f"{value} {unit}" for value, unit in values))


def change(cards: list[dict[str, tuple[str, str]]], given: dict[str, str]) -> None:
    if os.geteuid() != 0:
        raise CommandError(
            "Unable to change settings: Insufficient Permissions\n"
            "Terminating early due to previous errors.",
            4,
        )
    for card in cards:
        bus, uuid = card["pci.bus_id"][0], card["uuid"][0]
        if "persistence" in given:
            on = {"1": True, "ENABLED": True, "0": False, "DISABLED": False}.get(
                given["persistence"]
            )
            if on is None:
                raise CommandError("Invalid persistence mode argument.", USAGE)
            word = "Enabled" if on else "Disabled"
            same = card["persistence_mode"][0] == word
            set_persistence(on, uuid)
            print(
                f"Persistence mode is already {word} for GPU {bus}."
                if same
                else f"{word} persistence mode for GPU {bus}."
            )
        if "power" in given:
            set_power(card, given["power"], bus, uuid)
    print("All done.")


def set_power(card: dict[str, tuple[str, str]], wanted: str, bus: str, uuid: str) -> None:
    """NVIDIA facts, "After install": it is kept in this boot only, and only by persistence."""
    before, low, high = (card[f"power.{name}"][0] for name in ("limit", "min_limit", "max_limit"))
    try:
        watts = float(wanted)
    except ValueError:
        raise CommandError(f"Invalid power limit argument {wanted!r}.", USAGE) from None
    if before == "[N/A]":
        raise CommandError(f"Changing power management limit is not supported for GPU: {bus}.", 3)
    if not float(low) <= watts <= float(high):
        raise CommandError(
            f"Provided power limit {watts:.2f} W is not a valid power limit which should be between"
            f" {low} W and {high} W for GPU {bus}\nTerminating early due to previous errors.",
            USAGE,
        )
    with changing_boot() as boot:
        if boot["persistence"].get(uuid):
            boot["power_limit_mw"][uuid] = round(watts * 1000)
        else:
            print(f"Warning: persistence mode is disabled on device {bus}. The limit is not kept.")
    print(f"Power limit for GPU {bus} was set to {watts:.2f} W from {before} W.")


def table(nvml: Nvml, cards: list[dict[str, tuple[str, str]]]) -> None:
    """The table; it cuts the name short, so that nobody should read it from here."""
    cuda = ctypes.c_int()
    nvml.library.nvmlSystemGetCudaDriverVersion_v2(ctypes.byref(cuda))
    version = nvml.text("nvmlSystemGetDriverVersion")
    shown = f"{cuda.value // 1000}.{cuda.value % 1000 // 10}"
    line = f"+{'-' * 89}+"
    print(line)
    title = f"NVIDIA-SMI {version:<22} Driver Version: {version:<14} CUDA Version: {shown:<8}"
    print(f"| {title:<87} |\n{line}")
    for card in cards:
        name, memory = (
            card["name"][0][:24],
            f"{card['memory.used'][0]}MiB / {card['memory.total'][0]}MiB",
        )
        power = card["power.limit"][0].split(".")[0]
        index, bus = card["index"][0], card["pci.bus_id"][0]
        row = f"{index:>3}  {name:<24}  {card['persistence_mode'][0]:<8}  {bus}"
        print(f"| {row:<87} |\n| {f'{power}W | {memory}':<87} |\n{line}")
