"""What the server answers: the same tokens for the same request, in steps as MTP takes them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import cycle, islice
from typing import Any

# What the tiny rehearsal model says to everything at temperature 0: its next token depends on the
# current one only, and a prompt ends with a line feed. So one card serves both.
TINY_ANSWER = ("[", "\n")
DEFAULT_TOKENS = 64
# Accepted tokens of successive drafts where nothing else is asked for, cut to the draft's length.
ACCEPTANCE = (9, 9, 1, 2, 0)


@dataclass(frozen=True)
class Draft:
    """One step: the draft's length and how much of it was accepted (0 and 0 without MTP)."""

    drafted: int
    accepted: int


@dataclass(frozen=True)
class Step:
    tokens: list[str]
    draft: Draft


def tokens(text: str | None) -> Iterator[str]:
    """Without end: the words of `text`, or the tiny model's two tokens."""
    words = TINY_ANSWER if text is None else [f"{word} " for word in text.split()]
    return cycle(words or [""])


def steps(wanted: int, text: str | None, draft_length: int, accepted: int | None) -> Iterator[Step]:
    """`wanted` tokens, one a step or as many as the draft brings."""
    source = islice(tokens(text), wanted)
    pattern = cycle([accepted] if accepted is not None else ACCEPTANCE)
    while True:
        took = min(next(pattern), draft_length)
        part = list(islice(source, 1 + took))
        if not part:
            return
        yield Step(part, Draft(draft_length, len(part) - 1))


def prompt_text(body: dict[str, Any]) -> str:
    """All text of a request, of chat messages or of a prompt."""
    if "messages" not in body:
        prompt = body.get("prompt", "")
        return prompt if isinstance(prompt, str) else " ".join(map(str, prompt))
    parts: list[str] = []
    for message in body["messages"]:
        content = message.get("content") or ""
        if isinstance(content, str):
            parts.append(content)
        else:
            parts += [str(part.get("text", "")) for part in content]
    return "\n".join(parts)


def count_prompt(body: dict[str, Any]) -> int:
    """Prompt tokens as the tiny tokenizer counts them: a byte each, and its template's."""
    text = len(prompt_text(body).encode())
    if "messages" not in body:
        return text
    messages = body["messages"]
    around = sum(4 + len(str(message.get("role", ""))) for message in messages)
    joined = max(0, len(messages) - 1)  # the line feeds that prompt_text puts in between
    quiet = (body.get("chat_template_kwargs") or {}).get("enable_thinking") is False
    return text - joined + around + (17 if quiet else 13)


def thinks(body: dict[str, Any], parser: str | None, defaults: dict[str, Any]) -> bool:
    """Whether the answer begins with reasoning that the parser takes out."""
    wanted = defaults | (body.get("chat_template_kwargs") or {})
    return "messages" in body and bool(parser) and wanted.get("enable_thinking") is not False
