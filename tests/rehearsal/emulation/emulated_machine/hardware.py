"""What /sys, /proc and /dev show of the machine. Each call makes them as the records say."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

from .files import BOOT, Record, slot
from .secure_boot import ATTRIBUTES, VARIABLE

PCI = Path("/sys/bus/pci")
MODULES = Path("/sys/module")
EFI = Path("/sys/firmware/efi/efivars")
DRIVER = Path("/proc/driver/nvidia")
DEVICES = Path("/dev")
MAJORS = Path("/proc/devices")
OUR_MAJORS = BOOT.with_name("devices")
UVM_MAJOR = 511  # one of those that the kernel gives out
BUILT = "Release Build  (dvs-builder@U22-I3-H04-01-6)"

Shown = dict[str, bytes]  # path below a folder → content; a link's is b"->" and its target


def mount() -> None:
    """Put writable file systems over what the box may not write; once, at each boot.

    /sys is a read-only mount of a writable file system: it is made writable for the two commands
    alone, in a mount namespace, because systemd starts udev where it sees a writable /sys.
    """
    inner = "mount -o remount,bind,rw /sys && mkdir -p /sys/module /sys/firmware"
    os.system(f"unshare --mount sh -c '{inner}'")  # our own words
    for place in (PCI, MODULES, EFI.parents[1], DRIVER.parent):
        if not place.is_mount():
            words = f"mount -t tmpfs -o mode=755,nosuid,nodev,noexec emulated-gpu {place}"
            os.system(words)
    if not os.path.ismount(MAJORS):  # a file, of which Path.is_mount knows nothing
        shutil.copyfile(MAJORS, OUR_MAJORS)
        os.system(f"mount --bind {OUR_MAJORS} {MAJORS}")


def show(state: Record, boot: Record) -> None:
    make(PCI, pci_bus(state, boot))
    make(MODULES, loaded_modules(boot))
    make(EFI.parents[1], efi(state))
    make(DRIVER.parent, proc_driver(state, boot))
    list_majors(boot)
    make_nodes(state, boot)


def make(folder: Path, wanted: Shown) -> None:
    """Make the files of a folder exactly these; what is right already is not touched."""
    for path in sorted(folder.rglob("*"), reverse=True):
        name = str(path.relative_to(folder))
        if name in wanted or any(one.startswith(f"{name}/") for one in wanted):
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
    for name, content in wanted.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if content.startswith(b"->"):
            link(path, content[2:].decode())
        elif content == b"/":
            path.mkdir(exist_ok=True)
        elif not path.exists() or path.read_bytes() != content:
            path.write_bytes(content)


def link(path: Path, target: str) -> None:
    if path.is_symlink() and str(path.readlink()) == target:
        return
    path.unlink(missing_ok=True)
    path.symlink_to(target)


def pci_bus(state: Record, boot: Record) -> Shown:
    """The cards, each with its sound function beside it, as real ones have."""
    shown: Shown = {"devices": b"/", "drivers": b"/"}
    driver = holder(boot)
    if driver:
        shown[f"drivers/{driver}"] = b"/"
    for card in state["cards"]:
        vendor, device = card.get("pci_device_id", "10de:0000").split(":")
        place = f"devices/{slot(card)}"
        sound = f"devices/{slot(card)[:-1]}1"
        for where, id_, kind in ((place, device, "0x030000"), (sound, "22e8", "0x040300")):
            shown[f"{where}/vendor"] = f"0x{vendor}\n".encode()
            shown[f"{where}/device"] = f"0x{id_}\n".encode()
            shown[f"{where}/class"] = f"{kind}\n".encode()
        if driver:
            shown[f"{place}/driver"] = f"->../../drivers/{driver}".encode()
    return shown


def holder(boot: Record) -> str | None:
    """The driver that the cards are bound to."""
    if "nouveau" in boot["modules"]:
        return "nouveau"
    return "nvidia" if "nvidia" in boot["modules"] else None


def loaded_modules(boot: Record) -> Shown:
    shown: Shown = {}
    for module in boot["modules"]:
        name = module.replace("-", "_")
        shown[f"{name}/initstate"] = b"live\n"
        shown[f"{name}/coresize"] = b"16384\n"
        shown[f"{name}/refcnt"] = b"0\n"
        if module != "nouveau":
            shown[f"{name}/version"] = f"{boot['version']}\n".encode()
        if module == "nvidia-uvm":
            switch = b"Y\n" if boot["hmm_off"] else b"N\n"
            shown[f"{name}/parameters/uvm_disable_hmm"] = switch
    return shown


def efi(state: Record) -> Shown:
    enabled = state.get("secure_boot", False)
    if enabled is None:
        return {}
    value = ATTRIBUTES + (b"\1" if enabled else b"\0")
    return {f"efi/efivars/{VARIABLE}": value}


def proc_driver(state: Record, boot: Record) -> Shown:
    if "nvidia" not in boot["modules"]:
        return {}
    version = boot["version"]
    flavour = "Open Kernel Module for x86_64" if boot["open"] else "x86_64 Kernel Module"
    lines = f"NVRM version: NVIDIA UNIX {flavour}  {version}  {BUILT}\n"
    shown = {"nvidia/version": f"{lines}GCC version:  gcc version 12.2.0 (Debian)\n".encode()}
    for minor, card in enumerate(state["cards"] if boot["usable"] else []):
        shown[f"nvidia/gpus/{slot(card)}/information"] = (
            f"Model: \t\t {card['name']}\nIRQ:   \t\t {40 + minor}\nGPU UUID: \t {card['uuid']}\n"
            f"Bus Type: \t PCIe\nBus Location: \t {slot(card)}\nDevice Minor: \t {minor}\n"
            f"GPU Firmware: \t {version}\nGPU Excluded:\t No\n"
        ).encode()
    return shown


def list_majors(boot: Record) -> None:
    """What the kernel lists of a driver's devices, where systemd looks its DeviceAllow= up. The
    file stays the same one: it is mounted."""
    majors = {"nvidia": 195, "nvidia-modeset": 195, "nvidiactl": 195, "nvidia-uvm": UVM_MAJOR}
    module_of = {"nvidiactl": "nvidia"}
    ours = [
        f"{major:3} {name}"
        for name, major in majors.items()
        if module_of.get(name, name) in boot["modules"]
    ]
    head, *rest = OUR_MAJORS.read_text().splitlines()
    others = [row for row in rest if "nvidia" not in row]
    OUR_MAJORS.write_text("\n".join([head, *ours, *others, ""]))


def make_nodes(state: Record, boot: Record) -> None:
    wanted: dict[str, tuple[int, int]] = {}
    if "nvidia" in boot["modules"]:
        wanted["nvidiactl"] = (195, 255)
        count = len(state["cards"]) if boot["usable"] else 0
        wanted |= {f"nvidia{minor}": (195, minor) for minor in range(count)}
    if "nvidia-modeset" in boot["modules"]:
        wanted["nvidia-modeset"] = (195, 254)
    if "nvidia-uvm" in boot["modules"]:
        wanted |= {"nvidia-uvm": (UVM_MAJOR, 0), "nvidia-uvm-tools": (UVM_MAJOR, 1)}
    for path in DEVICES.glob("nvidia*"):
        if path.name not in wanted:
            path.unlink()
    for name, (major, minor) in wanted.items():
        path = DEVICES / name
        if path.exists():
            continue
        try:
            os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(major, minor))
        except PermissionError:  # from a unit whose DeviceAllow= was read before the module came
            continue
        path.chmod(0o666)
