"""What the box remembers of its server, on a disk."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aibox.box import found, good_units
from aibox.box.good_units import sum_of
from aibox.decide.memory_account import Account
from tests.unit.passed import passed


@pytest.fixture(autouse=True)
def state(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    folder = tmp_path / "server"
    monkeypatch.setattr(good_units, "SERVER_STATE", folder)
    monkeypatch.setattr(found, "STATE", folder)
    return folder


def spec(text: str = "[Unit]\n", **more: Any) -> dict[str, Any]:
    return {"unit": "vllm-coder.service", "text": text, **more}


def test_a_unit_is_kept_with_all_that_its_gate_asks(state: Path) -> None:
    good_units.keep(spec(restart=True, retry=True, how="rollback", verb="back", port=8000))
    name = sum_of("[Unit]\n")
    assert good_units.kept(name) == spec(port=8000)  # not what only one run was told
    assert (state / f"units/{name}.service").read_text() == "[Unit]\n"


def test_one_that_is_not_whole_is_not_there(state: Path) -> None:
    good_units.keep(spec())
    name = sum_of("[Unit]\n")
    (state / f"units/{name}.json").write_text(json.dumps(spec("another")))
    assert good_units.kept(name) is None
    (state / f"units/{name}.json").write_text("{")
    assert good_units.kept(name) is None
    assert good_units.kept("0" * 64) is None


def test_only_what_the_history_names_is_kept(state: Path) -> None:
    good_units.keep(spec("old"))
    good_units.keep(spec("new"))
    good_units.mark_good(passed("a", sha256=sum_of("new")))
    assert {path.stem for path in (state / "units").iterdir()} == {sum_of("new")}
    assert [entry.sha256 for entry in good_units.passed()] == [sum_of("new")]


def test_what_has_passed_has_no_longer_failed() -> None:
    good_units.remember_failure("a" * 64, {"when": 1.0})
    good_units.remember_failure("b" * 64, {"when": 2.0})
    good_units.mark_good(passed("a"))
    assert good_units.failures() == {"b" * 64: {"when": 2.0}}


def test_the_last_failures_are_remembered() -> None:
    for number in range(30):
        good_units.remember_failure(str(number), {"when": number})
    good_units.remember_failure("12", {"when": 99})
    names = list(good_units.failures())
    assert len(names) == good_units.MOST_FAILED
    assert names[-1] == "12"
    assert "9" not in names


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"a": 1}', "null"])
def test_records_that_cannot_be_read_are_none(state: Path, content: str) -> None:
    state.mkdir()
    for name in ("history.json", "failed.json"):
        (state / name).write_text(content)
    assert good_units.passed() == []
    assert not [value for value in good_units.failures().values() if not isinstance(value, int)]


def test_what_is_still_there(tmp_path: Path) -> None:
    release, weights = tmp_path / "release", tmp_path / "weights"
    for folder, record in ((release, "release.json"), (weights, ".verified.json")):
        folder.mkdir()
        (folder / record).write_text("{}")
    good_units.keep(spec())
    name = sum_of("[Unit]\n")
    good_units.mark_good(passed("a", sha256=name, release=str(release), weights=str(weights)))
    assert good_units.still_there() == {name, str(release), str(weights)}
    (release / "release.json").unlink()
    assert good_units.still_there() == {name, str(weights)}


def test_one_that_was_found_has_no_record_of_ours(tmp_path: Path) -> None:
    good_units.keep(spec())
    name = sum_of("[Unit]\n")
    his = passed("a", sha256=name, how="found", release=str(tmp_path), weights="")
    good_units.mark_good(his)
    assert good_units.still_there() == {name, str(tmp_path), ""}


def found_spec(text: str, release: str) -> dict[str, Any]:
    facts = {"release": release, "release_id": "v", "weights": "Qwen/Q", "commit": ""}
    return spec(text, **facts, model=None, speculative=False, command=["vllm"], probe=None)


def kept_record(text: str, unit: str = "vllm-coder.service", when: float = 7.0) -> str:
    """A record of a unit that was found; the sum of its text."""
    sha256 = sum_of(text)
    empty: dict[str, Any] = {"drop_ins": {}, "files": {}, "links": {}}
    record = {"unit": unit, "path": "/etc/x", "text": text, "sha256": sha256, "active": True}
    path = found.next_file()
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps({**record, **empty, "when": when}))
    return sha256


def test_what_was_found_is_kept_whatever_the_history_holds(tmp_path: Path) -> None:
    name = kept_record("his")
    good_units.keep(found_spec("his", str(tmp_path)))
    good_units.keep(spec("ours"))
    good_units.mark_good(passed("a", sha256=sum_of("ours")))
    assert good_units.kept(name) is not None
    [entry] = good_units.found_units()
    assert (entry.sha256, entry.when, entry.how) == (name, 7.0, "found")
    assert entry.model == good_units.NO_NAME
    # a repository's id is no folder that could be gone; his venv may have no record of ours
    assert {name, str(tmp_path), "Qwen/Q"} <= good_units.still_there()


def test_of_what_was_found_the_newest_of_this_unit_comes_first() -> None:
    sums = [kept_record(text) for text in ("his", "his, edited", "his")]
    other = kept_record("of another name", "qwen.service")
    for text in ("his", "his, edited"):
        good_units.keep(found_spec(text, "/v"))
    good_units.keep({**found_spec("of another name", "/v"), "unit": "qwen.service"})
    of_unit = [entry.sha256 for entry in good_units.found_units("vllm-coder.service")]
    assert of_unit == [sums[2], sums[1]]
    assert [entry.sha256 for entry in good_units.found_units("qwen.service")] == [other]


def test_a_text_that_is_kept_for_a_unit_of_another_name_is_not_gone_back_to() -> None:
    kept_record("his", "qwen.service")
    good_units.keep(found_spec("his", "/v"))
    assert good_units.found_units("qwen.service") == []


def test_the_history_of_one_unit_leaves_out_those_of_another_name() -> None:
    for text, unit in (("a", "vllm-coder.service"), ("b", "qwen.service")):
        good_units.keep({**spec(text), "unit": unit})
        good_units.mark_good(passed("a", sha256=sum_of(text)))
    good_units.mark_good(passed("c"))  # nothing more is known of it
    names = [entry.sha256 for entry in good_units.passed("vllm-coder.service")]
    assert names == ["c" * 64, sum_of("a")]
    assert len(good_units.passed()) == 3


def test_one_that_was_found_and_gone_back_to_is_still_somebody_elses(tmp_path: Path) -> None:
    good_units.keep(spec())
    name = sum_of("[Unit]\n")
    his = passed("a", sha256=name, how="found", release=str(tmp_path), weights="")
    good_units.mark_good(his)
    good_units.mark_good(passed("b"))
    good_units.keep(spec())
    good_units.mark_good(replace(his, how="rollback"))
    assert str(tmp_path) in good_units.still_there()


PASSES: dict[str, Any] = {
    **dict.fromkeys(("release", "release_id", "weights", "commit", "model"), "x"),
    "speculative": True,
    "command": [],
}


def test_the_history_holds_variables_without_secrets_and_none_of_a_found_unit() -> None:
    variables = {"HF_HOME": "/data", "HF_TOKEN": "hf_0123456789abcdef"}
    entry = good_units.entry_of(spec(**PASSES, environment=variables), None, None, Account())
    assert entry.environment == {"HF_HOME": "/data", "HF_TOKEN": "(hidden)"}
    his = good_units.entry_of(spec(**PASSES, environment={}), None, None, Account())
    assert his.environment is None
