"""What an inventory names, for who judges it before any box is asked."""

from __future__ import annotations

from pathlib import Path

from pyinfra.api import Inventory

from aibox.decide import inventory as deciding
from aibox.decide.inventory import Named


def of(inventory: Inventory, said: str) -> Named:
    """said: the inventory as it was named: a file, or hosts."""
    return Named(
        every=[one.name for one in inventory],
        groups={name: [one.name for one in held] for name, held in inventory.groups.items()},
        of_all=of_all(said),
        no_lists=deciding.no_lists(written(said)),
    )


def of_all(said: str) -> set[str]:
    """Names of groups that hold every host: pyinfra makes one of the inventory's file."""
    return {"all", Path(said).stem}


def written(said: str) -> str:
    """An inventory's text; empty where it is no file, or one that pyinfra can't read either."""
    try:
        return Path(said).read_text(encoding="utf-8") if Path(said).is_file() else ""
    except (OSError, ValueError):
        return ""
