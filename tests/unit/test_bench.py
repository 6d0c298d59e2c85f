"""What a benchmark on the box keeps as it goes, without a server: each measurement is made up."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aibox.box import bench, bench_quality, job, prove, surroundings
from aibox.box.job import JobError, Progress
from aibox.box.probe import files
from aibox.decide import bench_plan, bench_report
from aibox.decide.bench_plan import Asked
from aibox.decide.vram import Card
from tests.unit.made_reports import point

ASKED = {"mode": "seed", "drafts": "now", "runs": "1"}
GOOD: dict[str, Any] = {
    **{"unit": "vllm-coder.service", "text": "[Service]\n", "model": "m", "commit": "c" * 40},
    **{"release_id": "0.31.0-aaaaaaaa", "flags": {}, "weights": "/nowhere", "port": 1},
    **{"context": 4096, "head": None, "card_file": "", "release": "/opt/r"},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of the job, on a box where one server serves."""

    @contextmanager
    def lending(_service: object, _good: object, progress: Progress) -> Iterator[Any]:
        yield SimpleNamespace(progress=progress, serve=lambda _candidate: None)

    monkeypatch.setattr(job, "FOLDER", tmp_path)
    monkeypatch.setattr(job, "is_active", lambda _name: False)
    monkeypatch.setattr(bench, "standing", lambda _progress: (None, GOOD))
    monkeypatch.setattr(bench, "lending", lending)
    monkeypatch.setattr(prove, "exposition", lambda _port: "")
    made = tmp_path / "bench"
    made.mkdir()
    (made / "spec.json").write_text(json.dumps({"verb": "bench", "asked": ASKED}))
    return made


def run(folder: Path) -> dict[str, Any]:
    """Do it as the job does, and look at it."""
    assert job.work("bench", {"bench": bench.bench}, folder.parent) in (0, 1)
    return job.look("bench")


def made_up(_asked: object, point_: Any, *_more: object) -> dict[str, Any]:
    return {**point([20.0]), **asdict(point_)}


def test_what_went_to_its_end_is_whole(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench, "one_point", made_up)
    look = run(folder)
    found = bench_report.left_by(look, ASKED, look["result"]["report"]["unit"])
    assert found is not None
    assert bench_report.is_whole(found)
    assert len(bench_report.rows(found)) == 2
    assert look["kept"] is None


def test_where_nothing_could_be_measured_the_report_is_not_whole(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_words: object) -> None:
        raise JobError("`vllm bench serve` ended with exit code 2", "a measurement", "look")

    monkeypatch.setattr(bench, "one_point", fails)
    found = run(folder)["result"]["report"]
    assert found["whole"] is False
    assert "exit code 2" in found["servers"][0]["notes"][0]


def test_each_point_is_kept_also_where_an_unforeseen_fault_ends_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def first_only(asked: object, point_: Any, *more: object) -> dict[str, Any]:
        if point_.kind == "prose":
            raise KeyError("choices")
        return made_up(asked, point_, *more)

    monkeypatch.setattr(bench, "one_point", first_only)
    with pytest.raises(KeyError):
        run(folder)
    look = job.look("bench")
    assert not look["result"]["ok"]
    found = bench_report.left_by(look, ASKED, look["kept"]["unit"])
    assert found is not None
    assert not bench_report.is_whole(found)
    assert [row.kind for row in bench_report.rows(found)] == ["code"]


def test_a_server_that_is_not_given_back_costs_no_figure(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def lending(_service: object, _good: object, progress: Progress) -> Iterator[Any]:
        yield SimpleNamespace(progress=progress, serve=lambda _candidate: None)
        raise JobError("vllm-coder, which served before, does not", "a server", "look")

    monkeypatch.setattr(bench, "lending", lending)
    monkeypatch.setattr(bench, "one_point", made_up)
    look = run(folder)
    assert "does not" in look["result"]["refusal"]["found"]
    assert len(bench_report.rows(look["kept"])) == 2


def test_who_asks_beside_a_benchmark_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def disturbed(*words: Any) -> dict[str, Any]:
        made = made_up(*words)
        return {**made, "counted": {**made["counted"], "generation_tokens": 1600}}

    monkeypatch.setattr(bench, "one_point", disturbed)
    notes = run(folder)["result"]["notes"]
    assert len(notes) == 2
    assert "no drafts, code, 1 stream: the server wrote 1,600 tokens" in notes[0]


FIRST, SECOND = "GPU-11111111", "GPU-22222222"


@pytest.mark.parametrize(
    ("uuid", "name", "pci"),
    [
        (None, "one", "10de:2bb1"),  # the only card, as far as the settings know
        (FIRST, "one", "10de:2bb1"),
        (SECOND, "other", "10de:2bb5"),
        ([FIRST, SECOND], "one, other", "10de:2bb1"),
        ("GPU-33333333", None, None),
    ],
)
def test_the_card_is_the_one_that_serves(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    uuid: str | list[str] | None,
    name: str | None,
    pci: str | None,
) -> None:
    cards = (Card(0, "one", FIRST, None, None, None), Card(1, "other", SECOND, None, None, None))
    monkeypatch.setattr(surroundings, "cards_now", lambda: (cards, None))
    monkeypatch.setattr(files, "ROOT", tmp_path)
    on_the_bus = (("0000:01:00.0", "0x2bb1", FIRST), ("0000:41:00.0", "0x2bb5", SECOND))
    for slot, device, its_uuid in on_the_bus:
        for path, text in (
            (f"sys/bus/pci/devices/{slot}/vendor", "0x10de\n"),
            (f"sys/bus/pci/devices/{slot}/class", "0x030200\n"),
            (f"sys/bus/pci/devices/{slot}/device", f"{device}\n"),
            (f"proc/driver/nvidia/gpus/{slot}/information", f"GPU UUID: \t {its_uuid}\n"),
        ):
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(text)
    asked = bench_plan.read(ASKED)
    assert isinstance(asked, Asked)
    told = bench.about(asked, {**GOOD, "gpu_uuid": uuid}, ASKED)
    assert (told["gpu"], told["pci"], told["tensor"]) == (name, pci, 1)


def test_cards_of_one_kind_are_counted() -> None:
    assert bench.gpu_named(["a", "b", "a"]) == "2 × a, b"
    assert bench.gpu_named([]) is None


@pytest.mark.parametrize("answer", [{}, {"choices": []}, {"choices": [{"message": {}}]}, [], "no"])
def test_what_is_no_answer_is_told(answer: Any) -> None:
    with pytest.raises(JobError, match="the prompt p7 was answered with"):
        bench_quality.taken(answer, {"id": "p7"})
