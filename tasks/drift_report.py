"""What a drift check learns of a box beside pyinfra's plan, which holds names only.

Operations tell why they would change something; the last step of a check writes it all down, one
file a box, in the folder that `python -m tasks.drift` names in the environment.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pyinfra import state
from pyinfra.api import Host

from aibox.decide.drift import Reason, Serves
from aibox.decide.foreign import Sorted
from aibox.decide.secrecy import without_secrets

FOLDER = "AIBOX_DRIFT_REPORTS"  # the name in the environment

_told: dict[str, dict[str, list[Reason]]] = {}


def is_wanted() -> bool:
    """Whether this run is a drift check."""
    return FOLDER in os.environ


def because(box: Host, text: str, diff: Sequence[str] = (), *, refused: bool = False) -> None:
    """Note why the operation at work would change something, or why a deploy would refuse to."""
    if box.current_op_hash and not state.is_executing:
        reason = Reason(without_secrets(text), tuple(diff), refused)
        _told.setdefault(box.name, {}).setdefault(box.current_op_hash, []).append(reason)


def is_due(box: Host, reasons: Sequence[str], otherwise: str) -> bool:
    """Whether the operation at work has something to do: each reason is noted, or that none is."""
    for reason in reasons:
        because(box, reason)
    if not reasons:
        box.noop(otherwise)
    return bool(reasons)


def difference(path: str, old: bytes, new: bytes) -> list[str]:
    """How a file on the box differs from the one that is wanted, without what looks secret."""
    there, wanted = (without_secrets(text.decode(errors="replace")) for text in (old, new))
    names = f"{path} on the box", f"{path} as wanted"
    return list(
        difflib.unified_diff(there.splitlines(), wanted.splitlines(), *names, lineterm="", n=0)
    )


def write(
    box: Host, foreign: Sorted, *, watched: bool = False, serves: Serves | None = None
) -> None:
    """Leave the report of one box. Its name is in it: a box may be called anything. watched:
    whether its monitor is to learn of it. serves: None for a host that is no box."""
    reasons = {
        name: [asdict(one) for one in told] for name, told in _told.get(box.name, {}).items()
    }
    report: dict[str, Any] = {
        "box": box.name,
        "watched": watched,
        "operations": len(state.ops[box]),
        "reasons": reasons,
        "serves": serves and asdict(serves),
        **asdict(foreign),
    }
    path = Path(os.environ[FOLDER]) / f"{list(state.inventory).index(box)}.json"
    path.write_text(json.dumps(report))
