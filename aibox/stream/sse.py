"""Server-sent events out of bytes, wherever the network cut them, and back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

# Two line ends: CRLF, LF and CR each are one. The second ends at its CR, so that no byte is waited
# for: an LF that belongs to it comes by itself, where it means nothing.
_END = re.compile(rb"(?:\r\n|\n)[\r\n]|\r\r")
_LINE_END = re.compile(rb"\r\n|\r|\n")
_BOM = b"\xef\xbb\xbf"


@dataclass(slots=True)
class Event:
    """One event as it came. data: its data lines, joined; None where it has none (a comment)."""

    raw: bytes
    data: bytes | None

    def with_data(self, data: bytes) -> bytes:
        """The event with one data line instead of its own; everything else stays as it is."""
        if self.data is not None and len(self.raw) == len(self.data) + 8 and _is_plain(self.raw):
            return b"data: %b\n\n" % data
        lines, ends = _lines(self.raw), _LINE_END.findall(self.raw)
        ends += [b""] * (len(lines) - len(ends))
        out, put = [], False
        for line, end in zip(lines, ends, strict=True):
            if _field(line) is None:
                out.append(line + end)
            elif not put:
                put = True
                bom = _BOM if line.startswith(_BOM) else b""
                out.append(bom + b"data: " + data + end)
        return b"".join(out)


class Events:
    """Cuts a stream into events. Holds back the unfinished one, up to `limit` bytes.

    An event that is longer passes in pieces, as events without data.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.at_start = True  # whether what comes next begins an event
        self._pending = b""
        self._searched = 0  # so many bytes of what is pending hold no end
        self._too_long = False
        self._after_cr = False  # an LF that comes now belongs to the event before

    def feed(self, block: bytes) -> Iterator[Event]:
        """The events that this block completes."""
        if not block:
            return
        text = self._pending + block if self._pending else block
        start, search = 0, self._searched
        if self._after_cr:
            self._after_cr = False
            if text.startswith(b"\n"):
                yield Event(b"\n", None)
                start = search = 1
        while (end := _end_of_event(text, search)) > 0:
            yield self._event(text[start:end])
            start = search = end
            if text[start - 1] == 13 and text[start : start + 1] == b"\n":
                yield Event(b"\n", None)
                start = search = start + 1
        self._after_cr = start == len(text) and text[-1] == 13
        self._pending = text[start:]
        self.at_start = not (self._pending or self._after_cr)
        self._searched = max(len(self._pending) - 2, 0)  # an end has three bytes at most
        if len(self._pending) > self._limit:
            self._too_long = True
        if self._too_long and self._searched:
            piece, self._pending = self._pending[: self._searched], self._pending[self._searched :]
            self._searched = 0
            yield Event(piece, None)

    def uncut(self, block: bytes, mend: Callable[[bytes], bytes | None]) -> bytes | None:
        """All whole events at once, mended together; None where they must be fed instead."""
        if self._too_long:
            return None
        text = self._pending + block if self._pending else block
        end = text.rfind(b"\n\n") + 2
        whole = text if end == len(text) else text[:end]
        if end < 2 or b"\r" in whole or b"\n\n\n" in whole:
            return None
        mended = mend(whole)
        if mended is not None:
            self._pending, self._searched, self._after_cr = text[end:], 0, False
            self.at_start = not self._pending
        return mended

    @property
    def between(self) -> bool:
        """Whether an event of ours may be put in here: no part of another has passed."""
        return not self._too_long

    def rest(self) -> bytes:
        """What came after the last event's end. It is forgotten here."""
        rest, self._pending, self._searched = self._pending, b"", 0
        return rest

    def _event(self, raw: bytes) -> Event:
        if self._too_long or len(raw) > self._limit:
            self._too_long = False
            return Event(raw, None)
        return Event(raw, data_of(raw))


def _end_of_event(text: bytes, start: int) -> int:
    """Behind the first blank line from here on; -1 without one."""
    end = text.find(b"\n\n", start) + 2
    if b"\r" not in text:
        return end if end > 1 else -1
    found = _END.search(text, start)
    return found.end() if found else -1


def data_of(raw: bytes) -> bytes | None:
    """The data lines of an event, joined by LF; None without any."""
    if _is_plain(raw):
        return raw[6:-2]
    return raw[raw.index(b"\n") + 7 : -2] if _is_named(raw) else _joined(raw)


def _is_plain(raw: bytes) -> bool:
    """Whether it is one data line, as servers write it."""
    framed = raw.startswith(b"data: ") and raw.endswith(b"\n\n")
    return framed and raw.count(b"\n") == 2 and b"\r" not in raw


def _is_named(raw: bytes) -> bool:
    """Whether it is a name and one data line, as servers write it."""
    framed = raw.startswith(b"event: ") and b"\ndata: " in raw and raw.endswith(b"\n\n")
    return framed and raw.count(b"\n") == 3 and b"\r" not in raw


def _joined(raw: bytes) -> bytes | None:
    data = [value for line in _lines(raw) if (value := _field(line)) is not None]
    return b"\n".join(data) if data else None


def _lines(raw: bytes) -> list[bytes]:
    return _LINE_END.split(raw)


def _field(line: bytes) -> bytes | None:
    """The value of a data line; None for another line."""
    name, colon, value = line.removeprefix(_BOM).partition(b":")
    if name != b"data":
        return None
    return value.removeprefix(b" ") if colon else b""
