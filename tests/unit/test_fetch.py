"""Weights on the disk: what is verified, what is refused, and what becomes of it. No network."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from aibox.box import fetch, probe
from aibox.box.job import JobError, Progress
from aibox.decide.weights import FileStamp, WeightsLock, WeightsPlan, plan
from tests.unit.conftest import ROOT

MODELS = ROOT / "tests/rehearsal/emulation/models/rehearsal"
LOCK = ROOT / "tests/rehearsal/group_data/models/tiny-qwen3.5-mtp.lock.json"
SHARD = "model-00001-of-00001.safetensors"
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
    assert fetch.fetch(spec, progress) == {"fetched": []}
    folder = Path(spec["folder"])
    assert {file.name for file in folder.iterdir()} == {*spec["files"], ".verified.json"}
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
    found = probe.weights({"folder": str(folder)})
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
    assert fetch.fetch(spec | {"head": None}, progress) == {"fetched": []}


def test_a_lock_without_a_shard_of_the_index_is_refused(
    spec: dict[str, Any], progress: Progress
) -> None:
    del spec["files"][SHARD]
    with pytest.raises(JobError, match="shards that the lock lacks"):
        fetch.fetch(spec, progress)


def files_of(folder: Path, **contents: str) -> dict[str, Any]:
    for name, content in contents.items():
        (folder / name).write_text(content)
    right = hashlib.sha256(b"right").hexdigest()
    return {"files": {name: {"size": 5, "sha256": right} for name in ("a", "b", "c", "d")}}


def test_verifying_keeps_the_right_removes_the_wrong_and_leaves_the_unfinished(
    tmp_path: Path, progress: Progress
) -> None:
    spec = files_of(tmp_path, a="right", b="wrong", c="wrong", **{"c.aria2": ""})
    verified = fetch.verify(tmp_path, spec, progress, keep_unfinished=True)
    status = (tmp_path / "a").stat()
    assert {path: one["stamp"] for path, one in verified.items()} == {
        "a": [5, status.st_mtime_ns, status.st_ino]
    }
    assert sorted(file.name for file in tmp_path.iterdir() if file.is_file()) == [
        *("a", "c", "c.aria2"),
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
    counted = fetch.dtypes(MODELS / "tiny-qwen3.5-mtp" / SHARD)
    header = 8 + int.from_bytes((MODELS / "tiny-qwen3.5-mtp" / SHARD).read_bytes()[:8], "little")
    size = (MODELS / "tiny-qwen3.5-mtp" / SHARD).stat().st_size
    width = {"BF16": 2, "F32": 4}
    assert set(counted) <= set(width)
    assert sum(number * width[kind] for kind, number in counted.items()) == size - header


def safetensors(header: object) -> bytes:
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text


def test_a_scalar_is_one_parameter(tmp_path: Path) -> None:
    tensors = {"a": {"dtype": "F32", "shape": []}, "b": {"dtype": "BF16", "shape": [3, 0]}}
    (tmp_path / "x").write_bytes(safetensors({"__metadata__": {"format": "pt"}, **tensors}))
    assert fetch.dtypes(tmp_path / "x") == {"F32": 1, "BF16": 0}


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
        fetch.dtypes(tmp_path / "x")


@pytest.mark.parametrize("content", [b"", b"\0" * 8, b"\xff" * 8])
def test_a_file_without_a_header_has_no_parameters(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x").write_bytes(content)
    assert fetch.dtypes(tmp_path / "x") == {}


# Word for word what aria2 1.36 prints.
REFUSED_CONNECTION = """
11/29 17:03:46 [ERROR] CUID#17 - Download aborted. URI=http://hub/vocab.json
Exception: [AbstractCommand.cc:856] errorCode=1 Failed to establish connection, cause: Connection \
refused
"""
NOT_FOUND = """
Exception: [AbstractCommand.cc:351] errorCode=3 URI=http://hub/vocab.json
  -> [HttpSkipResponseCommand.cc:218] errorCode=3 Resource not found
"""


@pytest.mark.parametrize(
    ("code", "said", "found", "remedy"),
    [
        (
            *(1, REFUSED_CONNECTION),
            "Failed to establish connection, cause: Connection refused (aria2 says 1) at http://h",
            "reaches the hub",
        ),
        (
            *(3, NOT_FOUND),
            "a file of the lock is not on the hub (aria2 says 3) at http://h",
            "pin the weights anew",
        ),
        (
            *(29, ""),
            "the hub is overloaded, or down for maintenance (aria2 says 29) at http://h",
            "run the deploy again",
        ),
        (
            *(77, "nothing of note"),
            "the download stopped (aria2 says 77) at http://h",
            "run the deploy again",
        ),
    ],
)
def test_a_failed_download_says_why(code: int, said: str, found: str, remedy: str) -> None:
    error = fetch.download_error(code, said, "http://h", Path("/srv"))
    assert isinstance(error, JobError)
    assert error.refusal.found == found
    assert remedy in error.refusal.remedy


@pytest.mark.parametrize(("code", "said"), [(9, ""), (1, "cause: No space left on device")])
def test_a_full_disk_is_a_full_disk(code: int, said: str) -> None:
    error = fetch.download_error(code, said, "http://h", Path("/srv"))
    assert isinstance(error, OSError)
    assert (error.errno, error.filename) == (28, "/srv")


@pytest.mark.parametrize("content", [None, "", "{", "\ud800"])
def test_a_config_that_is_no_json_is_told(tmp_path: Path, content: str | None) -> None:
    file = tmp_path / "config.json"
    if content is not None:
        file.write_bytes(content.encode(errors="surrogatepass"))
    with pytest.raises(JobError, match=r"config\.json: "):
        fetch.read_json(file)
