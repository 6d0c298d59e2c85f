"""The arguments of tool calls: JSON text that must be an object."""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import pydantic_core

Verdict = Literal["fine", "empty", "doubled", "malformed"]

_MARKS = re.compile(r'["\\{}\[\]]')
_LENIENT = json.JSONDecoder(strict=False)


def is_object(text: str) -> bool:
    """Whether this is JSON for an object, as the server's chat template needs it."""
    try:
        return isinstance(json.loads(text), dict)
    except (ValueError, RecursionError):
        return False


def sanitised(text: str) -> dict[str, Any]:
    """An object for arguments that are none: the first value, or what was complete when it broke.

    What cannot be read at all is kept as {"invalid_arguments": text}.
    """
    for read in (_first_value, _until_it_breaks):
        try:
            found = read(text)
            found = json.loads(found) if isinstance(found, str) else found
        except (ValueError, RecursionError):
            continue
        if isinstance(found, dict):
            return found
        if found is None:
            return {}
    return {"invalid_arguments": text}


def _first_value(text: str) -> Any:
    return _LENIENT.raw_decode(text.lstrip())[0]


def _until_it_breaks(text: str) -> Any:
    return pydantic_core.from_json(text, allow_partial="trailing-strings")


class Arguments:
    """The arguments of one tool call as they come, watched for a second text behind the first."""

    def __init__(self) -> None:
        self._parts: list[str] = []
        self.tail = ""  # what is kept
        self._depth = 0
        self._in_string = self._escaped = self._complete = False

    def feed(self, text: str) -> str:
        """What of this text may pass: all up to the end of the object. The rest is kept."""
        end = 0 if self._complete else self._end_in(text)
        if end is None or not (self.tail + text[end:]).strip():
            self._parts.append(text)
            return text
        self._parts.append(text[:end])
        self.tail += text[end:]
        return text[:end]

    def end(self) -> tuple[str, Verdict]:
        """What still has to pass, and what was wrong."""
        head, tail = "".join(self._parts), self.tail
        if tail and (head.strip().endswith(tail.strip()) or head.strip().startswith(tail.strip())):
            return "", "doubled"
        if not (head + tail).strip():
            return "{}", "empty"
        return tail, "fine" if is_object(head + tail) else "malformed"

    def _end_in(self, text: str) -> int | None:
        """Where the object ends; None while it is open."""
        skip = -1
        if self._escaped and text:
            self._escaped, skip = False, 0
        for mark in _MARKS.finditer(text):
            at, sign = mark.start(), mark.group()
            if at == skip:
                continue
            if sign == "\\" and self._in_string:
                self._escaped, skip = at + 1 == len(text), at + 1
            elif sign == '"':
                self._in_string = not self._in_string
            elif self._in_string or sign == "\\":
                continue
            else:
                self._depth += 1 if sign in "{[" else -1
                if self._depth == 0:
                    self._complete = True
                    return at + 1
        return None
