"""Events that differ from one another by their text alone, which is then all that is read.

Nearly all events of an answer are such: this is what makes a filter cheap.
"""

from __future__ import annotations

import re

import orjson

from aibox.stream.mends.piece import Chunk, only_choice

_SAID = b'"delta":{"content":'
_THOUGHT = b'"delta":{"reasoning":'
_AGAIN = b',"reasoning_content":'
# A JSON text as we write it ourselves. In words that are said, < may begin a tag.
_TEXT = rb'"[^"\\\x00-\x1f%b]*(?:\\["\\bfnrt][^"\\\x00-\x1f%b]*)*"'
_ANY_TEXT = re.compile(_TEXT % (b"", b"")).fullmatch
_NO_TAG = re.compile(_TEXT % (b"<", b"<")).fullmatch


class Frame:
    """What stands before and behind the text, in an event that was read whole."""

    def __init__(self, before: bytes, behind: bytes, *, thought: bool) -> None:
        """thought: the text goes out under both names of thinking."""
        self._before, self._behind, self._thought = before, behind, thought
        self._between = behind + before
        self._start, self._end = len(before), -len(behind)
        self._fits = _ANY_TEXT if thought else _NO_TAG

    def mended(self, events: bytes) -> tuple[bytes | None, int]:
        """Events as reading them whole would give them, and how many were mended.

        (None, 0) where they have to be read whole.
        """
        if not (events.startswith(self._before) and events.endswith(self._behind)):
            return None, 0
        inner = events[self._start : self._end]
        if self._fits(inner):
            texts = [inner]
        else:
            texts = inner.split(self._between)
            if not all(map(self._fits, texts)):
                return None, 0
        if not (inner.isascii() or _is_utf8(inner)):
            return None, 0
        if not self._thought:
            return events, 0
        texts = [text + _AGAIN + text for text in texts]
        return self._before + self._between.join(texts) + self._behind, len(texts)


def frame_of(raw: bytes, chunk: Chunk, mended: bytes) -> Frame | None:
    """The frame of an event, if putting a text into it is the same as mending it."""
    choice = only_choice(chunk)
    thought = _THOUGHT in raw
    marker = _THOUGHT if thought else _SAID
    before, found, rest = raw.partition(marker)
    if choice is None or not found or not raw.endswith(b"\n\n"):
        return None
    text = orjson.dumps(choice["delta"].get("reasoning" if thought else "content"))
    if not rest.startswith(text):
        return None
    frame = Frame(before + marker, rest[len(text) :], thought=thought)
    return frame if frame.mended(raw)[0] == mended else None


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True
