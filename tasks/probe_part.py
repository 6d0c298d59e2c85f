"""The part of a program that answers one question: what a box compiles for each of many.

The probe is one file, because it is sent along; a question needs a tenth of it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache

ENTRY = "print(json.dumps({answer}(json.loads(sys.argv[2]))))\n"


@cache
def part_of(source: str, question: str) -> str:
    """The imports, constants and functions that a question's answer needs, in their order.

    source: a module with a table QUESTIONS of functions by name. Raises KeyError for a question
    that is not in it.
    """
    statements = [one for one in ast.parse(source).body if not isinstance(one, ast.If)]
    makers = {name: one for one in statements for name in names_made(one)}
    answer = table_of(makers["QUESTIONS"])[question]
    needed = reached({"json", "sys", *names_used(answer)}, makers)
    lines = source.splitlines()
    parts = [shown(one, lines, needed) for one in statements if needed & set(names_made(one))]
    return "\n".join([*parts, ENTRY.format(answer=f"({ast.unparse(answer)})")])


def table_of(statement: ast.stmt) -> dict[str, ast.expr]:
    assert isinstance(statement, ast.Assign)
    assert isinstance(statement.value, ast.Dict)
    table = zip(statement.value.keys, statement.value.values, strict=True)
    return {str(key.value): value for key, value in table if isinstance(key, ast.Constant)}


def names_made(statement: ast.stmt) -> Iterator[str]:
    """What a statement of a module's own level gives a name."""
    match statement:
        case ast.FunctionDef(name=name) | ast.ClassDef(name=name):
            yield name
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            yield from (one.asname or one.name.partition(".")[0] for one in names)
        case ast.Assign(targets=targets):
            yield from (name for target in targets for name in names_used(target))
        case ast.AnnAssign(target=ast.Name(id=name)):
            yield name


def names_used(node: ast.AST) -> set[str]:
    return {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}


def reached(names: Iterable[str], makers: dict[str, ast.stmt]) -> set[str]:
    """The names, and all that their makers use, and so on."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name in makers and name not in found:
            found.add(name)
            if not isinstance(makers[name], ast.Import | ast.ImportFrom):
                waiting += names_used(makers[name])
    return found


def shown(statement: ast.stmt, lines: list[str], needed: set[str]) -> str:
    """A statement's own text; of `from` imports only the names that are needed."""
    if isinstance(statement, ast.ImportFrom):
        left = [one for one in statement.names if (one.asname or one.name) in needed]
        return ast.unparse(ast.ImportFrom(statement.module, left, statement.level))
    decorators = getattr(statement, "decorator_list", [])
    first = min([statement.lineno, *(one.lineno for one in decorators)])
    return "\n".join(lines[first - 1 : statement.end_lineno])
