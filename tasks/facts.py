"""What is read from a box. Facts answer in JSON, and tell "absent" from "broken"."""

from __future__ import annotations

import base64
import binascii
import json
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from pyinfra.api import FactBase, QuoteString, StringCommand
from pyinfra.api.exceptions import FactProcessError

from aibox.box import probe
from tasks.sent_along import PYTHON, argument, packed, program

GREETED = "end-of-greetings"  # a shell's start-up files may print before any command


def parsed(lines: list[str]) -> Any:
    """The JSON on the last line of an output (a login banner may stand above it)."""
    try:
        return json.loads(lines[-1])
    except (IndexError, ValueError) as error:
        raise FactProcessError(f"the box answered {lines!r}, which is no JSON: {error}") from None


class Login(FactBase[dict[str, Any]]):
    """Who we are on the box before any sudo: {"uid", "python", "sudo", "greeting"}.

    "python" is "3.11" or None. "sudo" is "ok", "no sudo" where the program is missing, or what
    sudo said. "greeting" is what the login shell prints before the answer to a command.
    """

    def command(self) -> StringCommand:
        version = "import sys; print(*sys.version_info[:2], sep='.')"
        return StringCommand(
            f"echo {GREETED}; id -u; if test -x /usr/bin/python3; then /usr/bin/python3 -c",
            QuoteString(version),
            "; else echo -; fi; if ! command -v sudo >/dev/null; then echo no sudo;",
            "elif LC_ALL=C sudo -n true 2>&1; then echo ok; fi",
        )

    def process(self, output: list[str]) -> dict[str, Any]:
        at = output.index(GREETED) if GREETED in output else len(output)
        ours = output[at + 1 :]
        if len(ours) < 3 or not ours[0].isdigit():
            raise FactProcessError(f"the login shell answered {output!r}")
        python = ours[1] if ours[1] != "-" else None
        greeting = "\n".join(output[:at])
        return {"uid": int(ours[0]), "python": python, "sudo": ours[-1], "greeting": greeting}


def answered_by() -> dict[str, str]:
    """{question: the module of aibox/box/probe that answers it}."""
    names = [f"{probe.__name__}.{one.name}" for one in iter_modules(probe.__path__)]
    tables = {name: getattr(import_module(name), "QUESTIONS", {}) for name in names}
    return {question: name for name, table in tables.items() for question in table}


ANSWERED_BY = answered_by()


class Probe(FactBase[Any]):
    """One answer of aibox/box/probe: its file is sent along and run by the box's python3."""

    def command(self, question: str, asked: str = "{}") -> StringCommand:
        return StringCommand(
            PYTHON,
            QuoteString(question),
            argument(asked),
            "<<'END_OF_PROBE'\n" + program(ANSWERED_BY[question]) + "END_OF_PROBE\n",
        )

    def process(self, output: list[str]) -> Any:
        return parsed(output)


class Discovery(FactBase["Any | None"]):
    """One answer of aibox/box/discover.py, for a box without aibox; None where it failed there."""

    def command(self, question: str, asked: str = "{}") -> StringCommand:
        return StringCommand(
            f"timeout 60 {PYTHON}",
            QuoteString(question),
            argument(asked),
            "<<'END_OF_DISCOVERY' 2>/dev/null || echo null\n"
            + packed("aibox.box.discover")
            + "END_OF_DISCOVERY\n",
        )

    def process(self, output: list[str]) -> Any | None:
        return parsed(output)


class LaidFile(FactBase["dict[str, Any] | None"]):
    """A file's owner, group, mode and content: {"user", "group", "mode", "content" (bytes)}."""

    def command(self, path: str) -> StringCommand:
        quoted = QuoteString(path)
        return StringCommand(
            "if test -f",
            quoted,
            "; then stat -c '%U %G %a'",
            quoted,
            "&& base64 -w0",
            quoted,
            "; fi",
        )

    def process(self, output: list[str]) -> dict[str, Any] | None:
        if not output:
            return None
        user, group, mode = output[0].split()
        try:
            content = base64.b64decode(output[1], validate=True) if len(output) > 1 else b""
        except binascii.Error as error:
            raise FactProcessError(f"a file came back damaged: {error}") from None
        return {"user": user, "group": group, "mode": mode, "content": content}


class Account(FactBase[dict[str, Any]]):
    """A user and the group of the same name: {"user": {"home", "shell"} or None, "group": bool}.

    pyinfra's own fact looks every user of the box up, with seven processes for each.
    """

    def command(self, user: str) -> StringCommand:
        quoted = QuoteString(user)
        return StringCommand("getent passwd", quoted, "; getent group", quoted, "; true")

    @staticmethod
    def default() -> dict[str, Any]:
        """With no output, pyinfra asks for this."""
        return {"user": None, "group": False}

    def process(self, output: list[str]) -> dict[str, Any]:
        rows = [line.split(":") for line in output]
        users = [{"home": row[5], "shell": row[6]} for row in rows if len(row) == 7]
        return {"user": users[0] if users else None, "group": any(len(row) == 4 for row in rows)}


class Aibox(FactBase[str]):
    """The name of the aibox that is installed whole and in use, or an empty text."""

    def command(self, folder: str) -> StringCommand:
        return StringCommand(
            "cd",
            QuoteString(folder),
            "2>/dev/null && test -e current/complete && readlink current || true",
        )

    @staticmethod
    def default() -> str:
        return ""

    def process(self, output: list[str]) -> str:
        return output[-1].strip() if output else ""


class AiboxAnswer(FactBase["Any | None"]):
    """What the installed aibox answers to words that only read; None where there is no aibox."""

    def command(self, program: str, words: str) -> StringCommand:
        return StringCommand(
            "if test -x", QuoteString(program), "; then", QuoteString(program), words, "; fi"
        )

    def process(self, output: list[str]) -> Any | None:
        return parsed(output) if output else None
