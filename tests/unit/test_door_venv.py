"""What a door's venv holds beside its lock."""

from __future__ import annotations

import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from aibox.box import door_venv
from aibox.box.job import JobError


def spec(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "wheels": None,
        "modules": ["json"],
        "environment": {},
        "cache": "/",
        "job": "x-venv",
    }
    return {**found, "lock_sha256": "0", **changes}


def test_a_wheel_is_unpacked_and_nothing_is_written_beside_it(tmp_path: Path) -> None:
    """An installer's notes (times, places) would make two boxes differ."""
    site = tmp_path / "venv/lib/python3.11/site-packages"
    site.mkdir(parents=True)
    with zipfile.ZipFile(tmp_path / "aibox-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("aibox/__init__.py", "")
        wheel.writestr("aibox-1.dist-info/RECORD", "")
    assert door_venv.add(spec(wheels=str(tmp_path)), tmp_path / "venv") == {}
    found = {str(path.relative_to(site)) for path in site.rglob("*") if path.is_file()}
    assert found == {"aibox/__init__.py", "aibox-1.dist-info/RECORD"}


def test_what_it_is_for_must_import(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/python").symlink_to(sys.executable)
    assert door_venv.prove(spec(), tmp_path)["imports"] == ["json"]
    with pytest.raises(JobError, match="No module named 'nowhere'"):
        door_venv.prove(spec(modules=["json", "nowhere"]), tmp_path)
