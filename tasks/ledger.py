"""What a run was asked to lay down, told by the operations that do it: the one list of it all.

An operation tells it each time its generator runs, for the plan and again when it acts. When the
last operation of a run looks, all the others have told.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from pyinfra.api import Host


@dataclass
class Ledger:
    """Everything of ours on one box, by path or name."""

    files: dict[str, dict[str, str | None]] = field(default_factory=dict)
    packages: dict[str, str | None] = field(default_factory=dict)  # to the version that is asked
    units: dict[str, dict[str, bool]] = field(default_factory=dict)
    users: dict[str, dict[str, str]] = field(default_factory=dict)
    groups: dict[str, list[str]] = field(default_factory=dict)  # to their members
    kernel_settings: dict[str, str] = field(default_factory=dict)


_ledgers: dict[str, Ledger] = {}


def of(box: Host) -> Ledger:
    return _ledgers.setdefault(box.name, Ledger())


def file_of(
    content: bytes,
    user: str = "root",
    group: str = "root",
    mode: str = "644",
    *,
    secret: bool = False,
) -> dict[str, str | None]:
    """What is told of a file; of a secret one not even its sum."""
    sha256 = None if secret else hashlib.sha256(content).hexdigest()
    return {"user": user, "group": group, "mode": mode, "sha256": sha256}
