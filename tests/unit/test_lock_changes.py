"""What a renewal of the locks says it changed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from aibox.decide.locks import changes, report
from tasks import lock_changes
from tests.unit.conftest import ROOT

OLD = "a==1 \\\n    --hash=sha256:0a\nb[x]==1 ; os_name == 'nt' \\\n    --hash=sha256:0b\n"
NEW = "a==2 \\\n    --hash=sha256:1a\nb[x]==1 ; os_name == 'nt' \\\n    --hash=sha256:1b\nc_d==3\n"


def test_each_package_that_changed_is_named() -> None:
    assert [str(one) for one in changes(OLD, NEW)] == [
        "a 1 → 2",
        "b 1: other files (hashes) of the same version",
        "c-d (none) → 3",
    ]
    assert str(changes(NEW, "")[0]) == "a 2 → (none)"
    assert changes(OLD, f"# a comment\n{OLD}") == []


def test_two_versions_of_one_package() -> None:
    two = "a==1 ; python_version < '3.12'\na==2 ; python_version >= '3.12'\n"
    assert [str(one) for one in changes("a==1\n", two)] == ["a 1 → 1 and 2"]


def test_a_change_that_locks_share_is_said_once() -> None:
    assert report(
        {"p.txt": "a==1\n", "q.txt": "a==1\n"}, {"p.txt": "a==2\n", "q.txt": "a==2\n"}
    ) == [
        "p.txt, q.txt:",
        "  a 1 → 2",
    ]
    assert report({"p.txt": OLD}, {"p.txt": OLD}) == ["the locks are as they were"]


def test_the_real_locks_are_read_whole() -> None:
    text = (ROOT / "group_data/locks/vllm-0.31.0-py311.txt").read_text()
    assert len(changes("", text)) > 150


def test_against_git(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    locks = tmp_path / "locks"
    locks.mkdir()
    (locks / "p.txt").write_text(OLD)
    git = ["git", "-C", str(tmp_path), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "x"]):
        subprocess.run([*git, *words], check=True, capture_output=True)
    (locks / "p.txt").write_text(NEW)
    (locks / "new.txt").write_text("d==1\n")
    assert lock_changes.main([str(locks)]) == 0
    said = capsys.readouterr().out
    assert "p.txt:\n  a 1 → 2\n" in said
    assert "new.txt:\n  d (none) → 1\n" in said


def test_without_git_it_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert lock_changes.main([str(tmp_path)]) == 1
    assert "git does not say" in capsys.readouterr().err
    assert lock_changes.main([]) == 1
