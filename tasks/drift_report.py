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
from aibox.decide.refusal import Refusal
from aibox.decide.secrecy import without_secrets

FOLDER = "AIBOX_DRIFT_REPORTS"  # the name in the environment
JUDGES = "AIBOX_DRIFT_JUDGES"  # the same, of a check after which a deploy follows

_told: dict[str, dict[str, list[Reason]]] = {}


def is_wanted() -> bool:
    """Whether this run is a drift check."""
    return FOLDER in os.environ


def judges() -> bool:
    """Whether it is to ask for what a deploy would refuse, which takes half a minute."""
    return is_wanted() and JUDGES in os.environ


def because(box: Host, text: str, diff: Sequence[str] = (), *, refused: bool = False) -> None:
    """Note why the operation at work would change something, or why a deploy would refuse to."""
    if box.current_op_hash and not state.is_executing:
        _tell(box, box.current_op_hash, Reason(without_secrets(text), tuple(diff), refused))


def would_be_refused(box: Host, operation: str, refusal: Refusal) -> None:
    """Note it of an operation of this box that was planned already, by the end of its name."""
    lines = without_secrets(str(refusal)).splitlines()
    for name_hash in state.ops[box]:
        if any(name.endswith(operation) for name in state.op_meta[name_hash].names):
            _tell(box, name_hash, Reason("a deploy would be refused", tuple(lines), refused=True))


def _tell(box: Host, name_hash: str, reason: Reason) -> None:
    _told.setdefault(box.name, {}).setdefault(name_hash, []).append(reason)


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
