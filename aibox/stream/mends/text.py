"""What a model writes into its text that is none: the end of thinking, and tool calls."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

LONGEST_CALL = 1 << 20  # characters of a spelt tool call that are held back; longer is text

_THINK_END = "</think>"
_OPENING = re.compile(r"<tool_call>|<function=")
_OPENINGS = ("<tool_call>", "<function=")
_FUNCTION = re.compile(r"<function=([^>\s]+)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\n]+)>\n?(.*?)\n?</parameter>", re.DOTALL)


@dataclass(frozen=True)
class Text:
    text: str


@dataclass(frozen=True)
class Thinking:
    text: str


@dataclass(frozen=True)
class Call:
    """arguments: JSON text of an object."""

    name: str
    arguments: str


Part = Text | Thinking | Call


class Scanner(Protocol):
    found: int  # tags or calls so far
    waiting: bool  # what comes next depends on what was

    def scan(self, text: str, *, final: bool) -> tuple[list[Part], str]:
        """What the text is made of, and its end that cannot be decided yet. final: no more comes.

        Where nothing applies: the text as it came, in one part or wholly undecided.
        """


class ThinkTag:
    """Text before </think>, as far as it was held back, is thinking."""

    def __init__(self) -> None:
        self.found = 0
        self.waiting = False  # the blank lines after a tag go with it

    def scan(self, text: str, *, final: bool) -> tuple[list[Part], str]:
        parts: list[Part] = []
        while _THINK_END in text:
            before, _, text = text.partition(_THINK_END)
            self.found += 1
            self.waiting = True
            if before.strip():
                parts.append(Thinking(before))
        if self.waiting:
            text = text.lstrip("\n")
            self.waiting = not text
        if not final and _begins(text, (_THINK_END,)):
            return parts, text
        return ([*parts, Text(text)] if text else parts), ""


class SpeltCalls:
    """A tool call spelt in the text, of a tool that the request declares, is a tool call."""

    def __init__(self, tools: Mapping[str, Mapping[str, Any]]) -> None:
        self._tools = tools
        self.found = 0
        self.waiting = False  # the blank between and after calls goes with them

    def scan(self, text: str, *, final: bool) -> tuple[list[Part], str]:
        parts: list[Part] = []
        plain, at = "", 0
        while (opening := _OPENING.search(text, at)) is not None:
            closing = "</tool_call>" if opening.group() == "<tool_call>" else "</function>"
            end = text.find(closing, opening.end())
            if end < 0:
                break
            end += len(closing)
            plain += text[at : opening.start()]
            calls = calls_in(text[opening.start() : end], self._tools)
            if calls:
                parts += [*self._plain(plain), *calls]
                self.found += len(calls)
                plain, self.waiting = "", True
            else:
                plain += text[opening.start() : end]
            at = end
        undecided = not final and (opening is not None or _begins(text[at:], _OPENINGS))
        if undecided and len(text) <= LONGEST_CALL:
            return parts, plain + text[at:]
        return parts + self._plain(plain + text[at:]), ""

    def _plain(self, text: str) -> list[Part]:
        if self.waiting:
            text = text.lstrip()
            self.waiting = not text
        return [Text(text)] if text else []


def calls_in(text: str, tools: Mapping[str, Mapping[str, Any]]) -> list[Part]:
    """The calls of declared tools in one <tool_call>, in either way of spelling; or none."""
    spelt = _FUNCTION.findall(text)
    if spelt:
        known = all(name in tools for name, _ in spelt)
        return [_spelt_call(name, body, tools[name]) for name, body in spelt] if known else []
    try:
        call = json.loads(text.removeprefix("<tool_call>").removesuffix("</tool_call>"))
    except (ValueError, RecursionError):
        return []
    if not isinstance(call, dict) or call.get("name") not in tools:
        return []
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        return []
    return [Call(call["name"], json.dumps(arguments, ensure_ascii=False))]


def _spelt_call(name: str, body: str, schema: Mapping[str, Any]) -> Call:
    declared = schema.get("properties")
    declared = declared if isinstance(declared, dict) else {}
    values = {
        key.strip(): _value(value, declared.get(key.strip()))
        for key, value in _PARAMETER.findall(body)
    }
    return Call(name, json.dumps(values, ensure_ascii=False))


def _value(text: str, schema: Any) -> Any:
    """A parameter's text as what the tool declares it to be; text where it declares nothing."""
    kind = schema.get("type", "string") if isinstance(schema, dict) else "string"
    if kind == "string":
        return text
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return text


def _begins(text: str, tags: tuple[str, ...]) -> bool:
    """Whether the text ends with the beginning of a tag."""
    at = text.rfind("<")
    return at >= 0 and any(tag.startswith(text[at:]) for tag in tags)
