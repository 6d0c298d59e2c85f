"""An answer in one body, with the mends of a streamed one."""

from __future__ import annotations

from typing import Any

import orjson

from aibox.stream.mends.answer import STRANGE, Answer, parsed
from aibox.stream.mends.piece import Chunk, Piece
from aibox.stream.mends.responses import streamed


def mended(answer: Answer, body: bytes) -> bytes:
    """The body for the client. One that is no answer stays as it is."""
    found = parsed(body)
    if found is None:
        answer.unreadable += 1
        return body
    try:
        answer.outcome.see(found)
        told = _told(answer, found)
    except STRANGE:
        answer.unreadable += 1
        return body
    return body if told == found else orjson.dumps(told)


def _told(answer: Answer, found: Chunk) -> Chunk:
    if answer.api == "chat" and isinstance(found.get("choices"), list):
        return {**found, "choices": [_choice(answer, found, one) for one in found["choices"]]}
    if answer.api == "messages" and isinstance(found.get("content"), list):
        return _message(answer, found)
    if answer.api == "responses" and isinstance(found.get("output"), list):
        return _response(answer, found)
    return found


def _choice(answer: Answer, found: Chunk, choice: Any) -> Any:
    message = choice.get("message") if isinstance(choice, dict) else None
    if not isinstance(message, dict):
        return choice
    calls = message.get("tool_calls")
    delta = dict(message)
    if isinstance(calls, list):
        delta["tool_calls"] = [
            {"index": number, **call} if isinstance(call, dict) else call
            for number, call in enumerate(calls)
        ]
    chunk = {"id": found.get("id"), "choices": [{**choice, "delta": delta}]}
    pieces = answer.mended(chunk)
    if len(pieces) == 1 and not pieces[0].mended:
        return choice
    return _message_of(choice, message, [piece.chunk["choices"][0] for piece in pieces])


def _message_of(choice: Chunk, message: Chunk, parts: list[Chunk]) -> Chunk:
    """The choice whose message is what these pieces add up to."""
    told: Chunk = {**message}
    for name in ("content", "reasoning", "reasoning_content"):
        texts = [part["delta"][name] for part in parts if part["delta"].get(name)]
        if texts:
            told[name] = "".join(texts) if all(isinstance(t, str) for t in texts) else texts[-1]
        elif message.get(name):
            told[name] = None
    calls: dict[int, Chunk] = {}
    for part in parts:
        for call in part["delta"].get("tool_calls") or ():
            _add_call(calls, call)
    if calls:
        told["tool_calls"] = [{k: v for k, v in c.items() if k != "index"} for c in calls.values()]
    reasons = [part.get("finish_reason") for part in parts]
    return {**choice, "message": told, "finish_reason": reasons[-1]}


def _add_call(calls: dict[int, Chunk], call: Chunk) -> None:
    before = calls.get(call["index"])
    if before is None:
        calls[call["index"]] = call
        return
    function = dict(before.get("function") or {})
    more = (call.get("function") or {}).get("arguments") or ""
    function["arguments"] = (function.get("arguments") or "") + more
    calls[call["index"]] = {**before, "function": function}


def _message(answer: Answer, found: Chunk) -> Chunk:
    pieces: list[Piece] = []
    for chunk in _as_events(found):
        pieces += answer.mended(chunk)
    if not any(piece.mended for piece in pieces):
        return found
    blocks: dict[int, Chunk] = {}
    reason = found.get("stop_reason")
    for piece in pieces:
        reason = _taken_up(piece.chunk, blocks, reason)
    return {**found, "content": list(blocks.values()), "stop_reason": reason}


def _as_events(answer: Chunk) -> list[Chunk]:
    """A message as the events that would have streamed it."""
    chunks: list[Chunk] = [{"type": "message_start", "message": {"id": answer.get("id")}}]
    for number, block in enumerate(answer["content"]):
        text = block.get("text") if isinstance(block, dict) and block.get("type") == "text" else ""
        start = {**block, "text": ""} if text else block
        chunks.append({"type": "content_block_start", "index": number, "content_block": start})
        if text:
            delta = {"type": "text_delta", "text": text}
            chunks.append({"type": "content_block_delta", "index": number, "delta": delta})
        chunks.append({"type": "content_block_stop", "index": number})
    chunks.append({"type": "message_delta", "delta": {"stop_reason": answer.get("stop_reason")}})
    return chunks


def _taken_up(chunk: Chunk, blocks: dict[int, Chunk], reason: Any) -> Any:
    """Adds an event to the blocks of a message. Gives the message's stop reason so far."""
    kind, delta = chunk["type"], chunk.get("delta") or {}
    if kind == "content_block_start":
        blocks[chunk["index"]] = dict(chunk["content_block"])
    elif kind == "content_block_delta":
        block = blocks[chunk["index"]]
        if delta.get("type") == "input_json_delta":
            block["input"] = orjson.loads(delta["partial_json"])
        for name in ("text", "thinking"):
            if name in delta:
                block[name] = (block.get(name) or "") + delta[name]
    elif kind == "message_delta":
        return delta.get("stop_reason", reason)
    return reason


def _response(answer: Answer, found: Chunk) -> Chunk:
    """The response as the last of the events that would have streamed it brings it."""
    chunks: list[Chunk] = [{"type": "response.created", "response": {"id": found.get("id")}}]
    for number, item in enumerate(found["output"]):
        chunks += streamed(item, number)
    chunks.append({"type": "response.completed", "response": found})
    pieces = [piece for chunk in chunks for piece in answer.mended(chunk)]
    told: Chunk = pieces[-1].chunk["response"]
    return told
