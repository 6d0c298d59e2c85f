"""Entries of a history, as tests write them."""

from collections.abc import Sequence
from typing import Any

from aibox.decide.history import Passed


def passed(letter: str, flags: Sequence[str] = (), **changes: Any) -> Passed:
    """A unit whose sum is all `letter`."""
    release, weights = "/opt/r/0.31.0-aaaaaaaa", "/srv/w"
    right: dict[str, Any] = {
        "sha256": letter * 64,
        "when": 1.0,
        "release": release,
        "release_id": "0.31.0-aaaaaaaa",
        "weights": weights,
        "commit": "c" * 40,
        "model": "qwen",
        "speculative": True,
        "command": [f"{release}/bin/vllm", "serve", weights, *flags],
    }
    return Passed(**{**right, **changes})
