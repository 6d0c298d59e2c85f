"""A page of rows for a person who reads a plan, and what is to stand last on their screen."""

from __future__ import annotations

import os
import sys
import textwrap
from collections.abc import Iterable

import click
from pyinfra import host, state
from pyinfra.api import Host

from tasks import drift_report, invocation

# Columns of a line, the box's name in front of it included: the terminal's, within these.
NARROWEST, WIDEST, WITHOUT_TERMINAL = 60, 120, 100
LABEL = 9

_kept: list[tuple[Host, list[str]]] = []


def is_read() -> bool:
    """Whether a person reads this plan: --dry, or a run that asks before it acts."""
    return (invocation.only_shows() or invocation.can_ask()) and not drift_report.is_wanted()


def show(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Rows of (label, text) at once."""
    for line in lines(title, rows):
        host.log(line)


def keep(shown_last: list[str]) -> None:
    """Lines about this box for the moment before the prompt, or for the end of the run: pyinfra's
    own tables would push them off the screen."""
    found = state.inventory.get_host(host.name)
    if found is not None:
        _kept.append((found, shown_last))


def show_kept() -> None:
    """Everything that was kept, once."""
    while _kept:
        box, shown_last = _kept.pop(0)
        click.echo(err=True)
        for line in shown_last:
            box.log(line)


def columns() -> int | None:
    """Of the terminal that pyinfra logs to, its standard error; None where that is none."""
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns or None
    except (OSError, ValueError):  # a file, or one that is closed
        return None


def width() -> int:
    return max(NARROWEST, min(columns() or WITHOUT_TERMINAL, WIDEST))


def lines(title: str, rows: Iterable[tuple[str, str]]) -> list[str]:
    """A page under its title, broken at blanks so that a line stays within the width."""
    return [click.style(title, bold=True), *broken(rows, LABEL)]


def broken(rows: Iterable[tuple[str, str]], label_width: int) -> list[str]:
    """A row without a label goes on with the one above; blanks in front of a text stay."""
    room = max(40, width() - len(f"    [{host.name}] ") - label_width - 1)
    return [
        labelled("" if at else label, line, label_width)
        for label, text in rows
        for at, line in enumerate(wrapped(text, room))
    ]


def as_read(rows: Iterable[tuple[str, str]], label_width: int) -> list[str]:
    """Broken for a terminal; in a file, where they are searched, each row on a line of its own."""
    if columns():
        return broken(rows, label_width)
    return [labelled(*row, label_width) for row in rows]


def wrapped(text: str, room: int) -> list[str]:
    outer = " " * (len(text) - len(text.lstrip(" ")))
    return textwrap.wrap(
        text,
        room,
        subsequent_indent=f"{outer}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def labelled(label: str, text: str, label_width: int) -> str:
    return f"{click.style(f'{label:<{label_width}}', bold=True)} {text}"
