"""Prompts of real text: short tasks, and before them this project's own source where it is asked.

A random word stands first in each, so that the prefix cache can't help, unless it is asked to.
"""

from __future__ import annotations

import json
import secrets
from functools import cache
from pathlib import Path
from typing import Any

import aibox
from aibox.box import prove
from aibox.box.job import Spec

HERE = Path(aibox.__file__).parent
PROMPTS = HERE / "prompts"
SAMPLE = 4000  # characters, to learn how many make a token


@cache
def source() -> str:
    """Every file of aibox, the same text on every box with this version: about a megabyte."""
    files = sorted(HERE.rglob("*.py"))
    return "".join(
        f"=== {path.relative_to(HERE.parent)} ===\n{path.read_text()}\n" for path in files
    )


def task(kind: str) -> str:
    return (PROMPTS / f"{kind}.txt").read_text().strip()


def prompt(kind: str, context: int, characters: float, *, nonce: bool = True) -> str:
    """A task, and before it as much source as makes the prompt `context` tokens long.

    characters: that make a token, as measured. The prompt alone where the context is shorter.
    """
    words = task(kind)
    room = max(0, round(context * characters) - len(words))
    before = f"{source()[:room]}\n\n" if room else ""
    first = f"{secrets.token_hex(8)}\n\n" if nonce else ""
    return f"{first}{before}{words}"


def characters_of_a_token(server: Spec) -> float:
    """Of the source, by the count of a server that is asked for it. Raises JobError."""
    text = source()[:SAMPLE]
    probe = {"prompt": text, "max_tokens": 1, "body": {"temperature": 0}}
    answer = prove.complete({**server, "probe": probe})
    try:
        return len(text) / int(answer["usage"]["prompt_tokens"])
    except (KeyError, TypeError, ValueError, ZeroDivisionError):
        raise prove.unanswered(server, f"it answered {str(answer)[:300]}") from None


def questions() -> dict[str, Any]:
    """What a test of quality asks: {"tools": […], "prompts": [{"id", "text", "source", "tools"}]}.

    source: whether this project's source stands in front, the same for all. tools: whether a call
    is asked for.
    """
    found: dict[str, Any] = json.loads((PROMPTS / "quality.json").read_text())
    return found


def required() -> dict[str, list[str]]:
    """The parameters that each tool of a test of quality requires, by its name."""
    functions = [tool["function"] for tool in questions()["tools"]]
    return {one["name"]: one["parameters"]["required"] for one in functions}
