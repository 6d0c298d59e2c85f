"""Programs of ours that are sent along to a box: it may hold no aibox, or another one."""

from __future__ import annotations

import ast
import base64
import zlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from pyinfra.api import QuoteString

import aibox

FOLDER = Path(aibox.__file__).parents[1]
# Neither what lies in the working directory nor what was installed for Python gets in between.
PYTHON = "python3 -IS -"
BACKSLASH = "(/)"  # a fish takes two of them between quotes for one
PROGRAM = """\
import json, sys, types
for name, text in {%s}.items():
    text = text.replace(%r, chr(92))
    module = sys.modules[name] = types.ModuleType(name)
    module.__path__ = []
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, module)
    exec(compile(text, name, "exec"), module.__dict__)
print(json.dumps(module.QUESTIONS[sys.argv[1]](json.loads(sys.argv[2]))))
"""
IN_JSON = "\\u005c"  # JSON's other way to write a backslash
PACKED = "import base64, zlib\nexec(zlib.decompress(base64.b64decode('%s')))\n"


@cache
def program(name: str) -> str:
    """A program for the box's python3 that asks a module of aibox one of its QUESTIONS.

    Its arguments are the question and, as JSON, what is asked; it prints the answer as JSON.
    """
    return PROGRAM % ("".join(entry(*one) for one in texts(name).items()), BACKSLASH)


def entry(name: str, text: str) -> str:
    """A module of a program, as it stands there."""
    assert "'''" not in text and BACKSLASH not in text, name
    return f"{name!r}: '''{text.replace(chr(92), BACKSLASH)}''',\n"


def argument(asked: str) -> QuoteString:
    """What is asked, as JSON, for a shell of any kind."""
    return QuoteString(asked.replace(2 * chr(92), IN_JSON))


@cache
def packed(name: str) -> str:
    """The same in a third of the room: some would not fit into one argument of a command (128 KiB).

    Those that fit stay as they are: what is sent together is compressed together.
    """
    return PACKED % base64.b64encode(zlib.compress(program(name).encode(), 9)).decode()


@cache
def texts(name: str) -> dict[str, str]:
    """{module: its text} of a module of aibox and all of aibox that it imports.

    Each comes after those that it needs; nothing for a name that is no module.
    """
    path = FOLDER / name.replace(".", "/")
    file = path / "__init__.py" if path.is_dir() else path.with_suffix(".py")
    if not file.is_file():
        return {}
    text = file.read_text()
    found: dict[str, str] = {}
    for other in (name.rpartition(".")[0], *imported(text)):
        found |= texts(other)
    return {**found, name: text}


def imported(text: str) -> Iterator[str]:
    """What a text imports of aibox; some are names in a module, not modules."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aibox"):
            yield str(node.module)
            yield from (f"{node.module}.{one.name}" for one in node.names)
