"""What a failed candidate makes way for: what passed last, but a person's own that stands first."""

from __future__ import annotations

import os
from typing import Any

import pytest

from aibox.box import adoption, gate, good_units, switch, turning
from aibox.box.good_units import sum_of
from aibox.box.job import Spec
from aibox.box.probe import sockets
from tests.unit.made_systemd import HIS, OURS, UNIT, Systemd, write
from tests.unit.passed import passed

EDITED = HIS + "Environment=MINE=1\n"
NEXT = OURS + "Environment=NEXT=1\n"


def spec(text: str, unit: str = UNIT) -> Spec:
    folders = {"release": "/opt/r", "release_id": "r", "weights": "/srv/w", "commit": "c"}
    rest: dict[str, Any] = {"model": "qwen", "speculative": True, "command": ["vllm"], "port": 8000}
    return {"unit": unit, "text": text, "probe": {}, **folders, **rest}


@pytest.fixture
def serves(monkeypatch: pytest.MonkeyPatch) -> dict[str, bool]:
    """Whether what runs answers; {"now": True} at first."""
    answer = {"now": True}
    monkeypatch.setattr(switch, "served_now", lambda *_: answer["now"])
    monkeypatch.setattr(gate, "model_served", lambda _port: "his-model")
    monkeypatch.setattr(sockets, "ports_of_unit", lambda _unit: set())
    return answer


def has_passed(text: str, unit: str = UNIT, how: str = "deploy") -> None:
    good_units.keep(spec(text, unit))
    good_units.mark_good(passed("a", sha256=sum_of(text), how=how))


@pytest.fixture
def undone(systemd: Systemd, serves: dict[str, bool]) -> Systemd:
    """His was adopted, and gone back to."""
    record = systemd.lay(drop_ins={})
    switch.kept_for_ever(systemd.service, spec(OURS))
    has_passed(OURS)
    write(systemd.service.staged, OURS)
    turning.replace(systemd.service, OURS)
    turning.put_back(record)
    has_passed(HIS, how="rollback")
    assert serves["now"]
    return systemd


def last_good(systemd: Systemd, text: str) -> Spec | None:
    """As a switch asks for it, which keeps first what stands."""
    switch.kept_for_ever(systemd.service, spec(text))
    return switch.last_good(systemd.service, spec(text))


def test_it_is_what_passed_last(undone: Systemd) -> None:
    good = last_good(undone, NEXT)
    assert good is not None
    assert (good["text"], good["how"]) == (HIS, "rollback")
    assert last_good(undone, HIS) is None


@pytest.mark.parametrize("candidate", [NEXT, OURS])
def test_a_unit_that_he_edited_and_that_serves_comes_first(undone: Systemd, candidate: str) -> None:
    write(undone.etc / UNIT, EDITED)
    undone.starts(1)
    good = last_good(undone, candidate)
    assert good is not None
    assert (good["text"], good["how"], good["model"]) == (EDITED, "found", "his-model")
    assert (good["port"], good["weights"]) == (8000, "/srv/w")
    assert good_units.passed()[0].sha256 == sum_of(EDITED)
    assert [one.sha256 for one in good_units.found_units(UNIT)] == [sum_of(EDITED), sum_of(HIS)]


def test_also_where_ours_passed_last_and_he_wrote_his_own_over_it(undone: Systemd) -> None:
    has_passed(OURS)
    write(undone.etc / UNIT, EDITED)
    undone.starts(1)
    good = last_good(undone, OURS)
    assert good is not None
    assert good["text"] == EDITED


def test_one_that_he_wrote_over_ours_and_never_started_is_kept_and_has_not_passed(
    undone: Systemd,
) -> None:
    has_passed(OURS)
    other = EDITED.replace("/srv/w", "/srv/mine --port 8009")
    undone.starts(-60)
    write(undone.etc / UNIT, other)
    good = last_good(undone, NEXT)
    assert good is not None
    assert good["text"] == OURS  # which serves
    assert sum_of(other) not in [one.sha256 for one in good_units.passed()]
    assert good_units.found_units(UNIT)[0].sha256 == sum_of(other)
    kept = good_units.kept(sum_of(other))
    assert kept is not None
    assert (kept["weights"], kept["port"], kept["model"]) == ("/srv/mine", 8009, None)


@pytest.mark.parametrize("unread", [False, True])
def test_an_edit_that_no_start_has_read_has_not_passed(undone: Systemd, unread: bool) -> None:
    """What serves is an older text of his: his unit stays as it stands, and is started again."""
    write(undone.etc / UNIT, EDITED)
    undone.starts(1 if unread else -60)
    undone.shown["NeedDaemonReload"] = "yes" if unread else "no"
    assert last_good(undone, NEXT) is None
    assert good_units.passed()[0].sha256 == sum_of(HIS)
    assert switch.runs_his(undone.service)


def test_an_old_file_that_was_moved_there_has_not_run(undone: Systemd) -> None:
    undone.starts(-60)
    write(undone.root / "home/old", EDITED)
    os.utime(undone.root / "home/old", (1, 1))
    (undone.root / "home/old").replace(undone.etc / UNIT)
    assert last_good(undone, NEXT) is None


@pytest.mark.parametrize(("candidate", "now"), [(NEXT, False), (EDITED, True)])
def test_one_that_does_not_serve_is_left_as_it_stands(
    undone: Systemd, serves: dict[str, bool], candidate: str, now: bool
) -> None:
    """Or is itself what was tried: no older unit of his takes its place."""
    write(undone.etc / UNIT, EDITED)
    serves["now"] = now
    assert last_good(undone, candidate) is None
    assert undone.boots() == (EDITED, {})


def test_a_unit_of_another_name_is_never_gone_back_to(
    systemd: Systemd, serves: dict[str, bool]
) -> None:
    serves["now"] = False
    write(systemd.etc / UNIT, OURS)
    has_passed(OURS)
    has_passed("# Laid down by the deploy, for qwen.service\n", "qwen.service")
    good = last_good(systemd, NEXT)
    assert good is not None
    assert (good["unit"], good["text"]) == (UNIT, OURS)


def test_his_text_under_a_second_name_is_kept_for_that_name(
    systemd: Systemd, serves: dict[str, bool]
) -> None:
    """As where he renames his unit's file after an undo."""
    good_units.keep(spec(HIS, "qwen.service"))
    systemd.lay(drop_ins={})
    assert serves["now"]
    switch.kept_for_ever(systemd.service, spec(OURS))
    kept = good_units.kept(sum_of(HIS))
    assert kept is not None
    assert kept["unit"] == UNIT
    record = adoption.of(systemd.service)
    assert record is not None
    assert record["unit"] == UNIT
