"""A person's settings file that can't be meant as it stands, refused in words."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tasks.settings_files import refusal_of
from tests.unit.conftest import ROOT

NAME = "group_data/site.py"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('serve = {"a": 1}\nhub = 8\nserve = {"b": 2}\n', "sets serve twice, in line 1 and in"),
        ("hub = 8\nhub: str = 9\n", "sets hub twice, in line 1 and in line 2: only the last"),
        ('hub = 8\nserve = {"a": 1\nx = 3\n', "group_data/site.py, line 2: '{' was never closed"),
        ("hub = 8\nhub = = 9\n", "line 2: invalid syntax: hub = = 9"),
        ("a = 1\nserve = undefined\n", "line 2: NameError: name 'undefined' is not defined"),
        ("\0", "null bytes"),
    ],
)
def test_what_cannot_be_meant_is_named_with_file_and_line(
    tmp_path: Path, text: str, words: str
) -> None:
    (tmp_path / "site.py").write_text(text)
    refusal = refusal_of(tmp_path / "site.py", NAME)
    assert refusal is not None
    assert words in refusal.found
    assert NAME in refusal.found


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hub = 8\nmodel = 9\n",
        'serve = {}\nserve["seed"] = 7\nserve |= {"a": 1}\nserve = {**serve, "b": 2}\n',
        "_a = 1\n_a = 2\nfor one in (1, 2):\n    _b = one\n",
        "hub: str\nhub = 'x'\n",
    ],
)
def test_what_goes_on_with_a_setting_is_no_fault(tmp_path: Path, text: str) -> None:
    (tmp_path / "site.py").write_text(text)
    assert refusal_of(tmp_path / "site.py", NAME) is None


def test_a_monitor_that_is_no_box_has_a_settings_file_of_its_own(tmp_path: Path) -> None:
    """site.py is for the hosts of the group `site`: pyinfra gives a monitor alone nothing of it."""
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data/site.py").write_text("grafana_port = 1\n")
    (tmp_path / "group_data/monitor.py").write_text("grafana_port = 2\n")
    (tmp_path / "inventory.py").write_text("site = ['ai-box']\nmonitor = ['watcher']\n")
    program = str(Path(sys.executable).with_name("pyinfra"))
    words = [program, "inventory.py", "debug-inventory"]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    found = dict(re.findall(r"\[(ai-box|watcher)\].*?grafana_port\W+(\d)", said, re.DOTALL))
    assert found == {"ai-box": "1", "watcher": "2"}, said


def test_the_projects_own_files_are_in_order() -> None:
    for path in (ROOT / "group_data").glob("*.py"):
        assert refusal_of(path, path.name) is None


@pytest.mark.parametrize("text", ["hub = 8\nhub = 9\n", "hub = = 8\n"])
def test_a_run_ends_with_the_refusal_and_leaves_nothing_behind(tmp_path: Path, text: str) -> None:
    for name in ("config.py", "deploy.py", "inventory", "tasks", "aibox", "templates"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "group_data").mkdir()
    (tmp_path / "group_data/site.py").write_text(text)
    program = Path(sys.executable).with_name("pyinfra")
    words = [str(program), "inventory", "deploy.py", "--dry"]
    before = sorted(tmp_path.iterdir())
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "found" in said and "group_data/site.py" in said, said
    assert "bug report" not in said and "Traceback" not in said and "Loading inv" not in said, said
    assert sorted(tmp_path.iterdir()) == before
