"""The model hub's token on control: the environment before the file, none without either."""

from __future__ import annotations

import os
import stat

from aibox.decide.refusal import Refusal
from tasks.box import PROJECT

TOKEN_FILE = PROJECT / "secrets/hub-token"


class TokenError(Exception):
    """A token file that cannot be used."""

    def __init__(self, found: str, expected: str, remedy: str) -> None:
        self.refusal = Refusal(found, expected, remedy)
        super().__init__(str(self.refusal))


def token() -> str | None:
    """HF_TOKEN, or what stands in secrets/hub-token. Raises TokenError."""
    given = os.environ.get("HF_TOKEN", "").strip() or in_file()
    if given and not (given.isascii() and given.isprintable() and " " not in given):
        # It travels as a header of HTTP, and must not be shown.
        raise TokenError(
            "a hub token with blanks or control characters", "one word on one line", "correct it"
        )
    return given


def in_file() -> str | None:
    try:
        mode = TOKEN_FILE.stat().st_mode
        text = TOKEN_FILE.read_text(encoding="ascii").strip()
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        words = getattr(error, "strerror", None) or "not ASCII"
        raise TokenError(f"{TOKEN_FILE}: {words}", "a token on one line", "correct it") from None
    if stat.S_IMODE(mode) & 0o077:
        raise TokenError(
            f"{TOKEN_FILE} with mode {stat.S_IMODE(mode):o}",
            "a secret that only its owner can read",
            f"chmod 600 {TOKEN_FILE}",
        )
    return text or None
