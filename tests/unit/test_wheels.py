"""A venv against its lock and its wheels: on a small folder, with each thing that can be wrong."""

from __future__ import annotations

import hashlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from pathlib import Path

import pytest

from aibox.box import wheels as on_disk
from aibox.box.job import JobError, Progress
from aibox.decide import wheels

LOCK = """\
vllm==0.31.0 \\
    --hash=sha256:1 \\
    --hash=sha256:2
Flash_Infer.python[extra]==0.7.0.post1 ; python_version < "4" \\
    --hash=sha256:3
"""
SITE = "lib/python3.11/site-packages"


def summed(content: bytes) -> str:
    return "sha256=" + urlsafe_b64encode(hashlib.sha256(content).digest()).decode().rstrip("=")


class Venv:
    """A venv in the making: distributions with their files and a RECORD."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.site.mkdir(parents=True)

    @property
    def site(self) -> Path:
        return self.folder / SITE

    def add(self, name: str, version: str, files: dict[str, bytes], extra: str = "") -> None:
        info = self.site / f"{name}-{version}.dist-info"
        info.mkdir()
        for path, content in files.items():
            target = self.site / path
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n\nText\n".encode()
        (info / "METADATA").write_bytes(metadata)
        rows = [f"{path},{summed(content)},{len(content)}" for path, content in files.items()]
        rows += [f"{info.name}/METADATA,{summed(metadata)},1", f"{info.name}/RECORD,,"]
        (info / "RECORD").write_text("\n".join(rows) + "\n" + extra)

    def prove(
        self, lock: str = LOCK, reinstall: Callable[[str], None] | None = None
    ) -> dict[str, object]:
        progress = Progress(self.folder)
        return on_disk.prove(self.folder, lock, progress, reinstall or pytest.fail)

    def refused(self, lock: str = LOCK) -> str:
        with pytest.raises(JobError) as caught:
            self.prove(lock)
        return str(caught.value)


@pytest.fixture
def venv(tmp_path: Path) -> Venv:
    made = Venv(tmp_path)
    made.add("vllm", "0.31.0", {"vllm/a.py": b"a", "../../../bin/vllm": b"script"})
    made.add("flash_infer-Python", "0.7.0.post1", {"flash/b.py": b"b"})
    return made


def test_a_venv_as_its_wheels_made_it_is_proven(venv: Venv) -> None:
    # the script in bin/ and each METADATA count; a RECORD has no sum of itself
    assert venv.prove() == {
        "distributions": 2,
        "files": 5,
        "contested": {},
        "wrong_in_their_wheel": {},
    }


@pytest.mark.parametrize("path", ["vllm/a.py", "../../../bin/vllm", "flash/b.py"])
def test_a_file_that_was_touched_is_named(venv: Venv, path: str) -> None:
    (venv.site / path).write_bytes(b"c")
    said = venv.refused()
    assert f"{path.replace('../', '')} is another" in said
    assert "1 files that differ" in said


def test_a_file_that_is_gone_or_a_link_is_named(venv: Venv) -> None:
    (venv.site / "vllm/a.py").unlink()
    assert "vllm/a.py is missing" in venv.refused()
    (venv.site / "vllm/a.py").symlink_to(venv.site / "flash/b.py")
    assert "vllm/a.py is missing" in venv.refused()


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ("vllm/c.py,,\n", "vllm/c.py has no sum"),
        ("vllm/c.py,md5=abc,1\n", "no sha256"),
        ("vllm/c.py,sha256=abc,1\n", "no sha256"),
        ("vllm/c.py,sha256=\u00e4,1\n", "no sha256"),
        ("vllm/c.py\n", "a line of 1 cells"),
        ("../../../../outside,,\n", "outside the venv"),
        ("/etc/passwd,,\n", "outside the venv"),
    ],
)
def test_a_record_that_says_too_little_is_no_proof(tmp_path: Path, extra: str, said: str) -> None:
    venv = Venv(tmp_path)
    venv.add("vllm", "0.31.0", {"vllm/a.py": b"a"}, extra)
    assert said in venv.refused("vllm==0.31.0\n")


def test_a_distribution_without_a_record_or_metadata_is_named(venv: Venv) -> None:
    (venv.site / "vllm-0.31.0.dist-info/RECORD").unlink()
    assert "vllm-0.31.0.dist-info/RECORD can't be read" in venv.refused()
    (venv.site / "vllm-0.31.0.dist-info/METADATA").unlink()
    assert "vllm without metadata, locked 0.31.0" in venv.refused()


@pytest.mark.parametrize(
    ("lock", "said"),
    [
        (LOCK.replace("0.31.0", "0.32.0"), "vllm 0.31.0, locked 0.32.0"),
        (f"{LOCK}torch==2.13.0\n", "torch absent, locked 2.13.0"),
        ("vllm==0.31.0\n", "flash-infer-python 0.7.0.post1, locked not at all"),
    ],
)
def test_what_is_installed_is_what_the_lock_names(venv: Venv, lock: str, said: str) -> None:
    assert said in venv.refused(lock)


def test_a_stray_pth_is_refused(venv: Venv) -> None:
    (venv.site / "stray.pth").write_text("import os")
    said = venv.refused()
    assert "stray.pth in the new venv, which would run code" in said
    assert "EXPECTED_PTH" in said


def test_a_pth_that_comes_after_the_wheels_is_refused_too(venv: Venv) -> None:
    """As a file or a patch that a setting adds to the release."""
    venv.prove()
    (venv.site / "added.pth").write_text("import os")
    with pytest.raises(JobError, match=r"added\.pth"):
        on_disk.no_stray_pth(venv.folder, on_disk.read_records(venv.folder).owners)


def test_an_expected_pth_must_come_from_its_wheel(venv: Venv) -> None:
    name = "distutils-precedence.pth"
    (venv.site / name).write_text("import os")
    assert name in venv.refused()
    venv.add("setuptools", "84.0", {name: b"import os"})
    assert venv.prove(f"{LOCK}setuptools==84.0\n")["distributions"] == 3


def test_a_file_of_two_wheels_is_the_same_on_every_box(venv: Venv) -> None:
    """Which of them is written last is chance; the last by name is made the winner."""
    path, asked = venv.site / "both.py", []
    venv.add("zoo", "1", {"both.py": b"zoo"})
    venv.add("ant", "1", {"both.py": b"ant"})  # it has won

    def reinstall(name: str) -> None:
        asked.append(name)
        path.write_bytes(b"zoo")

    lock = f"{LOCK}ant==1\nzoo==1\n"
    assert venv.prove(lock, reinstall)["contested"] == {f"{SITE}/both.py": "zoo"}
    assert asked == ["zoo"]
    assert venv.prove(lock)["contested"] == {f"{SITE}/both.py": "zoo"}  # nothing more to do


def test_a_reinstall_that_does_not_help_is_refused(venv: Venv) -> None:
    venv.add("zoo", "1", {"both.py": b"zoo"})
    venv.add("ant", "1", {"both.py": b"ant"})
    with pytest.raises(JobError, match=r"both\.py is another"):
        venv.prove(f"{LOCK}ant==1\nzoo==1\n", lambda _name: None)


def test_a_wheel_with_a_record_known_to_be_wrong(venv: Venv) -> None:
    (name, version), (pattern, why) = next(iter(wheels.WRONG_IN_THE_WHEEL.items()))
    assert why
    path = pattern.replace("*", "121.abi")
    venv.add(name, version, {path: b"before"})
    (venv.site / path).write_bytes(b"after")
    proven = venv.prove(f"{LOCK}{name}=={version}\n")
    after = hashlib.sha256(b"after").hexdigest()
    assert proven["wrong_in_their_wheel"] == {f"{SITE}/{path}": after}
    (venv.site / path).unlink()
    assert f"{path} is missing" in venv.refused(f"{LOCK}{name}=={version}\n")


def test_the_lines_of_one_distribution() -> None:
    assert wheels.locked_lines(LOCK, "vllm") == "".join(LOCK.splitlines(keepends=True)[:3])
    flash = "".join(LOCK.splitlines(keepends=True)[3:])
    assert wheels.locked_lines(LOCK, "flash-infer-python") == flash
    assert wheels.locked_lines(LOCK, "torch") == ""
    versions = {"vllm": "0.31.0", "flash-infer-python": "0.7.0.post1"}
    assert wheels.locked_versions(LOCK) == versions


PER_PYTHON = """\
numpy==2.4.6 ; python_full_version < '3.12' \\
    --hash=sha256:1
numpy==2.5.5 ; python_full_version >= '3.12' \\
    --hash=sha256:2
pywin32==312 ; sys_platform == 'win32' \\
    --hash=sha256:3
vllm==0.31.0 \\
    --hash=sha256:4
"""


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"numpy": "2.4.6", "vllm": "0.31.0"}, ""),
        ({"numpy": "2.5.5", "vllm": "0.31.0"}, ""),
        ({"numpy": "2.4.6"}, "vllm absent, locked 0.31.0"),
        ({"numpy": "1.0", "vllm": "0.31.0"}, "numpy 1.0, locked 2.4.6 or 2.5.5"),
        ({"vllm": "0.31.0", "pywin32": "311"}, "pywin32 311, locked 312"),
        ({"vllm": "0.31.0", "torch": "2"}, "torch 2, locked not at all"),
    ],
)
def test_a_lock_for_several_pythons(found: dict[str, str], said: str) -> None:
    """What a marker leaves out may be absent; nothing may be there in another version."""
    refusal = wheels.version_faults(wheels.locked(PER_PYTHON), found)
    assert (refusal.found if refusal else "") == (f"in the new venv: {said}" if said else "")


def test_every_version_of_one_distribution_is_reinstalled() -> None:
    numpy = "".join(PER_PYTHON.splitlines(keepends=True)[:4])
    assert wheels.locked_lines(PER_PYTHON, "numpy") == numpy
