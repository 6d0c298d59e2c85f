"""Events that differ from one another by their text alone, which is then all that is read.

Nearly all events of an answer are such: this is what makes a filter cheap.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from aibox.stream.mends.piece import Chunk, only_choice

_SAID = b'"delta":{"content":'
_THOUGHT = b'"delta":{"reasoning":'
_AGAIN = b',"reasoning_content":'


@dataclass(frozen=True)
class Frame:
    """What stands before and behind the text, in an event that was read whole."""

    before: bytes
    behind: bytes
    thought: bool  # its text goes out under both names of thinking

    def mended(self, events: bytes) -> tuple[bytes | None, int]:
        """Events as reading them whole would give them, and how many were mended.

        (None, 0) where they have to be read whole.
        """
        if not (events.startswith(self.before) and events.endswith(self.behind)):
            return None, 0
        between = self.behind + self.before
        texts = events[len(self.before) : len(events) - len(self.behind)].split(between)
        if not all(_is_text(text) for text in texts):
            return None, 0
        if not self.thought:
            return (None if any(b"<" in text for text in texts) else events), 0  # a tag, perhaps
        texts = [text + _AGAIN + text for text in texts]
        return self.before + between.join(texts) + self.behind, len(texts)


def frame_of(raw: bytes, chunk: Chunk, mended: bytes) -> Frame | None:
    """The frame of an event, if putting a text into it is the same as mending it."""
    choice = only_choice(chunk)
    thought = _THOUGHT in raw
    marker = _THOUGHT if thought else _SAID
    before, found, rest = raw.partition(marker)
    if choice is None or not found:
        return None
    text = orjson.dumps(choice["delta"].get("reasoning" if thought else "content"))
    if not rest.startswith(text):
        return None
    frame = Frame(before + marker, rest[len(text) :], thought)
    return frame if frame.mended(raw)[0] == mended else None


def _is_text(text: bytes) -> bool:
    """Whether it is a JSON text, written as we write it."""
    if not text.startswith(b'"'):
        return False
    try:
        return orjson.dumps(orjson.loads(text)) == text
    except ValueError:
        return False
