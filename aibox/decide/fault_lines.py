"""A log as it was meant: without prefixes and colours, and searched across broken lines.

Journals are copied in many forms: with the journal's own head, with the process and level that
vLLM puts before each line, wrapped by a terminal, with two processes writing at once.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

_COLOURS = re.compile(r"(?:\x1b|#033|\\x1b)\[[0-9;?]*[ -/]*[@-~]")
_HOST_AND_PROGRAM = r"[\w.:-]+ (?P<program>[^\s\[\]]+?)(?:\[(?P<pid>\d+)\])?: "
_JOURNAL = re.compile(
    r"\s*(?:"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d+)? "  # short
    r"|(?:[A-Z][a-z]{2} )?\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d(?:[.,]\d+)?(?: "
    r"?(?:[A-Z]{1,5}|[+-]\d\d:?\d\d))? "
    r"|\d{9,}\.\d+ "  # short-unix
    r"|\[ *\d+\.\d+\] "  # short-monotonic
    r")" + _HOST_AND_PROGRAM
)
_KERNEL = re.compile(r"\s*\[ *\d+\.\d+\] ")  # dmesg
_STAMP = r" \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)? \[[^\]\s]+:\d+\] ?"
_LEVELS = "DEBUG|INFO|WARNING|ERROR|CRITICAL"
_PROCESS = r"[A-Za-z][\w:]*(?: [A-Za-z]+=?\w+)* pid=\d+"
_VLLM = re.compile(
    rf"\((?P<process>{_PROCESS})\) ?(?:(?P<level>{_LEVELS}){_STAMP})?|(?P<only>{_LEVELS}){_STAMP}"
)
# One of vLLM's heads inside a line: two processes wrote at once, or a wrapped line was joined.
_INSIDE = re.compile(rf"\({_PROCESS}\) ?(?:(?:{_LEVELS}){_STAMP})?")
_OURS = re.compile(r"vllm|aibox", re.IGNORECASE)
# What may stand as the program of a hand-built unit; such lines alone prove nothing.
_PERHAPS = re.compile(r"python[\d.]*|sh|bash|env|uv|nvcc|ninja|start\S*|run\S*")
_MILD = ("DEBUG", "INFO", "WARNING")


@dataclass(frozen=True)
class Line:
    """One line: its text without heads; whose it is; a log record's level; its process.

    whose: "server", "perhaps" (of a program that may be the server), "kernel", "systemd", "other".
    process: "EngineCore pid=7" where vLLM said it.
    """

    text: str
    whose: str
    level: str | None = None
    process: str = ""
    program: str = ""

    @property
    def mild(self) -> bool:
        """A record that vLLM itself takes for no error, or one of its web server."""
        return self.level in _MILD or self.text.startswith(("INFO:  ", "WARNING:  "))


def read(lines: Sequence[str]) -> list[Line]:
    """The lines of a log, each split from its heads; empty ones are left out."""
    parts = (part for line in lines for part in line.splitlines())
    read_ones = (_line(part) for part in parts)
    return [line for line in read_ones if line.text.strip()]


def bare(line: str) -> str:
    """The text of one line without the journal's head, vLLM's, and colours."""
    return _line(line).text.strip()


def _line(raw: str) -> Line:
    text = _COLOURS.sub("", raw).rstrip()
    whose, program = "server", ""
    found = _JOURNAL.match(text)
    if found is not None:
        program = found["program"]
        whose, text = _whose(program), text[found.end() :]
    elif (dmesg := _KERNEL.match(text)) is not None:
        whose, text = "kernel", text[dmesg.end() :]
    head = _VLLM.search(text)
    if head is None:
        return Line(text, whose, None, "", program)
    # vLLM's own head proves whose the line is, whatever started it
    if head.start() == 0 or not text[: head.start()].strip():
        level, text = head["level"] or head["only"], text[head.end() :]
        process = head["process"] or ""
    else:  # VLLM_LOGGING_PREFIX, or a head in the middle
        level, process = None, head["process"] or ""
    return Line(_INSIDE.sub("", text), "server", level, process, program)


def _whose(program: str) -> str:
    if program in ("kernel", "systemd"):
        return program
    if _OURS.search(program):
        return "server"
    return "perhaps" if _PERHAPS.fullmatch(program) else "other"


@dataclass(frozen=True)
class Hit:
    """A place where a pattern was found: its groups, its first line's index, the whole line."""

    groups: dict[str, str]
    first: int
    line: str


class Stream:
    """Lines in a row, searched as one text without white space, wherever they were broken."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self.lines = lines
        squashed = ["".join(line.text.split()) for line in lines]
        self.starts = [0]
        for part in squashed:
            self.starts.append(self.starts[-1] + len(part))
        self.text = "".join(squashed)

    def hits(self, pattern: re.Pattern[str]) -> Iterator[Hit]:
        """Where a squashed pattern stands at the beginning of a line."""
        for first, start in enumerate(self.starts[:-1]):
            found = pattern.match(self.text, start)
            if found is not None:
                yield self._hit(pattern, found, first)

    def _hit(self, pattern: re.Pattern[str], found: re.Match[str], first: int) -> Hit:
        last = max(first, bisect_right(self.starts, found.end() - 1) - 1)
        if last > first:  # a number at a line's end must not swallow the next line's
            within = pattern.match(self.text, found.start(), self.starts[first + 1])
            if within is not None and _filled(within) == _filled(found):
                found, last = within, first
        groups = {
            name: self._written(*found.span(name))
            for name, value in found.groupdict().items()
            if value is not None
        }
        rows = (line.text.strip() for line in self.lines[first : last + 1])
        return Hit(groups, first, " ".join(rows))

    def _written(self, start: int, end: int) -> str:
        """A group as it was written, with the spaces of a path; numbers that were broken whole."""
        if start == end:  # a group that took nothing
            return ""
        at = bisect_right(self.starts, start) - 1
        pieces = []
        while start < end:
            stop = min(end, self.starts[at + 1])
            pieces.append(
                _slice(self.lines[at].text, start - self.starts[at], stop - self.starts[at])
            )
            start, at = stop, at + 1
        broken = re.match(r"\.?\d", pieces[-1]) is not None  # "8" and ".1" are 8.1
        whole = len(pieces) < 2 or pieces[0].startswith("/") or broken
        return ("" if whole else " ").join(pieces)


def _slice(text: str, start: int, end: int) -> str:
    """The part of a text between two of its characters, counted without white space."""
    places = [index for index, sign in enumerate(text) if not sign.isspace()]
    return text[places[start] : places[end - 1] + 1]


def _filled(found: re.Match[str]) -> set[str]:
    return {name for name, value in found.groupdict().items() if value is not None}


def squash(pattern: str) -> re.Pattern[str]:
    """A pattern written with spaces, for a Stream; an exception's name may stand before it."""
    named = (
        r"(?:(?:[A-Za-z_][\w.]{0,80}(?:Error|Exception|ERROR)|ERROR|[Ee]rror|RuntimeError):)*"
        r"(?:(?:Valueerror|Assertionfailed),)?"  # as pydantic hands them on
    )
    return re.compile(named + "(?:" + re.sub(" [?+]?", "", pattern) + ")")


def streams(lines: Sequence[Line]) -> Iterator[Stream]:
    """All lines as they stand; and each process's own, where several wrote at once."""
    yield Stream(lines)
    names = dict.fromkeys(line.process for line in lines)
    if len(names) > 1:
        for name in names:
            yield Stream([line for line in lines if line.process == name])
