"""Errors in the form that each API gives them, so that its clients understand."""

from __future__ import annotations

from typing import Any

import orjson

_ANTHROPIC = ("messages", "count_tokens")
_ANTHROPIC_KINDS = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "invalid_request_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_OPENAI_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    429: "rate_limit_error",
}


def error_body(api: str, status: int, words: str) -> bytes:
    """The body of an error of this HTTP status."""
    if api in _ANTHROPIC:
        kind = _ANTHROPIC_KINDS.get(status, "api_error")
        return orjson.dumps({"type": "error", "error": {"type": kind, "message": words}})
    kind = _OPENAI_KINDS.get(status, "server_error" if status >= 500 else "invalid_request_error")
    error: dict[str, Any] = {"message": words, "type": kind, "param": None, "code": status}
    return orjson.dumps({"error": error})


def error_event(api: str, words: str, number: int = 0) -> bytes:
    """The last event of a stream that broke. number: of the event, where the API numbers them."""
    if api == "messages":
        return b"event: error\ndata: %b\n\n" % error_body(api, 502, words)
    if api == "responses":
        error: dict[str, Any] = {
            "type": "error",
            "code": "server_error",
            "message": words,
            "param": None,
        }
        error |= {"sequence_number": number}
        return b"event: error\ndata: %b\n\n" % orjson.dumps(error)
    return b"data: %b\n\n" % error_body(api, 502, words)


def keep_alive(api: str) -> bytes:
    """A sign of life that no client takes for text."""
    if api == "messages":
        return b'event: ping\ndata: {"type": "ping"}\n\n'
    return b": keep-alive\n\n"
