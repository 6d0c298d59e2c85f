"""Whether a benchmark is at work on the server, and whether one has left something behind."""

from __future__ import annotations

from pathlib import Path

import pytest

from aibox.box import job, lent


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(lent, "RECORD", tmp_path / "lent.json")
    monkeypatch.setattr(job, "FOLDER", tmp_path)
    monkeypatch.setattr(job, "is_active", lambda _name: False)
    return tmp_path


def test_without_a_benchmark_nothing_is_known(run: Path) -> None:
    assert run.is_dir()
    assert (lent.is_at_work(), lent.is_known()) == (False, False)


def test_a_lent_server_is_known(run: Path) -> None:
    (run / "lent.json").write_text("{}")
    assert (lent.is_at_work(), lent.is_known()) == (True, True)


def test_a_report_that_nobody_has_fetched_is_known(run: Path) -> None:
    (run / lent.JOB).mkdir()
    assert (lent.is_at_work(), lent.is_known()) == (False, True)


def test_a_benchmark_of_the_installed_server_is_at_work(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job, "is_active", lambda name: name == lent.JOB)
    assert (lent.is_at_work(), lent.is_known()) == (True, True)
    assert not (run / "lent.json").exists()
