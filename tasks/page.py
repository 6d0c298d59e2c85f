"""A page of rows for a person who reads a plan."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable

import click
from pyinfra import host

from tasks import drift_report, invocation

WIDTH = 100  # of a line, the box's name in front of it included
LABEL = 9


def is_read() -> bool:
    """Whether a person reads this plan: --dry, or a run that asks before it acts."""
    return (invocation.only_shows() or invocation.can_ask()) and not drift_report.is_wanted()


def show(title: str, rows: Iterable[tuple[str, str]]) -> None:
    """Rows of (label, text), broken at blanks so that a line stays within the width.

    A row without a label goes on with the one above; blanks in front of a text stay.
    """
    host.log(click.style(title, bold=True))
    room = max(40, WIDTH - len(f"    [{host.name}] ") - LABEL - 1)
    for label, text in rows:
        outer = " " * (len(text) - len(text.lstrip(" ")))
        lines = textwrap.wrap(
            text,
            room,
            subsequent_indent=f"{outer}  ",
            break_long_words=False,
            break_on_hyphens=False,
        )
        for at, line in enumerate(lines):
            head = click.style(f"{'' if at else label:<{LABEL}}", bold=True)
            host.log(f"{head} {line}")
