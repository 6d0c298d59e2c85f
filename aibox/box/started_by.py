"""How a unit that a person wrote starts its server, and the port that this answers on."""

from __future__ import annotations

import stat
from collections.abc import Iterator, Sequence
from pathlib import Path

from aibox.box.probe import replies, sockets
from aibox.decide import launch

MOST_READ = 100_000  # bytes of a script


def command_of(running: Sequence[str], texts: Sequence[str]) -> list[str]:
    """The words that start its vLLM: of its process, of the unit, or of a script that it runs.

    running: the main process's. texts: the unit's file, then its drop-ins. Where none of them is
    known to start a vLLM: the process's own.
    """
    ways = [list(running), *commands_in(texts)]
    return next((words for words in ways if launch.launched(words) is not None), list(running))


def commands_in(texts: Sequence[str]) -> Iterator[list[str]]:
    """The unit's own command lines, the last one first, each with those of its script."""
    for words in reversed(launch.starts(texts)):
        yield words
        for word in words:
            yield from lines_of(Path(word))


def lines_of(script: Path) -> Iterator[list[str]]:
    """Each line of a script in words; nothing of what is no absolute path of a text with "#!"."""
    try:
        status = script.stat() if script.is_absolute() else None
        if status is None or not stat.S_ISREG(status.st_mode) or status.st_size > MOST_READ:
            return
        text = script.read_text(errors="replace")
    except (OSError, ValueError):
        return
    if text.startswith("#!"):
        for line in text.replace("\\\n", " ").splitlines():
            yield launch.in_words(line)


def port_of(unit: str | None, running: Sequence[str], texts: Sequence[str], usual: int) -> int:
    """Where it answers: as unit or script say, if they are not contradicted by what listens now.

    unit: whose processes may listen; None where those of it were started from another text.
    usual: where nothing tells it.
    """
    said = [port for words in [*commands_in(texts), running] if (port := told(words)) is not None]
    listening = sockets.ports_of_unit(unit) if unit else set()
    for port in [*(one for one in said if one in listening), *sorted(listening)]:
        if replies.health(port) == 200:
            return port
    return next(iter([*said, *sorted(listening)]), usual)


def told(words: Sequence[str]) -> int | None:
    """The port of a command line that starts a vLLM; None where a variable stands for it."""
    start = launch.launched(words)
    if start is None:
        return None
    given = start.value("port")
    return start.port if given is None or given.isdigit() else None
