"""A page of Markdown as a terminal shows it: prose broken at blanks, tables in columns."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from itertools import groupby, zip_longest

HEADING, TABLE, POINT, BLANK, PROSE = "#", "|", "- ", "", "prose"
BETWEEN = "  "  # two columns of a table
NARROWEST = 4  # columns of the screen that one of a table keeps


def lines(page: str, width: int) -> list[str]:
    """No longer than `width`. Headings keep their `#`."""
    found: list[str] = []
    for kind, block in groupby(page.splitlines(), kind_of):
        rows = list(block)
        if kind == TABLE:
            found += columns(rows, width)
        elif kind == PROSE:
            found += broken(" ".join(rows).replace("**", ""), width)
        elif kind == BLANK:
            found.append("")
        else:
            found += [line for row in rows for line in broken(row, width, "  ")]
    return found


def kind_of(line: str) -> str:
    if not line.strip():
        return BLANK
    return next((kind for kind in (HEADING, TABLE, POINT) if line.startswith(kind)), PROSE)


def broken(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(text, width, subsequent_indent=indent, break_on_hyphens=False)


def columns(table: Sequence[str], width: int) -> list[str]:
    """A table; cells that are too wide for the screen go on below."""
    titles, _, *rows = ([cell.strip() for cell in row.strip("|").split("|")] for row in table)
    wide = fitting([titles, *rows], width)
    ruler = ["-" * each for each in wide]
    return [line for cells in (titles, ruler, *rows) for line in row_of(cells, wide)]


def fitting(rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """How wide each column is: as its widest cell, the widest cut until all have room."""
    wide = [max(NARROWEST, *map(len, cells)) for cells in zip(*rows, strict=True)]
    room = width - len(BETWEEN) * (len(wide) - 1)
    while sum(wide) > room and max(wide) > NARROWEST:
        wide[wide.index(max(wide))] -= 1
    return wide


def row_of(cells: Sequence[str], wide: Sequence[int]) -> list[str]:
    parts = [broken(cell, each) for cell, each in zip(cells, wide, strict=True)]
    below = zip_longest(*parts, fillvalue="")
    return [
        BETWEEN.join(f"{part:<{each}}" for part, each in zip(line, wide, strict=True)).rstrip()
        for line in below
    ]
