"""The README and the docs stay true: every command in them is run by a test, every path exists."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]

ACTIVATED = ". bin/activate && command -v pyinfra"
CLIENTS = "/opt/aibox/current/bin/aibox clients"
# Each command of the pages, and the file of `make test` (with the words it runs) that runs it.
RUN_BY = {
    "make": ("tests/rehearsal/test_main_job.py", '"make", "rehearsal"'),  # it makes `env` first
    "make rehearsal": ("tests/rehearsal/test_main_job.py", '"make", "rehearsal"'),
    "make test": (".ci/run", "make test"),
    "make rehearsal-down": (".ci/run", "rehearsal-down"),
    ". .venv/bin/activate": ("tests/unit/test_readme.py", ACTIVATED),
    "make lock-model MODEL=qwen3.8-27b": ("tests/rehearsal/test_pin.py", "make lock-model"),
    "pyinfra inventory deploy.py": (
        "tests/rehearsal/test_literal_command.py",
        "pyinfra inventory deploy.py",
    ),
    "pyinfra inventory deploy.py --dry": (
        "tests/rehearsal/test_literal_command.py",
        "pyinfra inventory deploy.py --dry",
    ),
    "pyinfra inventory tasks/rollback.py": (
        "tests/rehearsal/test_literal_command.py",
        "pyinfra inventory tasks/rollback.py",
    ),
    "pyinfra inventory tasks/rollback.py --data to=found": (
        "tests/rehearsal/test_adoption.py",
        '"--data", "to=found"',
    ),
    "pyinfra inventory tasks/teardown.py": (
        "tests/rehearsal/test_teardown.py",
        "pyinfra inventory tasks/teardown.py",
    ),
    "pyinfra inventory tasks/teardown.py -y --data remove_weights=true --data remove_driver=true": (
        "tests/rehearsal/test_teardown.py",
        'ALL = ("--data", "remove_weights=true", "--data", "remove_driver=true")',
    ),
    "pyinfra inventory deploy.py --data retry_failed=true": (
        "tests/rehearsal/test_literal_command.py",
        "pyinfra inventory deploy.py --data retry_failed=true",
    ),
    "pyinfra inventory deploy.py --dry --diff": (
        "tests/rehearsal/test_converged.py",
        '"--dry", "--diff"',
    ),
    "sudo /opt/aibox/current/bin/aibox clients": ("tests/rehearsal/test_main_job.py", CLIENTS),
    "sudo /opt/aibox/current/bin/aibox clients --address ai-box": (
        "tests/rehearsal/test_main_job.py",
        CLIENTS,
    ),
    "pyinfra inventory tasks/bench.py": (
        "tests/rehearsal/test_main_job.py",
        'entry="tasks/bench.py"',
    ),
    "python -m tasks.compare qwen3.8-27b qwen3.8-flash-next": (
        "tests/unit/test_bench_report.py",
        "compare.main(",
    ),
    "pyinfra --chdir FOLDER …": ("tests/rehearsal/test_literal_command.py", "pyinfra --chdir"),
    "python -m tasks.monitoring_files": (
        "tests/unit/test_watching.py",
        '"-m", "tasks.monitoring_files"',
    ),
    "pyinfra inventory deploy.py --limit ai-box-2": (  # a roll runs it for each box
        "tests/rehearsal/rolling.py",
        '"-m", "tasks.roll"',
    ),
    "python -m tasks.roll": ("tests/rehearsal/rolling.py", '"-m", "tasks.roll"'),
    "sudo /opt/aibox/current/bin/aibox rotation": (
        "tests/unit/test_rotation.py",
        'program.main(["rotation"])',
    ),
    'sudo /opt/aibox/current/bin/aibox rotation out ai-box-3 --why "its card is being changed"': (
        "tests/unit/test_rotation.py",
        '["rotation", "out", "b", "--why", "its card is changed"',
    ),
    "sudo /opt/aibox/current/bin/aibox rotation back ai-box-3": (
        "tests/unit/test_rotation.py",
        'program.main(["rotation", "back", "b"])',
    ),
    "python -m tasks.drift": ("tests/rehearsal/test_drift.py", '"-m", "tasks.drift"'),
    ".venv/bin/python -m tests.rehearsal ssh rehearsal": (
        "tests/rehearsal/test_command_line.py",
        "ssh",
    ),
}


BLOCK = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
# `make` may also be the name of a package: "install `make …`"
INLINE = re.compile(r"(?<!install )`((?:make|pyinfra|python -m)(?: [^`]+)?)`")


def commands(page: Path) -> list[str]:
    """The lines of a page's sh blocks, without comments."""
    blocks = [text for kind, text in BLOCK.findall(page.read_text()) if kind == "sh"]
    lines = [line.split("  #")[0].strip() for block in blocks for line in block.splitlines()]
    return [line for line in lines if line]


def inline_commands(page: Path) -> list[str]:
    """The commands in a page's sentences."""
    return INLINE.findall(" ".join(BLOCK.sub("", page.read_text()).split()))


def targets() -> dict[str, list[str]]:
    """The Makefile's phony targets, each with what it needs."""
    text = (ROOT / "Makefile").read_text()
    phony = set(re.findall(r"^\.PHONY:(.*)", text, re.MULTILINE)[0].split())
    rules = re.findall(r"^([\w-]+):(?!=)(.*)$", text, re.MULTILINE)
    return {name: needs.split() for name, needs in rules if name in phony}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_is_run_by_a_test(page: Path) -> None:
    for command in commands(page):
        if command.startswith(".venv/bin/python -m tests.rehearsal "):
            verb = command.split()[3]
            text = (ROOT / "tests/rehearsal/test_command_line.py").read_text()
            assert f'"{verb}"' in text, command
            continue
        if command.startswith(".venv/bin/python -m pytest "):  # is itself a run of tests
            files = re.findall(r"\S+\.py\b", command)
            assert files and all((ROOT / file).is_file() for file in files), command
            continue
        assert command in RUN_BY, f"{page.name}: no test runs `{command}`"
        file, words = RUN_BY[command]
        assert words in (ROOT / file).read_text(), f"{file} does not run `{command}`"


def test_what_runs_them_is_part_of_make_test() -> None:
    for file, _ in RUN_BY.values():
        whole = re.search(r"^pytestmark = .*\blong\b", (ROOT / file).read_text(), re.MULTILINE)
        assert not whole, f"`make test` leaves out {file}"


def test_make_alone_is_the_first_step_of_make_rehearsal() -> None:
    assert re.search(r"^\.DEFAULT_GOAL := env$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert targets()["rehearsal"] == ["env"]


def test_the_environment_can_be_activated() -> None:
    """The one these tests run in; `make test` runs them in .venv."""
    words = ["sh", "-c", ACTIVATED]
    done = subprocess.run(words, cwd=sys.prefix, capture_output=True, text=True, check=False)
    assert Path(done.stdout.strip()) == Path(sys.prefix) / "bin/pyinfra", done.stderr


def test_every_command_in_a_sentence_of_the_readme_is_known() -> None:
    found = inline_commands(ROOT / "README.md")
    assert found
    for command in found:
        begins = any(f"{known} ".startswith(f"{command} ") for known in RUN_BY)
        made = re.fullmatch(r"make ([\w-]+)", command)
        assert begins or (made and made[1] in targets()), f"nothing knows `{command}`"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_path_it_links_to_exists(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize(("goal", "told"), [([], True), (["env"], True), (["rehearsal"], False)])
def test_make_alone_ends_with_what_to_type_next(goal: list[str], *, told: bool) -> None:
    words = ["make", "-n", *goal]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True)
    assert ("pyinfra inventory deploy.py --dry" in done.stdout) is told
