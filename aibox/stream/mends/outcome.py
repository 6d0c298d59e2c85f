"""How an answer ended: what is counted and passed on, and whether it is whole."""

from __future__ import annotations

from typing import Any

from aibox.stream.mends.piece import Chunk

_ENDINGS = ("response.completed", "response.failed", "response.incomplete", "message_stop", "error")
_FAILURES = ("error", "response.failed")
_SAYING = ("content_block_delta", "response.output_text.delta", "response.reasoning_text.delta")


class Outcome:
    """Looks at what the server sent, before any mend. choices: so many answers are expected."""

    def __init__(self, choices: int = 1) -> None:
        self._expected = choices
        self._said: set[Any] = set()
        self._stopped: set[Any] = set()
        self._finished: set[Any] = set()
        self._ended = False
        self.tokens: int | None = None  # of the answer, as its usage says
        self.broken = False  # the server itself said so

    def done(self) -> None:
        """The server's own mark of the end."""
        self._ended = True

    @property
    def whole(self) -> bool:
        """Whether the client can take it for finished, and may."""
        return self._ended or len(self._finished) >= self._expected

    @property
    def empty(self) -> bool:
        """Whether a choice stopped by itself without a word."""
        return not self.broken and bool(self._stopped - self._said)

    @property
    def speaking(self) -> bool:
        """Whether each choice has said something: an event of mere text brings nothing new."""
        return len(self._said) >= self._expected

    def see(self, chunk: Chunk) -> None:
        """An event of a stream, or an answer in one body."""
        if chunk.get("error") or chunk.get("type") in _FAILURES:
            self.broken = self._ended = True
        if chunk.get("type") in _ENDINGS:
            self._ended = True
        self._see_usage(chunk)
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict):
                self._see_choice(choice)
        if isinstance(chunk.get("type"), str):
            self._see_block(chunk)
        response = chunk if chunk.get("object") == "response" else chunk.get("response")
        if isinstance(response, dict):
            self._see_response(response)

    def _see_choice(self, choice: Chunk) -> None:
        index = choice.get("index", 0)
        said = choice.get("delta") or choice.get("message") or {"text": choice.get("text")}
        names = ("content", "reasoning", "reasoning_content", "tool_calls", "text", "refusal")
        if isinstance(said, dict) and any(said.get(name) for name in names):
            self._said.add(index)
        if choice.get("finish_reason") is not None:
            self._finished.add(index)
            if choice["finish_reason"] == "stop":
                self._stopped.add(index)

    def _see_block(self, chunk: Chunk) -> None:
        block = chunk.get("content_block")
        called = isinstance(block, dict) and block.get("type") == "tool_use"
        if (
            chunk["type"] in _SAYING
            or called
            or (chunk["type"] == "message" and chunk.get("content"))
        ):
            self._said.add(0)
        delta = chunk.get("delta")
        ends = delta if isinstance(delta, dict) else chunk
        if ends.get("stop_reason") == "end_turn":
            self._stopped.add(0)

    def _see_response(self, response: Chunk) -> None:
        """The whole of an answer of /v1/responses, at its end or in one body."""
        self._see_usage(response)
        for item in response.get("output") or ():
            if item.get("content") or item.get("type") not in ("message", "reasoning"):
                self._said.add(0)
        if response.get("status") == "completed":
            self._stopped.add(0)

    def _see_usage(self, chunk: Chunk) -> None:
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            tokens = usage.get("completion_tokens", usage.get("output_tokens"))
            self.tokens = tokens if isinstance(tokens, int) else self.tokens
