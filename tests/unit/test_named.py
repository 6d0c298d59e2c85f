"""What an inventory and --limit name, for a program that is no run of pyinfra."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks.roll_runs import PyinfraRuns
from tests.unit.conftest import ROOT

INVENTORY = """
site = ["ai-box", "ai-box-2"]
other = [("box-3", {"ssh_user": "root"})]
gateways = ["ai-box"]
monitor = ["watcher"]
"""


def named(inventory: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tasks.named", *words, "--", str(inventory)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    path = tmp_path / "inventory"
    path.write_text(INVENTORY)
    return path


@pytest.mark.parametrize(
    ("words", "boxes"),
    [
        ((), ["ai-box", "ai-box-2", "box-3"]),
        (("--limit=*-2", "--limit=other"), ["ai-box-2", "box-3"]),
        (("--limit=watcher", "--limit=box-3"), ["box-3"]),
    ],
)
def test_boxes_and_gateways_by_name(
    inventory: Path, words: tuple[str, ...], boxes: list[str]
) -> None:
    done = named(inventory, *words)
    found: dict[str, Any] = json.loads(done.stdout)
    every = ["ai-box", "ai-box-2", "box-3", "watcher"]
    assert found == {"boxes": boxes, "gateways": ["ai-box"], "every": every}


def test_what_an_inventory_prints_is_no_part_of_the_answer(inventory: Path) -> None:
    inventory.write_text(f"print('reading', end='')\n{INVENTORY}")
    assert json.loads(named(inventory).stdout)["gateways"] == ["ai-box"]


def test_what_an_inventory_starts_may_print(inventory: Path) -> None:
    inventory.write_text(f"import os\nos.system('echo reading')\n{INVENTORY}")
    found = PyinfraRuns(argparse.Namespace(inventory=str(inventory), limit=["box-3"])).named()
    assert isinstance(found, dict)
    assert found["boxes"] == ["box-3"]


@pytest.mark.parametrize(
    ("text", "words", "said"),
    [
        (INVENTORY, ("--limit=nobody",), "--limit nobody names no box"),
        (INVENTORY, ("--limit=watcher",), "--limit watcher names monitors, and no box"),
        ("monitor = ['watcher']\n", (), "the inventory names monitors, and no box"),
        ("site = ['a', 'b']\na = ['a', 'b']\n", (), "a is a box and a group of other boxes too"),
        ("site = [", (), "found"),
    ],
)
def test_what_names_nothing_is_refused_in_words(
    inventory: Path, text: str, words: tuple[str, ...], said: str
) -> None:
    inventory.write_text(text)
    done = named(inventory, *words)
    assert (done.returncode, done.stdout) == (1, "")
    assert said in done.stderr and "Traceback" not in done.stderr, done.stderr
