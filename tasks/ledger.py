"""What a run was asked to lay down, told by the operations that do it: the one list of it all.

An operation tells it each time its generator runs, for the plan and again when it acts. When the
last operation of a run looks, all the others have told.
"""

from __future__ import annotations

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
