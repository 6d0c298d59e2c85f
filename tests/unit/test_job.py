"""A job's folder: what it is asked, how far it is, how it ended."""

import errno
import json
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from aibox.box.job import JobError, Progress, Spec, read, refusal_of, work, write_whole


def test_a_file_is_replaced_in_one_step(tmp_path: Path) -> None:
    file = tmp_path / "record.json"
    file.write_text("old")
    write_whole(file, "new", mode=0o600)
    assert file.read_text() == "new"
    assert file.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("content", [None, "", "{", "\0"])
def test_what_is_no_record_is_none(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "x").write_text(content)
    assert read(tmp_path / "x") is None


def reported(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "progress.json").read_text())
    return found


def test_a_step_begins_with_nothing_done(tmp_path: Path) -> None:
    Progress(tmp_path).step("verifying")
    report = reported(tmp_path)
    assert report.pop("seconds") < 1
    nothing = {"done": None, "total": None, "unit": "", "rate": None, "last": None}
    assert report == {"step": "verifying", **nothing}


def test_the_rate_counts_from_where_the_step_began(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.step("downloading")
    progress.say(1000, 9000, "bytes")  # there from an earlier run
    assert reported(tmp_path)["rate"] is None
    progress.began = time.time() - 10
    progress.say(5000, 9000, "bytes")
    report = reported(tmp_path)
    assert report["rate"] == pytest.approx(400, rel=0.05)
    assert (report["done"], report["total"], report["unit"]) == (5000, 9000, "bytes")
    assert report["seconds"] == pytest.approx(10, abs=0.5)


def test_a_new_step_forgets_the_last_ones_rate(tmp_path: Path) -> None:
    progress = Progress(tmp_path)
    progress.began -= 10
    progress.say(1000, 2000)
    progress.step("verifying")
    progress.say(0, 2000)
    assert reported(tmp_path)["rate"] is None


def done(spec: Spec, progress: Progress) -> dict[str, Any]:
    progress.step("at it")
    return {"folder": spec["folder"]}


def refuse(_spec: Spec, _progress: Progress) -> dict[str, Any]:
    raise JobError("this", "that", "so")


def fill_the_disk(_spec: Spec, _progress: Progress) -> dict[str, Any]:
    raise OSError(errno.ENOSPC, "No space left on device", "/srv/models")


def fail_a_command(_spec: Spec, _progress: Progress) -> dict[str, Any]:
    raise subprocess.CalledProcessError(3, ["sync", Path("/srv")])


VERBS = {"done": done, "refuse": refuse, "disk": fill_the_disk, "command": fail_a_command}


def outcome(folder: Path, verb: str) -> tuple[int, Any]:
    job = folder / "weights"
    job.mkdir()
    (job / "spec.json").write_text(json.dumps({"verb": verb, "folder": "/srv/x"}))
    code = work("weights", VERBS, folder)
    return code, json.loads((job / "result.json").read_text())


def test_work_leaves_its_result_behind(tmp_path: Path) -> None:
    assert outcome(tmp_path, "done") == (0, {"ok": True, "folder": "/srv/x"})
    assert reported(tmp_path / "weights")["step"] == "at it"


@pytest.mark.parametrize(
    ("verb", "found"),
    [
        ("refuse", "this"),
        ("disk", "no space left on the disk at /srv/models"),
        ("command", "`sync /srv` ended with 3"),
    ],
)
def test_work_that_fails_says_why(tmp_path: Path, verb: str, found: str) -> None:
    code, result = outcome(tmp_path, verb)
    assert (code, result["ok"]) == (1, False)
    assert result["refusal"]["found"] == found
    assert all(result["refusal"][key] for key in ("expected", "remedy"))


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (PermissionError(errno.EACCES, "Permission denied", "/x"), "Permission denied at /x"),
        (OSError("odd"), "odd"),
        (JobError("a", "b", "c"), "a"),
    ],
)
def test_a_failure_is_put_in_words(error: OSError | JobError, found: str) -> None:
    assert refusal_of(error).found == found
