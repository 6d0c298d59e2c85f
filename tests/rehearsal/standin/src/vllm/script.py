"""What a test wants this server to do wrong: a JSON file named by VLLM_STANDIN_SCRIPT.

    {"ready_after_s": 3}                       readiness comes later
    {"hold": true}                             it comes only once the script says so no more
    {"fail": {"lines": ["ValueError: …"], "code": 1}}     the engine fails at start with these
    {"fail": {"lines": [...], "raw": true}}    the lines as they are, nothing around them
    {"die_after_s": 5, "die_lines": [...], "die_code": 0} dies that long after it was ready
    {"mamba_blocks": 501}                      state blocks of a hybrid model: more sequences than
                                               that (max-num-seqs) fail the start as vLLM fails it
    {"health": 503}                            /health answers so
    {"accepted": 0}                            every draft has so many accepted tokens
    {"text": "wrong"}                          answers this, word by word, instead
    {"empty": true}                            one-token answers without text, "stop"
    {"step_s": 0.5}                            seconds for each step of the engine
    {"fail_requests": 500}                     completions answer so
    {"die_at_request": true}                   the engine dies in the middle of a completion
    {"only": "--seed 2", …}                    holds for a server with these words in its command

Start-up reads it once (but for "hold"), each request anew, so that a running server can change.
Without the file, or with an empty object, the server is a good one.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

VARIABLE = "VLLM_STANDIN_SCRIPT"


class ScriptError(Exception):
    """The script can't be followed; the text says why."""


@dataclass(frozen=True)
class Script:
    ready_after_s: float = 0.0
    hold: bool = False
    fail: dict[str, Any] = field(default_factory=dict)
    die_after_s: float | None = None
    die_lines: list[str] = field(default_factory=list)
    die_code: int = 0
    mamba_blocks: int | None = None
    health: int = 200
    accepted: int | None = None
    text: str | None = None
    empty: bool = False
    step_s: float = 0.002
    fail_requests: int | None = None
    die_at_request: bool = False
    only: str = ""


def read() -> Script:
    """The script as it is now. Raises ScriptError for what is no script."""
    path = os.environ.get(VARIABLE, "")
    if not path or not Path(path).exists():
        return Script()
    try:
        wanted = json.loads(Path(path).read_text())
    except (OSError, ValueError) as error:
        raise ScriptError(f"{path}: {error}") from None
    known = {f.name for f in fields(Script)}
    if not isinstance(wanted, dict) or not set(wanted) <= known:
        raise ScriptError(f"{path}: wants an object with keys of {', '.join(sorted(known))}")
    fail = wanted.get("fail", {})
    if not isinstance(fail, dict) or not set(fail) <= {"lines", "code", "raw"}:
        raise ScriptError(f'{path}: "fail" wants an object with lines, code, raw')
    asked = Script(**wanted)
    return asked if asked.only in " ".join(sys.argv) else Script()
