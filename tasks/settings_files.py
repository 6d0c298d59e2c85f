"""A settings file is Python: what it cannot be read as is refused in words, not a traceback.

pyinfra would call a slip in it an error of its own, and ask for a bug report.
"""

from __future__ import annotations

import ast
import runpy
import traceback
from collections.abc import Iterator
from pathlib import Path

from aibox.decide.refusal import Refusal
from tasks import exit_codes

DO = "correct that line, and run it again"


def judge() -> None:
    """End the run, in words, where a file of group_data can't be meant as it stands.

    pyinfra reads config.py, which calls this, and group_data in the folder it runs in.
    """
    for path in sorted(Path("group_data").glob("*.py")):
        refusal = refusal_of(path, str(path))
        if refusal is not None:
            exit_codes.end(refusal)


def refusal_of(path: Path, name: str) -> Refusal | None:
    """Why a settings file can't be used; None when it can. name: as the person calls it."""
    expected = "settings as Python, a name and its value a line"
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
    except SyntaxError as error:
        shown = f": {error.text.strip()}" if error.text else ""
        where = f", line {error.lineno}" if error.lineno else ""
        return Refusal(f"{name}{where}: {error.msg}{shown}", expected, DO)
    except (OSError, ValueError) as error:
        return Refusal(f"{name} can't be read: {error}", expected, "make it a text in UTF-8")
    twice = next(named_twice(tree), None)
    if twice is not None:
        first, second, setting = twice
        return Refusal(
            f"{name} sets {setting} twice, in line {first} and in line {second}: only the last "
            "would count",
            "each setting once",
            f"write the two as one: {setting} = …",
        )
    try:
        runpy.run_path(str(path))
    except Exception as error:  # it is a person's own code
        lines = [at.lineno for at in traceback.extract_tb(error.__traceback__)]
        words = f"{name}, line {lines[-1]}: {type(error).__name__}: {error}"
        return Refusal(words, expected, DO)
    return None


def named_twice(tree: ast.Module) -> Iterator[tuple[int, int, str]]:
    """(line, later line, name) of each setting that a file sets again; its own names begin with _.

    `serve["seed"] = 7` and `serve |= …` go on with what is there, and so may a value that is made
    of the name itself.
    """
    first: dict[str, int] = {}
    for statement in tree.body:
        for name in names_set(statement):
            if name in first:
                yield first[name], statement.lineno, name
            first.setdefault(name, statement.lineno)


def names_set(statement: ast.stmt) -> list[str]:
    targets: list[ast.expr] = []
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign) and statement.value is not None:
        targets = [statement.target]
    used = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    names = [target.id for target in targets if isinstance(target, ast.Name)]
    return [name for name in names if not name.startswith("_") and name not in used]
