"""What a box is sent of the probe: the part that its question needs, and all of that."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from aibox.box import probe
from tasks.facts import PROBE_SOURCE, Probe
from tasks.probe_part import part_of


@pytest.mark.parametrize("question", probe.QUESTIONS)
def test_a_part_lacks_nothing_and_holds_nothing_more(question: str) -> None:
    undefined_or_unused = ["--select", "F821,F401,F811"]
    checked = subprocess.run(
        [sys.executable, "-m", "ruff", "check", "-q", "--isolated", *undefined_or_unused, "-"],
        input=part_of(PROBE_SOURCE, question),
        text=True,
        capture_output=True,
        check=False,
    )
    assert checked.returncode == 0, checked.stdout
    assert len(part_of(PROBE_SOURCE, question)) < len(PROBE_SOURCE) / 1.5


@pytest.mark.parametrize(
    ("question", "asked"),
    [
        ("owners", {"paths": [str(Path(__file__)), "/none"]}),
        ("dpkg", {}),
        ("releases", {"folder": "/none", "records": []}),
        (
            "server",
            {"unit": "none.service", "port": 1, "proof": "/n", "release": "", "weights": ""},
        ),
    ],
)
def test_a_part_answers_as_the_whole_does(question: str, asked: dict[str, object]) -> None:
    command = str(Probe().command(question, json.dumps(asked)))
    done = subprocess.run(["sh", "-c", command], text=True, capture_output=True, check=True)
    assert json.loads(done.stdout) == json.loads(json.dumps(probe.QUESTIONS[question](asked)))


SOURCE = """\
import json
import sys
from os import path, sep
KNOWN, OTHER = 1, 2
TYPED: int = 3
def decorate(one): return one
@decorate
def used(asked): return [path.basename(asked), KNOWN, TYPED, Kind().name]
class Kind:
    name = "kind"
def never(): return OTHER + sep
QUESTIONS = {"used": used, "never": lambda _asked: never()}
if __name__ == "__main__":
    raise SystemExit(1)
"""


def test_decorators_classes_and_constants_come_along_and_the_rest_stays() -> None:
    part = part_of(SOURCE, "used")
    assert "never" not in part
    assert "sep" not in part
    command = [sys.executable, "-", "used", '"/a/b"']
    done = subprocess.run(command, input=part, text=True, capture_output=True, check=True)
    assert json.loads(done.stdout) == ["b", 1, 3, "kind"]


def test_a_question_that_is_none_is_an_error() -> None:
    with pytest.raises(KeyError):
        part_of(SOURCE, "other")
