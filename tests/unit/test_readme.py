"""The README and the docs stay true: every command in them is run by a test, every path exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

# Each command of the pages, and the test file (with the words it runs) that runs it.
RUN_BY = {
    "make": ("tests/rehearsal/test_local.py", '"make"'),
    "make rehearsal": ("tests/rehearsal/test_main_job.py", '"make", "rehearsal"'),
    "make test": (".ci/run", "make test"),
    "make rehearsal-down": (".ci/run", "rehearsal-down"),
    ". .venv/bin/activate": ("tests/rehearsal/test_local.py", "activate"),
    "python -m tasks.pin qwen3.8-27b": ("tests/rehearsal/test_pin.py", "tasks.pin"),
    "pyinfra inventory deploy.py": (
        "tests/rehearsal/test_literal_command.py",
        "pyinfra inventory deploy.py",
    ),
    "pyinfra inventory deploy.py --dry": (
        "tests/rehearsal/test_literal_command.py",
        "pyinfra inventory deploy.py --dry",
    ),
    "pyinfra inventory deploy.py --dry --diff": (
        "tests/rehearsal/test_converged.py",
        '"--dry", "--diff"',
    ),
    "python -m tasks.drift": ("tests/rehearsal/test_drift.py", '"-m", "tasks.drift"'),
    ".venv/bin/python -m tests.rehearsal ssh rehearsal": (
        "tests/rehearsal/test_command_line.py",
        "ssh",
    ),
}


def commands(page: Path) -> list[str]:
    """The lines of a page's sh blocks."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    return [line.strip() for block in blocks for line in block.splitlines() if line.strip()]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_run_by_a_test(page: Path) -> None:
    for command in commands(page):
        if command.startswith(".venv/bin/python -m tests.rehearsal "):
            verb = command.split()[3]
            text = (ROOT / "tests/rehearsal/test_command_line.py").read_text()
            assert f'"{verb}"' in text, command
            continue
        assert command in RUN_BY, f"{page.name}: no test runs `{command}`"
        file, words = RUN_BY[command]
        assert words in (ROOT / file).read_text(), f"{file} does not run `{command}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_it_links_to_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target
