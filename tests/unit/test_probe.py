"""What the probe says of files and folders, and that it needs nothing but Python itself."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aibox.box import probe
from tests.unit.conftest import ROOT


def test_it_runs_from_standard_input_on_a_bare_python() -> None:
    asked = {"folders": ["/nowhere/at/all"], "ports": [1], "sizes": {"x": ["/nowhere"]}}
    done = subprocess.run(
        [sys.executable, "-IS", "-", "system", json.dumps(asked)],
        input=(ROOT / "aibox/box/probe.py").read_text(),
        capture_output=True,
        text=True,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert answer["python"] == f"{sys.version_info.major}.{sys.version_info.minor}"
    assert answer["root"] == (os.geteuid() == 0)
    assert answer["disks"]["/nowhere/at/all"]["mount"] == "/"
    assert answer["ports"] == {"1": None}
    assert answer["sizes"] == {"x": 0}


def test_a_folder_that_is_not_there_lies_on_its_parents_disk(tmp_path: Path) -> None:
    found = probe.disk(str(tmp_path / "a/b/c"))
    assert found == {**probe.disk(str(tmp_path)), "free_bytes": found["free_bytes"]}
    assert found["filesystem"] == str(tmp_path.stat().st_dev)
    assert found["free_bytes"] > 0


@pytest.mark.parametrize("content", [None, "", "[1]", '"x"', "{"])
def test_a_release_without_its_record_is_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "release.json").write_text(content)
    assert probe.release({"folder": str(tmp_path)}) is None


def test_a_release_is_its_record(tmp_path: Path) -> None:
    (tmp_path / "release.json").write_text('{"version": "1"}')
    assert probe.release({"folder": str(tmp_path)}) == {"version": "1"}


def test_every_file_of_the_weights_is_seen(tmp_path: Path) -> None:
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep/x").write_text("12345")
    (tmp_path / ".verified.json").write_text('{"files": {}}')
    status = (tmp_path / "deep/x").stat()
    assert probe.weights({"folder": str(tmp_path)}) == {
        "seen": {"deep/x": [5, status.st_mtime_ns, status.st_ino]},
        "verified": {"files": {}},
    }


def test_weights_that_are_not_there_are_nothing(tmp_path: Path) -> None:
    nothing: dict[str, Any] = {"seen": {}, "verified": None}
    assert probe.weights({"folder": str(tmp_path / "none")}) == nothing


def test_sizes_are_what_the_disk_holds(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(os.urandom(100_000))
    found = probe.size_of([str(tmp_path / "x"), str(tmp_path / "none")])
    assert 100_000 <= found < 200_000


def test_a_process_is_its_command_environment_and_start() -> None:
    words = [sys.executable, "-c", "print(flush=True); input()", 'say "x"', "", "ünï"]
    environment, pipe = {"A": "b=c", "EMPTY": ""}, subprocess.PIPE
    with subprocess.Popen(words, env=environment, stdin=pipe, stdout=pipe) as running:
        assert running.stdout is not None
        running.stdout.readline()  # it runs
        found = probe.process(running.pid, "Sun 2026-11-29 16:31:02.500000 UTC")
        running.communicate(b"end\n")
    assert found is not None
    assert found["command"] == words
    assert environment.items() <= found["environment"].items()
    assert found["started"] == 1795969862.5


@pytest.mark.parametrize("started", ["", "n/a"])
def test_a_process_without_a_start_is_none(started: str) -> None:
    assert probe.process(os.getpid(), started) is None


def test_a_file_that_is_gone_has_no_stamp(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    found = probe.file_stamp(str(tmp_path / "x"))
    assert found is not None
    assert found["changed"] == (tmp_path / "x").stat().st_mtime
    assert probe.file_stamp(str(tmp_path / "none")) is None
    assert probe.file_stamp("") is None
