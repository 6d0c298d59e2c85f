"""The model hub's token on control: the environment before the file, none without either."""

from __future__ import annotations

import os

from tasks.box import PROJECT
from tasks.given_secrets import SecretError, in_file

TOKEN_FILE = PROJECT / "secrets/hub-token"


def token() -> str | None:
    """HF_TOKEN, or what stands in secrets/hub-token. Raises SecretError."""
    given = os.environ.get("HF_TOKEN", "").strip() or in_file(TOKEN_FILE, "a token on one line")
    if given and not (given.isascii() and given.isprintable() and " " not in given):
        # It travels as a header of HTTP, and must not be shown.
        raise SecretError(
            "a hub token with blanks or control characters", "one word on one line", "correct it"
        )
    return given
