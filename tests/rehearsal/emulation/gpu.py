"""The emulated machine of a rehearsal box: an NVIDIA card, its kernel modules, and the commands.

    install_into(root)                 machine and a healthy card into a root file system
    write_state(root, CARDS["h200"])   another card, in a root file system or a running box's …
    write_state(run, CARDS["h200"])    … or on a running box, by a function that runs a command
    compile_nvml(file, "580.178.04")   the driver's libraries, which its packages bring

A bare box has a card on its bus, held by nouveau, and no driver. What the driver answers once it
is installed and loaded stands in one file, which its libraries read whenever a client starts. The
commands and the boot unit are the Python package beside this file, emulated_machine.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, NotRequired, TypedDict, cast

HERE = Path(__file__).resolve().parent
MACHINE = HERE / "emulated_machine"
SOURCES = ("emulated_state.h", "nvml_stub.c", "cuda_stub.c", "gpu.py")
LIBRARY_PATH = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
STATE_PATH = "/var/lib/emulated-gpu/state.json"
FOLDER = "/usr/lib/emulated-gpu"
CORE = f"{FOLDER}/emulated-gpu"
UNIT = "/usr/lib/systemd/system/emulated-gpu.service"

# Commands of the distribution that ours stand in for; the real ones are kept as NAME.distrib.
OF_KMOD = ("modprobe", "modinfo", "lsmod")
DIVERTED = (
    "/usr/sbin/dkms",
    "/usr/sbin/update-initramfs",
    "/usr/bin/lsinitramfs",
    "/usr/bin/mokutil",
)
# The CUDA that a driver of a branch offers. Seen: 570 (12.8), 580 and 590; 595 is made up.
CUDA_OF_BRANCH = {"570": "12.8", "580": "13.0", "590": "13.1", "595": "13.2"}
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
    """The whole state file: the hardware, and the faults that its driver shows.

    driver_version and cuda_version None are those of the driver that is loaded; a text is answered
    in their place. `init_error` is an NVML code that nvmlInit answers, `cu_init` a CUDA code that
    cuInit answers; 0 is none.
    """

    driver_version: str | None
    cuda_version: str | None  # "13.0"
    init_error: int
    cards: list[Card]
    secure_boot: NotRequired[bool | None]  # None: a machine without EFI
    cu_init: NotRequired[int]
    hmm_fault: NotRequired[bool]  # cu_init is cured by uvm_disable_hmm=1
    xid: NotRequired[list[str]]  # lines that each boot's kernel log gets
    glibc: NotRequired[str]  # "2.43" in place of the box's own, for nvcc
    build_error: NotRequired[str]  # dkms fails to build, with this in its make.log


Run = Callable[[str], object]


def compile_nvml(target: Path, version: str, root: str = "") -> None:
    """Compile libnvidia-ml for driver `version`, to read the machine's files below `root`.

    Raises RuntimeError with the compiler's text.
    """
    _compile("nvml_stub.c", "libnvidia-ml.so.1", target, version, root)


def compile_cuda(target: Path, version: str, root: str = "") -> None:
    """Compile libcuda for driver `version`; otherwise as compile_nvml."""
    _compile("cuda_stub.c", "libcuda.so.1", target, version, root)


def _compile(source: str, soname: str, target: Path, version: str, root: str) -> None:
    words = {
        "ROOT": root,
        "DRIVER_VERSION": version,
        "CUDA_VERSION": CUDA_OF_BRANCH.get(version.split(".", maxsplit=1)[0], "13.0"),
    }
    command = ["gcc", "-std=gnu11", "-O1", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"]
    command += ["-fvisibility=hidden", f"-Wl,-soname,{soname}", "-Wl,-z,defs"]
    command += [f"-D{name}={json.dumps(value)}" for name, value in words.items()]
    command += ["-o", str(target), str(HERE / source)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        raise RuntimeError(f"the emulated {soname} does not compile:\n{result.stderr}")


def install_into(root: Path, run: Callable[..., str]) -> None:
    """Put the machine, with one healthy Workstation card, into the Debian file system `root`.

    `run` runs a command of control, given as words, and gives its output. Raises what it raises.
    """
    folder = root / FOLDER.lstrip("/")
    shutil.copytree(MACHINE, folder / MACHINE.name, ignore=shutil.ignore_patterns("__pycache__"))
    core = root / CORE.lstrip("/")
    (folder / MACHINE.name / "emulated-gpu").rename(core)
    core.chmod(0o755)
    (folder / MACHINE.name / "emulated-gpu.service").rename(root / UNIT.lstrip("/"))
    # what a command of a box writes shows as a change of the box: no bytecode later on
    run("chroot", root, "python3", "-m", "compileall", "-q", FOLDER)
    kmod = run("chroot", root, "dpkg-query", "--listfiles", "kmod").splitlines()
    names = [path for path in kmod if "bin/" in path and path.rpartition("/")[2] in OF_KMOD]
    for path in (*names, *DIVERTED):
        run("chroot", root, "dpkg-divert", "--quiet", "--local", "--rename", "--add", path)
        (root / path.lstrip("/")).symlink_to(CORE)
    wanted_by = root / "etc/systemd/system/sysinit.target.wants"
    wanted_by.mkdir(parents=True, exist_ok=True)
    (wanted_by / Path(UNIT).name).symlink_to(UNIT)
    write_state(root, CARDS["workstation"])


def fingerprint() -> str:
    """Hex digest of everything that decides what `install_into` lays down and compile_* make."""
    digest = hashlib.sha256()
    machine = (path for path in MACHINE.rglob("*") if "__pycache__" not in path.parts)
    for source in (*(HERE / name for name in SOURCES), *sorted(machine)):
        if source.is_file():
            digest.update(f"{source.relative_to(HERE)}\0".encode() + source.read_bytes())
    return digest.hexdigest()


def write_state(root_or_run: Path | Run, state: State | None) -> None:
    """Write the state, or with None take card and state away, in a root file system or on a box.

    On a running box what /sys shows follows at once; /proc/PID/root is a running box as well.
    """
    if not isinstance(root_or_run, Path):
        root_or_run(state_command(state))
        return
    _write_in(root_or_run / STATE_PATH.lstrip("/"), state)
    if running := re.fullmatch(r"/proc/(\d+)/root", str(root_or_run)):
        entered = ["nsenter", f"--target={running[1]}", "--mount", "--uts", "--ipc", "--net"]
        entered += ["--pid", "--root", "--wdns=/", "--", CORE, "refresh"]
        subprocess.run(entered, check=True, stdin=subprocess.DEVNULL)


def state_command(state: State | None) -> str:
    """The shell command that `write_state` runs on a box: the file is there whole or not at all."""
    path = shlex.quote(STATE_PATH)
    if state is None:
        return f"rm -f {path} && {CORE} refresh"
    folder = shlex.quote(str(Path(STATE_PATH).parent))
    text = shlex.quote(_as_text(state))
    return (
        f"install -d -m 755 {folder} && printf %s {text} > {path}.new"
        f" && chmod 644 {path}.new && mv {path}.new {path} && {CORE} refresh"
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
        "persistence": False,  # as every card after a boot
        "temperature_c": 34,
        "processes": [],
    }
    return cast(Card, card | differences)


def _state(cards: Sequence[Card]) -> State:
    return {
        "driver_version": None,
        "cuda_version": None,
        "init_error": 0,
        "secure_boot": False,
        "cu_init": 0,
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
# The PCI ids of these three stand in pci.ids; no row gives them.
_RTX_5090 = _card(
    "NVIDIA GeForce RTX 5090", 32_607, pci_device_id="10de:2b85", power_limit_mw=575_000
)
# NVIDIA facts, row 3: the size alone lets the H100 NVL through, the capability does not. The
# H200's 143,771 MiB are the card's known total; no row gives it.
_H100_NVL = _card(
    "NVIDIA H100 NVL",
    95_830,
    pci_device_id="10de:2321",
    capability=[9, 0],
    mig="disabled",
    power_limit_mw=400_000,
)
_H200 = _card(
    "NVIDIA H200",
    143_771,
    pci_device_id="10de:2335",
    capability=[9, 0],
    mig="disabled",
    power_limit_mw=700_000,
)

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
