"""Secure Boot: the EFI variable, and mokutil for who asks it."""

from __future__ import annotations

from .commands import CommandError, run_the_real_one
from .files import state

VARIABLE = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
ATTRIBUTES = b"\6\0\0\0"  # boot service and runtime access: 4 bytes before each variable's value


def mokutil(words: list[str]) -> int:
    enabled = state().get("secure_boot", False)
    if words != ["--sb-state"]:
        return run_the_real_one("mokutil", words)
    if enabled is None:
        raise CommandError("EFI variables are not supported on this system")
    print(f"SecureBoot {'enabled' if enabled else 'disabled'}")
    return 0
