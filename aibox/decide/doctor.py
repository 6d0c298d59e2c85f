"""What `aibox doctor` tells of what it found."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass

from aibox.decide.fault_about import Holder
from aibox.decide.faults import Cause

WIDTH = 100


@dataclass(frozen=True)
class Findings:
    """What was looked at.

    state: systemd's words for the unit. health: status of /health, None where nothing answers.
    owner: who has the port, when it is not the server. causes: of the start that counts now.
    before: of earlier starts of this boot, which no longer stand. roots: its last errors, for
    the unknown. memory: rows of the account. log: the command that shows the whole log.
    """

    unit: str
    port: int
    state: str
    since: str | None
    health: int | None
    owner: Holder | None
    causes: Sequence[Cause]
    before: Sequence[Cause]
    roots: Sequence[str]
    memory: Sequence[tuple[str, str]]
    log: str

    @property
    def serves(self) -> bool:
        return self.since is not None and self.health == 200 and self.owner is None

    @property
    def well(self) -> bool:
        return self.serves and not self.causes


def screen(found: Findings) -> list[str]:
    """The lines to print."""
    lines = [row("server", server_words(found))]
    for cause in found.causes:
        lines += told(cause)
    for cause in found.before:
        lines += ["", row("before", f"{cause.found} (no longer; it serves again)")]
        lines += [row("line", cause.line), row("do", cause.remedy)]
    if not found.causes and not found.serves:
        lines += unknown(found)
    if found.memory:
        lines += ["", "The card's memory at the last start:"]
        lines += [row(name, words) for name, words in found.memory]
    return lines


def server_words(found: Findings) -> str:
    if found.owner is not None:
        return f"not {found.unit}: {found.owner} has port {found.port}"
    if found.since is None:
        return f"{found.unit} does not run ({found.state})"
    if found.health != 200:
        answer = "nothing" if found.health is None else str(found.health)
        return f"{found.unit} runs since {found.since}, and /health answers {answer}"
    return f"{found.unit} serves on port {found.port} since {found.since}"


def told(cause: Cause) -> list[str]:
    return ["", row("cause", cause.found), row("line", cause.line), row("do", cause.remedy)]


def unknown(found: Findings) -> list[str]:
    if found.state.startswith("activating") and "auto-restart" not in found.state:
        return ["", row("start", f"under way; watch it: {found.log} -f")]
    lines = ["", row("cause", "unknown: the journal names no fault that is known")]
    lines += [row("said", line) for line in found.roots]
    return [*lines, row("do", f"read the whole log: {found.log}")]


def row(name: str, words: str) -> str:
    shown = textwrap.wrap(words, WIDTH - 12, break_on_hyphens=False) or [""]
    return f"{name:<11} " + ("\n" + " " * 12).join(shown)
