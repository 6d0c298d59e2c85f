"""The timer on control: two unit files that systemd accepts, put there and taken away again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.conftest import ROOT

FOLDER = "systemd/user"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A configuration folder of our own, and a systemctl that only writes down what it is told."""
    programs = tmp_path / "bin"
    programs.mkdir()
    stand_in(programs, 'echo "$@" >>"$(dirname "$0")/told"')
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{programs}:/usr/bin:/bin")
    return tmp_path


def stand_in(programs: Path, script: str) -> None:
    (programs / "systemctl").write_text(f"#!/bin/sh\n{script}\n")
    (programs / "systemctl").chmod(0o755)


def timer(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tasks.drift", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_it_is_installed_with_the_checks_own_options_and_says_what_it_needs(home: Path) -> None:
    done = timer("--install-timer", "--limit", "a b%c", "--textfile", str(home / "x.prom"))
    assert done.returncode == 0, done.stderr
    for needed in ("without a passphrase", "sudo that asks for no password", "enable-linger"):
        assert needed in done.stdout
    service = (home / FOLDER / "aibox-drift.service").read_text()
    assert f'-m tasks.drift --limit "a b%%c" --textfile {home}/x.prom\n' in service
    assert f"WorkingDirectory={ROOT}\n" in service
    assert (home / "bin/told").read_text().splitlines() == [
        "--user daemon-reload",
        "--user enable --now aibox-drift.timer",
    ]
    paths = [str(home / FOLDER / f"aibox-drift.{kind}") for kind in ("service", "timer")]
    verified = subprocess.run(
        ["systemd-analyze", "verify", "--user", *paths], capture_output=True, text=True, check=False
    )
    assert "aibox-drift" not in verified.stderr, verified.stderr


def test_it_is_taken_away(home: Path) -> None:
    timer("--install-timer")
    done = timer("--remove-timer")
    assert done.returncode == 0, done.stderr
    assert list((home / FOLDER).iterdir()) == []
    assert "--user disable --now aibox-drift.timer" in (home / "bin/told").read_text()


def test_without_a_systemd_of_ones_own_it_is_refused(home: Path) -> None:
    stand_in(home / "bin", "echo 'Failed to connect to bus' >&2; exit 1")
    done = timer("--install-timer")
    assert done.returncode == 1
    assert done.stderr.splitlines()[0] == "found     Failed to connect to bus"
    assert "Traceback" not in done.stderr


@pytest.mark.usefixtures("home")
def test_one_cannot_install_and_remove_at_once() -> None:
    assert timer("--install-timer", "--remove-timer").returncode == 1
