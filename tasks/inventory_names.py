"""What an inventory names, for who judges it before any box is asked."""

from __future__ import annotations

import traceback
from pathlib import Path
from typing import cast

from pyinfra.api import Inventory

from aibox.decide import inventory as deciding
from aibox.decide.inventory import Named
from aibox.decide.refusal import Refusal


def of(inventory: Inventory, said: str) -> Named:
    """said: the inventory as it was named: a file, or hosts."""
    return Named(
        every=[one.name for one in inventory],
        groups={name: [one.name for one in held] for name, held in inventory.groups.items()},
        of_all=of_all(said),
        no_lists=deciding.no_lists(written(said)),
    )


def read(said: str, project: str) -> Inventory | Refusal:
    """As pyinfra does, for programs of ours. said: the inventory as it was named."""
    # Its import puts gevent in the place of threads: not for who only judges names.
    from pyinfra_cli.inventory import (  # type: ignore[import-untyped]  # noqa: PLC0415
        make_inventory,
    )

    refusal = misread(said)
    if refusal:
        return refusal
    try:
        return cast("Inventory", make_inventory(said, cwd=project))
    except (Exception, SystemExit) as error:
        return unreadable(said, error)


def misread(said: str) -> Refusal | None:
    """What pyinfra would take for something else, or ends with: judged before it reads it."""
    return next(deciding.no_lists_of_ours(deciding.no_lists(written(said))), None)


def unreadable(said: str, error: BaseException) -> Refusal:
    """error: what the reading ended with, as pyinfra has wrapped it."""
    cause = getattr(error, "exception", error)
    file = str(getattr(error, "filename", said))
    frames = traceback.extract_tb(cause.__traceback__)
    lines = [at.lineno for at in frames if at.filename == file]
    return deciding.unreadable(file, lines[-1] if lines else None, cause)


def of_all(said: str) -> set[str]:
    """Names of groups that hold every host: pyinfra makes one of the inventory's file."""
    return {"all", Path(said).stem}


def written(said: str) -> str:
    """An inventory's text; empty where it is no file, or one that pyinfra can't read either."""
    try:
        return Path(said).read_text(encoding="utf-8") if Path(said).is_file() else ""
    except (OSError, ValueError):
        return ""
