"""The emulated GPU of a rehearsal box: an NVML library whose answers stand in one file.

    install_into(root)                 library and a healthy card into a root file system
    write_state(root, CARDS["h200"])   another card, in a root file system …
    write_state(run, CARDS["h200"])    … or on a running box, by a function that runs a command

The library reads the file at each nvmlInit, so that a change is seen at once by everything that
asks anew. Without the file it says that no driver is loaded.
"""

from __future__ import annotations

import hashlib
import json
import os
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

SOURCE = Path(__file__).with_name("nvml_stub.c")
LIBRARY_PATH = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
STATE_PATH = "/var/lib/emulated-gpu/state.json"

DRIVER_NOT_LOADED = 9  # what the library answers without a state file
LIBRARY_VERSION_MISMATCH = 18  # `init_error` for "Driver/library version mismatch"


class GpuProcess(TypedDict):
    """A process that holds memory of a card; `used_mib` None is "not available"."""

    pid: int
    name: str
    used_mib: int | None


class Card(TypedDict):
    """One card as NVML shows it. None means that the question is answered "Not Supported"."""

    name: str
    uuid: str
    pci_bus_id: str  # "00000000:01:00.0"
    pci_device_id: NotRequired[str]  # "10de:2bb1"
    memory_mib: int | None
    used_mib: int
    reserved_mib: NotRequired[int]
    capability: list[int] | None
    mig: Literal["enabled", "disabled"] | None
    power_limit_mw: int | None
    power_limit_min_mw: NotRequired[int]
    power_limit_max_mw: NotRequired[int]
    persistence: bool
    temperature_c: NotRequired[int]
    processes: list[GpuProcess]


class State(TypedDict):
    """The whole state file. `init_error` is an NVML code that nvmlInit answers; 0 is none."""

    driver_version: str
    cuda_version: str  # "13.0"
    init_error: int
    cards: list[Card]


Run = Callable[[str], object]


def compile_library(target: Path, state_path: str = STATE_PATH) -> None:
    """Compile the library, to read `state_path`. Raises RuntimeError with the compiler's text."""
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command += ["-fvisibility=hidden", "-Wl,-soname,libnvidia-ml.so.1", "-Wl,-z,defs"]
    command += [f"-DSTATE_PATH={json.dumps(state_path)}", "-o", str(target), str(SOURCE)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"the emulated NVML does not compile:\n{result.stderr}")


def install_into(root: Path) -> None:
    """Put the library and the state of one healthy Workstation card into the file system `root`."""
    target = root / LIBRARY_PATH.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        built = Path(folder) / target.name
        compile_library(built)
        built.chmod(0o644)
        built.replace(target)
    write_state(root, CARDS["workstation"])


def fingerprint() -> str:
    """Hex digest of everything that decides what `install_into` lays down."""
    digest = hashlib.sha256()
    for source in (SOURCE, Path(__file__)):
        digest.update(source.read_bytes())
    return digest.hexdigest()


def write_state(root_or_run: Path | Run, state: State | None) -> None:
    """Write the state, or with None take it away (no driver), in a root file system or on a box."""
    if isinstance(root_or_run, Path):
        _write_in(root_or_run / STATE_PATH.lstrip("/"), state)
    else:
        root_or_run(state_command(state))


def state_command(state: State | None) -> str:
    """The shell command that `write_state` runs on a box: the file is there whole or not at all."""
    path = shlex.quote(STATE_PATH)
    if state is None:
        return f"rm -f {path}"
    folder = shlex.quote(str(Path(STATE_PATH).parent))
    text = shlex.quote(_as_text(state))
    return (
        f"install -d -m 755 {folder} && printf %s {text} > {path}.new"
        f" && chmod 644 {path}.new && mv {path}.new {path}"
    )


def _write_in(path: Path, state: State | None) -> None:
    if state is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.parent.chmod(0o755)
    new = path.with_name(path.name + ".new")
    new.write_text(_as_text(state))
    new.chmod(0o644)
    os.replace(new, path)  # noqa: PTH105


def _as_text(state: State) -> str:
    return json.dumps(state, indent=1) + "\n"


def _card(name: str, memory_mib: int | None, **differences: Any) -> Card:
    card: dict[str, Any] = {
        "name": name,
        "uuid": "GPU-5bd1e9a4-0000-4000-8000-000000000001",
        "pci_bus_id": "00000000:01:00.0",
        "memory_mib": memory_mib,
        "used_mib": 0,
        "capability": [12, 0],
        "mig": None,
        "power_limit_mw": 600_000,
        "persistence": True,
        "temperature_c": 34,
        "processes": [],
    }
    return cast(Card, card | differences)


def _state(cards: Sequence[Card]) -> State:
    # NVIDIA facts, row 1: driver 580.178.04 is of the branch that CUDA 13.0 needs
    return {
        "driver_version": "580.178.04",
        "cuda_version": "13.0",
        "init_error": 0,
        "cards": list(cards),
    }


# NVIDIA facts, "Cards, as NVML and PCI name them": names, PCI ids, MiB, power, MIG; 638 MiB of a
# 97,887 MiB card are reserved when it is idle.
_WORKSTATION = _card(
    "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
    97_887,
    pci_device_id="10de:2bb1",
    reserved_mib=638,
    power_limit_min_mw=150_000,
    power_limit_max_mw=600_000,
)
_MAX_Q = _card(
    "NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition",
    97_887,
    pci_device_id="10de:2bb4",
    reserved_mib=638,
    power_limit_mw=300_000,
)
_SERVER = _card(
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    97_887,
    pci_device_id="10de:2bb5",
    reserved_mib=638,
    mig="disabled",
)
_6000D = _card(
    "NVIDIA RTX PRO 6000D Blackwell Workstation Edition",
    80_110,  # "about 84 GB", decimal
    pci_device_id="10de:2bb2",
)
_RTX_5090 = _card("NVIDIA GeForce RTX 5090", 32_607, power_limit_mw=575_000)
# NVIDIA facts, row 3: the size alone lets the H100 NVL through, the capability does not. The
# H200's 143,771 MiB are the card's known total; no row gives it.
_H100_NVL = _card(
    "NVIDIA H100 NVL", 95_830, capability=[9, 0], mig="disabled", power_limit_mw=400_000
)
_H200 = _card("NVIDIA H200", 143_771, capability=[9, 0], mig="disabled", power_limit_mw=700_000)

_NO_MEMORY: Card = {**_WORKSTATION, "memory_mib": None}  # row 3: "Not supported" for memory
_NO_CAPABILITY: Card = {**_WORKSTATION, "capability": None}  # row 3: … and for capability
# "Fault cases", MIG: memory.total still reads 97887 while MIG is enabled
_MIG_ENABLED: Card = {**_SERVER, "mig": "enabled"}
# "Fault cases", free memory: another process holds the card
_BUSY: Card = {
    **_WORKSTATION,
    "used_mib": 88_160,
    "processes": [{"pid": 4242, "name": "python3", "used_mib": 88_160}],
}
_SECOND: Card = {
    **_RTX_5090,
    "uuid": "GPU-5bd1e9a4-0000-4000-8000-000000000002",
    "pci_bus_id": "00000000:02:00.0",
}

CARDS: dict[str, State] = {
    "workstation": _state([_WORKSTATION]),
    "max-q": _state([_MAX_Q]),
    "server": _state([_SERVER]),
    "6000d": _state([_6000D]),
    "rtx5090": _state([_RTX_5090]),
    "h100-nvl": _state([_H100_NVL]),
    "h200": _state([_H200]),
    "no-gpu": _state([]),
    "memory-not-supported": _state([_NO_MEMORY]),
    "capability-not-supported": _state([_NO_CAPABILITY]),
    "mig-enabled": _state([_MIG_ENABLED]),
    "mig-not-available": _state([_WORKSTATION]),  # the Workstation card answers N/A (row 3)
    "busy": _state([_BUSY]),
    "two-cards": _state([_WORKSTATION, _SECOND]),
    # "Fault cases", row 1: the driver was upgraded under a loaded module
    "version-mismatch": {**_state([_WORKSTATION]), "init_error": LIBRARY_VERSION_MISMATCH},
}
