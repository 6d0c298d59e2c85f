"""`python -m tests.rehearsal` as the docs show it, one command after the other."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.rehearsal.box import drop_layers
from tests.rehearsal.machine import CHECKOUT

NAME = "command-line"


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.rehearsal", *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_commands_of_the_docs() -> None:
    steps = [
        (("up", NAME), "is up at 10."),
        (("list",), NAME),
        (("ssh", NAME, "hostname"), NAME),
        (("gpu", NAME, "card=rtx5090"), "5090"),
        (("reset", NAME), "as it was made"),
        (("power-cut", NAME), NAME),
        (("start", NAME), NAME),
        (("snapshot", NAME, "command-line-layer"), "is kept"),
        (("down", NAME), "is gone"),
    ]
    try:
        for words, expected in steps:
            done = run(*words)
            assert done.returncode == 0, (words, done.stderr)
            assert expected in done.stdout, (words, done.stdout)
    finally:
        run("down", NAME)
        drop_layers("command-line-layer")


@pytest.mark.parametrize("words", [("ssh", "nobody"), ("down",), ("up", "Bad Name"), ("fly",)])
def test_a_wrong_command_is_refused_in_words(words: tuple[str, ...]) -> None:
    done = run(*words)
    assert done.returncode == 1
    assert done.stderr.strip()
    assert "Traceback" not in done.stderr
