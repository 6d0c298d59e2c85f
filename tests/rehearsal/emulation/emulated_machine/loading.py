"""Loading modules as the kernel would, and the commands that ask for it."""

from __future__ import annotations

import os

from . import hardware
from .commands import CommandError, run_the_real_one
from .files import Record, boot_record, changing_boot, kernel_log, running_kernel, slot, state
from .kernel import (
    MODULES,
    OPEN_LICENSE,
    install_is_false,
    module_fields,
    module_file,
    option,
)

NVIDIA = "10de"
FIRST_BLACKWELL = 0x2900  # device ids from here on: GB100 and the GB20x cards
NEEDS = {"nvidia-modeset": ("nvidia",), "nvidia-uvm": ("nvidia",), "nvidia-drm": MODULES[:2]}


def insert(module: str, machine: Record, boot: Record) -> None:
    """Load a module and what it needs into this boot. Raises CommandError with modprobe's words."""
    if module in boot["modules"]:
        return
    if module == "nouveau":
        insert_nouveau(machine, boot)
        return
    fields = module_fields(running_kernel(), module)
    if fields is None:
        folder = f"/lib/modules/{running_kernel()}"
        raise CommandError(f"modprobe: FATAL: Module {module} not found in directory {folder}")
    # NVIDIA facts, "Fault cases", Secure Boot: a module that dkms built is signed by no known key
    if machine.get("secure_boot"):
        kernel_log("Loading of module with unavailable key is rejected")
        raise could_not_insert(module, "Key was rejected by service")
    for needed in NEEDS.get(module, ()):
        insert(needed, machine, boot)
    if module == "nvidia":
        insert_nvidia(fields, machine, boot)
    elif fields["version"] != boot["version"]:
        kernel_log(f"{module.replace('-', '_')}: disagrees about version of symbol nvidia_register")
        raise could_not_insert(module, "Invalid argument")
    if module == "nvidia-uvm":
        boot["hmm_off"] = option(module, "uvm_disable_hmm") in ("1", "Y", "y")
    boot["modules"].append(module)


def could_not_insert(module: str, why: str) -> CommandError:
    name = module.replace("-", "_")
    return CommandError(f"modprobe: ERROR: could not insert '{name}': {why}")


def insert_nouveau(machine: Record, boot: Record) -> None:
    if not cards_of_nvidia(machine) or "nvidia" in boot["modules"]:
        raise could_not_insert("nouveau", "No such device")
    for card in cards_of_nvidia(machine):
        kernel_log(f"nouveau {slot(card)}: NVIDIA GB202 (1b2000a1)")
    boot["modules"].append("nouveau")


def insert_nvidia(fields: dict[str, str], machine: Record, boot: Record) -> None:
    """The first module: it takes the cards, if they are free and it can drive them."""
    cards = cards_of_nvidia(machine)
    if not cards:
        kernel_log("NVRM: No NVIDIA GPU found.")
        raise could_not_insert("nvidia", "No such device")
    if "nouveau" in boot["modules"]:
        kernel_log(
            f"NVRM: The NVIDIA probe routine was not called for {len(cards)} device(s).",
            "NVRM: This can occur when another driver was loaded and",
            "NVRM: obtained ownership of the NVIDIA device(s).",
            "NVRM: No NVIDIA devices probed.",
        )
        raise could_not_insert("nvidia", "No such device")
    version, is_open = fields["version"], fields["license"] == OPEN_LICENSE
    flavour = "Open Kernel Module for x86_64" if is_open else "x86_64 Kernel Module"
    kernel_log(f"NVRM: loading NVIDIA UNIX {flavour}  {version}  {hardware.BUILT}")
    # NVIDIA facts, row 2 and "Fault cases", proprietary module: it loads and drives nothing
    usable = is_open or not any(is_blackwell(card) for card in cards)
    if not usable:
        place = slot(cards[0])
        kernel_log(
            f"NVRM: The NVIDIA GPU {place} (PCI ID: {cards[0]['pci_device_id']})",
            "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
            f"NVRM: GPU {place}: RmInitAdapter failed! (0x22:0x56:884)",
            f"NVRM: GPU {place}: rm_init_adapter failed, device minor number 0",
        )
    boot.update(version=version, open=is_open, usable=usable)


def cards_of_nvidia(machine: Record) -> list[Record]:
    cards = machine["cards"]
    return [card for card in cards if card.get("pci_device_id", NVIDIA).startswith(NVIDIA)]


def is_blackwell(card: Record) -> bool:
    device = card.get("pci_device_id", "10de:ffff").split(":")[1]
    return int(device, 16) >= FIRST_BLACKWELL


def known(name: str) -> str | None:
    """The module of ours that a word names, '-' and '_' being one; None is another's."""
    module = name.replace("_", "-")
    return module if module in (*MODULES, "nouveau") else None


def modprobe(words: list[str]) -> int:
    """modprobe for the card's modules; everything else is the real one's."""
    names = [word for word in words if not word.startswith("-")]
    modules = [known(name) for name in names]
    if not names or None in modules or {"-n", "--dry-run", "--show-depends"} & set(words):
        return run_the_real_one("modprobe", words)
    if os.geteuid() != 0:
        raise could_not_insert(names[0], "Operation not permitted")
    removes = {"-r", "--remove"} & set(words)
    with changing_boot() as boot:
        machine = state()
        for module in modules if {"-a", "--all"} & set(words) or removes else modules[:1]:
            assert module is not None
            if removes:
                remove(module, machine, boot)
                continue
            if install_is_false(module):
                raise could_not_insert(module, "Invalid argument")
            insert(module, machine, boot)
        hardware.show(machine, boot)
    return 0


def remove(module: str, machine: Record, boot: Record) -> None:
    """Unload a module. nouveau stays: the console is bound to it."""
    if module not in boot["modules"]:
        raise CommandError(f"modprobe: FATAL: Module {module} is not currently loaded")
    needed = [one for one in boot["modules"] if module in NEEDS.get(one, ())]
    held = any(card["processes"] for card in machine["cards"]) or any(boot["persistence"].values())
    if module == "nouveau" or needed or (module == "nvidia" and held):
        raise CommandError(f"modprobe: FATAL: Module {module.replace('-', '_')} is in use.")
    boot["modules"].remove(module)
    if module == "nvidia":
        boot.update(version=None, open=None, usable=False, power_limit_mw={})


def nvidia_modprobe(words: list[str]) -> int:
    """`-u` also loads nvidia-uvm; the real one is setuid root, ours needs root."""
    wanted = ["nvidia", "nvidia-uvm"] if "-u" in words else ["nvidia"]
    return modprobe(["-a", *wanted])


def modinfo(words: list[str]) -> int:
    """modinfo of a built module: all fields, or one with -F; -k for another kernel."""
    release, field, names = running_kernel(), None, []
    rest = iter(words)
    for word in rest:
        if word in ("-k", "--set-version"):
            release = next(rest, release)
        elif word in ("-F", "--field"):
            field = next(rest, None)
        elif word in ("-n", "--filename"):
            field = "filename"
        elif not word.startswith("-"):
            names.append(word)
    ours = [module for module in map(known, names) if module in MODULES]
    if len(ours) != len(names) or not names:
        return run_the_real_one("modinfo", words)
    for module in ours:
        fields = module_fields(release, module)
        if fields is None:
            raise CommandError(f"modinfo: ERROR: Module {module} not found.")
        shown = {"filename": str(module_file(release, module)), **fields}
        if field is None:
            print("\n".join(f"{name + ':':15} {value}" for name, value in shown.items()))
        elif field in shown:
            print(shown[field])
    return 0


def lsmod(_words: list[str]) -> int:
    """The modules of this boot. /proc/modules, which the real one reads, is the outer machine's."""
    print("Module                  Size  Used by")
    modules = boot_record()["modules"]
    for module in reversed(modules):
        users = [one.replace("-", "_") for one in modules if module in NEEDS.get(one, ())]
        name = module.replace("-", "_")
        print(f"{name:<19} {16384:>8}  {len(users)} {','.join(users)}".rstrip())
    return 0


def is_loaded() -> bool:
    return "nvidia" in boot_record()["modules"]
