"""A page of Markdown as a terminal shows it, or a file in which rows are searched."""

from __future__ import annotations

from io import StringIO
from typing import ClassVar

from rich.box import Box
from rich.console import Console, ConsoleOptions, RenderResult
from rich.markdown import Heading, Markdown, TableElement
from rich.table import Table

IN_A_FILE = 2000  # columns: each row of a table stays on its line
RULED = Box("    \n    \n -- \n    \n    \n    \n    \n    \n", ascii=True)  # below the titles


class AtTheLeft(Heading):
    LEVEL_ALIGN: ClassVar = {}


class Plain(TableElement):
    """Without a frame; a word that is wider than its column goes on below."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for table in super().__rich_console__(console, options):
            if isinstance(table, Table):
                table.box, table.show_edge = RULED, False
                for column in table.columns:
                    column.overflow = "fold"
            yield table


class Page(Markdown):
    elements: ClassVar = {**Markdown.elements, "heading_open": AtTheLeft, "table_open": Plain}


def lines(page: str, width: int | None) -> list[str]:
    """No longer than `width` columns of a terminal; None: for a file, without bold print."""
    shown = StringIO()
    on_terminal = width is not None
    console = Console(
        file=shown, width=width or IN_A_FILE, force_terminal=on_terminal, no_color=True
    )
    console.print(Page(page.replace("<", r"\<")))  # values of flags are no HTML
    return [line.rstrip() for line in shown.getvalue().splitlines()]
