"""The promises that hold the code together: one list of settings, and who may import what."""

import ast
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from aibox.decide.refusal import Refusal
from aibox.settings import Settings, load_settings
from tests.unit.conftest import ROOT

ALL = ROOT / "group_data/all.py"
AIBOX = sorted((ROOT / "aibox").rglob("*.py"))
DECIDE = sorted((ROOT / "aibox/decide").glob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def imports(path: Path) -> set[str]:
    """Every module a file imports, in full."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute"
            found.add(node.module or "")
    return found


def test_every_setting_stands_in_all_with_a_comment() -> None:
    lines = [line for line in ALL.read_text().splitlines() if re.match(r"[A-Za-z_]", line)]
    named = {re.split(r"[ :]", line)[0]: line for line in lines}
    assert set(named) == set(Settings.model_fields)
    assert all("  # " in line for line in named.values())


def test_the_example_names_real_settings() -> None:
    text = (ROOT / "group_data/site.example.py").read_text()
    names = set(re.findall(r"^(?:# )?([a-z_]+) = ", text, re.MULTILINE))
    assert names
    assert names <= set(Settings.model_fields)


def test_the_projects_own_settings_load(data: dict[str, Any]) -> None:
    loaded = load_settings({"box": data}, ROOT, (), need_weights=False)["box"]
    assert loaded.card.name == "qwen3.8-27b"


@pytest.mark.parametrize("path", DECIDE, ids=name_of)
def test_decisions_need_the_standard_library_only(path: Path) -> None:
    for module in imports(path):
        allowed = module.split(".")[0] in sys.stdlib_module_names
        assert allowed or module == "aibox" or module.startswith("aibox.decide"), module


@pytest.mark.parametrize("path", AIBOX, ids=name_of)
def test_aibox_knows_nothing_of_pyinfra(path: Path) -> None:
    roots = {module.split(".")[0] for module in imports(path)}
    assert not roots & {"pyinfra", "pyinfra_cli", "tasks", "tests"}


@pytest.mark.parametrize("path", sorted((ROOT / "aibox/box").glob("*.py")) + DECIDE, ids=name_of)
def test_what_runs_on_the_box_needs_nothing_of_control(path: Path) -> None:
    control = {"aibox.settings", "aibox.card", "aibox.faults", "aibox.kinds"}
    control |= {"pydantic", "yaml", "packaging"}
    assert not {module for module in imports(path) if module in control}


def test_a_refusal_is_three_labelled_lines() -> None:
    lines = str(Refusal("a", "b", "c")).split("\n")
    assert [line.split() for line in lines] == [["found", "a"], ["expected", "b"], ["do", "c"]]
