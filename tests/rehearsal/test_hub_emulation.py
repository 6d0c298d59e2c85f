"""The emulated hub speaks to the real huggingface_hub, to plain HTTP, and fails when told to."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.rehearsal.emulation import hub as hubs
from tests.rehearsal.emulation import repository
from tests.rehearsal.emulation.hub import Hub, HubError

TINY = "rehearsal/tiny-qwen3.5-mtp"
BIG = "rehearsal/big"
SHARD = "model-00001-of-00001.safetensors"
LOCK = Path(__file__).parent / "group_data/models/tiny-qwen3.5-mtp.lock.json"
PATTERN = bytes(range(256)) * 20_000  # 5.12 MB

CLIENT = """
import json, sys
from pathlib import Path
from huggingface_hub import HfApi, hf_hub_download
from huggingface_hub.errors import HfHubHTTPError
repo, folder = sys.argv[1:]
try:
    info = HfApi().model_info(repo, files_metadata=True)
    row = {s.rfilename: [s.size, s.lfs.sha256 if s.lfs else None] for s in info.siblings}
    tree = [e.path for e in HfApi().list_repo_tree(repo, revision=info.sha, recursive=True)]
    paths = {f: hf_hub_download(repo, f, revision=info.sha, cache_dir=folder) for f in row}
    print(json.dumps({"sha": info.sha, "files": row, "tree": tree, "paths": paths}))
except HfHubHTTPError as error:
    print(json.dumps({"error": type(error).__name__, "text": str(error)}))
"""


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub with the tiny model, a made-up larger one, and one file below /files/."""
    root = tmp_path_factory.mktemp("hub")
    (root / "models/rehearsal").mkdir(parents=True)
    (root / "models" / TINY).symlink_to(hubs.MODELS / TINY)
    (root / "models" / BIG / "sub").mkdir(parents=True)
    (root / "models" / BIG / "config.json").write_text("{}")
    (root / "models" / BIG / "sub" / "weights.safetensors").write_bytes(PATTERN)
    (root / "files/wheels").mkdir(parents=True)
    (root / "files/wheels/thing.bin").write_bytes(PATTERN)
    with Hub(root / "models", files=root / "files") as hub:
        yield hub


@pytest.fixture
def hub(served: Hub) -> Hub:
    """The hub, healthy and with an empty log."""
    served.ctl(reset=True, clear_log=True)
    return served


def client(hub: Hub, repo: str, folder: Path, **environment: str) -> dict[str, object]:
    """What the real client says, in a process of its own (it reads its settings at import)."""
    plain = {"HF_ENDPOINT": hub.url, "HF_HOME": str(folder), "HF_HUB_DISABLE_TELEMETRY": "1"}
    result = subprocess.run(
        [sys.executable, "-c", CLIENT, repo, str(folder / "hub")],
        env=os.environ | plain | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found: dict[str, object] = json.loads(result.stdout)
    return found


def fetch(url: str, **headers: str) -> tuple[int, bytes, dict[str, str]]:
    request = urllib.request.Request(url, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            return answer.status, answer.read(), dict(answer.headers)
    except urllib.error.HTTPError as error:
        return error.code, error.read(), dict(error.headers)


def test_the_real_client_reads_sizes_and_sums_and_downloads_every_file(
    hub: Hub, tmp_path: Path
) -> None:
    found = client(hub, TINY, tmp_path)
    folder = hubs.MODELS / TINY
    names = sorted(file.name for file in folder.iterdir())
    assert sorted(found["files"]) == sorted(found["tree"]) == names  # type: ignore[call-overload]
    shard = (folder / SHARD).read_bytes()
    files, paths = found["files"], found["paths"]
    assert isinstance(files, dict) and isinstance(paths, dict)
    assert files[SHARD] == [len(shard), hashlib.sha256(shard).hexdigest()]
    assert files["config.json"] == [(folder / "config.json").stat().st_size, None]
    assert all(Path(paths[n]).read_bytes() == (folder / n).read_bytes() for n in names)
    assert any(line["path"].startswith(f"/cdn/{TINY}/") for line in hub.log())


def test_the_real_client_reads_folders_inside_a_repository(hub: Hub, tmp_path: Path) -> None:
    found = client(hub, BIG, tmp_path)
    assert found["tree"] == ["config.json", "sub", "sub/weights.safetensors"]
    paths = found["paths"]
    assert isinstance(paths, dict)
    assert Path(paths["sub/weights.safetensors"]).read_bytes() == PATTERN


def test_the_commit_follows_the_content_and_nothing_else(tmp_path: Path) -> None:
    def commit() -> str:
        found = repository.load(tmp_path, "a/b")
        assert found is not None
        return found.commit

    file = tmp_path / "a/b/config.json"
    file.parent.mkdir(parents=True)
    file.write_text("one")
    first = commit()
    os.utime(file, (1, 1))
    assert commit() == first
    assert len(first) == 40
    file.write_text("two")
    assert commit() != first


def test_the_lock_of_the_tiny_model_agrees_with_the_hub(hub: Hub) -> None:
    lock = json.loads(LOCK.read_text())
    status, body, _ = fetch(f"{hub.url}/api/models/{TINY}/revision/{lock['commit']}?blobs=true")
    info = json.loads(body)
    assert (status, info["sha"], lock["repository"]) == (200, lock["commit"], TINY)
    assert {s["rfilename"]: s["size"] for s in info["siblings"]} == {
        path: entry["size"] for path, entry in lock["files"].items()
    }
    for path, entry in lock["files"].items():
        _, body, _ = fetch(f"{hub.url}/{TINY}/resolve/{lock['commit']}/{path}")
        assert hashlib.sha256(body).hexdigest() == entry["sha256"]


def test_the_tiny_model_is_the_one_whose_sums_are_written_down() -> None:
    sums = (hubs.MODELS / f"{TINY}.SHA256SUMS").read_text().splitlines()
    wanted = {line.split()[1]: line.split()[0] for line in sums}
    folder = hubs.MODELS / TINY
    assert {f.name: hashlib.sha256(f.read_bytes()).hexdigest() for f in folder.iterdir()} == wanted


def test_the_tiny_model_holds_bfloat16_and_an_mtp_head_of_fifteen_tensors() -> None:
    with (hubs.MODELS / TINY / SHARD).open("rb") as stream:
        header = json.loads(stream.read(int.from_bytes(stream.read(8), "little")))
    header.pop("__metadata__", None)
    assert {tensor["dtype"] for tensor in header.values()} == {"BF16"}
    assert sum(name.startswith("mtp.") for name in header) == 15


def test_an_lfs_file_redirects_and_other_files_come_at_once(hub: Hub) -> None:
    host = hub.url.removeprefix("http://")
    connection = http.client.HTTPConnection(host)
    connection.request("HEAD", f"/{TINY}/resolve/main/{SHARD}")
    answer = connection.getresponse()
    answer.read()
    shard = hubs.MODELS / TINY / SHARD
    sha256 = hashlib.sha256(shard.read_bytes()).hexdigest()
    assert answer.status == 302
    assert answer.headers["X-Linked-Size"] == str(shard.stat().st_size)
    assert answer.headers["X-Linked-Etag"] == answer.headers["ETag"] == f'"{sha256}"'
    assert len(answer.headers["X-Repo-Commit"]) == 40
    assert answer.headers["Location"].startswith(f"{hub.url}/cdn/")
    connection.request("HEAD", f"/{TINY}/resolve/main/config.json")
    answer = connection.getresponse()
    assert (answer.status, answer.headers["X-Linked-Size"]) == (200, None)
    assert answer.headers["Content-Length"] == str((shard.parent / "config.json").stat().st_size)


@pytest.mark.parametrize(
    ("wanted", "status", "start", "end"),
    [
        ("bytes=100-199", 206, 100, 200),
        ("bytes=5119000-", 206, 5_119_000, 5_120_000),
        ("bytes=-10", 206, 5_119_990, 5_120_000),
        ("bytes=0-99999999", 206, 0, 5_120_000),
        ("bytes=0-1,5-6", 200, 0, 5_120_000),
    ],
)
def test_single_ranges_are_served(hub: Hub, wanted: str, status: int, start: int, end: int) -> None:
    for url in (f"{hub.url}/{BIG}/resolve/main/sub/weights.safetensors", _thing(hub)):
        code, body, headers = fetch(url, Range=wanted)
        assert (code, body) == (status, PATTERN[start:end])
        if status == 206:
            assert headers["Content-Range"] == f"bytes {start}-{end - 1}/5120000"


def test_a_range_beyond_the_end_is_answered_416(hub: Hub) -> None:
    code, _, headers = fetch(_thing(hub), Range="bytes=5120000-")
    assert (code, headers["Content-Range"]) == (416, "bytes */5120000")


def test_a_range_of_another_content_gets_the_whole_file(hub: Hub) -> None:
    code, body, _ = fetch(_thing(hub), **{"Range": "bytes=10-", "If-Range": '"old"'})
    assert (code, len(body)) == (200, len(PATTERN))


def test_a_cut_connection_can_be_resumed_where_it_ended(hub: Hub) -> None:
    hub.ctl(truncate_after=1_000_000, truncate_times=1)
    have = b""
    answer = urllib.request.urlopen(_thing(hub), timeout=20)
    with contextlib.suppress(ConnectionResetError):
        while piece := answer.read(50_000):
            have += piece
    assert len(have) <= 1_000_000
    _, rest, _ = fetch(_thing(hub), Range=f"bytes={len(have)}-")
    assert have + rest == PATTERN
    first, second = hub.log()
    assert (first["status"], first["bytes"], second["status"]) == (200, 1_000_000, 206)
    assert second["range"] == f"bytes={len(have)}-"


def test_a_hub_that_fell_silent_goes_on_where_it_was(hub: Hub) -> None:
    hub.ctl(silent_after=1_000_000)
    with urllib.request.urlopen(_thing(hub), timeout=120) as answer:
        have = answer.read(1_000_000)
        (line,) = hub.log()
        assert 1_000_000 <= line["bytes"] < 1_100_000
        hub.ctl(reset=True)
        assert have + answer.read() == PATTERN


def test_a_corrupt_file_has_its_size_and_one_wrong_byte(hub: Hub) -> None:
    hub.ctl(corrupt=True, only="*.safetensors")
    url = f"{hub.url}/{BIG}/resolve/main/sub/weights.safetensors"
    _, body, _ = fetch(url)
    assert len(body) == len(PATTERN)
    wrong = [i for i, (a, b) in enumerate(zip(body, PATTERN, strict=True)) if a != b]
    assert wrong == [len(PATTERN) // 2]
    _, half, _ = fetch(url, Range=f"bytes={wrong[0]}-")
    assert half[0] == body[wrong[0]]
    assert fetch(_thing(hub))[1] == PATTERN


def test_a_slow_hub_keeps_to_its_rate(hub: Hub) -> None:
    hub.ctl(slow=1_000_000)
    start = time.monotonic()
    fetch(_thing(hub), Range="bytes=0-499999")
    assert 0.4 < time.monotonic() - start < 20


def test_a_gated_model_needs_a_token_and_the_right_one(hub: Hub, tmp_path: Path) -> None:
    hub.ctl(token="hf_good")
    url = f"{hub.url}/api/models/{TINY}"
    assert fetch(url)[0] == 401
    assert fetch(url, Authorization="Bearer hf_other")[0] == 403
    assert fetch(url, Authorization="Bearer hf_good")[0] == 200
    assert client(hub, TINY, tmp_path)["error"] == "GatedRepoError"
    assert client(hub, TINY, tmp_path, HF_TOKEN="hf_other")["error"] == "GatedRepoError"
    assert "files" in client(hub, TINY, tmp_path, HF_TOKEN="hf_good")
    assert "hf_good" not in json.dumps(hub.log())


def test_what_is_not_there_is_told_apart(hub: Hub, tmp_path: Path) -> None:
    assert client(hub, "rehearsal/none", tmp_path)["error"] == "RepositoryNotFoundError"
    hub.ctl(revision_missing=True)
    assert client(hub, TINY, tmp_path)["error"] == "RevisionNotFoundError"
    hub.ctl(reset=True)
    code, _, headers = fetch(f"{hub.url}/{TINY}/resolve/main/none.json")
    assert (code, headers["X-Error-Code"]) == (404, "EntryNotFound")
    assert fetch(f"{hub.url}/files/../hub.py")[0] == 404
    assert fetch(f"{hub.url}/files/%2e%2e/models/{BIG}/config.json")[0] == 404


def test_it_is_unavailable_for_as_many_requests_as_told(hub: Hub) -> None:
    hub.ctl(unavailable=2)
    codes = [fetch(f"{hub.url}/api/models/{TINY}")[0] for _ in range(3)]
    assert codes == [503, 503, 200]


def test_a_fault_that_does_not_exist_is_refused_by_name(hub: Hub) -> None:
    with pytest.raises(HubError, match="no fault is called trunkate"):
        hub.ctl(trunkate=1)
    with pytest.raises(HubError, match="slow is int"):
        hub.ctl(slow="fast")


def test_a_folder_of_files_is_listed_as_links(hub: Hub) -> None:
    assert b'<a href="thing.bin">' in fetch(f"{hub.url}/files/wheels/")[1]


def test_a_detached_hub_is_found_again_and_ended_by_its_file(tmp_path: Path) -> None:
    pid_file = tmp_path / "run" / "hub.json"
    url = hubs.start_detached(pid_file)
    try:
        assert hubs.start_detached(pid_file) == url
        assert fetch(f"{url}/api/models/{TINY}")[0] == 200
    finally:
        assert hubs.stop_detached(pid_file)
    assert not hubs.stop_detached(pid_file)
    with pytest.raises(urllib.error.URLError):
        fetch(f"{url}/api/models/{TINY}")


def test_a_stale_pid_file_ends_no_stranger(tmp_path: Path) -> None:
    pid_file = tmp_path / "hub.json"
    pid_file.write_text(json.dumps({"pid": os.getpid(), "url": "http://127.0.0.1:1", "port": 1}))
    assert not hubs.stop_detached(pid_file)


def test_a_port_that_is_taken_is_said_in_words(hub: Hub) -> None:
    with pytest.raises(HubError, match="Address already in use"):
        Hub(port=int(hub.url.rsplit(":", 1)[1])).start()


def _thing(hub: Hub) -> str:
    return f"{hub.url}/files/wheels/thing.bin"
