"""docs/driver.md names every refusal of the driver stage with its remedy, in its own words."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs/driver.md"
SOURCES = (
    "aibox/decide/driver.py",
    "aibox/decide/driver_refusals.py",
    "aibox/decide/vram.py",
    "aibox/decide/toolkit.py",
    "aibox/decide/nvcc.py",
    "aibox/decide/apt.py",
    "tasks/reboot.py",
)
SHORTEST = 15  # characters of a piece that is looked for: shorter ones stand anywhere
TABLES = {"_ERRORS": 2, "_CUDA_REMEDIES": None}  # {name: which of a row's items is the remedy}


def remedies(tree: ast.Module) -> Iterator[ast.expr]:
    """The expressions of a module that make what a refusal tells to do."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id == "Refusal":
                yield from (*node.args[2:3], *(one.value for one in node.keywords))
            elif node.func.id == "fail":  # of a reboot: host, found, remedy
                yield from node.args[2:3]
        elif isinstance(node, ast.FunctionDef) and node.name.endswith("_remedy"):
            yield from (
                one.value for one in ast.walk(node) if isinstance(one, ast.Return) and one.value
            )
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            name = node.targets[0].id
            if name in ("remedy", "AGAIN"):
                yield node.value
            elif name in TABLES:
                yield from rows_of(node.value, TABLES[name])


def rows_of(table: ast.expr, column: int | None) -> Iterator[ast.expr]:
    if isinstance(table, ast.Dict):
        yield from table.values
    elif isinstance(table, ast.Tuple) and column is not None:
        yield from (row.elts[column] for row in table.elts if isinstance(row, ast.Tuple))


def pieces(file: str) -> list[str]:
    """The fixed words of every remedy in a source file, between what is filled in."""
    found = [
        " ".join(node.value.split())
        for remedy in remedies(ast.parse((ROOT / file).read_text()))
        for node in ast.walk(remedy)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return list(dict.fromkeys(text for text in found if len(text) >= SHORTEST))


@pytest.mark.parametrize("file", SOURCES)
def test_every_remedy_stands_on_the_page(file: str) -> None:
    page = " ".join(PAGE.read_text().replace("\\|", "|").split())
    found = pieces(file)
    assert found, file
    missing = [piece for piece in found if piece not in page]
    assert not missing, f"{PAGE.name} does not say: {missing}"
