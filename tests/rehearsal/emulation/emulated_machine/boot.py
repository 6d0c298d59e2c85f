"""What a boot does, in the order of a real one, and what a change of the hardware shows at once."""

from __future__ import annotations

import sys

from . import hardware
from .commands import CommandError
from .files import Record, changing_boot, kernel_log, running_kernel, state
from .kernel import (
    MODPROBE_FOLDERS,
    MODULES,
    blacklisted,
    initrd_blacklist,
    lay_kernel,
    module_fields,
    modules_to_load,
    settings,
)
from .loading import cards_of_nvidia, insert


def boot(_words: list[str]) -> int:
    """Mount, find the hardware, load modules. The unit calls this once, before sysinit.target."""
    lay_kernel(running_kernel())
    with changing_boot() as record:
        machine = state()
        hardware.mount()
        if not record["modules"]:
            load_modules(machine, record)
        log_faults(machine, record)
        hardware.show(machine, record)
    return 0


def refresh(_words: list[str]) -> int:
    """Show hardware that a test has changed. What is loaded stays as it is until a reboot."""
    with changing_boot() as record:
        machine = state()
        log_faults(machine, record)
        hardware.show(machine, record)
    return 0


def load_modules(machine: Record, record: Record) -> None:
    """First what the initramfs lets load, then what udev and modules-load.d do.

    NVIDIA facts, "Fault cases", nouveau: it takes the card unless the initramfs and the settings
    on the disk both forbid it.
    """
    forbidden = blacklisted(settings(MODPROBE_FOLDERS).values())
    if cards_of_nvidia(machine):
        if "nouveau" not in forbidden & initrd_blacklist(running_kernel()):
            insert("nouveau", machine, record)
        # udev loads what is built and may be loaded; the others come with it
        for module in MODULES[:3]:
            if module not in forbidden and module_fields(running_kernel(), module):
                attempt(module, machine, record)
    # row "headless boot": nobody loads nvidia-uvm unless modules-load.d says so
    for module in modules_to_load():
        if module in MODULES:
            attempt(module, machine, record)


def attempt(module: str, machine: Record, record: Record) -> None:
    try:
        insert(module, machine, record)
    except CommandError as refused:
        print(refused, file=sys.stderr)


def log_faults(machine: Record, record: Record) -> None:
    """The state's faults reach the kernel log once in each boot."""
    new = [line for line in machine.get("xid", []) if line not in record["logged"]]
    kernel_log(*new)
    record["logged"] += new
