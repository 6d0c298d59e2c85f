"""A person's own unit: kept, set aside, put back; a cut at any step leaves one or the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aibox.box import adoption, found, good_units, turning
from aibox.box.found import Record
from aibox.box.job import JobError
from aibox.box.service import Service
from tests.unit.made_systemd import DROP_INS, HIS, OURS, UNIT, Systemd, write
from tests.unit.passed import passed

MINE = "[Service]\nNice=19\n"
LATIN = "# f\udcfcr den Rechner\r\n[Service]\r\n"  # as read: a byte that is no UTF-8, DOS's lines


def accept(systemd: Systemd, text: str = OURS) -> None:
    """What the switch does once ours has passed."""
    turning.settle(systemd.service)
    if systemd.service.installed_text() != text:
        write(systemd.service.staged, text)
        turning.replace(systemd.service, text)
    adoption.clear_beside(systemd.service)


# --- kept ----------------------------------------------------------------------------------------


def test_a_unit_is_kept_with_all_that_belongs_to_it(systemd: Systemd) -> None:
    wants = systemd.etc / "multi-user.target.wants" / UNIT
    wants.parent.mkdir()
    wants.symlink_to(systemd.etc / UNIT)
    record = systemd.lay()
    assert (record["text"], record["mode"], record["link"]) == (HIS, "644", None)
    assert record["drop_ins"] == {
        str(systemd.etc / f"{UNIT}.d" / name): text for name, text in DROP_INS.items()
    }
    assert record["links"] == {str(wants): str(systemd.etc / UNIT)}
    assert adoption.of(systemd.service) == record
    kept = systemd.root / "state/found.json"
    assert kept.stat().st_mode & 0o777 == 0o600


def test_ours_is_nobodys_own(systemd: Systemd) -> None:
    write(systemd.etc / UNIT, OURS)
    assert adoption.keep(systemd.service) is None
    write(systemd.etc / UNIT, f"{OURS}Nice=1\n")  # edited by hand, and still ours: drift
    assert adoption.keep(systemd.service) is None
    assert found.records() == []


def change_text(systemd: Systemd) -> None:
    write(systemd.etc / UNIT, HIS + "Nice=1\n")


def change_drop_in(systemd: Systemd) -> None:
    write(systemd.etc / f"{UNIT}.d/10-mine.conf", "[Service]\nNice=6\n")


def add_drop_in(systemd: Systemd) -> None:
    write(systemd.etc / f"{UNIT}.d/20-new.conf", "[Service]\nNice=7\n")


def make_a_link(systemd: Systemd) -> None:
    write(systemd.root / "home" / UNIT, HIS)
    (systemd.etc / UNIT).unlink()
    (systemd.etc / UNIT).symlink_to(systemd.root / "home" / UNIT)


def start_at_boot(systemd: Systemd) -> None:
    wants = systemd.etc / "multi-user.target.wants" / UNIT
    wants.parent.mkdir()
    wants.symlink_to(systemd.etc / UNIT)


@pytest.mark.parametrize("served", [False, True])
@pytest.mark.parametrize(
    "change", [change_text, change_drop_in, add_drop_in, make_a_link, start_at_boot]
)
def test_what_he_changes_gets_a_further_record_and_no_record_is_lost(
    systemd: Systemd, change: Callable[[Systemd], None], served: bool
) -> None:
    first = systemd.lay()
    if served:  # and undone
        good_units.mark_good(passed("a"))
        accept(systemd)
        turning.put_back(first)
    change(systemd)
    newer = adoption.keep(systemd.service)
    assert newer is not None
    assert not found.is_same(newer, first)
    assert adoption.keep(systemd.service) == newer
    assert found.records() == [first, newer]


def test_a_mask_over_a_known_unit_is_nobodys_unit(systemd: Systemd) -> None:
    record = systemd.lay()
    (systemd.etc / UNIT).unlink()
    (systemd.etc / UNIT).symlink_to("/dev/null")
    assert adoption.keep(systemd.service) == record


def test_records_have_an_order_and_an_unreadable_one_is_not_written_over(systemd: Systemd) -> None:
    for number in range(12):
        write(systemd.etc / UNIT, f"{HIS}Nice={number}\n")
        adoption.keep(systemd.service)
    write(systemd.root / "state/found-12.json", "{")
    write(systemd.etc / UNIT, f"{HIS}Nice=99\n")
    adoption.keep(systemd.service)
    nice = [one["text"].rpartition("=")[2].strip() for one in found.records()]
    assert nice == [*map(str, range(11)), "99"]
    assert (systemd.root / "state/found-12.json").read_text() == "{"


def test_units_of_two_names_are_kept_both(systemd: Systemd) -> None:
    first = systemd.lay()
    write(systemd.etc / "vllm.service", HIS + "Nice=3\n")
    second = adoption.keep(Service("vllm.service", systemd.etc, systemd.run))
    assert first == adoption.of(systemd.service)
    assert second == adoption.of(Service("vllm.service", systemd.etc, systemd.run)) != first
    write(systemd.etc / UNIT, HIS + "Nice=4\n")
    third = adoption.keep(systemd.service)
    assert found.newest_of_each() == [second, third]


def test_a_record_that_cannot_be_read_is_none(systemd: Systemd) -> None:
    systemd.lay()
    (systemd.root / "state/found.json").write_text('{"unit": 7}')
    assert found.records() == []
    assert found.told() == [
        {
            "file": str(systemd.root / "state/found.json"),
            "damaged": "its unit is not as a deploy writes it",
        }
    ]


# --- beside a candidate --------------------------------------------------------------------------


def test_beside_ours_an_empty_file_takes_the_place_of_each_of_his(systemd: Systemd) -> None:
    systemd.lay()
    adoption.lay_beside(systemd.service, OURS)
    beside = systemd.run / f"{UNIT}.d"
    assert {path.name: path.read_text() for path in beside.iterdir()} == dict.fromkeys(DROP_INS, "")
    assert systemd.boots() == (HIS, DROP_INS)
    adoption.lay_beside(systemd.service, HIS)  # and back: they stand in /etc still
    assert not beside.exists()


def test_beside_his_own_stand_those_that_have_gone(systemd: Systemd) -> None:
    systemd.lay()
    accept(systemd)
    write(systemd.run / f"{UNIT}.d/50-CPUWeight.conf", "[Service]\nCPUWeight=1\n")  # not of ours
    adoption.lay_beside(systemd.service, HIS)
    beside = systemd.run / f"{UNIT}.d"
    assert {path.name: path.read_text() for path in beside.glob("[19]0-*")} == DROP_INS
    adoption.clear_beside(systemd.service)
    assert [path.name for path in beside.iterdir()] == ["50-CPUWeight.conf"]


def test_only_those_that_go_with_his_unit_are_set_aside(systemd: Systemd) -> None:
    paths = {str(systemd.etc / f"{UNIT}.d" / name): text for name, text in DROP_INS.items()}
    systemd.lay()
    assert adoption.set_aside(systemd.service) == paths
    changed = systemd.etc / f"{UNIT}.d/10-mine.conf"
    write(changed, "[Service]\nNice=6\n")  # since it was kept: it is kept again before it goes
    assert adoption.set_aside(systemd.service)[str(changed)] == "[Service]\nNice=6\n"
    accept(systemd)
    assert str(changed) in found.records()[-1]["drop_ins"]
    write(changed, DROP_INS["10-mine.conf"])  # over ours: somebody's drop-in like any other
    assert adoption.set_aside(systemd.service) == {}


# --- one in the other's place --------------------------------------------------------------------


def test_ours_comes_and_his_comes_back_as_it_was(systemd: Systemd) -> None:
    write(systemd.etc / UNIT, LATIN)
    (systemd.etc / UNIT).chmod(0o640)
    os.utime(systemd.etc / UNIT, ns=(1, 1_700_000_000_123_456_789))
    record = systemd.lay(LATIN)
    before = found.attributes(systemd.etc / UNIT)
    content = (systemd.etc / UNIT).read_bytes()
    accept(systemd)
    assert systemd.boots() == (OURS, {})
    assert not (systemd.etc / f"{UNIT}.d").exists()
    assert systemd.is_clean()
    turning.put_back(record)
    assert systemd.boots() == (LATIN, DROP_INS)
    assert (systemd.etc / UNIT).read_bytes() == content
    assert found.attributes(systemd.etc / UNIT)[2:] == [0o640, before[3], None]
    assert systemd.is_clean()


@pytest.mark.parametrize("target", ["/dev/null", "his"])
def test_a_link_comes_back_as_that_link(systemd: Systemd, target: str) -> None:
    """systemctl link, and a masked unit."""
    file = systemd.root / "home" / UNIT
    write(file, HIS)
    target = str(file) if target == "his" else target
    (systemd.etc / UNIT).symlink_to(target)
    wants = systemd.etc / "multi-user.target.wants" / UNIT
    wants.parent.mkdir()
    wants.symlink_to(target)
    record = adoption.keep(systemd.service)
    assert record is not None
    assert record["link"] == target
    accept(systemd)
    assert not (systemd.etc / UNIT).is_symlink()
    assert str(wants.readlink()) == str(systemd.etc / UNIT)  # else enabling it is refused
    turning.put_back(record)
    assert str((systemd.etc / UNIT).readlink()) == str(wants.readlink()) == target
    assert file.read_text() == HIS


def test_one_below_usr_is_covered_and_uncovered(systemd: Systemd) -> None:
    write(systemd.usr / UNIT, HIS)
    record = adoption.keep(systemd.service)
    assert record is not None
    assert record["path"] == str(systemd.usr / UNIT)
    accept(systemd)
    assert systemd.boots() == (OURS, {})
    turning.put_back(record)
    assert systemd.boots() == (HIS, {})
    assert not (systemd.etc / UNIT).exists()
    assert (systemd.usr / UNIT).read_text() == HIS


def test_what_enables_it_is_as_it_was(systemd: Systemd) -> None:
    wants = systemd.etc / "graphical.target.wants" / UNIT
    wants.parent.mkdir()
    wants.symlink_to(systemd.etc / UNIT)
    record = systemd.lay()
    accept(systemd)
    ours = systemd.etc / "multi-user.target.wants" / UNIT
    ours.parent.mkdir()
    ours.symlink_to(systemd.etc / UNIT)
    wants.unlink()
    turning.put_back(record)
    assert found.links_of(UNIT) == record["links"]


def test_where_ours_was_taken_away_his_comes_back_all_the_same(systemd: Systemd) -> None:
    record = systemd.lay()
    accept(systemd)
    (systemd.etc / UNIT).unlink()
    turning.put_back(record)
    turning.put_back(record)
    assert systemd.boots() == (HIS, DROP_INS)


@pytest.mark.parametrize(
    ("part", "path"),
    [
        ("drop_ins", "/etc/passwd"),
        ("drop_ins", "/etc/systemd/system/other.service.d/x.conf"),
        ("links", f"/etc/cron.d/{UNIT}"),
        ("links", "/etc/systemd/system/multi-user.target.wants/other.service"),
    ],
)
def test_an_odd_record_is_refused_before_anything_is_written(
    systemd: Systemd, part: str, path: str
) -> None:
    record = systemd.lay()
    accept(systemd)
    path = path.replace("/etc/systemd/system", str(systemd.etc))
    odd = {**record, part: {path: "x"}, "files": {**record["files"], path: [0, 0, 420, 0, None]}}
    with pytest.raises(JobError, match="names"):
        turning.put_back(odd)
    assert systemd.boots() == (OURS, {})
    assert not Path(path).exists() or path == "/etc/passwd"


# --- links ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("linked", [False, True])
def test_another_name_of_his_unit_leads_to_ours_and_comes_back(
    systemd: Systemd, linked: bool
) -> None:
    """Alias=: of a linked unit it would start his server beside ours."""
    file = systemd.root / "home" / UNIT if linked else systemd.etc / UNIT
    write(file, HIS)
    if linked:
        (systemd.etc / UNIT).symlink_to(file)
    alias, other = systemd.etc / "llm.service", systemd.etc / "other.service"
    alias.symlink_to(file)
    other.symlink_to("/dev/null")  # masked, and none of his
    record = adoption.keep(systemd.service)
    assert record is not None
    assert record["links"] == {str(alias): str(file)}
    accept(systemd)
    assert str(alias.readlink()) == str(systemd.etc / UNIT)
    assert alias.read_text() == OURS
    turning.put_back(record)
    assert (str(alias.readlink()), alias.read_text()) == (str(file), HIS)
    assert str(other.readlink()) == "/dev/null"
    assert file.read_text() == HIS


def test_a_cut_between_his_unit_and_its_other_name_is_made_good(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, alias = systemd.root / "home" / UNIT, systemd.etc / "llm.service"
    write(file, HIS)
    (systemd.etc / UNIT).symlink_to(file)
    alias.symlink_to(file)
    write(systemd.etc / f"{UNIT}.d/10-mine.conf", MINE)
    adoption.keep(systemd.service)
    write(systemd.service.staged, OURS)
    with monkeypatch.context() as cut:
        cut.setattr(turning, "settle", lambda _service: None)
        cut.setattr(turning, "links_to_ours", lambda _service: None)
        turning.replace(systemd.service, OURS)
    turning.settle(systemd.service)
    assert alias.read_text() == OURS


def test_a_name_that_leads_elsewhere_by_now_or_was_given_since_stays(systemd: Systemd) -> None:
    alias, newer = systemd.etc / "llm.service", systemd.etc / "qwen.service"
    alias.symlink_to(systemd.etc / UNIT)
    record = systemd.lay()
    accept(systemd)
    alias.unlink()
    write(alias, "[Service]\nExecStart=/bin/true\n")
    newer.symlink_to(systemd.etc / UNIT)
    turning.put_back(record)
    assert not alias.is_symlink()
    assert newer.read_text() == HIS


def test_links_to_a_unit_of_its_own_are_no_names_of_this_one(systemd: Systemd) -> None:
    """vllm-coder is the other name there, of qwen."""
    write(systemd.etc / "qwen.service", HIS)
    for name in (UNIT, "third.service"):
        (systemd.etc / name).symlink_to(systemd.etc / "qwen.service")
    assert found.links_of(UNIT) == {}


@pytest.mark.parametrize("anew", [False, True])
def test_a_link_to_a_folder_of_drop_ins_goes_and_comes_back_and_his_files_stay(
    systemd: Systemd, anew: bool
) -> None:
    his, folder = systemd.root / "home/drop-ins", systemd.etc / f"{UNIT}.d"
    for name, content in DROP_INS.items():
        write(his / name, content)
    folder.symlink_to(his)
    record = systemd.lay(drop_ins={})
    assert record["folder_link"] == str(his)
    accept(systemd)
    assert systemd.boots() == (OURS, {})
    assert not os.path.lexists(folder)
    assert {path.name: path.read_text() for path in his.iterdir()} == DROP_INS
    if anew:  # a folder of somebody's over ours is the newer one
        write(folder / "10-mine.conf", MINE)
    turning.put_back(record)
    assert folder.is_symlink() is not anew
    more = {"10-mine.conf": MINE} if anew else {}
    assert systemd.boots() == (HIS, {**DROP_INS, **more})
    assert {path.name: path.read_text() for path in his.iterdir()} == DROP_INS
    assert systemd.is_clean()


@pytest.mark.parametrize("link_first", [False, True])
def test_a_folder_and_a_link_to_one_take_each_others_place(
    systemd: Systemd, link_first: bool
) -> None:
    """His unit as it was kept first comes in the place of his newer one."""
    home, folder = systemd.root / "home/drop-ins", systemd.etc / f"{UNIT}.d"
    write(home / "10-mine.conf", MINE)

    def lay(linked: bool) -> None:
        if linked:
            for path in folder.glob("*"):
                path.unlink()
            folder.rmdir()
            folder.symlink_to(home)
        else:
            folder.unlink(missing_ok=True)
            write(folder / "20-more.conf", "[Service]\nNice=2\n")

    folder.mkdir() if link_first else None
    lay(link_first)
    first = systemd.lay(drop_ins={})
    now = systemd.boots()
    lay(not link_first)
    turning.put_back(first)
    assert folder.is_symlink() is link_first
    assert systemd.boots() == now
    assert (home / "10-mine.conf").read_text() == MINE
    assert [path.name for path in home.iterdir()] == ["10-mine.conf"]


def test_a_drop_in_that_is_a_link_to_nothing_goes_and_comes_back(systemd: Systemd) -> None:
    """While it is there systemd refuses to enable ours."""
    dangling = systemd.etc / f"{UNIT}.d/92-dangling.conf"
    dangling.parent.mkdir()
    dangling.symlink_to("/home/me/gone.conf")
    record = systemd.lay()
    adoption.lay_beside(systemd.service, OURS)
    assert (systemd.run / f"{UNIT}.d/92-dangling.conf").read_text() == ""
    accept(systemd)
    assert systemd.boots() == (OURS, {})
    assert not os.path.lexists(dangling.parent)
    turning.put_back(record)
    assert str(dangling.readlink()) == "/home/me/gone.conf"
    assert systemd.boots() == (HIS, DROP_INS)
    assert systemd.is_clean()


# --- what can't be changed -----------------------------------------------------------------------


@pytest.mark.parametrize("what", [UNIT, f"{UNIT}.d", f"{UNIT}.d/10-mine.conf", "."])
def test_what_is_immutable_is_named_before_anything_stops(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    systemd.lay()
    turning.unlocked(systemd.service)
    locked = systemd.etc / what
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) != locked)
    with pytest.raises(JobError) as refused:
        turning.unlocked(systemd.service)
    assert refused.value.refusal.found == f"{locked} can't be changed, not even by root"
    assert f"lsattr -d {locked}" in refused.value.refusal.remedy


def test_what_a_link_of_his_leads_to_may_be_immutable(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not written to."""
    write(systemd.root / "home" / UNIT, HIS)
    write(systemd.root / "home/drop-ins/a.conf", MINE)
    (systemd.etc / UNIT).symlink_to(systemd.root / "home" / UNIT)
    (systemd.etc / f"{UNIT}.d").symlink_to(systemd.root / "home/drop-ins")
    monkeypatch.setattr(os, "access", lambda path, _mode: Path(path) == systemd.etc)
    turning.unlocked(systemd.service)


# --- what he has changed since -------------------------------------------------------------------

EDITED = HIS + "Environment=MINE=1\n"


def undone_and_edited(systemd: Systemd) -> Record:
    """Adopted, undone, then unit, mode and a drop-in changed by his hands. The first record."""
    first = systemd.lay()
    accept(systemd)
    good_units.mark_good(passed("a"))
    turning.put_back(first)
    write(systemd.etc / UNIT, EDITED)
    (systemd.etc / UNIT).chmod(0o600)
    write(systemd.etc / f"{UNIT}.d/10-mine.conf", MINE)
    return first


def test_a_unit_that_he_edited_after_an_undo_survives_the_next_deploy(systemd: Systemd) -> None:
    first = undone_and_edited(systemd)
    now = systemd.boots()
    accept(systemd)
    assert systemd.boots() == (OURS, {})
    newest = adoption.of(systemd.service)
    assert newest is not None
    turning.put_back(newest)
    assert systemd.boots() == now == (EDITED, {**DROP_INS, "10-mine.conf": MINE})
    assert (systemd.etc / UNIT).stat().st_mode & 0o777 == 0o600
    assert [one["text"] for one in found.records()] == [HIS, EDITED]
    turning.put_back(first)  # an older one, asked for by its number
    assert systemd.boots() == (HIS, DROP_INS)


def test_an_edit_while_ours_is_on_trial_is_kept_when_ours_is_accepted(systemd: Systemd) -> None:
    systemd.lay()
    adoption.lay_beside(systemd.service, OURS)
    write(systemd.etc / UNIT, EDITED)
    accept(systemd)
    assert found.records()[-1]["text"] == EDITED


def test_a_teardown_leaves_his_unit_as_he_changed_it(systemd: Systemd) -> None:
    first = undone_and_edited(systemd)
    now = systemd.boots()
    assert found.how_it_stands(UNIT) == "changed"
    turning.give_back(first)
    assert systemd.boots() == now


def test_a_teardown_puts_back_what_stood_last_in_the_place_of_ours(systemd: Systemd) -> None:
    undone_and_edited(systemd)
    now = systemd.boots()
    accept(systemd)
    assert found.how_it_stands(UNIT) is None
    [record] = found.newest_of_each()
    turning.give_back(record)
    turning.give_back(record)
    assert found.how_it_stands(UNIT) == "as found"
    assert systemd.boots() == now


def test_a_drop_in_that_he_laid_over_ours_is_not_replaced_by_the_older_one(
    systemd: Systemd,
) -> None:
    record = systemd.lay()
    accept(systemd)
    write(systemd.etc / f"{UNIT}.d/10-mine.conf", MINE)
    adoption.lay_beside(systemd.service, HIS)
    assert [path.name for path in (systemd.run / f"{UNIT}.d").iterdir()] == ["90-more.conf"]
    adoption.clear_beside(systemd.service)
    turning.put_back(record)
    assert systemd.boots() == (HIS, {**DROP_INS, "10-mine.conf": MINE})
    assert systemd.is_clean()


@pytest.mark.parametrize("stands", [HIS, OURS])
def test_a_drop_in_that_he_edits_before_a_cut_turn_is_ended_is_not_lost(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch, stands: str
) -> None:
    """It is kept with his unit where that still stands, else it is somebody's over ours."""
    systemd.lay()
    write(systemd.service.staged, OURS)
    with monkeypatch.context() as cut:
        cut.setattr(turning, "settle", lambda _service: None)  # the power goes before it
        turning.replace(systemd.service, OURS)
    assert systemd.boots() == (OURS, {})
    write(systemd.etc / UNIT, stands)
    write(systemd.etc / f"{UNIT}.d/10-mine.conf", MINE)
    turning.settle(systemd.service)
    assert systemd.boots() == (OURS, {} if stands == HIS else {"10-mine.conf": MINE})
    turning.put_back(found.records()[-1])
    assert systemd.boots() == (HIS, {**DROP_INS, "10-mine.conf": MINE})


def test_a_file_that_others_may_not_read_is_copied_for_root_alone(
    systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = {UNIT: 0o640, "10-mine.conf": 0o644, "20-secret.conf": 0o600}
    for name, mode in modes.items():
        path = systemd.etc / (UNIT if name == UNIT else f"{UNIT}.d/{name}")
        write(path, HIS if name == UNIT else MINE)
        path.chmod(mode)
    record = adoption.keep(systemd.service)
    assert record is not None
    assert adoption.mode_of(record) == 0o600
    with monkeypatch.context() as cut:
        cut.setattr(turning, "settle", lambda _service: None)
        turning.turn(systemd.service, record, OURS, turning.OUR)
    ready = (systemd.turning / UNIT / turning.HIS).iterdir()
    copies = {path.name: path.stat().st_mode & 0o777 for path in ready}
    assert copies == {UNIT: 0o600, "10-mine.conf": 0o644, "20-secret.conf": 0o600}
    turning.settle(systemd.service)
    accept(systemd)
    adoption.lay_beside(systemd.service, HIS)
    beside = (systemd.run / f"{UNIT}.d").iterdir()
    del copies[UNIT]
    assert {path.name: path.stat().st_mode & 0o777 for path in beside} == copies


# --- cut off -------------------------------------------------------------------------------------


class PowerCut(BaseException):
    """No code of ours may catch it."""


@pytest.fixture
def cut(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[int], None]]:
    """Ends whatever is done to a disk at the n-th step."""
    steps = {"left": -1}

    def counted(act: Callable[..., Any]) -> Callable[..., Any]:
        def stepping(*words: Any, **named: Any) -> Any:
            if steps["left"] == 0:
                raise PowerCut
            steps["left"] -= 1
            return act(*words, **named)

        return stepping

    for name in ("unlink", "replace", "symlink_to", "mkdir", "rmdir", "chmod"):
        monkeypatch.setattr(Path, name, counted(getattr(Path, name)))
    monkeypatch.setattr(os, "unlink", counted(os.unlink))
    monkeypatch.setattr(os, "rmdir", counted(os.rmdir))

    def after(number: int) -> None:
        steps["left"] = number

    yield after
    steps["left"] = -1


WHOLE = [(HIS, DROP_INS), (OURS, {})]


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("back", [False, True])
def test_a_cut_at_any_step_leaves_one_or_the_other_and_the_next_run_ends_it(
    systemd: Systemd, cut: Callable[[int], None], back: bool, others: bool
) -> None:
    number, seen = 0, []
    while True:
        record = systemd.lay()
        if others:  # systemctl set-property
            write(systemd.control / f"{UNIT}.d/50-CPUWeight.conf", "")
        if back:
            accept(systemd)

        def work(record: Record = record) -> None:
            if back:
                turning.put_back(record)
            else:
                accept(systemd)

        cut(number)
        try:
            work()
        except PowerCut:
            cut(-1)
            assert systemd.boots() in WHOLE, number
            seen.append(systemd.boots())
            work()
        else:
            cut(-1)
            break
        assert systemd.boots() == WHOLE[not back], number
        assert others or systemd.is_clean(), number
        turning.put_back(record)
        number += 1
    assert number > 20
    assert seen[0] == WHOLE[back]
    assert seen[-1] == WHOLE[not back]
