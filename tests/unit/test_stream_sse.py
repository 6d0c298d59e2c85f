"""Events out of bytes, wherever they are cut."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aibox.stream.sse import Event, Events, data_of

PIECES = [b"data: a", b"data:b", b"data", b": note", b"event: x", b"id: 1", b"x", b""]
ENDS = [b"\n", b"\r\n", b"\r", b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\n"]
TEXT = st.lists(st.tuples(st.sampled_from(PIECES), st.sampled_from(ENDS)), max_size=12).map(
    lambda parts: b"".join([piece + end for piece, end in parts])
)


def events(blocks: list[bytes], limit: int = 1 << 20) -> tuple[list[Event], bytes]:
    reader = Events(limit)
    found = [event for block in blocks for event in reader.feed(block)]
    return found, reader.rest()


@settings(max_examples=500, deadline=None)
@given(TEXT, st.data())
def test_cuts_change_nothing_and_no_byte_is_lost(text: bytes, data: st.DataObject) -> None:
    whole, rest = events([text])
    at = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=8)))
    cut = [text[a:b] for a, b in zip([0, *at], [*at, len(text)], strict=True)]
    assert events(cut) == (whole, rest)
    assert events([text[n : n + 1] for n in range(len(text))]) == (whole, rest)
    assert b"".join(event.raw for event in whole) + rest == text


@pytest.mark.parametrize(
    ("raw", "data"),
    [
        (b"data: a\n\n", b"a"),
        (b"data:a\r\n\r\n", b"a"),
        (b"data: a\r\r", b"a"),
        (b"data:  a\n\n", b" a"),
        (b"data: a\ndata: b\n\n", b"a\nb"),
        (b"data: a\rdata: b\r\r", b"a\nb"),
        (b"data\n\n", b""),
        (b"\xef\xbb\xbfdata: a\n\n", b"a"),
        (b"id: 1\nevent: x\n: note\ndata: a\n\n", b"a"),
        (b"event: x\ndata: a\n\n", b"a"),
        (b"event: x\ndata:a\n\n", b"a"),
        (b"event: x\ndata: a\rdata: b\n\n", b"a\nb"),
        (b"event: x\ndatabase\n\n", None),
        (b": note\n\n", None),
        (b"database: a\n\n", None),
        (b"", None),
    ],
)
def test_the_data_of_an_event(raw: bytes, data: bytes | None) -> None:
    assert data_of(raw) == data


@pytest.mark.parametrize(
    ("raw", "written"),
    [
        (b"data: a\n\n", b"data: NEW\n\n"),
        (b"data:a\r\n\r\n", b"data: NEW\r\n\r\n"),
        (b"event: x\ndata: a\ndata: b\nid: 1\n\n", b"event: x\ndata: NEW\nid: 1\n\n"),
        (b"\xef\xbb\xbfdata: a\n\n", b"\xef\xbb\xbfdata: NEW\n\n"),
        (b"data: a", b"data: NEW"),
    ],
)
def test_other_data_in_the_same_event(raw: bytes, written: bytes) -> None:
    assert Event(raw, data_of(raw)).with_data(b"NEW") == written


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r", b"\n\r\n", b"\r\n\r"])
def test_no_byte_is_waited_for(end: bytes) -> None:
    """What a client needs to see the event is there at once."""
    reader = Events(1 << 20)
    came = b"data: a" + end
    assert b"".join(event.raw for event in reader.feed(came)) == came


def test_an_endless_line_passes_in_pieces_and_takes_no_memory() -> None:
    reader = Events(1024)
    passed = b"".join(event.raw for _ in range(1000) for event in reader.feed(b"x" * 1000))
    assert len(passed) > 998_000
    assert not reader.between
    (tail,) = reader.feed(b"yz\n\n")
    assert tail.data is None
    assert reader.between
    (again,) = reader.feed(b"data: a\n\n")
    assert again.data == b"a"


def test_an_event_over_the_limit_is_not_read_wherever_it_is_cut() -> None:
    long = b"data: " + b"x" * 3000 + b"\n\n"
    for size in (1, 7, 1000, 4000):
        found, rest = events([long[at : at + size] for at in range(0, len(long), size)], 1024)
        assert all(event.data is None for event in found)
        assert b"".join(event.raw for event in found) + rest == long


def test_whole_events_pass_uncut_only_where_they_may() -> None:
    reader = Events(1 << 20)
    assert reader.uncut(b"data: a\n\ndata: b\n\nda", bytes.upper) == b"DATA: A\n\nDATA: B\n\n"
    assert reader.uncut(b"ta: c\n\n", lambda _: None) is None
    assert [event.data for event in reader.feed(b"ta: c\n\n")] == [b"c"]
    for text in (b"data: a", b"data: a\r\n\r\n", b"data: a\n\n\ndata: b\n\n"):
        assert Events(1 << 20).uncut(text, bytes.upper) is None
