"""Weights that a person has: where they may lie, what can be shared, what room they save."""

import os
import stat
from pathlib import Path

import pytest

from aibox.box.probe import accounts, caches
from aibox.decide.takeover import asked, patterns
from aibox.decide.weights import LockedFile

FILE = LockedFile(5, "a" * 64)
COMMIT = "c" * 40


@pytest.mark.parametrize(
    "lying",
    [
        f"hub/models--a--b/snapshots/{COMMIT}/x.json",
        f"models--a--b/blobs/{'a' * 64}",
        "models--a--b/snapshots/another/x.json",
        f"snapshots/{COMMIT}/x.json",
        "x.json",
    ],
)
def test_a_file_is_found_in_each_shape_of_folder(tmp_path: Path, lying: str) -> None:
    file = tmp_path / lying
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("12345")
    found = {name for one in patterns("a/b", COMMIT, "x.json", FILE) for name in tmp_path.glob(one)}
    assert found == {file}


def test_this_commit_comes_before_another() -> None:
    found = patterns("a/b", COMMIT, "x.json", FILE)
    assert found.index(f"models--a--b/snapshots/{COMMIT}/x.json") < found.index(
        "models--a--b/snapshots/*/x.json"
    )


@pytest.mark.parametrize(
    ("mode", "gid", "shared"),
    [
        (0o644, 100, True),
        (0o444, 100, True),
        (0o755, 100, True),
        (0o640, 1000, False),
        (0o600, 1000, False),
        (0o664, 1000, True),  # the owner's own group, as by Ubuntu's umask
        (0o664, 1001, False),  # it has another member
        (0o664, 100, False),
        (0o664, 4711, False),
        (0o666, 1000, False),
        (0o646, 1000, False),
        (0o4755, 1000, False),
    ],
)
def test_a_file_is_shared_where_its_mode_will_do(
    monkeypatch: pytest.MonkeyPatch, mode: int, gid: int, shared: bool
) -> None:
    uid = 1001 if gid == 1001 else 1000
    names = {1000: "me", 1001: "her", 100: "users"}
    monkeypatch.setattr(accounts, "user_name", names.__getitem__)
    monkeypatch.setattr(accounts, "group_name", lambda gid: names.get(gid, str(gid)))
    monkeypatch.setattr(accounts, "members", lambda name: [name, "me"] if name == "her" else [name])

    def of(kind: int) -> os.stat_result:
        return os.stat_result((kind | mode, 1, 1, 1, uid, gid, 5, 0, 0, 0))

    assert accounts.can_be_shared(of(stat.S_IFREG)) is shared
    assert not accounts.can_be_shared(of(stat.S_IFLNK))


def test_what_can_be_linked_needs_no_room(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "models/a"
    source.mkdir()
    for name, mode in (("x", 0o644), ("y", 0o600), ("z", 0o644)):
        (source / name).write_text("12345")
        (source / name).chmod(mode)
    files = {"x": FILE, "y": FILE, "z": LockedFile(6, "b" * 64)}
    question = {"from": str(source), "to": [str(target)], "files": asked("a/b", COMMIT, files)}
    assert caches.linkable(question) == 5
    target.mkdir(parents=True)
    os.link(source / "x", target / "x")
    assert caches.linkable(question) == 0  # the folder's own size tells it
    assert caches.linkable(question | {"from": str(tmp_path / "none")}) == 0
    assert caches.linkable(None) == 0
