"""Deploy to rehearsal boxes: the same pyinfra, the same deploy.py, over ssh, other data."""

from __future__ import annotations

import filecmp
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.rehearsal.box import Box
from tests.rehearsal.emulation import extra_file, grafana_repository, nvidia_repository
from tests.rehearsal.machine import CHECKOUT, CHECKOUT_ID, cache_folder, locked
from tests.rehearsal.standin.build import build

HERE = Path(__file__).resolve().parent
STANDIN_VERSION = "0.31.0+standin"
HostData = dict[str, Any]


@dataclass(frozen=True)
class Deploy:
    """How one run of pyinfra ended: its exit code, its log (stderr) and its output (stdout)."""

    code: int
    log: str
    output: str

    @property
    def said(self) -> str:
        return self.log + self.output

    @property
    def planned(self) -> list[str]:
        """What a run with --dry --json that ended well would change, by operation."""
        assert self.code == 0, self.said
        rows = json.loads(self.output)["plan"]
        return [
            row["name"]
            for row in rows
            if row["hosts_with_change"] or row["hosts_with_conditional_change"]
        ]


@cache
def files_folder() -> Path:
    """What the file server serves under /files/: the extra file, the stand-in's wheels and the
    NVIDIA repository."""
    folder = cache_folder() / "files" / CHECKOUT_ID
    folder.mkdir(parents=True, exist_ok=True)
    extra = extra_file.fetch()
    with (
        locked(folder.with_suffix(".lock")),
        tempfile.TemporaryDirectory(dir=folder.parent) as text,
    ):
        aside = Path(text)
        build(aside)
        (aside / extra.path.name).hardlink_to(extra.path)
        for file in aside.iterdir():
            lay(file, folder / file.name)
    nvidia_repository.served(folder)
    grafana_repository.served(folder)
    return folder


def lay(file: Path, place: Path) -> None:
    """What is there already stays: the box of another process may be fetching it."""
    same = place.exists() and (place.samefile(file) or filecmp.cmp(file, place, shallow=False))
    if not same:
        file.replace(place)


def download_caches() -> dict[str | Path, str]:
    """Binds that keep a box's downloads for the next box: uv's cache."""
    kept = cache_folder() / "downloads" / "uv"
    kept.mkdir(parents=True, exist_ok=True)
    return {kept: "/var/cache/aibox/uv"}


def connection(box: Box, user: str = "admin") -> HostData:
    """How pyinfra reaches a box."""
    return {
        "ssh_hostname": box.address,
        "ssh_user": user,
        "ssh_key": str(box.private_key),
        "ssh_known_hosts_file": str(box.known_hosts),
        "ssh_strict_host_key_checking": "yes",
    }


def nvidia(hub: str) -> HostData:
    """Host data for the NVIDIA repository of the file server and the key that signs it."""
    repositories = nvidia_repository.served(cache_folder() / "files")
    return {
        "nvidia_repository": repositories.url(hub),
        "nvidia_key": repositories.fingerprint,
    }


def grafana(hub: str) -> HostData:
    """Host data for the stand-in of Grafana's repository."""
    repository = grafana_repository.served(cache_folder() / "files")
    return {
        "grafana_repository": repository.url(hub),
        "grafana_key": repository.fingerprint,
    }


def production(hub: str, python: str = "3.11") -> HostData:
    """Host data for the production release, which serves on the CPU with one extra file."""
    extra = extra_file.fetch()
    return {
        "hub": hub,
        **nvidia(hub),
        **grafana(hub),
        "release_extra_files": [
            {
                "url": f"{hub}/files/{extra.path.name}",
                "sha256": extra.sha256,
                "path": extra.path_in_release(python),
            }
        ],
    }


def standin(hub: str) -> HostData:
    """Host data for the stand-in release."""
    return {
        "hub": hub,
        **nvidia(hub),
        **grafana(hub),
        "vllm_version": STANDIN_VERSION,
        "locks_folder": str(HERE / "group_data/locks"),
        "release_find_links": f"{hub}/files/",
        "release_extra_packages": [],
        "server_environment": {},
        "release_disk_gb": 0.2,
        "release_fetch_gb": 0.0001,
        "start_timeout_s": 60,
        "stream": False,
        "gateway": False,
    }


def command_line(*words: str, entry: str = "deploy.py") -> list[str]:
    """pyinfra with options, the rehearsal's inventory and one of the product's entries."""
    return [sys.executable, "-m", "pyinfra", *words, str(HERE / "inventory.py"), entry]


def environment(boxes: Mapping[Box, HostData], folder: Path) -> dict[str, str]:
    """Write the boxes down for inventory.py and return the environment that names the file."""
    written = folder / "boxes.json"
    data = {box.name: {**connection(box), **values} for box, values in boxes.items()}
    written.write_text(json.dumps(data))
    return {**os.environ, "REHEARSAL_BOXES": str(written), "PYINFRA_PROGRESS": "off"}


def deploy(
    boxes: Mapping[Box, HostData],
    *words: str,
    timeout_s: float = 900,
    entry: str = "deploy.py",
    project: Path = CHECKOUT,
) -> Deploy:
    """One run, with its output kept. `words` are pyinfra's options, such as -y or --dry.

    entry: the file that is run, of those that are made to be. project: a copy of this one, where a
    test has secrets of its own.
    """
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(
            command_line(*words, entry=entry),
            cwd=project,
            env=environment(boxes, Path(folder)),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
    return Deploy(done.returncode, done.stderr, done.stdout)


def deploy_shown(boxes: Mapping[Box, HostData], *words: str) -> int:
    """One run whose output goes to the person; returns its exit code."""
    with tempfile.TemporaryDirectory() as folder:
        environment_ = environment(boxes, Path(folder))
        del environment_["PYINFRA_PROGRESS"]
        return subprocess.run(
            command_line(*words), cwd=CHECKOUT, env=environment_, check=False
        ).returncode
