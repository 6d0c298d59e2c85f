"""Why a start failed, or a server died: the root cause, wherever it stands in the journal.

The kinds and their remedies are the table in fault_rules.py. What is not in it stays unknown: no
cause is guessed, and what only follows from another fault is no cause.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from aibox.decide.fault_about import About, Holder
from aibox.decide.fault_lines import Hit, Line, Stream, read, streams
from aibox.decide.fault_rules import RULES, Rule
from aibox.decide.fault_words import Facts

__all__ = ["About", "Cause", "Holder", "diagnose", "root_lines"]

# An exception as Python prints it, or a refused flag: `vllm serve: error: argument --port: …`.
FAULT = re.compile(
    r"^(?:[\w.]*(?:Error|Exception|error|Unsupported|IsEnabled): .|[\w./ -]+: error: .|ERROR: +\S"
    r"|[\w.]+(?:Error|Exception)$|nvcc fatal|\S+: (?:fatal )?error: |Segmentation fault)"
)
# Said by every failed start, whatever the cause.
CONSEQUENCES = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "Frontend process failed during engine core initialization",
    "EngineDeadError",
    "EngineCore failed to start",
    "EngineCore encountered",
    "EngineGenerateError",
    "Executor failed.",
)
FRAME = re.compile(r'^(?:Traceback \(most|File "|During handling|The above exception|[\^~ ]+$)')
# Each kind once, the most fundamental first; and the kinds that it may only follow from.
ORDER = list(dict.fromkeys(rule.kind for rule in RULES))
FOLLOWS = {
    kind: frozenset().union(*(rule.follows for rule in RULES if rule.kind == kind))
    for kind in ORDER
}
TRACEBACK_LINES = 400  # of one traceback, at most
OUR_CODE = re.compile(r"/(?:vllm|flashinfer|triton|torch|safetensors|tvm_ffi|aibox)/|^vllm/")


@dataclass(frozen=True)
class Cause:
    """One root cause, told.

    kind: its name. found: a sentence with the line's numbers. remedy: the setting, its file and
    the number to write. line: the root-cause line, bare. passing: of the surroundings, or of what
    a deploy lays down anew: the same candidate may work next time.
    """

    kind: str
    found: str
    remedy: str
    line: str
    passing: bool


def diagnose(lines: Sequence[str], about: About | None = None) -> list[Cause]:
    """The causes that a journal names, the most fundamental first; empty: unknown.

    Of the same kind, told several times, the last one counts: it is of the last try.
    """
    log = read(lines)
    facts = Facts(about or About(), log, list(lines))
    found: dict[str, Cause] = {}
    for stream in streams([line for line in log if line.whose != "other" and not line.mild]):
        for rule in RULES:
            if rule.kind not in found:
                cause = last_told(rule, stream, facts)
                if cause is not None:
                    found[rule.kind] = cause
    told = [found[kind] for kind in ORDER if kind in found and not FOLLOWS[kind] & set(found)]
    return told or died_silently(log, facts)


def last_told(rule: Rule, stream: Stream, facts: Facts) -> Cause | None:
    cause = None
    for hit in stream.hits(rule.pattern):
        if not counts(rule, stream.lines, hit, facts):
            continue
        told = rule.tell(hit.groups, facts)
        if told is not None:
            cause = Cause(rule.kind, *told, hit.line, rule.passing)
    return cause


def counts(rule: Rule, lines: Sequence[Line], hit: Hit, facts: Facts) -> bool:
    """Whether a line is the server's own, or the kernel's or systemd's where the rule is of them.

    A generic error, which any program may have, must not come from somebody else's traceback.
    """
    line = lines[hit.first]
    if rule.whose != "server":
        return line.whose == rule.whose or not line.program
    if line.whose in ("kernel", "systemd"):
        return False
    if not rule.generic or line.process:
        return True
    if line.whose == "perhaps" and not facts.speaks_vllm:
        return False
    return not foreign(lines, hit.first)


def foreign(lines: Sequence[Line], at: int) -> bool:
    """Whether the traceback above a line goes through installed code, and none of ours."""
    frames = []
    for line in reversed(lines[max(0, at - TRACEBACK_LINES) : at]):
        text = line.text.strip()
        if text.startswith("Traceback (most recent"):
            break
        if text.startswith('File "'):
            frames.append(text.split('"')[1])
    else:
        return False
    if any(OUR_CODE.search(frame) for frame in frames):
        return False
    return any(
        not re.match(r"(?:/usr(?:/local)?)?/lib/python3[\d.]*/\w", frame) for frame in frames
    )


def died_silently(log: Sequence[Line], facts: Facts) -> list[Cause]:
    """The engine's end, where nothing in the log is an error that could have caused it."""
    gone = [line for line in log if "engine core exited unexpectedly" in line.text]
    if not gone or any(is_error(line) for line in log):
        return []
    back = "The server came back by itself. " if facts.about.serves else ""
    return [
        Cause(
            "engine_died",
            "the engine's process ended without an error of its own: something killed it",
            f"{back}look for what did: sudo journalctl -k -b -g 'oom|Xid|segfault'",
            gone[-1].text.strip(),
            passing=True,
        )
    ]


def is_error(line: Line) -> bool:
    text = line.text.strip()
    if line.mild or line.whose not in ("server", "perhaps"):
        return False
    return bool(FAULT.match(text)) and not any(words in text for words in CONSEQUENCES)


def root_lines(lines: Sequence[str]) -> list[str]:
    """For the unknown: the last five different errors of a log, bare.

    Records of the level ERROR where no error stands there, and the last three lines without any.
    """
    log = read(lines)
    errors = [line.text.strip() for line in log if is_error(line)]
    if not errors:
        errors = [line.text.strip() for line in log if is_record(line)]
    if not errors:
        return [line.text.strip() for line in log][-3:]
    return list(dict.fromkeys(errors))[-5:]


def is_record(line: Line) -> bool:
    text = line.text.strip()
    if line.level not in ("ERROR", "CRITICAL") or FRAME.match(text) or line.text.startswith("  "):
        return False
    return not any(words in text for words in CONSEQUENCES)
