"""The key that a repository is signed with."""

from typing import Any

from aibox.box.probe.openpgp import fingerprint
from aibox.box.probe.replies import fetched


def signing_key(asked: dict[str, Any]) -> dict[str, Any]:
    """The key that lies beside a repository: {"text", "fingerprint", "error"}."""
    text, error = fetched(asked["url"])
    return {"text": text, "fingerprint": fingerprint(text or ""), "error": error}


QUESTIONS = {"signing_key": signing_key}
