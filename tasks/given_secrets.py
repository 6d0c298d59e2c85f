"""Secrets that a person gives on control: files in secrets/, for their owner alone."""

from __future__ import annotations

import stat
from pathlib import Path

from aibox.decide.refusal import Refusal


class SecretError(Exception):
    """A secret that cannot be used, in words that do not hold it."""

    def __init__(self, found: str, expected: str, remedy: str) -> None:
        self.refusal = Refusal(found, expected, remedy)
        super().__init__(str(self.refusal))


def in_file(path: Path, expected: str) -> str | None:
    """What stands in a file, without blanks at its ends; None without one. Raises SecretError."""
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "not ASCII"
        raise SecretError(f"{path}: {words}", expected, "correct it") from None
    if stat.S_IMODE(mode) & 0o077:
        raise SecretError(
            f"{path} with mode {stat.S_IMODE(mode):o}",
            "a secret that only its owner can read",
            f"chmod 600 {path}",
        )
    return text or None
