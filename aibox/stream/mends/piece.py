"""A piece of an answer, as mends take and give it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from aibox.stream.sse import Event

Chunk = dict[str, Any]


@dataclass(slots=True, eq=False)
class Piece:
    """A parsed event. A chunk is never changed in place: a mend makes another piece.

    event: as it came from the server; None for a piece that a mend added. mended: whether the
    chunk differs from the event.
    """

    chunk: Chunk
    event: Event | None = None
    mended: bool = True

    def edited(self, chunk: Chunk) -> Piece:
        return Piece(chunk, self.event)


class Mend(Protocol):
    """One mend of one answer."""

    @property
    def count(self) -> int:
        """How often it applied."""

    @property
    def quiet(self) -> bool:
        """Whether it holds nothing back and expects nothing of the next piece."""

    def feed(self, piece: Piece) -> Sequence[Piece]:
        """What takes the piece's place: itself, others, or nothing for now."""

    def rest(self) -> Sequence[Piece]:
        """What it still holds back, when no more comes."""


class HoldsNothing:
    """A mend that decides on each piece at once."""

    def __init__(self) -> None:
        self.count = 0

    @property
    def quiet(self) -> bool:
        return True

    def rest(self) -> Sequence[Piece]:
        return ()


def only_choice(chunk: Chunk) -> Chunk | None:
    """The choice of a chat chunk. Usage alone has none; several are split before."""
    choices = chunk.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], dict):
        return None
    choice: Chunk = choices[0]
    return choice if isinstance(choice.get("delta"), dict) else None


def with_choice(chunk: Chunk, choice: Chunk, **changes: Any) -> Chunk:
    return {**chunk, "choices": [{**choice, **changes}]}
