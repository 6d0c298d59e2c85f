"""Mends of an answer of /v1/messages, where text, thinking and calls are blocks with numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from aibox.stream.mends.arguments import Arguments
from aibox.stream.mends.blocks import BlockText
from aibox.stream.mends.piece import Chunk, HoldsNothing, Piece
from aibox.stream.mends.text import Call, Scanner, Thinking


def _block(chunk: Chunk) -> Chunk:
    block = chunk.get("content_block")
    return block if isinstance(block, dict) else {}


def _delta(chunk: Chunk) -> Chunk:
    delta = chunk.get("delta")
    return delta if isinstance(delta, dict) else {}


class AnswerInReasoning(HoldsNothing):
    """Of a request with thinking off. There is no thinking: a block of it is the answer's text."""

    def __init__(self) -> None:
        super().__init__()
        self._blocks: set[Any] = set()

    def feed(self, piece: Piece) -> Sequence[Piece]:
        chunk = piece.chunk
        if _block(chunk).get("type") == "thinking":
            self.count += 1
            self._blocks.add(chunk.get("index"))
            block = {"type": "text", "text": _block(chunk).get("thinking") or ""}
            return [piece.edited({**chunk, "content_block": block})]
        if chunk.get("index") not in self._blocks:
            return [piece]
        kind = _delta(chunk).get("type")
        if kind == "signature_delta":
            return []
        if kind != "thinking_delta":
            return [piece]
        delta = {"type": "text_delta", "text": chunk["delta"].get("thinking") or ""}
        return [piece.edited({**chunk, "delta": delta})]


class FinishReason(HoldsNothing):
    """An answer with tool calls that ended by itself ended for them; one cut off did not."""

    def __init__(self) -> None:
        super().__init__()
        self._called = False

    def feed(self, piece: Piece) -> Sequence[Piece]:
        if _block(piece.chunk).get("type") == "tool_use":
            self._called = True
        if not self._called or _delta(piece.chunk).get("stop_reason") != "end_turn":
            return [piece]
        self.count += 1
        return [_for_tool_use(piece)]


def _for_tool_use(piece: Piece) -> Piece:
    delta = {**piece.chunk["delta"], "stop_reason": "tool_use"}
    return piece.edited({**piece.chunk, "delta": delta})


class ToolArguments(HoldsNothing):
    """No second text behind the arguments of a call. malformed: seen, passed on."""

    def __init__(self) -> None:
        super().__init__()
        self.malformed = 0
        self._calls: dict[Any, Arguments] = {}
        self._suspect = 0

    def feed(self, piece: Piece) -> Sequence[Piece]:
        chunk = piece.chunk
        if _delta(chunk).get("type") == "input_json_delta":
            return [self._passed(piece)]
        if chunk.get("type") == "content_block_stop" and chunk.get("index") in self._calls:
            return [*self._late(chunk.get("index")), piece]
        if chunk.get("type") == "message_delta":  # now it is known whether it was cut off
            cut_off = _delta(chunk).get("stop_reason") == "max_tokens"
            self.malformed += 0 if cut_off else self._suspect
            self._suspect = 0
        return [piece]

    def _passed(self, piece: Piece) -> Piece:
        delta = piece.chunk["delta"]
        text = delta.get("partial_json")
        if not isinstance(text, str):
            return piece
        passed = self._calls.setdefault(piece.chunk.get("index"), Arguments()).feed(text)
        if passed == text:
            return piece
        return piece.edited({**piece.chunk, "delta": {**delta, "partial_json": passed}})

    def rest(self) -> Sequence[Piece]:
        return [piece for index in list(self._calls) for piece in self._late(index)]

    def _late(self, index: Any) -> list[Piece]:
        text, verdict = self._calls.pop(index).end()
        self.count += verdict == "doubled"
        self._suspect += verdict == "malformed"
        if not text or verdict == "empty":  # no arguments are an object in this API
            return []
        delta = {"type": "input_json_delta", "partial_json": text}
        return [Piece({"type": "content_block_delta", "index": index, "delta": delta})]


class TextMend(BlockText):
    """Blocks of thinking and of tool calls out of the text."""

    INDEX = "index"

    def __init__(self, scanner: Callable[[], Scanner]) -> None:
        super().__init__(scanner)
        self._called = False
        self._name = ""

    def feed(self, piece: Piece) -> Sequence[Piece]:
        chunk = piece.chunk
        kind = chunk.get("type")
        if kind == "message_start" and isinstance(chunk.get("message"), dict):
            self._name = str(chunk["message"].get("id", "")).removeprefix("msg_")
        if kind == "content_block_start":
            return self._started(piece)
        if self._in_text and isinstance(_delta(chunk).get("text"), str):
            return self._said(piece, chunk["delta"]["text"])
        if self._in_text and kind == "content_block_stop":
            return self._stopped(piece)
        if self._called and _delta(chunk).get("stop_reason") == "end_turn":
            return [_for_tool_use(piece)]
        return [self._shifted(piece)]

    def _started(self, piece: Piece) -> list[Piece]:
        block = _block(piece.chunk)
        piece = self._begin(piece, in_text=block.get("type") == "text")
        self._open = self._in_text and bool(block.get("text"))
        if not self._in_text or self._open:
            return [piece]
        self._start = [piece]
        return []

    def _stopped(self, piece: Piece) -> list[Piece]:
        before = self._before_the_end()
        if not self._open:
            self._nothing_left()
            return []
        self._in_text = self._open = False
        return [*before, self._numbered(piece)]

    def _opening(self) -> list[Piece]:
        return [self._starting({"type": "text", "text": ""})]

    def _closing(self) -> list[Piece]:
        return [Piece({"type": "content_block_stop", "index": self._number})]

    def _block_of(self, part: Thinking | Call) -> list[Piece]:
        if isinstance(part, Thinking):
            block: Chunk = {"type": "thinking", "thinking": "", "signature": ""}
            delta = {"type": "thinking_delta", "thinking": part.text}
        else:
            self._called = True
            identity = f"toolu_{self._name}_{self._scanner.found}_{self._number}"
            block = {"type": "tool_use", "id": identity, "name": part.name, "input": {}}
            delta = {"type": "input_json_delta", "partial_json": part.arguments}
        return [self._starting(block), self._more(delta), *self._closing()]

    def _starting(self, block: Chunk) -> Piece:
        chunk = {"type": "content_block_start", "index": self._number, "content_block": block}
        return Piece(chunk)

    def _text_piece(self, text: str) -> Piece:
        return self._more({"type": "text_delta", "text": text})

    def _more(self, delta: Chunk) -> Piece:
        return Piece({"type": "content_block_delta", "index": self._number, "delta": delta})
