"""Which command this is: the name it was called by, as busybox does it."""

from __future__ import annotations

import os
import sys
from importlib import import_module

# name → (module, function); a module is imported only when its command runs, to start fast
COMMANDS = {
    "boot": ("boot", "boot"),
    "refresh": ("boot", "refresh"),
    "modprobe": ("loading", "modprobe"),
    "modinfo": ("loading", "modinfo"),
    "lsmod": ("loading", "lsmod"),
    "dkms": ("dkms", "dkms"),
    "update-initramfs": ("initramfs", "update_initramfs"),
    "lsinitramfs": ("initramfs", "lsinitramfs"),
    "mokutil": ("secure_boot", "mokutil"),
    "nvidia-smi": ("nvidia_smi", "nvidia_smi"),
    "nvidia-persistenced": ("persistence", "nvidia_persistenced"),
    "nvidia-modprobe": ("loading", "nvidia_modprobe"),
    "nvcc": ("nvcc", "nvcc"),
}


class CommandError(Exception):
    """The command ends here: what it says on stderr, and its exit code."""

    def __init__(self, text: str, code: int = 1) -> None:
        super().__init__(text)
        self.code = code


def main(argv: list[str]) -> int:
    called, words = argv[0], argv[1:]
    name = os.path.basename(called)  # noqa: PTH119  # pathlib costs 10 ms
    if name == "emulated-gpu" and words:
        name, words = words[0], words[1:]
    if name not in COMMANDS:
        print(f"emulated-gpu: there is no command {name!r}", file=sys.stderr)
        return 127
    module, function = COMMANDS[name]
    command = getattr(import_module(f".{module}", __package__), function)
    try:
        return int(command(words, called) if name == "nvcc" else command(words))
    except CommandError as refused:
        print(refused, file=sys.stderr)
        return refused.code
    except BrokenPipeError:
        return 1
    except (OSError, ValueError) as fault:  # a full disk, a state that a test wrote wrong
        print(f"{name}: {fault}", file=sys.stderr)
        return 1


def run_the_real_one(command: str, words: list[str]) -> int:
    """Go on as the distribution's own command, which a diversion keeps as NAME.distrib."""
    for folder in ("/usr/sbin", "/usr/bin", "/sbin", "/bin"):
        real = f"{folder}/{command}.distrib"
        if os.path.exists(real):  # noqa: PTH110  # pathlib costs 10 ms
            os.execv(real, [command, *words])
    raise CommandError(f"{command}: command not found", 127)
