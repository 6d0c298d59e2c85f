"""What control does with the report that a benchmark on a box has left, without a box."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyinfra.api.exceptions import PyinfraError

from aibox.decide import bench_plan
from aibox.decide.bench_plan import Asked
from tasks import fleet, measuring, page, watching
from tests.unit.made_reports import his, report, server

WHOLE, BROKEN = his(), {**his(), "whole": False}


class Box(SimpleNamespace):
    """One whose answers are given: what is there before the job, and after it."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, *there: Any, went_well: bool = True
    ) -> None:
        super().__init__(connector_data={}, said=[], jobs=0, there=list(there))
        monkeypatch.setattr(measuring, "run_job", self.run_job)
        monkeypatch.setattr(measuring, "report_of", self.report_of)
        monkeypatch.setattr(measuring, "landed", lambda *_: [measuring.REPORTS / "a.json"])
        monkeypatch.setattr(measuring, "say_refusal", lambda _, refusal: self.said.append(refusal))
        self.went_well = went_well

    def run_job(self, *_words: object, **_more: object) -> bool:
        self.jobs += 1
        return self.went_well

    def report_of(self, *_words: object) -> Any:
        found = self.there.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    def bring(self) -> bool:
        host: Any = self
        return measuring.bring(host, host, {})

    def came_to_its_end(self) -> bool:
        host: Any = self
        return measuring.came_to_its_end(host, host)


@pytest.mark.parametrize(
    ("gateways", "settings", "labels"),
    [
        (["a"], {"a": ("coder",), "b": ("coder", "x")}, ["together", "requests", "first", "after"]),
        (["a"], {"a": ("coder",), "b": ("other",)}, []),
        (["a"], None, []),  # which are wrong: a benchmark asks none
        ([], {"a": ("coder",), "b": ("coder",)}, []),
    ],
)
def test_the_plan_says_where_gateways_ask_the_box_too(
    monkeypatch: pytest.MonkeyPatch, gateways: list[str], settings: Any, labels: list[str]
) -> None:
    def settings_of_all_boxes() -> Any:
        if settings is None:
            raise PyinfraError("the settings are wrong")
        return {box: SimpleNamespace(models=models) for box, models in settings.items()}

    boxes = [SimpleNamespace(name=name) for name in ("a", "b")]
    run = SimpleNamespace(inventory=boxes, is_host_in_limit=lambda _: True)
    monkeypatch.setattr(measuring, "host", boxes[0])
    monkeypatch.setattr(measuring, "state", run)
    monkeypatch.setattr(measuring, "settings_of_all_boxes", settings_of_all_boxes)
    monkeypatch.setattr(watching, "boxes", lambda: boxes)
    monkeypatch.setattr(fleet, "seen", lambda _, settings: settings)
    named = [one for one in boxes if one.name in gateways]
    monkeypatch.setattr(fleet, "gateways", lambda: named)
    asked = bench_plan.read({"mode": "quality"})
    assert isinstance(asked, Asked)
    assert [label for label, _ in measuring.beside_gateways(asked)] == labels


def test_what_is_there_already_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    box = Box(monkeypatch, WHOLE)
    assert box.bring()
    assert box.came_to_its_end()
    assert (box.jobs, box.said) == (0, [])


@pytest.mark.parametrize(
    ("there", "went_well"), [([BROKEN], True), ([None, BROKEN], False)], ids=["stopped", "failed"]
)
def test_what_was_measured_by_then_is_brought_and_the_run_fails(
    monkeypatch: pytest.MonkeyPatch, there: list[Any], went_well: bool
) -> None:
    box = Box(monkeypatch, *there, went_well=went_well)
    assert box.bring()
    assert measuring.LANDED in box.connector_data
    assert not box.came_to_its_end()
    assert [str(Path("reports/a.json")) in refusal.found for refusal in box.said] == [True]


def test_a_benchmark_that_measured_nothing_is_brought_and_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    box = Box(monkeypatch, None, report("seed", server(2), server(0)))
    assert box.bring()
    assert measuring.LANDED in box.connector_data
    assert not box.came_to_its_end()
    assert [refusal.found for refusal in box.said] == ["nothing was measured"]


@pytest.mark.parametrize("after", [None, ConnectionError("gone")])
def test_a_job_that_failed_has_said_why(monkeypatch: pytest.MonkeyPatch, after: Any) -> None:
    box = Box(monkeypatch, None, after, went_well=False)
    assert not box.bring()
    assert box.said == []


@pytest.mark.parametrize("after", [None, ConnectionError("gone")])
def test_a_report_that_can_not_be_had_is_said(monkeypatch: pytest.MonkeyPatch, after: Any) -> None:
    box = Box(monkeypatch, None, after)
    assert not box.bring()
    assert "could not be brought here" in box.said[0].found


@pytest.mark.parametrize(("columns", "rows"), [(80, 5), (None, 1)])
def test_only_a_terminal_breaks_rows_at_its_width(
    monkeypatch: pytest.MonkeyPatch, columns: int | None, rows: int
) -> None:
    monkeypatch.setattr(page, "columns", lambda: columns)
    text = "# T\n\n- " + "word " * 60
    found = measuring.shown(text, "box")
    assert (len(found[2:]), max(map(len, found)) > 100) == (rows, columns is None)
