"""Pinned patches: which apply, what they touch, and what is refused."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from aibox.box import patches as on_box
from aibox.box.job import JobError
from aibox.decide.patches import touched
from aibox.settings import SettingsError, release_locks
from tasks.box import Box
from tests.unit.conftest import Load
from tests.unit.test_kernels import box_of

DIFF = """\
diff --git a/vllm/a.py b/vllm/a.py
--- a/vllm/a.py
+++ b/vllm/a.py
@@ -1,3 +1,3 @@
 one
-two
+zwei
 three
"""
ADDED = """\
--- /dev/null
+++ b/vllm/new.py
@@ -0,0 +1 @@
+new
"""
REMOVED = """\
--- a/vllm/a.py
+++ /dev/null
@@ -1 +0,0 @@
-one
"""
SOURCE = "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    ("text", "paths"),
    [(DIFF, ["vllm/a.py"]), (DIFF + ADDED, ["vllm/a.py", "vllm/new.py"])],
)
def test_what_a_diff_touches(text: str, paths: list[str]) -> None:
    assert touched(text) == paths


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "names no file"),
        ("some words\n", "names no file"),
        (REMOVED, "takes a/vllm/a.py away"),
        (DIFF.replace("+++ b/vllm/a.py", "+++ b/../a.py"), "b/../a.py"),
        (DIFF.replace("+++ b/vllm/a.py", "+++ /etc/passwd"), "/etc/passwd"),
        (DIFF.replace("+++ b/vllm/a.py", "+++ vllm/a.py"), "as git writes it"),
    ],
)
def test_a_diff_that_can_not_be_taken(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        touched(text)


def patch(text: str) -> dict[str, str]:
    url = "https://github.com/vllm-project/vllm/pull/50021"
    return {"file": "patches/a.patch", "sha256": "0" * 64, "upstream": url, "text": text}


@pytest.fixture
def site(tmp_path: Path) -> Path:
    folder = tmp_path / "site-packages"
    (folder / "vllm").mkdir(parents=True)
    (folder / "vllm/a.py").write_text(SOURCE)
    return folder


def test_a_patch_is_applied_and_its_files_are_recorded(site: Path, tmp_path: Path) -> None:
    cached = tmp_path / "cached.py"
    cached.hardlink_to(site / "vllm/a.py")  # as uv's cache is
    record = on_box.apply(site, patch(DIFF + ADDED))
    changed = SOURCE.replace("two", "zwei")
    assert (site / "vllm/a.py").read_text() == changed
    assert cached.read_text() == SOURCE
    assert record["files"] == {
        "vllm/a.py": hashlib.sha256(changed.encode()).hexdigest(),
        "vllm/new.py": hashlib.sha256(b"new\n").hexdigest(),
    }
    assert sorted(path.name for path in (site / "vllm").iterdir()) == ["a.py", "new.py"]


@pytest.mark.parametrize(
    "text",
    [
        DIFF.replace("-two", "-2"),
        DIFF.replace(" one", " eins"),  # no fuzz
        ADDED + DIFF.replace("-two", "-2"),  # the first half would apply
        DIFF.replace("vllm/a.py", "vllm/gone.py"),
    ],
)
def test_a_patch_that_does_not_apply_is_refused_whole(site: Path, text: str) -> None:
    with pytest.raises(JobError) as caught:
        on_box.apply(site, patch(text))
    assert "patches/a.patch does not apply" in caught.value.refusal.found
    assert "pull/50021" in caught.value.refusal.remedy
    assert (site / "vllm/a.py").read_text() == SOURCE
    assert [path.name for path in (site / "vllm").iterdir()] == ["a.py"]


def test_a_patch_that_is_in_already_is_refused(site: Path) -> None:
    on_box.apply(site, patch(DIFF))
    with pytest.raises(JobError, match="does not apply"):
        on_box.apply(site, patch(DIFF))


# --- the setting ---


def entry(project: Path, **changes: str) -> dict[str, str]:
    path = project / "a.patch"
    path.write_text(DIFF)
    right = {
        "file": "a.patch",
        "sha256": hashlib.sha256(DIFF.encode()).hexdigest(),
        "upstream": "https://github.com/vllm-project/vllm/pull/50021",
        "vllm": "==0.31.0",
    }
    return {**right, **changes}


def test_a_patch_makes_another_release(load: Load, project: Path) -> None:
    plain = release_locks(load())["3.11"].release_id
    box: Box = box_of(load, release_patches=[entry(project)])
    assert box.release.release_id != plain
    [sent] = box.release_spec["patches"]
    assert sent["text"] == DIFF


@pytest.mark.parametrize("vllm", ["==0.30.0", "<0.31", ">=0.31.1"])
def test_a_patch_for_another_version_vanishes(load: Load, project: Path, vllm: str) -> None:
    left = entry(project, vllm=vllm, file="gone.patch")  # nobody needs the file any more
    settings = load(release_patches=[left])
    assert settings.patches == ()
    assert [one.file for one in settings.patches_left_out] == ["gone.patch"]
    plain = release_locks(load())["3.11"].release_id
    assert release_locks(settings)["3.11"].release_id == plain


def test_the_order_of_patches_counts(load: Load, project: Path) -> None:
    first = entry(project)
    (project / "b.patch").write_text(ADDED)
    second = {**first, "file": "b.patch", "sha256": hashlib.sha256(ADDED.encode()).hexdigest()}
    forward = release_locks(load(release_patches=[first, second]))["3.11"].release_id
    assert release_locks(load(release_patches=[second, first]))["3.11"].release_id != forward


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"file": "gone.patch"}, "gone.patch can't be read (No such file or directory)"),
        ({"sha256": "0" * 64}, f"a.patch has sha256 {hashlib.sha256(DIFF.encode()).hexdigest()}"),
        ({"sha256": "0"}, "release_patches.0.sha256"),
        ({"vllm": "0.31.0"}, "expected versions such as"),
        ({"vllm": ""}, "a patch is for some only"),
        ({"file": "../a.patch"}, "without '..'"),
        ({"upstream": "pull 50021"}, "an http or https URL"),
    ],
)
def test_a_patch_that_is_not_what_the_setting_says(
    load: Load, project: Path, changes: dict[str, str], said: str
) -> None:
    with pytest.raises(SettingsError) as caught:
        load(release_patches=[entry(project, **changes)])
    assert said in str(caught.value)


def test_every_field_of_a_patch_is_needed(load: Load, project: Path) -> None:
    whole: dict[str, Any] = entry(project)
    for name in whole:
        rest = {key: value for key, value in whole.items() if key != name}
        with pytest.raises(SettingsError, match=f"release_patches.0.{name}"):
            load(release_patches=[rest])
