"""A file that only root may read."""

import hashlib
import os
from pathlib import Path
from typing import Any

from aibox.box.probe.owners import owner_and_mode


def secret(asked: dict[str, Any]) -> dict[str, Any] | None:
    """Owner, mode and a salted sum of a file that only root may read: its content stays here."""
    path = Path(asked["path"])
    try:
        content, status = path.read_bytes(), path.stat()
    except OSError:
        return None
    owner, mode = owner_and_mode(status)
    salt = os.urandom(16).hex()
    return {
        "owner": owner,
        "mode": mode,
        "salt": salt,
        "sum": hashlib.sha256(salt.encode() + content).hexdigest(),
        "is_empty": not content.strip(),
    }


QUESTIONS = {"secret": secret}
