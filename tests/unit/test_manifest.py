import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aibox.box import contents, status
from aibox.decide import manifest
from aibox.decide.manifest import Entry, Manifest, Readings, Venv, build, compare

SITE = "lib/python3.11/site-packages"


def file(path: str, content: str = "aa", mode: str = "644") -> Entry:
    return Entry(path, "file", mode, "root", "root", content)


def folder(path: str) -> Entry:
    return Entry(path, "folder", "755", "root", "root", "")


DEPLOYED: dict[str, Any] = {
    "aibox": {"folder": "/opt/aibox", "identity": "0.1.0-00000000"},
    "release": {"id": "0.31.0-11111111", "folder": "/opt/vllm/releases/0.31.0-11111111"},
    "weights": {"commit": "c" * 40, "repository": "a/b", "folder": "/srv/models/b", "files": {}},
    "packages": {"gcc": None, "nvidia-open": "580.178.04-1"},
    "files": {"/etc/one": {"sha256": "aa"}, "/etc/key": {"sha256": None}},
    "server": {
        "unit": "vllm-coder.service",
        "port": 8000,
        "model": "qwen",
        "speculative": True,
        "identity": "me",
        "proof": "/var/lib/aibox/proof.json",
    },
}
RELEASE = Venv(
    (
        folder("."),
        Entry("bin/python", "link", "777", "root", "root", "/usr/bin/python3"),
        file(f"{SITE}/vllm/engine.py"),
        file(f"{SITE}/vllm/server.py"),
        folder(f"{SITE}/flash_attn-2.8.post1.dist-info"),
        file(f"{SITE}/flash_attn-2.8.post1.dist-info/RECORD"),
        file(f"{SITE}/six.py"),
    ),
    "home = /usr/bin\nversion = 3.11.2\nversion_info = 3.11.2\nrelocatable = true\n",
)
READ = Readings(
    deployed=DEPLOYED,
    venvs={"release": RELEASE},
    weights=(file("config.json"),),
    files={"/etc/one": file("one"), "/etc/key": file("key", mode="600")},
    links={"/opt/aibox/current": "0.1.0-00000000"},
    units={"vllm-coder.service": {"UnitFileState": "enabled", "ActiveState": "active"}},
    drop_ins={"vllm-coder.service": ()},
    users={"vllm": ("/var/lib/vllm-coder", "/usr/sbin/nologin")},
    groups={"vllm": ("vllm",)},
    kernel_settings={"vm.swappiness": "10"},
    python="3.11.2",
    packages={"gcc": "4:12.2", "nvidia-open": "580.178.04-1", "bash": "5.2"},
    held=("nvidia-open", "bash"),
    driver={"loaded": "580.178.04, open modules", "module": None, "library": "580.178.04"},
    recorded={"kernel": "6.1"},
)


def venv_with(*changed: Entry) -> dict[str, Venv | None]:
    others = [one for one in RELEASE.entries if one.path not in {new.path for new in changed}]
    return {"release": replace(RELEASE, entries=(*others, *changed))}


def shown(later: Readings, earlier: Readings = READ) -> list[str]:
    return [str(one) for one in compare(build(earlier), build(later))]


CHANGES: list[tuple[dict[str, Any], str]] = [
    ({"files": {**READ.files, "/etc/one": file("one", "bb")}}, "files /etc/one sha256: A aa, B bb"),
    (
        {"files": {**READ.files, "/etc/one": file("one", mode="600")}},
        "files /etc/one mode: A 644, B 600",
    ),
    (
        {"files": {**READ.files, "/etc/one": replace(file("one"), user="vllm")}},
        "files /etc/one owner: A root:root, B vllm:root",
    ),
    ({"files": {**READ.files, "/etc/one": None}}, "files /etc/one: A there, B absent"),
    (
        {"links": {"/opt/aibox/current": None}},
        "links /opt/aibox/current: A 0.1.0-00000000, B absent",
    ),
    ({"groups": {"vllm": ("vllm", "eve")}}, "groups vllm eve: only in B"),
    ({"groups": {"vllm": None}}, "groups vllm: A there, B absent"),
    (
        {"users": {"vllm": ("/", "/usr/sbin/nologin")}},
        "users vllm home: A /var/lib/vllm-coder, B /",
    ),
    ({"venvs": {"release": None}}, "venvs release: A there, B absent"),
    ({"weights": None}, "weights files: A there, B absent"),
    ({"weights": (*(READ.weights or ()), file("x"))}, "weights files x: only in B"),
    ({"weights": ()}, "weights files config.json: only in A"),
    ({"kernel_settings": {"vm.swappiness": "60"}}, "kernel settings vm.swappiness: A 10, B 60"),
    ({"kernel_settings": {"vm.swappiness": None}}, "kernel settings vm.swappiness: A 10, B absent"),
    (
        {"units": {"vllm-coder.service": {"UnitFileState": "enabled", "ActiveState": "failed"}}},
        "units vllm-coder.service state: A active, B failed",
    ),
    (
        {"drop_ins": {"vllm-coder.service": (file("/run/x.conf"),)}},
        "units vllm-coder.service drop-ins /run/x.conf: only in B",
    ),
]


@pytest.mark.parametrize(("change", "line"), CHANGES)
def test_one_change_is_one_line(change: dict[str, Any], line: str) -> None:
    assert shown(replace(READ, **change)) == [f"bit       {line}"]


def test_a_name_that_would_move_the_cursor_is_shown_in_words() -> None:
    stray = "\x1b[2J\udcff"
    assert shown(replace(READ, weights=(*(READ.weights or ()), file(stray)))) == [
        "bit       weights files \\x1b[2J\\udcff: only in B"
    ]


def test_the_same_readings_in_another_order_are_the_same() -> None:
    later = replace(
        READ,
        venvs={"release": replace(RELEASE, entries=RELEASE.entries[::-1])},
        packages=dict(reversed(list(READ.packages.items()))),
    )
    assert shown(later) == []
    first, second = (json.dumps(build(read), sort_keys=True) for read in (READ, later))
    assert first == second


@pytest.mark.parametrize(
    "changed",
    [
        file(f"{SITE}/vllm/engine.py", "bb"),
        file(f"{SITE}/vllm/engine.py", mode="664"),
        file(f"{SITE}/vllm/more.py"),
        folder(f"{SITE}/vllm/more"),
        Entry(f"{SITE}/vllm/engine.py", "link", "777", "root", "root", "/etc/passwd"),
    ],
)
def test_a_change_in_a_venv_names_its_package(changed: Entry) -> None:
    later = replace(READ, venvs=venv_with(changed))
    [line] = compare(build(READ), build(later))
    assert line.where == ("venvs", "release", "parts", f"{SITE}/vllm")


def test_distributions_and_settings_of_a_venv() -> None:
    release = build(READ)["bit"]["venvs"]["release"]
    assert release["distributions"] == {"flash-attn": "2.8.post1"}
    assert release["settings"] == {"home": "/usr/bin", "relocatable": "true"}
    assert set(release["parts"]) == {
        ".",
        "bin",
        f"{SITE}/vllm",
        f"{SITE}/six.py",
        f"{SITE}/flash_attn-2.8.post1.dist-info",
    }


def test_a_secret_shows_nothing_of_its_content() -> None:
    later = {**READ.files, "/etc/key": file("key", "another", mode="600")}
    assert shown(replace(READ, files=later)) == []
    assert build(READ)["bit"]["files"]["/etc/key"]["sha256"] == "secret"
    later = {**READ.files, "/etc/key": file("key", mode="644")}
    assert shown(replace(READ, files=later)) == ["bit       files /etc/key mode: A 600, B 644"]


def test_only_a_pinned_package_promises_its_version() -> None:
    newer = {"gcc": "4:12.3", "nvidia-open": "590.1-1", "bash": "5.3"}
    assert shown(replace(READ, packages=newer)) == [
        "version   packages nvidia-open: A 580.178.04-1, B 590.1-1",
        "recorded  packages bash: A 5.2, B 5.3",
        "recorded  packages gcc: A 4:12.2, B 4:12.3",
        "recorded  packages nvidia-open: A 580.178.04-1, B 590.1-1",
    ]
    without = {"nvidia-open": "580.178.04-1", "bash": "5.2"}
    assert shown(replace(READ, packages=without)) == [
        "version   packages gcc: A installed, B absent",
        "recorded  packages gcc: only in A",
    ]


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({}, True),
        ({"python": "3.11.9"}, True),
        ({"python": "3.12.0"}, False),
        ({"recorded": {"kernel": "6.2"}}, True),
        ({"groups": {"vllm": ()}}, False),
        ({"held": ("nvidia-open",)}, True),  # what a person holds of the distribution's
        ({"held": ("bash",)}, False),
        ({"driver": {**READ.driver, "loaded": "590.48.01, open modules"}}, False),
        ({"driver": {**READ.driver, "library": None}}, False),
    ],
)
def test_what_is_only_recorded_may_differ(change: dict[str, Any], same: bool) -> None:
    found = compare(build(READ), build(replace(READ, **change)))
    assert manifest.are_the_same(found) is same


def test_sums_are_equal_where_a_tier_is() -> None:
    one, two = build(READ), build(replace(READ, python="3.12.0"))
    assert one["sums"]["bit"] == two["sums"]["bit"]
    assert one["sums"]["version"] != two["sums"]["version"]


def test_boxes_that_left_out_different_things_are_not_the_same() -> None:
    other = copy.deepcopy(build(READ))
    del other["left_out"]["secrets: their content"]
    found = compare(build(READ), other)
    assert not manifest.are_the_same(found)
    assert str(found[0]).startswith("bit       left out of the comparison secrets")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "not JSON"),
        ("[]", "not a manifest"),
        ("[" * 100_000, "nested too deeply"),
        ('{"bit": {}, "version": {}, "recorded": 1, "left_out": {}}', "not a manifest"),
        (
            '{"bit": {}, "version": {}, "recorded": {}, "left_out": {}}',
            "of format None, expected 1",
        ),
    ],
)
def test_what_is_no_manifest_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        manifest.parse(text)


def test_a_manifest_survives_its_json() -> None:
    built: Manifest = build(READ)
    assert compare(built, manifest.parse(json.dumps(built))) == []


@pytest.mark.parametrize(
    ("path", "left_out"),
    [
        (f"{SITE}/__pycache__", True),
        (f"{SITE}/a/b.pyc", True),
        ("pyvenv.cfg", True),
        (f"{SITE}/pyvenv.cfg", False),
        (f"{SITE}/my__pycache__", False),
        (f"{SITE}/a.py", False),
    ],
)
def test_left_out_of_a_venv(path: str, left_out: bool) -> None:
    assert manifest.left_out_of_venv(path) is left_out


# --- what is read ------------------------------------------------------------------------------


def test_a_folder_is_read_whole_and_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "inner/__pycache__").mkdir(parents=True)
    (tmp_path / "inner/__pycache__/a.pyc").write_text("x")
    (tmp_path / "inner/a.py").write_text("x")
    (tmp_path / "inner/empty").write_text("")
    (tmp_path / "out").symlink_to("/")
    (tmp_path / "gone").symlink_to("nowhere")
    found = contents.entries(tmp_path, manifest.left_out_of_venv)
    assert found is not None
    assert [(one.path, one.kind) for one in found] == [
        (".", "folder"),
        ("gone", "link"),
        ("inner", "folder"),
        ("inner/a.py", "file"),
        ("inner/empty", "file"),
        ("out", "link"),
    ]
    assert found[5].content == "/"
    assert found[3].content == "2d711642b726b04401627ca9fbac32f5c8530fb1903cc4db02258717921a4881"
    assert contents.entries(tmp_path / "none", manifest.left_out_of_venv) is None


def test_a_sum_on_record_is_taken_only_for_the_file_as_it_was_then(tmp_path: Path) -> None:
    for name in ("same", "changed", "new"):
        (tmp_path / name).write_text(name)
    stamps = {
        name: [found.st_size, found.st_mtime_ns, found.st_ino]
        for name in ("same", "changed")
        for found in [(tmp_path / name).stat()]
    }
    stamps["changed"][1] -= 1
    record = {name: {"stamp": stamp, "sha256": "recorded"} for name, stamp in stamps.items()}
    (tmp_path / ".verified.json").write_text(json.dumps({"commit": "c", "files": record}))
    found = {one.path: one.content for one in status.weights(tmp_path, full=False) or ()}
    assert set(found) == {".", "same", "changed", "new"}
    assert found["same"] == "recorded"
    assert "recorded" not in (found["changed"], found["new"])
    found = {one.path: one.content for one in status.weights(tmp_path, full=True) or ()}
    assert "recorded" not in found.values()
