"""Weights on the disk: what is verified, what is refused, and what becomes of it. No network."""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from aibox.box import fetch, hashing, tensors
from aibox.box.job import JobError, Progress
from aibox.box.probe import weights
from aibox.decide.weights import FileStamp, WeightsLock, WeightsPlan, plan
from tests.unit.conftest import ROOT

MODELS = ROOT / "tests/rehearsal/emulation/models/rehearsal"
LOCK = ROOT / "tests/rehearsal/group_data/models/tiny-qwen3.5-mtp.lock.json"
SHARD = "model-00001-of-00001.safetensors"
RECORDS = {".verified.json", ".manifest.json"}
HEAD = {
    "config_key": "mtp_num_hidden_layers",
    "layers": 1,
    "tensor_prefix": "mtp.",
    "tensors": 15,
}


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    folder = tmp_path / "job"
    folder.mkdir()
    return Progress(folder)


@pytest.fixture
def spec(tmp_path: Path) -> dict[str, Any]:
    """The task for the tiny model, whose files stand in the folder of the download already."""
    lock = json.loads(LOCK.read_text())
    folder = tmp_path / "models" / "tiny" / lock["commit"]
    shutil.copytree(MODELS / "tiny-qwen3.5-mtp", partial(folder))
    # nothing listens on port 1: who asks the network fails
    rest = {"hub": "http://127.0.0.1:1", "dtype": "bfloat16", "head": HEAD, "folder": str(folder)}
    return {**lock, **rest}


def partial(folder: Path) -> Path:
    return folder.with_name(f".partial-{folder.name}")


def test_files_that_are_whole_are_taken_over(spec: dict[str, Any], progress: Progress) -> None:
    assert fetch.fetch(spec, progress) == {"fetched": [], "notes": []}
    folder = Path(spec["folder"])
    assert {file.name for file in folder.iterdir()} == {*spec["files"], *RECORDS}
    assert not partial(folder).exists()


def test_what_was_verified_is_what_the_plan_finds_complete(
    spec: dict[str, Any], progress: Progress
) -> None:
    fetch.fetch(spec, progress)
    folder = Path(spec["folder"])
    assert planned(folder) == WeightsPlan((), (), ())
    (folder / "vocab.json").touch()
    (folder / "merges.txt").unlink()
    (folder / "mine.txt").write_text("x")
    assert planned(folder) == WeightsPlan(("merges.txt",), ("vocab.json",), ("mine.txt",))


def planned(folder: Path) -> WeightsPlan:
    """As the deploy plans it, from the probe's own answer."""
    found = weights.weights({"folder": str(folder)})
    return plan(
        WeightsLock.parse(LOCK.read_text()).files,
        {path: FileStamp(*stamp) for path, stamp in found["seen"].items()},
        {
            path: (FileStamp(*file["stamp"]), file["sha256"])
            for path, file in found["verified"]["files"].items()
        },
    )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"head": {**HEAD, "tensors": 16}}, "15 tensors named mtp.*"),
        ({"head": {**HEAD, "config_key": "num_nextn_predict_layers"}}, "config.json has no num_"),
        ({"dtype": "float16"}, "weights of another type"),
    ],
)
def test_weights_that_are_not_the_cards_never_get_their_folder(
    spec: dict[str, Any], progress: Progress, change: dict[str, Any], found: str
) -> None:
    with pytest.raises(JobError) as error:
        fetch.fetch(spec | change, progress)
    assert found in error.value.refusal.found
    assert not Path(spec["folder"]).exists()


def test_a_model_without_a_head_needs_none(spec: dict[str, Any], progress: Progress) -> None:
    assert fetch.fetch(spec | {"head": None}, progress) == {"fetched": [], "notes": []}


def test_a_lock_without_a_shard_of_the_index_is_refused(
    spec: dict[str, Any], progress: Progress
) -> None:
    del spec["files"][SHARD]
    (partial(Path(spec["folder"])) / SHARD).unlink()
    with pytest.raises(JobError, match="shards that the lock lacks"):
        fetch.fetch(spec, progress)


def test_a_model_in_a_single_file_needs_no_index(spec: dict[str, Any], progress: Progress) -> None:
    index = "model.safetensors.index.json"
    (partial(Path(spec["folder"])) / index).unlink()
    del spec["files"][index]
    assert fetch.fetch(spec, progress)["fetched"] == []
    with pytest.raises(JobError, match="15 tensors named"):
        fetch.fetch(spec | {"head": {**HEAD, "tensors": 16}}, progress)


def test_weights_that_the_lock_does_not_know_are_refused_by_name(
    spec: dict[str, Any], progress: Progress
) -> None:
    (partial(Path(spec["folder"])) / "extra.safetensors").write_bytes(b"x")
    with pytest.raises(JobError, match=r"extra\.safetensors in .*: no file of this commit"):
        fetch.fetch(spec, progress)


def test_a_disk_without_room_is_told_before_anything_is_fetched(
    spec: dict[str, Any], progress: Progress
) -> None:
    spec["files"]["huge.bin"] = {"size": 10**18, "sha256": "0" * 64}
    with pytest.raises(JobError, match="GB free on the disk of"):
        fetch.fetch(spec, progress)


@pytest.mark.parametrize("size", [0, 100])
def test_a_truncated_file_is_removed_unread(
    spec: dict[str, Any], progress: Progress, size: int
) -> None:
    shard = partial(Path(spec["folder"])) / SHARD
    os.truncate(shard, size)
    verified = fetch.verify(shard.parent, spec, progress)
    assert set(spec["files"]) - set(verified) == {SHARD}
    assert not shard.exists()


def test_what_was_verified_is_not_read_again_until_it_is_asked_for(
    spec: dict[str, Any], progress: Progress, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetch.fetch(spec, progress)
    read: list[Path] = []
    sums = hashing.sums

    def noted(files: Iterable[Path], progress: Progress) -> dict[Path, str | None]:
        chosen = list(files)
        read.extend(chosen)
        return sums(chosen, progress)

    monkeypatch.setattr("aibox.box.hashing.sums", noted)
    fetch.fetch(spec, progress)
    assert read == []
    fetch.fetch(spec | {"full": True}, progress)
    assert len(read) == len(spec["files"])


def files_of(folder: Path, **contents: str) -> dict[str, Any]:
    for name, content in contents.items():
        (folder / name).write_text(content)
    right = hashlib.sha256(b"right").hexdigest()
    return {"files": {name: {"size": 5, "sha256": right} for name in ("a", "b", "c", "d")}}


def test_verifying_keeps_the_right_removes_the_wrong_and_leaves_the_unfinished(
    tmp_path: Path, progress: Progress
) -> None:
    spec = files_of(tmp_path, a="right", b="wrong", c="wrong", **{"c.pieces": ""})
    verified = fetch.verify(tmp_path, spec, progress, keep_unfinished=True)
    status = (tmp_path / "a").stat()
    assert {path: one["stamp"] for path, one in verified.items()} == {
        "a": [5, status.st_mtime_ns, status.st_ino]
    }
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == [
        *("a", "c", "c.pieces"),
    ]


def test_after_a_download_only_what_was_fetched_is_read(tmp_path: Path, progress: Progress) -> None:
    spec = files_of(tmp_path, a="wrong", b="right")
    assert set(fetch.verify(tmp_path, spec, progress, only=["b"])) == {"b"}
    assert (tmp_path / "a").exists()


def test_verified_files_can_be_read_by_the_server(tmp_path: Path, progress: Progress) -> None:
    spec = files_of(tmp_path, a="right")
    (tmp_path / "a").chmod(0o600)
    fetch.verify(tmp_path, spec, progress)
    assert (tmp_path / "a").stat().st_mode & 0o777 == 0o644


def test_the_types_of_a_file_are_in_its_header() -> None:
    counted = tensors.dtypes(tensors.header(MODELS / "tiny-qwen3.5-mtp" / SHARD))
    header = 8 + int.from_bytes((MODELS / "tiny-qwen3.5-mtp" / SHARD).read_bytes()[:8], "little")
    size = (MODELS / "tiny-qwen3.5-mtp" / SHARD).stat().st_size
    width = {"BF16": 2, "F32": 4}
    assert set(counted) <= set(width)
    assert sum(number * width[kind] for kind, number in counted.items()) == size - header


def safetensors(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def test_a_scalar_is_one_parameter(tmp_path: Path) -> None:
    two = {"a": {"dtype": "F32", "shape": []}, "b": {"dtype": "BF16", "shape": [3, 0]}}
    (tmp_path / "x").write_bytes(safetensors({"__metadata__": {"format": "pt"}, **two}))
    assert tensors.dtypes(tensors.header(tmp_path / "x")) == {"F32": 1, "BF16": 0}


@pytest.mark.parametrize(
    "content",
    [
        b"\x05\0\0\0\0\0\0\0{]}--",
        safetensors([1]),
        safetensors({"a": {"shape": [1]}}),
        safetensors({"a": 1}),
        b"\x02\0\0\0\0\0\0\0\xff\xff",
    ],
)
def test_what_is_no_safetensors_file_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(JobError, match="x does not begin with a safetensors header"):
        tensors.header(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 8])
def test_a_file_without_a_header_has_no_parameters(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert tensors.dtypes(tensors.header(tmp_path / "x")) == {}


@pytest.mark.parametrize("content", [None, "", "{", "\ud800"])
def test_a_config_that_is_no_json_is_told(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(JobError, match=r"config\.json: "):
        fetch.read_json(file)
