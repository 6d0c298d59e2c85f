"""Words of `--data` that no program knows, refused in words before a box is asked."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tasks import given_words
from tests.unit.conftest import ROOT


def said_of(program: str, *given: str) -> str:
    options = {"operations": (str(ROOT / program),), "data": given}
    return str(given_words.refusal_of(options) or "")


@pytest.mark.parametrize(
    ("program", "given", "words"),
    [
        ("tasks/bench.py", "mod=seed", "do        --data mode=seed"),
        ("tasks/bench.py", "drafst=0", "do        --data drafts=0"),
        ("tasks/bench.py", "contxt=1K", "did you mean context?"),
        ("tasks/rollback.py", "too=found", "do        --data to=found"),
        ("tasks/teardown.py", "remove_wieghts=true", "did you mean remove_weights?"),
        ("tasks/teardown.py", "wieghts=keep", "expected  NAME=VALUE, NAME being remove_weights, "),
        ("tasks/teardown.py", "mode=seed", "--data mode=seed: an unknown word"),
        ("tasks/rotation.py", "to=found", "do        leave --data to=found out"),
        ("deploy.py", "modell=x", "do        --data model=x"),
        ("deploy.py", "runs=3", "--data runs=3: an unknown word"),
        ("deploy.py", "scrape_address=h", "did you mean box_address?"),
        ("deploy.py", "model", "--data model: no value; did you mean model?"),
    ],
)
def test_a_word_that_a_program_does_not_know_is_refused(
    program: str, given: str, words: str
) -> None:
    assert words in said_of(program, given)


@pytest.mark.parametrize(
    ("program", "given"),
    [
        ("tasks/bench.py", "mode=cross"),
        ("tasks/bench.py", "prefix_caching=off,on"),
        ("tasks/rollback.py", "to=2"),
        ("tasks/teardown.py", "remove_driver=true"),
        ("tasks/teardown.py", "models_folder=/srv/models"),
        ("tasks/rotation.py", "pipelining=False"),
        ("deploy.py", "retry_failed=true"),
        ("deploy.py", "reboot_while_serving=true"),  # as a roll says it
        ("deploy.py", "ssh_user=me"),
        ("deploy.py", "_mine=1"),
        ("tests/anything.py", "any=word"),  # a deploy file of somebody's own
    ],
)
def test_words_that_are_known_go_through(program: str, given: str) -> None:
    assert said_of(program, given) == ""


def test_every_fault_comes_at_once() -> None:
    said = said_of("tasks/bench.py", "mod=seed", "runs=3", "drafst=0")
    assert "--data mod=seed" in said and "--data drafst=0" in said
    assert "--data runs=3" not in said


def test_every_program_that_has_words_of_its_own_is_there() -> None:
    assert all((ROOT / program).is_file() for program in given_words.OWN)


@pytest.mark.parametrize("given", ["mod=seed", "mode"])
def test_a_run_ends_before_it_looks_for_a_box(given: str) -> None:
    program = Path(sys.executable).with_name("pyinfra")
    words = [str(program), "inventory", "tasks/bench.py", "-y", "--data", given]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    said = done.stdout + done.stderr
    assert done.returncode == 1, said
    assert "did you mean mode?" in said and "Traceback" not in said, said
    assert "Connecting" not in said, said
