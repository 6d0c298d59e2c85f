"""Events of thinking that differ by their text alone, which is then all that is read.

Thinking is most of what a model says, and each event of it is mended: this makes it cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from aibox.stream.mends.piece import Chunk, only_choice

_BEGINS = b'"delta":{"reasoning":'
_AGAIN = b',"reasoning_content":'


@dataclass(frozen=True)
class Frame:
    """What stands before and behind the text, in an event that was read and mended whole."""

    before: bytes
    behind: bytes

    def mended(self, raw: bytes) -> bytes | None:
        """The event with both names, as reading it whole would give it; None for another event."""
        if not (raw.startswith(self.before) and raw.endswith(self.behind)):
            return None
        text = raw[len(self.before) : len(raw) - len(self.behind)]
        return self._with(text) if _is_text(text) else None

    def _with(self, text: bytes) -> bytes:
        return b"".join((self.before, text, _AGAIN, text, self.behind))


def frame_of(raw: bytes, chunk: Chunk, mended: bytes) -> Frame | None:
    """The frame of an event, if putting a text into it is the same as mending it."""
    choice = only_choice(chunk)
    before, marker, rest = raw.partition(_BEGINS)
    if choice is None or not marker:
        return None
    text = orjson.dumps(choice["delta"].get("reasoning"))
    if not rest.startswith(text):
        return None
    frame = Frame(before + marker, rest[len(text) :])
    return frame if frame.mended(raw) == mended else None


def _is_text(text: bytes) -> bool:
    """Whether it is a JSON text, written as we write it."""
    if not text.startswith(b'"'):
        return False
    try:
        return orjson.dumps(orjson.loads(text)) == text
    except ValueError:
        return False
