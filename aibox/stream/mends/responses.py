"""Mends of an answer of /v1/responses, where text, thinking and calls are items with numbers.

Each item is told twice: piece by piece, and whole at its end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aibox.stream.mends.arguments import Arguments
from aibox.stream.mends.blocks import BlockText
from aibox.stream.mends.piece import Chunk, HoldsNothing, Piece
from aibox.stream.mends.text import Call, Scanner, Thinking

ENDINGS = ("response.completed", "response.incomplete", "response.failed")
_ADDED, _DONE = "response.output_item.added", "response.output_item.done"
_PART_ADDED, _TEXT = "response.content_part.added", "response.output_text.delta"
_MORE = "response.function_call_arguments.delta"
_ALL = "response.function_call_arguments.done"
_AS_TEXT = {
    "response.reasoning_part.added": _PART_ADDED,
    "response.reasoning_text.delta": _TEXT,
    "response.reasoning_text.done": "response.output_text.done",
    "response.reasoning_part.done": "response.content_part.done",
}


def item_of(chunk: Chunk) -> Chunk:
    """The item of an event that brings one whole; {} for another event."""
    item = chunk.get("item")
    return item if chunk.get("type") in (_ADDED, _DONE) and isinstance(item, dict) else {}


def streamed(item: Chunk, number: int) -> list[Chunk]:
    """An item as the events that would have streamed it."""
    at = {"output_index": number, "item_id": item.get("id")}
    begun: Chunk = {**item, "status": "in_progress"}
    inner: list[Chunk] = []
    if item.get("type") == "function_call":
        begun["arguments"], text = "", item.get("arguments")
        inner = [{"type": _MORE, **at, "delta": text}, {"type": _ALL, **at, "arguments": text}]
    elif isinstance(item.get("content"), list):
        begun["content"] = []
        for index, part in enumerate(item["content"]):
            inner += _streamed_part(part, {**at, "content_index": index})
    added = {"type": _ADDED, "output_index": number, "item": begun}
    return [added, *inner, {"type": _DONE, "output_index": number, "item": item}]


def _streamed_part(part: Chunk, at: Chunk) -> list[Chunk]:
    thought = part.get("type") == "reasoning_text"
    if not thought and part.get("type") != "output_text":
        return []
    kind, text = "reasoning" if thought else "output", part["text"]
    holder = f"response.{'reasoning' if thought else 'content'}_part"
    more: Chunk = {} if thought else {"logprobs": []}
    return [
        {"type": f"{holder}.added", **at, "part": {**part, "text": ""}},
        {"type": f"response.{kind}_text.delta", **at, "delta": text, **more},
        {"type": f"response.{kind}_text.done", **at, "text": text, **more},
        {"type": f"{holder}.done", **at, "part": part},
    ]


def _message(identity: Any, text: str, status: Any = "completed") -> Chunk:
    rest = {"type": "message", "role": "assistant", "status": status}
    return {"id": identity, **rest, "content": [_text_part(text)]}


def _text_part(text: Any) -> Chunk:
    return {"type": "output_text", "text": text, "annotations": []}


class AnswerInReasoning(HoldsNothing):
    """Of a request with thinking off. There is no thinking: an item of it is the answer's text."""

    def __init__(self) -> None:
        super().__init__()
        self._items: set[Any] = set()

    def feed(self, piece: Piece) -> Sequence[Piece]:
        chunk = piece.chunk
        item, index = item_of(chunk), chunk.get("output_index")
        if chunk.get("type") == _ADDED and item.get("type") == "reasoning":
            self.count += 1
            self._items.add(index)
        if index not in self._items:
            return [piece]
        if item.get("type") == "reasoning":
            return [piece.edited({**chunk, "item": _said_in(item)})]
        kind = _AS_TEXT.get(chunk.get("type", ""))
        if kind is None:
            return [piece]
        said: Chunk = {**chunk, "type": kind}
        if isinstance(chunk.get("part"), dict):
            said["part"] = _text_part(chunk["part"].get("text"))
        else:
            said["logprobs"] = []
        return [Piece(said)]  # an event of another name


def _said_in(item: Chunk) -> Chunk:
    """An item of thinking as a message."""
    text = "".join([part["text"] for part in item.get("content") or []])
    message = _message(item.get("id"), text, item.get("status") or "completed")
    return message if text else {**message, "content": []}


class ToolArguments(HoldsNothing):
    """No second text behind the arguments of a call, and none that are empty.

    malformed: seen, passed on. The end of a call without arguments is held back until it is known
    whether the answer was cut off there.
    """

    def __init__(self) -> None:
        super().__init__()
        self.malformed = 0
        self._calls: dict[Any, Arguments] = {}
        self._whole: dict[Any, str] = {}  # what the arguments of a call are, once it is known
        self._suspect = 0
        self._held: list[Piece] = []

    @property
    def quiet(self) -> bool:
        return not self._held

    def feed(self, piece: Piece) -> Sequence[Piece]:
        chunk = piece.chunk
        kind, index = chunk.get("type"), chunk.get("output_index")
        if kind == _MORE and isinstance(chunk.get("delta"), str):
            passed = self._calls.setdefault(index, Arguments()).feed(chunk["delta"])
            same = passed == chunk["delta"]
            return [piece if same else piece.edited({**chunk, "delta": passed})]
        if kind == _ALL and isinstance(chunk.get("arguments"), str):
            return self._ended(piece, chunk["arguments"])
        item = item_of(chunk)
        if kind == _DONE and item.get("type") == "function_call":
            return self._ended(piece, item.get("arguments") or "")
        response = chunk.get("response")
        cut_off = isinstance(response, dict) and response.get("status") == "incomplete"
        if kind in ENDINGS and not cut_off:
            self.malformed += self._suspect
        return [*self._decided(cut_off), piece]

    def rest(self) -> Sequence[Piece]:
        return self._decided(cut_off=True)

    def _ended(self, piece: Piece, arguments: str) -> Sequence[Piece]:
        """A piece that tells the whole arguments."""
        index = piece.chunk.get("output_index")
        if index not in self._whole:
            watched = self._calls.pop(index, None)
            late = self._judged(index, watched, arguments)
            if not arguments.strip():
                self._held = [piece]
                return []
            before = [_more(piece.chunk, late)] if late and watched else []
            return [*before, self._with_whole(piece)]
        if self._held:
            self._held.append(piece)
            return []
        return [self._with_whole(piece)]

    def _judged(self, index: Any, watched: Arguments | None, arguments: str) -> str:
        """Settles the arguments of a call; gives what of them was not sent yet."""
        if watched is None:  # they come in one piece
            watched = Arguments()
            watched.feed(arguments)
        tail = watched.tail
        late, verdict = watched.end()
        self.count += verdict == "doubled"
        self._suspect += verdict == "malformed"
        dropped = verdict == "doubled" and arguments.endswith(tail)
        whole = arguments[: len(arguments) - len(tail)] if dropped else arguments
        self._whole[index] = "{}" if verdict == "empty" else whole
        return late

    def _with_whole(self, piece: Piece) -> Piece:
        chunk = piece.chunk
        whole = self._whole[chunk.get("output_index")]
        item = item_of(chunk)
        if item:
            same = item.get("arguments") == whole
            return piece if same else piece.edited({**chunk, "item": {**item, "arguments": whole}})
        return piece if chunk["arguments"] == whole else piece.edited({**chunk, "arguments": whole})

    def _decided(self, cut_off: bool) -> list[Piece]:
        """The end of a call without arguments, now that it is known what they mean."""
        held, self._held = self._held, []
        if not held or cut_off:
            return held
        self.count += 1
        pieces = [self._with_whole(piece) for piece in held]
        return [_more(held[0].chunk, "{}"), *pieces]


def _more(chunk: Chunk, arguments: str) -> Piece:
    """A piece of the arguments of the call that a chunk is about."""
    identity = chunk.get("item_id", item_of(chunk).get("id"))
    at = {"output_index": chunk.get("output_index"), "item_id": identity}
    return Piece({"type": _MORE, **at, "delta": arguments})


class TextMend(BlockText):
    """Items of thinking and of tool calls out of the text of messages."""

    INDEX = "output_index"

    def __init__(self, scanner: Callable[[], Scanner]) -> None:
        super().__init__(scanner)
        self._name = ""
        self._identity: Any = None  # of the message that is open
        self._apart = False  # this message is not what the server's was

    def feed(self, piece: Piece) -> Sequence[Piece]:
        chunk = piece.chunk
        kind = chunk.get("type")
        if kind == "response.created" and isinstance(chunk.get("response"), dict):
            self._name = str(chunk["response"].get("id", "")).removeprefix("resp_")
        if kind == _ADDED:
            return self._added(piece)
        if not self._in_text or self.INDEX not in chunk:
            return [self._shifted(piece)]
        if kind == _PART_ADDED and self._start:
            self._start.append(piece)
            return []
        if kind == _TEXT and not chunk.get("content_index") and isinstance(chunk["delta"], str):
            return self._said(piece, chunk["delta"])
        return self._ended(piece)

    def _added(self, piece: Piece) -> list[Piece]:
        item = item_of(piece.chunk)
        piece = self._begin(piece, in_text=item.get("type") == "message")
        self._identity, self._apart = item.get("id"), False
        if not self._in_text:
            return [piece]
        self._start = [piece]
        return []

    def _ended(self, piece: Piece) -> list[Piece]:
        """The end of the text, of its part or of the whole item."""
        before = self._before_the_end()
        last = piece.chunk.get("type") == _DONE
        if self._open:
            before.append(self._numbered(self._with_sent(piece)))
            self._in_text = self._open = not last
        elif last:
            self._nothing_left()
        return before

    def _with_sent(self, piece: Piece) -> Piece:
        """The piece with the text of this message, where it has a text."""
        chunk, text = piece.chunk, "".join(self._sent)
        if not self._apart:
            return piece
        if isinstance(chunk.get("text"), str):
            return piece.edited({**chunk, "text": text})
        if isinstance(chunk.get("part"), dict):
            return piece.edited({**chunk, "part": {**chunk["part"], "text": text}})
        item = item_of(chunk)
        if not item:
            return piece
        first, *others = item["content"]
        content = [{**first, "text": text}, *others]
        return piece.edited({**chunk, "item": {**item, "id": self._identity, "content": content}})

    def _numbered(self, piece: Piece) -> Piece:
        piece = super()._numbered(piece)
        if piece.chunk.get("item_id", self._identity) == self._identity:
            return piece
        return piece.edited({**piece.chunk, "item_id": self._identity})

    def _opening(self) -> list[Piece]:
        self._identity = self._new("msg")
        return self._pieces_of(_message(self._identity, ""))[:2]

    def _closing(self) -> list[Piece]:
        return self._pieces_of(_message(self._identity, "".join(self._sent)))[-3:]

    def _block_of(self, part: Thinking | Call) -> list[Piece]:
        self._apart = True
        if isinstance(part, Thinking):
            content = [{"type": "reasoning_text", "text": part.text}]
            item = {"id": self._new("rs"), "type": "reasoning", "summary": [], "content": content}
        else:
            item = {"id": self._new("fc"), "type": "function_call", "call_id": self._new("call")}
            item |= {"name": part.name, "arguments": part.arguments}
        return self._pieces_of({**item, "status": "completed"})

    def _pieces_of(self, item: Chunk) -> list[Piece]:
        return [Piece(chunk) for chunk in streamed(item, self._number)]

    def _text_piece(self, text: str) -> Piece:
        at = {"output_index": self._number, "content_index": 0, "item_id": self._identity}
        return Piece({"type": _TEXT, **at, "delta": text, "logprobs": []})

    def _new(self, kind: str) -> str:
        return f"{kind}_{self._name}_{self._number}"


class InOrder(HoldsNothing):
    """Comes after all mends: numbers of events go up, and the whole response at the end holds the
    items that were streamed. Where nothing was mended, nothing is different here."""

    def __init__(self) -> None:
        super().__init__()
        self.number = -1  # of the event sent last
        self._numbers = False  # whether the server numbers them
        self._items: dict[Any, Chunk] = {}
        self._mended = False

    def feed(self, piece: Piece) -> Sequence[Piece]:
        chunk = piece.chunk
        changes: Chunk = {}
        self._mended = self._mended or piece.mended
        number = chunk.get("sequence_number")
        self._numbers = self._numbers or isinstance(number, int)
        goes_up = isinstance(number, int) and number > self.number
        if self._mended and self._numbers and not goes_up:
            number = changes["sequence_number"] = self.number + 1
        self.number = number if isinstance(number, int) else self.number
        if chunk.get("type") == _DONE:
            self._items[chunk.get("output_index")] = item_of(chunk)
        if self._mended and chunk.get("type") in ENDINGS and isinstance(chunk["response"], dict):
            output = [self._items[number] for number in sorted(self._items)]
            changes["response"] = {**chunk["response"], "output": output}
        return [piece.edited({**chunk, **changes}) if changes else piece]
