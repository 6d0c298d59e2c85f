"""Mends of an answer of /v1/chat/completions."""

from __future__ import annotations

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from aibox.stream.mends.arguments import Arguments
from aibox.stream.mends.piece import Chunk, HoldsNothing, Piece, only_choice, with_choice
from aibox.stream.mends.text import Call, Part, Scanner, Text, Thinking

NAMES = ("reasoning", "reasoning_content")


class ReasoningNames(HoldsNothing):
    """Thinking under both of its names."""

    def feed(self, piece: Piece) -> Sequence[Piece]:
        choice = only_choice(piece.chunk)
        if choice is None:
            return [piece]
        delta = choice["delta"]
        text = delta.get("reasoning")
        other = delta.get("reasoning_content")
        if (text is None) == (other is None):
            return [piece]
        self.count += 1
        both = dict.fromkeys(NAMES, other if text is None else text)
        return [piece.edited(with_choice(piece.chunk, choice, delta={**delta, **both}))]


class AnswerInReasoning(HoldsNothing):
    """Of a request with thinking off. There is no thinking: what has its name is the answer."""

    def feed(self, piece: Piece) -> Sequence[Piece]:
        choice = only_choice(piece.chunk)
        if choice is None:
            return [piece]
        delta = choice["delta"]
        text = delta.get("reasoning") or delta.get("reasoning_content")
        if not isinstance(text, str) or delta.get("content"):
            return [piece]
        self.count += 1
        rest = {key: value for key, value in delta.items() if key not in NAMES}
        rest["content"] = text
        return [piece.edited(with_choice(piece.chunk, choice, delta=rest))]


class FinishReason(HoldsNothing):
    """An answer with tool calls that stopped by itself stopped for them; one cut off did not."""

    def __init__(self) -> None:
        super().__init__()
        self._called: set[int] = set()

    def feed(self, piece: Piece) -> Sequence[Piece]:
        choice = only_choice(piece.chunk)
        if choice is None:
            return [piece]
        index = choice.get("index", 0)
        if choice["delta"].get("tool_calls"):
            self._called.add(index)
        if choice.get("finish_reason") != "stop" or index not in self._called:
            return [piece]
        self.count += 1
        return [piece.edited(with_choice(piece.chunk, choice, finish_reason="tool_calls"))]


class _CallPieces(HoldsNothing):
    """What mends of tool calls share: each call of each choice is looked at by itself."""

    def feed(self, piece: Piece) -> Sequence[Piece]:
        choice = only_choice(piece.chunk)
        if choice is None:
            return [piece]
        index, finish = choice.get("index", 0), choice.get("finish_reason")
        found = choice["delta"].get("tool_calls")
        came = found if isinstance(found, list) else []
        calls = [self.call(index, call) if isinstance(call, dict) else call for call in came]
        late = {} if finish is None else self.late(index, finish)
        for number, call in enumerate(calls):
            if call is not None and call.get("index") in late:
                calls[number] = _together(call, late.pop(call.get("index")))
        pieces = [_added(piece, choice, {"tool_calls": [call]}) for call in late.values()]
        if any(after is not before for after, before in zip(calls, came, strict=True)):
            kept = [call for call in calls if call is not None]
            return [*pieces, *_with_calls(piece, choice, kept)]
        return [*pieces, piece]

    @abstractmethod
    def call(self, choice: int, call: Chunk) -> Chunk | None:
        """What takes the place of one piece of a call."""

    def late(self, _choice: int, _finish: str) -> dict[Any, Chunk]:
        """What has to come before a choice's finish, by the call's index."""
        return {}


class NullFields(_CallPieces):
    """Pieces of a call after its first without null name, id and type."""

    def __init__(self) -> None:
        super().__init__()
        self._known: set[tuple[int, Any]] = set()

    def call(self, choice: int, call: Chunk) -> Chunk:
        key = choice, call.get("index")
        if key not in self._known:
            self._known.add(key)
            return call
        mended = _without_nulls(call, ("id", "type"))
        if isinstance(call.get("function"), dict):
            function = _without_nulls(call["function"], ("name", "arguments"))
            if function is not call["function"]:
                mended = {**mended, "function": function}
        self.count += mended is not call
        return mended


def _without_nulls(found: Chunk, names: tuple[str, ...]) -> Chunk:
    gone = [name for name in names if name in found and found[name] is None]
    return {key: value for key, value in found.items() if key not in gone} if gone else found


class LateName(_CallPieces):
    """A call is held back until its name is known."""

    def __init__(self) -> None:
        super().__init__()
        self._named: set[tuple[int, Any]] = set()
        self._held: dict[tuple[int, Any], Chunk] = {}

    def call(self, choice: int, call: Chunk) -> Chunk | None:
        key = choice, call.get("index")
        if key in self._named:
            return call
        held = self._held.pop(key, None)
        together = call if held is None else _together(held, call)
        if not _function(together).get("name"):
            self._held[key] = together
            return None
        self._named.add(key)
        self.count += held is not None
        return together

    def late(self, choice: int, _finish: str) -> dict[Any, Chunk]:
        """Calls whose name never came go as they are."""
        return {key[1]: self._held.pop(key) for key in list(self._held) if key[0] == choice}

    def rest(self) -> Sequence[Piece]:
        return [_alone(choice, call) for (choice, _), call in self._taken().items()]

    def _taken(self) -> dict[tuple[int, Any], Chunk]:
        held, self._held = self._held, {}
        return held


def _together(first: Chunk, second: Chunk) -> Chunk:
    """Two pieces of one call as one: what the later one says, and both arguments."""
    one, two = _function(first), _function(second)
    arguments = (one.get("arguments") or "") + (two.get("arguments") or "")
    said = {key: value for key, value in second.items() if value is not None}
    function = {**one, **{key: value for key, value in two.items() if value is not None}}
    return {**first, **said, "function": {**function, "arguments": arguments}}


def _function(call: Chunk) -> Chunk:
    function = call.get("function")
    return function if isinstance(function, dict) else {}


class ToolArguments(_CallPieces):
    """No second text behind the arguments, and none that are empty. malformed: seen, passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.malformed = 0
        self._calls: dict[tuple[int, Any], Arguments] = {}

    def call(self, choice: int, call: Chunk) -> Chunk:
        watched = self._calls.setdefault((choice, call.get("index")), Arguments())
        text = _function(call).get("arguments")
        passed = watched.feed(text) if isinstance(text, str) else text
        if passed == text:
            return call
        return {**call, "function": {**call["function"], "arguments": passed}}

    def late(self, choice: int, finish: str) -> dict[Any, Chunk]:
        found = {}
        for key in [key for key in self._calls if key[0] == choice]:
            text, verdict = self._calls.pop(key).end()
            cut_off = finish == "length"
            self.count += verdict == "doubled" or (verdict == "empty" and not cut_off)
            self.malformed += verdict == "malformed" and not cut_off
            if text and not (verdict == "empty" and cut_off):
                found[key[1]] = {"index": key[1], "function": {"arguments": text}}
        return found

    def rest(self) -> Sequence[Piece]:
        held = {key: watched.tail for key, watched in self._calls.items() if watched.tail}
        self._calls.clear()
        return [
            _alone(choice, {"index": index, "function": {"arguments": tail}})
            for (choice, index), tail in held.items()
        ]


# --- text that is none --------------------------------------------------------------------------


@dataclass
class _Held:
    """What one choice holds back: the pieces, and the text in them."""

    scanner: Scanner
    pieces: list[Piece] = field(default_factory=list)
    text: str = ""
    called: bool = False
    calls: int = 0  # tool calls so far, the server's among them
    numbers: dict[Any, int] = field(default_factory=dict)  # what became of the server's indexes


class TextMend:
    """Takes thinking or tool calls out of the text. A piece that may hold one is held back."""

    def __init__(self, scanner: Callable[[], Scanner]) -> None:
        self._choices: dict[int, _Held] = defaultdict(lambda: _Held(scanner()))

    @property
    def count(self) -> int:
        return sum(held.scanner.found for held in self._choices.values())

    @property
    def quiet(self) -> bool:
        return not any(held.pieces or held.scanner.waiting for held in self._choices.values())

    def feed(self, piece: Piece) -> Sequence[Piece]:
        choice = only_choice(piece.chunk)
        if choice is None:
            return [piece]
        held = self._choices[choice.get("index", 0)]
        piece = _renumbered(held, piece, choice)
        choice = only_choice(piece.chunk)
        assert choice is not None
        finish = choice.get("finish_reason")
        if held.called and finish == "stop":
            piece = piece.edited(with_choice(piece.chunk, choice, finish_reason="tool_calls"))
        text = choice["delta"].get("content")
        if not text or not isinstance(text, str):
            return [piece] if _is_empty(choice) else [*_released(held), piece]
        whole = held.text + text
        parts, undecided = held.scanner.scan(whole, final=finish is not None)
        held.pieces.append(piece)
        held.text = whole
        if undecided == whole:
            return []
        if parts == [Text(whole)]:
            return _released(held)
        return self._taken_apart(held, parts, undecided)

    def rest(self) -> Sequence[Piece]:
        return [piece for held in self._choices.values() for piece in _released(held)]

    def _taken_apart(self, held: _Held, parts: list[Part], undecided: str) -> list[Piece]:
        last = held.pieces[-1]
        choice = only_choice(last.chunk)
        assert choice is not None
        first: Chunk = {}
        for piece in held.pieces:
            delta = (only_choice(piece.chunk) or {}).get("delta", {})
            first |= {key: value for key, value in delta.items() if key != "content"}
        deltas = [_delta(part, held, last.chunk) for part in parts]
        called = any(isinstance(part, Call) for part in parts)
        held.called = held.called or called
        if called and choice.get("finish_reason") == "stop":
            choice = {**choice, "finish_reason": "tool_calls"}
        held.pieces, held.text = [], ""
        if undecided:
            rest = _added(last, choice, {"content": undecided})
            held.pieces, held.text = [rest], undecided
        deltas = [{**first, **deltas[0]}, *deltas[1:]] if deltas else [first]
        ending = with_choice(last.chunk, choice, delta=deltas[-1])
        pieces = [_added(last, choice, delta) for delta in deltas[:-1]]
        pieces.append(last.edited(ending))
        return pieces if deltas[0] or not _is_needless(pieces[-1].chunk) else []


def _renumbered(held: _Held, piece: Piece, choice: Chunk) -> Piece:
    """Calls that the server found come behind those that were taken out of the text."""
    calls = choice["delta"].get("tool_calls")
    if not isinstance(calls, list) or not all(isinstance(call, dict) for call in calls):
        return piece
    for call in calls:
        if call.get("index") not in held.numbers:
            held.numbers[call.get("index")], held.calls = held.calls, held.calls + 1
    if all(held.numbers[call.get("index")] == call.get("index") for call in calls):
        return piece
    mended = [{**call, "index": held.numbers[call.get("index")]} for call in calls]
    return _with_calls(piece, choice, mended)[0]


def _delta(part: Part, held: _Held, chunk: Chunk) -> Chunk:
    if isinstance(part, Text):
        return {"content": part.text}
    if isinstance(part, Thinking):
        return {"reasoning": part.text}
    number, held.calls = held.calls, held.calls + 1
    name = str(chunk.get("id", "")).removeprefix("chatcmpl-")
    function = {"name": part.name, "arguments": part.arguments}
    identity = {"index": number, "id": f"call_{name}_{number}", "type": "function"}
    return {"tool_calls": [{**identity, "function": function}]}


def _released(held: _Held) -> list[Piece]:
    pieces, held.pieces, held.text = held.pieces, [], ""
    return pieces


def _added(piece: Piece, choice: Chunk, delta: Chunk) -> Piece:
    """A piece of the same answer before this one: the finish and usage are this one's."""
    chunk = {key: value for key, value in piece.chunk.items() if key != "usage"}
    rest = {key: value for key, value in choice.items() if key != "logprobs"}
    return Piece(with_choice(chunk, rest, delta=delta, finish_reason=None))


def _alone(choice: int, call: Chunk) -> Piece:
    """A piece of a call for the end of an answer that broke."""
    return Piece({"choices": [{"index": choice, "delta": {"tool_calls": [call]}}]})


def _with_calls(piece: Piece, choice: Chunk, calls: list[Chunk]) -> list[Piece]:
    """The piece with these calls; nothing where it then says nothing."""
    delta = {key: value for key, value in choice["delta"].items() if key != "tool_calls"}
    if calls:
        delta["tool_calls"] = calls
    mended = piece.edited(with_choice(piece.chunk, choice, delta=delta))
    return [] if _is_needless(mended.chunk) else [mended]


def _is_empty(choice: Chunk) -> bool:
    said = any(value not in (None, "", []) for value in choice["delta"].values())
    return not said and choice.get("finish_reason") is None


def _is_needless(chunk: Chunk) -> bool:
    choice = only_choice(chunk)
    return choice is not None and _is_empty(choice) and not chunk.get("usage")
