"""A small project folder that the settings tests load from, and a made-up systemd."""

import json
import runpy
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aibox.box import found, good_units, turning
from aibox.box.service import Service
from aibox.settings import Settings, load_settings
from tests.unit.made_systemd import Systemd

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
CUDA_13 = (
    "torch==2.13.0 \\\n    --hash=sha256:0\nnvidia-cuda-runtime==13.0.96 \\\n    --hash=sha256:1\n"
)


@pytest.fixture
def data() -> dict[str, Any]:
    """What group_data/all.py gives a host."""
    names = runpy.run_path(str(ROOT / "group_data/all.py"))
    return {name: value for name, value in names.items() if not name.startswith("_")}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with the real cards, locks for Python 3.11 and 3.13, and a weights lock."""
    cards, locks = tmp_path / "group_data/models", tmp_path / "group_data/locks"
    cards.mkdir(parents=True)
    locks.mkdir()
    shutil.copy(ROOT / "group_data/models/qwen3.8-27b.yml", cards)
    for python in ("311", "313"):
        (locks / f"vllm-0.31.0-py{python}.txt").write_text(CUDA_13)
    write_weights_lock(cards / "qwen3.8-27b.lock.json", "Qwen/Qwen3.8-27B")
    return tmp_path


def write_weights_lock(path: Path, repository: str) -> None:
    files = {
        "config.json": {"size": 1000, "sha256": "a" * 64},
        "model-00001-of-00001.safetensors": {"size": 55_000_000_000, "sha256": "b" * 64},
    }
    path.write_text(json.dumps({"repository": repository, "commit": COMMIT, "files": files}))


Load = Callable[..., Settings]


@pytest.fixture
def load(data: dict[str, Any], project: Path) -> Load:
    """Loads the settings of one host, with some of them changed."""

    def loaded(**changes: Any) -> Settings:
        return load_settings({"box": data | changes}, project, ())["box"]

    return loaded


@pytest.fixture
def systemd(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Systemd:
    made = Systemd(tmp_path)
    monkeypatch.setattr(good_units, "SERVER_STATE", tmp_path / "state")
    monkeypatch.setattr(found, "STATE", tmp_path / "state")
    monkeypatch.setattr(found, "INSTALLED", made.etc)
    monkeypatch.setattr(found, "STANDING", (made.etc, made.local, made.usr))
    monkeypatch.setattr(turning, "CONTROL", made.control)
    monkeypatch.setattr(turning, "TURNING", made.turning)
    monkeypatch.setattr(turning, "Service", partial(Service, installed=made.etc, tried=made.run))
    monkeypatch.setattr(Service, "properties", lambda _self: made.shown)
    monkeypatch.setattr(Service, "reload", lambda _self: None)
    return made
