"""What goes and what stays: the decision, from records and from what lies on a box."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from aibox.box import brought
from aibox.box import teardown as work
from aibox.box.brought import above, merged, new_packages
from aibox.box.found import content_of
from aibox.decide import monitoring, teardown, watcher
from aibox.decide.driver_sources import MODPROBE, PREFERENCES, SOURCE, UNATTENDED
from aibox.decide.teardown import Plan, Teardown, Wish, is_odd, plan, question

PLACES = {
    "server_unit": "vllm-coder",
    "releases_folder": "/opt/vllm/releases",
    "models_folder": "/srv/models",
    "cache_folder": "/var/cache/aibox",
    "aibox": "/opt/aibox",
}
DEPLOYED: dict[str, Any] = {
    "release": {"folder": "/opt/vllm/releases/0.31.0-12345678"},
    "weights": {"folder": f"/srv/models/qwen/{'a' * 40}"},
    "server": {"unit": "vllm-coder.service"},
    "files": {SOURCE: {"sha256": "1"}, "/etc/other.conf": {"sha256": "2"}},
    "packages": {"nvidia-driver-cuda": "580.178.04"},
}
BROUGHT: dict[str, Any] = {
    "packages": ["gcc", "cpp"],
    "driver_packages": ["nvidia-driver-cuda", "cuda-toolkit-13-0"],
    "held": ["nvidia-driver-cuda"],
    "users": ["vllm"],
    "groups": ["vllm"],
    "enabled": ["vllm-coder.service", "nvidia-persistenced.service"],
    "folders": {"/srv": True, "/srv/models": False, "/var/cache/aibox": False, "/data": False},
    "places": {"models_folder": ["/srv/models"]},
    "nouveau_was_on": True,
}
WEIGHTS = {"folder": f"/srv/models/qwen/{'a' * 40}", "model": "qwen", "bytes": 55e9, "own": 0}
OURS: dict[str, Any] = {
    **{"ours": True, "file": "1", "his": None, "content": None, "tried": False},
    **{"traces": [], "state": "active", "enabled": ""},
}
HIS_STANDS = {**OURS, "ours": False, "file": "9", "his": "as found", "content": "c9"}
CHANGED = {**HIS_STANDS, "his": "changed", "content": "c10"}
HIS: dict[str, Any] = {
    **{"file": "/var/lib/aibox/server/found.json", "unit": "vllm-coder.service"},
    **{"sha256": "9" * 64, "content": "c9", "active": True, "odd": None, "when": 1796028370.2},
}
EVERYTHING = Wish(weights=True, driver=True)


def installed(**marks: bool) -> dict[str, Any]:
    return {"version": "580.178.04-1", "held": False, "manual": False, **marks}


def records(**other: Any) -> dict[str, Any]:
    whole = {"deployed": DEPLOYED, "brought": BROUGHT, "found": [], "state": ["brought.json", "x"]}
    return whole | other


def there(**other: Any) -> dict[str, Any]:
    """What `ours.look` answers on a deployed box."""
    return {
        "units": {"vllm-coder.service": OURS},
        "enabled": ["nvidia-persistenced.service"],
        "files": {SOURCE: {"sha256": "1", "size": 1}, MODPROBE: {"sha256": "3", "size": 1}},
        "sources": [],
        "releases": ["/opt/vllm/releases/0.31.0-12345678"],
        "models": ["/srv/models"],
        "weights": [WEIGHTS],
        "trees": ["/var/cache/aibox"],
        "folders": ["/srv/models", "/var/cache/aibox"],
        "there_before": [],
        "left_users": [],
        "left_folders": [],
        "users": ["vllm"],
        "groups": ["vllm"],
        "packages": {
            "gcc": installed(manual=True),
            "cpp": installed(),
            "nvidia-driver-cuda": installed(held=True),
            "cuda-toolkit-13-0": installed(),
        },
        "jobs": [],
        "aibox": ["current"],
        "left_overs": [],
    } | other


def nothing_there() -> dict[str, Any]:
    empty = {key: type(value)() for key, value in there().items()}
    return empty | {"models": ["/srv/models"]}


# --- the plan ------------------------------------------------------------------------------------


def test_a_package_that_our_drop_in_kept_closed_is_stopped() -> None:
    """It would be open to everybody without; what a deploy did not lay is no matter."""
    files = {
        monitoring.DROP_IN_FILE: "prometheus-node-exporter.service",
        f"{monitoring.SYSTEMD}/{monitoring.FACTS_TIMER}": "aibox-facts.timer",
        f"{monitoring.SYSTEMD}/{watcher.GRAFANA_DROP_IN}": "grafana-server.service",
    }
    found = {path: {"sha256": "1", "size": 1} for path in (*files, "/etc/other.conf")}
    planned = plan(records(), there(files=found), Wish())
    assert set(planned.quiet) == set(files.values())
    assert set(files) <= set(planned.files)
    stopped = [text for label, text in planned.removes if label == "unit"]
    assert len([one for one in stopped if "is stopped, and starts at no boot" in one]) == 3
    assert plan(records(), there(), Wish()).quiet == ()


def test_folders_of_ours_in_those_of_packages_are_known() -> None:
    assert set(teardown.WATCH_FOLDERS) == {
        "/etc/systemd/system/prometheus-node-exporter.service.d",
        "/etc/systemd/system/prometheus.service.d",
        "/etc/systemd/system/grafana-server.service.d",
        "/etc/grafana/aibox",
    }


def test_a_timer_that_a_deploy_enabled_is_no_odd_record() -> None:
    enabled = [*BROUGHT["enabled"], monitoring.FACTS_TIMER]
    asked = question(records(brought={**BROUGHT, "enabled": enabled}), PLACES)
    assert isinstance(asked, dict), asked
    assert monitoring.FACTS_TIMER not in asked["others"]


def test_weights_and_driver_stay_unless_they_are_asked_for() -> None:
    kept, gone = plan(records(), there(), Wish()), plan(records(), there(), EVERYTHING)
    assert not kept.purge and WEIGHTS["folder"] not in kept.folders
    assert gone.purge == ("nvidia-driver-cuda", "cuda-toolkit-13-0")
    assert WEIGHTS["folder"] in gone.folders
    assert "55.0 GB of qwen" in kept.kept_weights
    assert (
        kept.kept_driver
        == "the driver 580.178.04 and the CUDA toolkit (cuda-toolkit-13-0, 2 packages)"
    )
    assert (gone.kept_weights, gone.kept_driver) == ("", "")


def test_a_driver_that_stays_keeps_its_pin_and_holds() -> None:
    kept = plan(records(), there(), Wish())
    assert SOURCE not in kept.files
    assert not (kept.boot_files or kept.unhold or kept.disable)
    gone = plan(records(), there(), EVERYTHING)
    assert SOURCE in gone.files
    assert gone.boot_files == (MODPROBE,)
    assert gone.unhold == ("nvidia-driver-cuda",)
    assert any("nouveau takes the card at the next reboot" in text for _, text in gone.removes)


def test_a_driver_that_was_there_before_stays_without_what_is_ours() -> None:
    brought = {**BROUGHT, "driver_packages": []}
    found = plan(records(brought=brought), there(), Wish(driver=True))
    assert found.purge == ()
    assert found.unhold == ("nvidia-driver-cuda",)
    assert SOURCE in found.files and found.boot_files == (MODPROBE,)
    assert found.disable == ("nvidia-persistenced.service",)
    assert any("it was there before the deploy" in text for _, text in found.stays)


def test_a_toolkit_that_stays_keeps_the_repository_only() -> None:
    brought = {**BROUGHT, "driver_packages": ["cuda-toolkit-13-0"]}
    found = plan(records(brought=brought), there(), Wish())
    assert SOURCE not in found.files
    assert found.boot_files == (MODPROBE,)
    assert found.unhold == ("nvidia-driver-cuda",)


def test_packages_of_the_distribution_stay_and_are_nobodys_wish() -> None:
    assert plan(records(), there(), EVERYTHING).auto == ("gcc",)


def test_what_is_kept_is_still_known_afterwards() -> None:
    kept = plan(records(), there(), Wish())
    assert kept.record["driver_packages"] == BROUGHT["driver_packages"]
    assert kept.record["folders"] == {"/srv": True, "/srv/models": False}
    assert "users" not in kept.record
    assert plan(records(), there(), EVERYTHING).record == {}


def test_a_second_run_has_nothing_to_do() -> None:
    gone = records(deployed=None, brought=None, state=None)
    assert plan(gone, nothing_there(), EVERYTHING).is_done
    kept = plan(records(), there(), Wish()).record
    left = nothing_there() | {
        "weights": [WEIGHTS],
        "packages": there()["packages"],
        "files": {SOURCE: {"sha256": "1", "size": 1}},
        "folders": ["/srv/models"],
    }
    again = plan(records(deployed=None, brought=kept, state=["brought.json"]), left, Wish())
    assert again.is_done, again
    assert teardown.nothing(again) == [
        "nothing of ours is on this box but what was kept: 55.0 GB of qwen, "
        f"{WEIGHTS['folder']}, all of it yours too under another name: taking it frees nothing; "
        "the driver 580.178.04 and the CUDA toolkit (cuda-toolkit-13-0, 2 packages)",
        f"files of ours that stay with it: {SOURCE}, /var/lib/aibox/brought.json",
        "all of this goes with: pyinfra inventory tasks/teardown.py --data remove_weights=true "
        "--data remove_driver=true",
    ]
    asked = plan(records(deployed=None, brought=kept, state=["brought.json"]), left, EVERYTHING)
    assert asked.purge and WEIGHTS["folder"] in asked.folders and not asked.is_done


def test_a_box_that_was_never_deployed_to_has_nothing_of_ours() -> None:
    done = plan(records(deployed=None, brought=None, state=None), nothing_there(), Wish())
    assert (done.is_done, teardown.nothing(done)) == (True, ["nothing of ours is on this box"])


# --- a box of before this was written down ------------------------------------------------------

LEFT: dict[str, Any] = {
    "trees": [],
    "left_users": ["vllm"],
    "left_folders": ["/var/cache/aibox"],
    "users": [],
    "groups": [],
    "enabled": [],
    "packages": {},
}


@pytest.mark.parametrize("record", [None, {"late": True, "places": {}}])
def test_where_nobody_knows_what_was_there_the_driver_and_its_files_stay_together(
    record: dict[str, Any] | None,
) -> None:
    whole = records(deployed={**DEPLOYED, "users": {"vllm": {}}}, brought=record)
    done = plan(whole, there(**LEFT), EVERYTHING)
    assert not (done.purge or done.boot_files or done.unhold or done.users or done.sources)
    assert SOURCE not in done.files
    assert done.stop == ("vllm-coder.service",)
    assert done.releases and done.aibox and WEIGHTS["folder"] in done.folders
    said = "\n".join(text for _, text in done.stays)
    assert "it stays, with its holds, pin, repository and module options" in said
    assert "apt-mark unhold nvidia-driver-cuda; apt purge nvidia-driver-cuda" in said
    assert f"rm {SOURCE} {MODPROBE}; update-initramfs" in said
    assert "userdel vllm" in said and "rm -r /var/cache/aibox" in said
    assert "it was there before the deploy" not in said
    assert done.kept_driver == ""  # nobody is asked whether it goes too


def test_what_stayed_there_is_still_told_afterwards_until_it_is_gone() -> None:
    whole = records(deployed={**DEPLOYED, "users": {"vllm": {}}}, brought=None)
    kept = plan(whole, there(**LEFT), EVERYTHING).record
    assert kept == {"late": True, "left_users": ["vllm"]}
    after = records(deployed=None, brought=kept, state=["brought.json"])
    left = nothing_there() | LEFT | {"files": there()["files"]}
    again = plan(after, left, EVERYTHING)
    assert again.is_done, again
    words = "but what was kept: the driver and its files in /etc, the user vllm, /var/cache/aibox"
    assert words in teardown.nothing(again)[0]
    last = plan(after, nothing_there(), EVERYTHING)
    assert (last.record, last.is_done) == ({}, False)  # the record itself goes


def test_what_a_teardown_asks_of_a_box_without_that_record() -> None:
    whole = records(deployed={**DEPLOYED, "users": {"vllm": {}}}, brought=None)
    asked = question(whole, PLACES)
    assert isinstance(asked, dict)
    folders = ["/var/cache/aibox", "/var/lib/vllm-coder", "/var/cache/vllm-coder"]
    assert (asked["left_users"], asked["left_folders"]) == (["vllm"], folders)
    assert (asked["trees"], asked["users"]) == ([], [])
    for one in (records(), records(deployed=None, brought=None, state=None)):
        asked = question(one, PLACES)
        assert isinstance(asked, dict)
        assert asked["left_users"] == asked["left_folders"] == []


# --- a person's own unit -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("unit", "starts", "words"),
    [
        (
            OURS,
            True,
            "your own vllm-coder.service, as it stood at 2026-11-30 08:46 UTC, and started",
        ),
        (HIS_STANDS, False, "is your own and serves"),
        ({**HIS_STANDS, "state": "inactive"}, True, "and started"),
        ({**HIS_STANDS, "tried": True}, True, "and started"),
        (CHANGED, False, "is your own and serves"),
        ({**CHANGED, "tried": True}, True, "as it stands, and started"),
    ],
    ids=[
        *("ours serves", "his serves", "his was put back", "ours is on trial over his"),
        *("his serves, changed", "ours is on trial over his, changed"),
    ],
)
def test_his_unit_comes_back(unit: dict[str, Any], starts: bool, words: str) -> None:
    found = there(units={"vllm-coder.service": unit})
    done = plan(records(found=[HIS]), found, Wish())
    assert done.back == ("vllm-coder.service",)
    assert done.start == (("vllm-coder.service",) if starts else ())
    said = [*done.comes_back, *(row for row in done.stays if "serves" in row[1])]
    assert [words in text for label, text in said if label == "server"] == [True], said
    assert not [text for label, text in done.removes if label == "server"]


@pytest.mark.parametrize("state", ["active", "inactive"])
def test_his_unit_that_he_has_changed_stays_as_it_stands(state: str) -> None:
    found = there(units={"vllm-coder.service": {**CHANGED, "state": state}})
    done = plan(records(found=[HIS]), found, Wish())
    assert (done.start, done.stop) == ((), ())
    assert done.comes_back == ()
    words = "vllm-coder.service is your own, changed since it was found: it stays as it stands"
    assert ("unit", words) in done.stays


@pytest.mark.parametrize(
    ("first", "second", "started"),
    [
        (OURS, OURS, ("qwen.service",)),
        (HIS_STANDS, OURS, ()),
        (OURS, CHANGED, ()),
        ({**CHANGED, "state": "inactive"}, OURS, ("qwen.service",)),
    ],
    ids=["both come back", "the first serves", "the second serves", "the first was changed"],
)
def test_of_two_units_of_his_one_is_started(
    first: dict[str, Any], second: dict[str, Any], started: tuple[str, ...]
) -> None:
    units = {"vllm-coder.service": first, "qwen.service": second}
    met = [{**HIS, "unit": "qwen.service"}, HIS, {**HIS, "unit": "qwen.service"}]
    done = plan(records(found=met), there(units=units), Wish())
    assert done.back == ("vllm-coder.service", "qwen.service")
    assert done.start == started
    said = [text for _, text in done.comes_back]
    assert any("(`systemctl start vllm-coder.service`)" in text for text in said) is (
        first is OURS
    ), said


OLDER = {**HIS, "sha256": "8" * 64, "content": "c8", "when": 1796027450.0}
LATER = {**HIS, "file": "/var/lib/aibox/server/found-2.json"}
THE_SAME_AGAIN = {**OLDER, "file": "/var/lib/aibox/server/found-3.json", "when": 1796027455.0}
MASKED = {**HIS, "file": "/var/lib/aibox/server/found-4.json", "content": None}
FIRST = "vllm-coder-2026-11-30-083050-88888888.service"


@pytest.mark.parametrize(
    ("met", "unit", "older"),
    [
        ([HIS], OURS, ()),
        ([OLDER, LATER], OURS, ((HIS["file"], FIRST),)),
        ([OLDER, LATER], HIS_STANDS, ((HIS["file"], FIRST),)),
        (
            [OLDER, THE_SAME_AGAIN, LATER],
            OURS,
            ((THE_SAME_AGAIN["file"], FIRST.replace("083050", "083055")),),
        ),
        ([MASKED, LATER], OURS, ()),
        ([HIS], CHANGED, ((HIS["file"], "vllm-coder-2026-11-30-084610-99999999.service"),)),
        ([HIS], {**CHANGED, "content": "c9"}, ()),
    ],
    ids=[
        *("one, which comes back", "an older one", "an older one beside his own"),
        *("an older one met twice", "a mask", "the one he has changed", "only a link changed"),
    ],
)
def test_no_text_of_his_is_lost_with_the_records(
    met: list[dict[str, Any]], unit: dict[str, Any], older: tuple[tuple[str, str], ...]
) -> None:
    done = plan(records(found=met), there(units={"vllm-coder.service": unit}), EVERYTHING)
    assert done.older == older
    said = [text for _, text in done.stays if teardown.KEPT in text]
    assert [text.rpartition("/")[2] for text in said] == [name for _, name in older]


def test_an_older_unit_of_his_is_laid_down_with_its_drop_ins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    folder, record = tmp_path / "kept", tmp_path / "found.json"
    monkeypatch.setattr(teardown, "KEPT", str(folder))
    text, drop_in = "[Service]\nUser=m\udcfc\n", "/etc/systemd/system/x.service.d/a.conf"
    record.write_text(json.dumps({"text": text, "drop_ins": {drop_in: "[Unit]\n"}}))
    done = Plan(Wish(), older=((str(record), "x-1.service"),))
    for _ in range(2):  # a run that was killed is made good by the next
        said = work.older_kept(done)
        assert said == [f"your own unit as it stood before is kept in {folder}: x-1.service"]
    assert (folder / "x-1.service").read_bytes() == b"[Service]\nUser=m\xfc\n"
    assert (folder / "x-1.service.d/a.conf").read_text() == "[Unit]\n"
    assert (folder / "x-1.service").stat().st_mode & 0o777 == 0o600
    assert work.older_kept(Plan(Wish())) == []


def test_a_drop_in_makes_another_unit_and_a_mask_is_none() -> None:
    one = {"text": "[Service]\n", "drop_ins": {}}
    assert content_of(one) == content_of({**one, "links": {"/a": "/b"}})
    assert content_of(one) != content_of({**one, "drop_ins": {"/x": "y"}})
    assert content_of({**one, "text": "\n"}) is None


def test_each_file_that_stays_with_a_toolkit_is_named() -> None:
    """It is the person's own driver that the pin holds at its version."""
    brought = {**BROUGHT, "driver_packages": ["cuda-toolkit-13-0"], "sources": {}}
    paths = (SOURCE, PREFERENCES, UNATTENDED, MODPROBE)
    files = {path: {"sha256": "1", "size": 1} for path in paths}
    found = there(files=files, sources=["/etc/apt/sources.list"])
    done = plan(records(brought=brought), found, Wish())
    kept = (SOURCE, PREFERENCES, UNATTENDED, "/etc/apt/sources.list", teardown.BROUGHT)
    assert done.kept_files == kept
    assert [text.partition(": ")[0] for label, text in done.stays if label == "file"] == [*kept]
    assert MODPROBE in done.boot_files
    assert "toolkit" in dict(done.stays) and "holds" not in dict(done.stays)


def test_what_stays_with_a_driver_is_named() -> None:
    done = plan(records(), there(), Wish())
    assert ("unit", "nvidia-persistenced.service starts at boot, since the deploy") in done.stays
    assert ("holds", "apt does not change nvidia-driver-cuda") in done.stays
    assert MODPROBE in done.kept_files
    gone = plan(records(), there(), EVERYTHING)
    assert (gone.kept_files, gone.taken_by) == ((), "")


@pytest.mark.parametrize(
    ("packages", "label", "words"),
    [
        (["cuda-toolkit-13-0"], "toolkit", "the toolkit"),
        (["nvidia-driver-cuda"], "driver", "the driver"),
        (["nvidia-driver-cuda", "cuda-toolkit-13-0"], "driver", "the driver and the toolkit"),
    ],
)
def test_a_toolkit_alone_is_not_called_a_driver(
    packages: list[str], label: str, words: str
) -> None:
    brought = {**BROUGHT, "driver_packages": packages, "nouveau_was_on": False}
    done = plan(records(brought=brought), there(), EVERYTHING)
    assert [one for one, _ in done.removes if one in ("driver", "toolkit")] == [label]
    assert teardown.families(done.purge) == words


@pytest.mark.parametrize(
    ("own", "words"),
    [
        (0, "1.0 MB of qwen, /w, all of it yours too under another name: taking it frees nothing"),
        (400_000, "1.0 MB of qwen, /w, 600.0 kB of it yours too: taking it frees 400.0 kB"),
        (10**6, "1.0 MB of qwen, /w"),
    ],
)
def test_small_weights_have_a_size_too(own: int, words: str) -> None:
    one = {"bytes": 10**6, "own": own, "model": "qwen", "folder": "/w"}
    assert teardown.weights_words(one) == words


def test_a_record_of_a_unit_that_names_another_file_is_refused() -> None:
    refusals = question(records(found=[{**HIS, "odd": "/etc/passwd"}]), PLACES)
    assert isinstance(refusals, list)
    assert refusals[0].found == "/var/lib/aibox/server/found.json names '/etc/passwd'"
    damaged = {"file": "/var/lib/aibox/server/found-2.json", "damaged": "no record"}
    refusals = question(records(found=[HIS, damaged]), PLACES)
    assert isinstance(refusals, list)
    assert "found-2.json can't be read (no record)" in refusals[0].found


def test_a_unit_that_did_not_run_is_not_started() -> None:
    done = plan(records(found=[{**HIS, "active": False}]), there(), Wish())
    assert (done.back, done.start) == (("vllm-coder.service",), ())


def test_a_unit_that_somebody_wrote_anew_is_left() -> None:
    found = there(units={"vllm-coder.service": {**OURS, "ours": False}})
    done = plan(records(), found, Wish())
    assert done.stop == ()
    assert ("unit", "vllm-coder.service was not written by a deploy") in done.stays


def test_a_file_that_was_changed_is_left() -> None:
    for sha256, goes in (("2", True), ("5", False)):
        files = {"/etc/other.conf": {"sha256": sha256, "size": 1}}
        done = plan(records(), there(files=files), Wish())
        assert ("/etc/other.conf" in done.files) is goes
        assert (("file", "/etc/other.conf was changed since the deploy") in done.stays) is not goes


# --- odd records ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path", ["/", "", "relative", "/etc", "/etc/x", "/usr/lib/x", "/srv/../etc", "/var/lib", "/a b"]
)
def test_no_place_of_ours(path: str) -> None:
    assert is_odd(path)
    folder = {**DEPLOYED, "release": {"folder": path}}
    assert isinstance(question(records(deployed=folder), PLACES), list)
    assert isinstance(question(records(), {**PLACES, "models_folder": path}), list)


@pytest.mark.parametrize("path", ["/srv/models", "/data", "/mnt/big/models", "/var/cache/aibox"])
def test_a_place_of_ours(path: str) -> None:
    assert not is_odd(path)
    assert isinstance(question(records(), {**PLACES, "models_folder": path}), dict)


@pytest.mark.parametrize(
    "record",
    [
        {"users": ["root; rm"]},
        {"packages": ["-o"]},
        {"enabled": ["../x.service"]},
        {"sources": {"/etc/passwd": ["a", "b"]}},
        {"folders": {"/srv/../etc": False}},
        {"places": {"cache_folder": ["/"]}},
        {"left_users": ["root; rm"]},
    ],
    ids=str,
)
def test_a_record_of_something_else_is_refused(record: dict[str, Any]) -> None:
    refusals = question(records(brought=record), PLACES)
    assert isinstance(refusals, list)
    assert len(refusals) == 1
    assert "brought.json names" in refusals[0].found


def test_a_damaged_record_is_refused_in_words() -> None:
    refusals = question(records(deployed={"damaged": "no JSON"}), PLACES)
    assert isinstance(refusals, list)
    assert "deployed.json can't be read (no JSON)" in refusals[0].found


def test_no_tree_that_holds_another_place_goes_whole() -> None:
    places = ["/data/models", "/srv/models"]
    made = ["/data", "/data/cache", "/var/lib/one"]
    found = teardown.trees(made, ["/data", "/data/cache", "/srv"], ["one.service"], places)
    assert found == ["/data/cache", "/var/lib/one"]


# --- what was brought ----------------------------------------------------------------------------


def test_what_was_told_first_stays_and_lists_grow() -> None:
    first = {"packages": ["a"], "folders": {"/x": True}, "nouveau_was_on": True}
    more = {"packages": ["b", "a"], "folders": {"/x": False, "/y": False}, "nouveau_was_on": False}
    assert merged(first, more) == {
        "packages": ["a", "b"],
        "folders": {"/x": True, "/y": False},
        "nouveau_was_on": True,
    }


def test_only_what_is_new_counts_as_brought() -> None:
    said = "Inst cpp (4:12 Debian:12/oldstable [amd64])\nInst gcc [1] (4:12 Debian:12 [amd64])\n"
    assert new_packages(f"{said}Conf cpp (4:12)\n") == ["cpp"]
    assert above(["/srv/models"]) == {"/srv", "/srv/models"}


@pytest.mark.parametrize("late", [False, True])
def test_a_person_s_folders_count_as_there_before_also_where_deploys_were_here_already(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, late: bool
) -> None:
    state = tmp_path / "state"
    monkeypatch.setattr(brought, "RECORD", state / "brought.json")
    monkeypatch.setattr(brought, "DEPLOYED", state / "deployed.json")
    monkeypatch.setattr(brought, "LOCK", tmp_path / "lock")
    monkeypatch.setattr(brought, "CACHE", str(tmp_path / "cache"))
    folders = [tmp_path / name for name in ("srv/models", "cache", "big/cache")]
    for folder in folders:
        folder.mkdir(parents=True)
    if late:
        state.mkdir()
        (state / "deployed.json").write_text("{}")
    asked = {
        "places": {"server_unit": "vllm-coder"},
        "folders": [*map(str, folders), str(tmp_path / "new"), "/var/lib/vllm-coder"],
    }
    brought.begin(asked)
    brought.begin(asked)
    known = brought.known()
    was_there = [known["folders"][str(path)] for path in (*folders, tmp_path / "srv")]
    assert was_there == [True, not late, True, True]
    assert known["folders"][str(tmp_path / "new")] is False
    assert known["folders"]["/var/lib/vllm-coder"] is False
    assert known.get("late", False) is late
    assert known["places"] == {"server_unit": ["vllm-coder"]}


def test_every_field_of_a_plan_is_a_step_or_a_word() -> None:
    """A plan with nothing in it is done, and one with anything in it is not."""
    assert Plan(Wish()).is_done
    whole = Teardown(DEPLOYED, BROUGHT, {}, (), there(), EVERYTHING).plan(["brought.json"])
    assert not whole.is_done
