"""What makes a release exist, and which stay: tables."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aibox.box import remove
from aibox.box.job import JobError, Progress
from aibox.decide.releases import (
    Standing,
    kept,
    modules_to_import,
    proof_refusal,
    served,
    served_now,
    superfluous,
)

WELL = {"version": "0.31.0", "failed": {}, "torch": True, "cuda": "13.0"}


@pytest.mark.parametrize(
    ("change", "cuda", "said"),
    [
        ({}, "13.0", None),
        ({"version": "0.30.0"}, "13.0", "vllm 0.30.0 in the venv"),
        ({"version": None}, "13.0", "vllm absent in the venv"),
        ({"failed": {"torch": "OSError: libcuda"}}, "13.0", "import torch: OSError: libcuda"),
        ({"cuda": "13.2"}, "13.0", "torch built for CUDA 13.2, and a toolkit of CUDA 13.0"),
        ({"cuda": None}, "13.0", "torch built for CUDA (none)"),
        ({"cuda": None, "torch": False}, "13.0", None),  # the stand-in has no torch
        ({"cuda": "13.2"}, None, None),  # a release without CUDA has no toolkit
    ],
)
def test_what_the_new_python_said(change: dict[str, Any], cuda: str | None, said: str) -> None:
    refusal = proof_refusal(WELL | change, "0.31.0", cuda)
    assert (refusal is None) if said is None else (refusal and said in refusal.found)


def test_what_is_imported_follows_from_the_lock() -> None:
    assert modules_to_import({"vllm": "1", "other": "2"}) == ["vllm"]
    locked = {"flashinfer-python": "1", "prometheus-client": "2", "vllm": "3", "torch": "4"}
    assert modules_to_import(locked) == ["vllm", "torch", "flashinfer", "prometheus_client"]


@pytest.mark.parametrize(
    ("record", "names"),
    [
        (None, []),
        ({}, []),
        ({"served": "a"}, []),
        ({"served": ["b", 7, "a"]}, ["b", "a"]),
    ],
)
def test_what_has_served(record: dict[str, Any] | None, names: list[str]) -> None:
    assert served(record) == names


def test_a_proof_writes_down_what_served_before() -> None:
    assert served_now(None, "a") == ["a"]
    assert served_now({"served": ["b", "a"]}, "c") == ["c", "b", "a"]
    assert served_now({"served": ["b", "a"]}, "a") == ["a", "b"]
    assert len(served_now({"served": [str(one) for one in range(50)]}, "a")) == 10


def standing(**made: float | None) -> list[Standing]:
    return [Standing(name, when) for name, when in made.items()]


@pytest.mark.parametrize(
    ("made", "current", "proven", "named", "gone"),
    [
        ({}, "a", [], {}, []),
        ({"a": 1}, "a", ["a"], {}, []),
        ({"a": 1, "b": 2}, "b", ["b", "a"], {}, []),
        ({"a": 1, "b": 2, "c": 3}, "c", ["c", "b", "a"], {}, ["a"]),
        # last good's, or what else a record names, stays as well
        ({"a": 1, "b": 2, "c": 3}, "c", ["c", "b", "a"], {"a": "last good"}, []),
        # the way back: the previous one is what ran before, and not the older one
        ({"a": 1, "b": 2, "c": 3}, "a", ["a", "c", "b"], {}, ["b"]),
        # made after the current one and never served: somebody tries it
        ({"a": 1, "b": 2}, "a", ["a"], {}, []),
        ({"a": 1, "b": 2, "c": 3}, "c", ["c", "a"], {}, ["b"]),
        # a record that knows nothing: the newest other one is the previous
        ({"a": 1, "b": 2, "c": 3}, "c", [], {}, ["a"]),
        ({"a": 1, "b": 2, "c": 3}, "c", ["gone", "c"], {}, ["a"]),
        # in a plan, before the current one is built: nothing is known to be older
        ({"a": 1, "b": 2}, "c", ["b", "a"], {}, ["a"]),
        ({"a": 1, "b": 2}, "c", [], {}, []),
        # without a record: not ours, or never whole
        ({"a": None, "b": 2}, "b", ["b"], {}, []),
        (
            {".building-a": None, ".removing-c": 1, "b": 2},
            "b",
            [],
            {},
            [".building-a", ".removing-c"],
        ),
    ],
)
def test_which_releases_go(
    made: dict[str, float | None],
    current: str,
    proven: list[str],
    named: dict[str, str],
    gone: list[str],
) -> None:
    found = superfluous(standing(**made), current, proven, named)
    assert found == gone
    assert not set(found) & kept(standing(**made), current, proven, named).keys()


def test_why_each_stays() -> None:
    there = standing(a=1, b=2, c=3)
    assert kept(there, "c", ["c", "b"], {"a": "last good"}) == {
        "a": "last good",
        "b": "previous",
        "c": "current",
    }


def folder_of(tmp_path: Path, *names: str) -> Path:
    for name in names:
        (tmp_path / "releases" / name / "lib").mkdir(parents=True)
        (tmp_path / "releases" / name / "lib/a.py").write_text("a")
    return tmp_path / "releases"


def test_releases_are_removed_and_others_left(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "old", "new", ".building-x")
    spec = {"folder": str(folder), "names": ["old", ".building-x", "never-there"]}
    assert remove.releases(spec, Progress(tmp_path)) == {"removed": ["old", ".building-x"]}
    assert [path.name for path in folder.iterdir()] == ["new"]


def test_a_release_in_use_is_not_removed(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "old", "used")
    words = [sys.executable, "-c", "input()", str(folder / "used/lib/a.py")]
    with subprocess.Popen(words, stdin=subprocess.PIPE) as process:
        with pytest.raises(JobError) as caught:
            remove.releases({"folder": str(folder), "names": ["old", "used"]}, Progress(tmp_path))
        process.communicate(b"\n")
    assert f"process {process.pid}" in str(caught.value)
    assert sorted(path.name for path in folder.iterdir()) == ["old", "used"]
