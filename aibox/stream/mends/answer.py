"""A whole answer with all mends in their order and each in its mode."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import orjson

from aibox.stream.errors import error_event
from aibox.stream.mends import Mode, chat, messages, responses
from aibox.stream.mends.frame import Frame, frame_of
from aibox.stream.mends.outcome import Outcome
from aibox.stream.mends.piece import Chunk, Mend, Piece
from aibox.stream.mends.request import Asked
from aibox.stream.mends.text import SpeltCalls, ThinkTag
from aibox.stream.sse import Event, Events, data_of

# An event without any of these concerns no mend, as long as none of them waits for something. What
# stands here may only be too much: an event that is looked at without need passes all the same.
_HINTS: dict[str, tuple[bytes, ...]] = {
    "chat": (b'"tool_calls', b"<", b"\\u003c", b'"error', b"usage", b"[DONE]"),
    "completions": (b'"error', b"usage", b"[DONE]"),
    "responses": (b'"response.', b'"error', b"[DONE]"),
    "messages": (
        *(b"content_block_st", b'"message_', b"input_json", b"<", b"\\u003c", b'"error', b"usage"),
    ),
}
_THINKING = b'"reasoning'  # in chat: concerns those mends alone that are about it
_ABOUT_THINKING = ("answer_in_reasoning", "reasoning_names")
_CHANCES = 20  # how often an answer's frame is looked for anew, where it changes all the time
_NAMED_EVENTS = ("messages", "responses")
DONE = b"[DONE]"
# What a chunk of another shape than the API's leads to. It is no use to a client, but it is his.
STRANGE = (TypeError, ValueError, LookupError, AttributeError)


# What is mended in one API alone, in the order in which it works, after what is mended in each.
_FURTHER: dict[str, dict[str, Callable[[], Mend]]] = {
    "chat": {
        "late_name": chat.LateName,
        "null_fields": chat.NullFields,
        "tool_arguments": chat.ToolArguments,
        "finish_reason": chat.FinishReason,
        "reasoning_names": chat.ReasoningNames,
    },
    "messages": {
        "tool_arguments": messages.ToolArguments,
        "finish_reason": messages.FinishReason,
    },
    "responses": {"tool_arguments": responses.ToolArguments},
}
_APIS = {"chat": chat, "messages": messages, "responses": responses}


def mends_of(api: str, asked: Asked) -> dict[str, Mend]:
    """The mends of an answer by name, in the order in which they work."""
    of = _APIS.get(api)
    if of is None:
        return {}
    found: dict[str, Mend] = {}
    if asked.thinking_off:
        found["answer_in_reasoning"] = of.AnswerInReasoning()
    found["think_tag"] = of.TextMend(ThinkTag)
    if asked.tools:
        found["tool_call_text"] = of.TextMend(lambda: SpeltCalls(asked.tools))
    return found | {name: make() for name, make in _FURTHER[api].items()}


class Answer:
    """Mends one answer. Knows no clock and no socket."""

    def __init__(
        self, api: str, asked: Asked, modes: Mapping[str, Mode], event_bytes: int = 8 << 20
    ) -> None:
        self.api = api
        self._choices = asked.choices
        self._hints = _HINTS.get(api, ())
        if asked.thinking_off and api == "messages":
            self._hints += (b"thinking", b"signature")
        found = mends_of(api, asked)
        self._named = {name: mend for name, mend in found.items() if modes[name] != "off"}
        self._mends = [(mend, modes[name]) for name, mend in self._named.items()]
        self._order = responses.InOrder()
        if api == "responses":
            self._mends.append((self._order, "on"))
        self._about_thinking = [
            (self._named[name], modes[name])
            for name in _ABOUT_THINKING
            if api == "chat" and name in self._named
        ]
        self._errors = modes["error_event"]
        self._events = Events(event_bytes)
        self._quiet = False
        self._frame: Frame | None = None
        self._in_frame = 0
        self._chances = _CHANCES
        self.outcome = Outcome(asked.choices)
        self.unreadable = 0  # events that were no answer of this API, passed on
        self.cut = False  # the server ended in the middle

    def feed(self, block: bytes) -> bytes:
        """What goes to the client for a block from the server; perhaps nothing yet."""
        if self._quiet:  # nothing is held back or expected
            if self._frame is not None and self._events.at_start:
                framed, thoughts = self._frame.mended(block)
                if framed is not None:
                    self._in_frame += thoughts
                    return framed
            at_once = self._events.uncut(block, self._at_once)
            if at_once is not None:
                return at_once
        return b"".join([self._event(event) for event in self._events.feed(block)])

    def _at_once(self, events: bytes) -> bytes | None:
        """Whole events, mended together; None where they have to be read one by one."""
        framed = self._framed(events)
        if framed is not None or self._chances:
            return framed
        return events if self._unconcerned(events) else None

    def end(self) -> bytes:
        """What goes to the client when no more comes from the server.

        An answer that is not whole ends with an error in the API's own form.
        """
        rest, between = self._events.rest(), self._events.between
        data = data_of(rest) if between else None
        readable = data is not None and (data == DONE or parsed(data) is not None)
        out = self._event(Event(rest, data)) if readable else b""
        held = self._held_back()
        self.cut = not self.outcome.whole
        said_so = self.cut and self._errors == "on"
        if readable and out and (held or said_so):
            out += b"\n\n"
        if not said_so:
            return out + held + (b"" if readable else rest)
        out = out if between else rest + b"\n\n"
        words = "The model server ended in the middle of the answer. Send the request again."
        return out + held + self._error(words)

    def broken_off(self, words: str) -> bytes:
        """What goes to the client when he gets no more of the answer than he has."""
        return self._held_back() + self._error(words)

    def _error(self, words: str) -> bytes:
        return error_event(self.api, words, self._order.number + 1)

    @property
    def between(self) -> bool:
        """Whether a keep-alive may be sent: the client has got no part of an event."""
        return self._events.between

    @property
    def counts(self) -> Counter[str]:
        """How often each mend applied, or would have."""
        found = Counter({name: mend.count for name, mend in self._named.items()})
        found["reasoning_names"] += self._in_frame
        return +found

    @property
    def malformed(self) -> int:
        """Tool calls whose arguments were corrupted, passed on."""
        watched = self._named.get("tool_arguments")
        return int(getattr(watched, "malformed", 0))

    def _held_back(self) -> bytes:
        pieces: Sequence[Piece] = []
        for mend, mode in self._mends:
            after = [*_fed(mend, pieces), *mend.rest()]
            if mode == "on":
                pieces = after
        return self._all_written(pieces)

    def _unconcerned(self, events: bytes) -> bool:
        return not (self._about_thinking and _THINKING in events) and self._plain(events)

    def _plain(self, events: bytes) -> bool:
        """Whether they hold words alone, said or thought."""
        for hint in self._hints:
            if hint in events:
                return False
        unfinished = events.count(b'"finish_reason":null') + events.count(b'"finish_reason": null')
        return events.count(b"finish_reason") == unfinished

    def _event(self, event: Event) -> bytes:
        data = event.data
        if data is None:
            return event.raw
        plain = self._quiet and self._plain(data)
        if plain and (framed := self._framed(event.raw)):
            return framed
        if data == DONE:
            self.outcome.done()
            return self._held_back() + event.raw
        try:
            return self._words(event, data) if plain else self._seen(event, parsed(data) or {})
        except STRANGE:
            self.unreadable += 1
            return event.raw

    def _framed(self, events: bytes) -> bytes | None:
        """Whole events of mere words in one frame, mended; None where they are something else."""
        if self._frame is None:
            return None
        framed, thoughts = self._frame.mended(events)
        self._in_frame += thoughts
        return framed

    def _words(self, event: Event, data: bytes) -> bytes:
        """An event that concerns no mends but those of thinking, if any."""
        thought = bool(self._about_thinking) and _THINKING in data
        if not thought and not self._chances:
            return event.raw
        chunk = parsed(data) or {}
        out = event.raw
        if thought:
            self.unreadable += not chunk
            out = self._all_written(self.mended(chunk, event, thinking_only=True))
        if self._chances:
            self._chances -= 1
            self._frame = frame_of(event.raw, chunk, out)
        return out

    def _seen(self, event: Event, chunk: Chunk) -> bytes:
        self.unreadable += not chunk
        self.outcome.see(chunk)
        if self.outcome.broken:
            return self._held_back() + event.raw
        out = self._all_written(self.mended(chunk, event))
        self._quiet = self.outcome.speaking and all(mend.quiet for mend, _ in self._mends)
        return out

    def _all_written(self, pieces: Sequence[Piece]) -> bytes:
        if len(pieces) == 1:
            return self._written(pieces[0])
        return b"".join([self._written(piece) for piece in pieces])

    def mended(
        self, chunk: Chunk, event: Event | None = None, *, thinking_only: bool = False
    ) -> Sequence[Piece]:
        """The pieces that take a chunk's place. thinking_only: it concerns no other mends."""
        first = Piece(chunk, event, mended=False)
        pieces: Sequence[Piece] = _one_choice_each(first)
        split = pieces
        for mend, mode in self._about_thinking if thinking_only else self._mends:
            after = _fed(mend, pieces)
            if mode == "on":
                pieces = after
        if len(pieces) == 1 and pieces[0] is first:
            return pieces
        same = len(pieces) == len(split) and all(a is b for a, b in zip(pieces, split, strict=True))
        return [first] if same else pieces

    def _written(self, piece: Piece) -> bytes:
        if not piece.mended and piece.event is not None:
            return piece.event.raw
        data = orjson.dumps(piece.chunk)
        if piece.event is not None:
            return piece.event.with_data(data)
        name = f"event: {piece.chunk.get('type')}\n" if self.api in _NAMED_EVENTS else ""
        return b"%bdata: %b\n\n" % (name.encode(), data)


def _fed(mend: Mend, pieces: Sequence[Piece]) -> Sequence[Piece]:
    if len(pieces) == 1:
        return mend.feed(pieces[0])
    return [new for piece in pieces for new in mend.feed(piece)]


def parsed(data: bytes) -> Chunk | None:
    """A JSON object; None for anything else."""
    try:
        chunk = orjson.loads(data)
    except ValueError:
        return None
    return chunk if isinstance(chunk, dict) else None


def _one_choice_each(piece: Piece) -> Sequence[Piece]:
    """A chunk of several choices as several; usage goes with the last."""
    choices = piece.chunk.get("choices")
    if not isinstance(choices, list) or len(choices) < 2:
        return [piece]
    rest = {key: value for key, value in piece.chunk.items() if key != "usage"}
    pieces = [Piece({**rest, "choices": [choice]}) for choice in choices[:-1]]
    return [*pieces, Piece({**piece.chunk, "choices": choices[-1:]})]
