"""What a deploy would refuse is told by the look before a roll, while every box still serves."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from aibox.decide.foreign import Sorted
from aibox.decide.refusal import Refusal
from tasks import drift_report, plan
from tasks.drift_report import FOLDER, JUDGES
from tasks.server import SWITCH

REFUSAL = Refusal("max-num-sqs: no flag of this vLLM", "a flag of it", "write max-num-seqs")
SERVER = f"Server | vllm-coder.service {SWITCH}"


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """One whose server is to be started anew, in a check; its release refuses the new flags."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    monkeypatch.setattr(drift_report, "_told", {})
    refused = {"ok": False, "refusal": vars(REFUSAL)}
    one = SimpleNamespace(name="a", get_fact=lambda *_, **__: refused)
    names = {"h1": ["Base | Packages"], "h2": [SERVER]}
    made = SimpleNamespace(
        is_executing=False,
        inventory=[one],
        ops=OfAnyBox(names),
        op_meta={key: SimpleNamespace(names=told) for key, told in names.items()},
    )
    for module in (plan, drift_report):
        monkeypatch.setattr(module, "state", made)
    monkeypatch.setattr(plan, "host", one)
    monkeypatch.setattr(plan, "due_operations", lambda: {SERVER})
    monkeypatch.setattr(plan, "failed_before", lambda _box: None)
    monkeypatch.setattr(plan, "unit_text", lambda _box: "")
    due = SimpleNamespace(restart=True)
    monkeypatch.setattr(plan, "what_is_due", lambda _box, _text: (due, None))
    return one


class OfAnyBox(dict[str, Any]):
    """pyinfra's operations by host, for one host."""

    def __getitem__(self, _box: object) -> Any:
        return dict(self)


def reasons(box: Any, folder: Path) -> dict[str, Any]:
    plan.shown(SimpleNamespace(candidate_spec={}))  # type: ignore[arg-type]
    drift_report.write(box, Sorted((), (), ()))
    told: dict[str, Any] = json.loads((folder / "0.json").read_text())["reasons"]
    return told


def test_what_would_be_refused_stands_in_the_report_of_its_operation(
    box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JUDGES, "1")
    (told,) = reasons(box, tmp_path)["h2"]
    assert told["refused"] is True
    assert told["diff"] == str(REFUSAL).splitlines()


def test_a_check_that_nothing_follows_asks_no_release(box: Any, tmp_path: Path) -> None:
    assert reasons(box, tmp_path) == {}


def test_a_release_that_is_still_to_be_built_is_not_asked(
    box: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(JUDGES, "1")
    monkeypatch.setattr(plan, "due_operations", lambda: {SERVER, "Release | vLLM 0.31.0-1"})
    assert reasons(box, tmp_path) == {}
