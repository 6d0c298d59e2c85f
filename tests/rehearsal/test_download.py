"""Fetching and taking over against the emulated hub, on loopback: no root, no box.

The hub counts every byte that it sends: what a kill costs is measured, not believed.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from aibox.box import fetch, job
from aibox.box.download import journal_of
from aibox.box.job import JobError, Progress
from aibox.box.probe import weights
from aibox.decide.weights import FileStamp, WeightsLock, content, plan
from tests.rehearsal import checkpoints
from tests.rehearsal.checkpoints import SHARD, TINY
from tests.rehearsal.emulation.hub import PROJECT, Hub

Spec = dict[str, Any]

WIDE = "wide"  # with one file that takes several requests
BALLAST, BALLAST_BYTES = "ballast.bin", 160 << 20
MOST_LOST = 64 << 20
HEAD = {
    "config_key": "mtp_num_hidden_layers",
    "layers": 1,
    "tensor_prefix": "mtp.",
    "tensors": 15,
}


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repositories for the hub, and below `cards` their locks."""
    folder = tmp_path_factory.mktemp("shelf")
    models, cards = folder / "models", folder / "cards"
    cards.mkdir()
    (checkpoints.copy(models, WIDE) / BALLAST).write_bytes(
        random.Random(1).randbytes(BALLAST_BYTES)
    )
    checkpoints.copy(models, TINY)
    checkpoints.without_head(models, "headless")
    for name in (WIDE, TINY, "headless"):
        checkpoints.write_card(models, name, cards)
    return folder


@pytest.fixture(scope="module")
def store(shelf: Path) -> Iterator[Hub]:
    with Hub(models=shelf / "models") as running:
        yield running


@pytest.fixture(autouse=True)
def _healthy(store: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.setenv(name, "127.0.0.1")
    store.ctl(reset=True, clear_log=True)


@pytest.fixture
def spec_of(shelf: Path, store: Hub, tmp_path: Path) -> Callable[..., Spec]:
    """The task for a model, into a folder that is not there yet."""

    def spec(model: str = TINY, **changes: Any) -> Spec:
        lock = json.loads((shelf / f"cards/{model}.lock.json").read_text())
        folder = tmp_path / "models" / model / lock["commit"]
        rest = {"hub": store.url, "dtype": "bfloat16", "head": HEAD, "folder": str(folder)}
        return {**lock, **rest, **changes}

    return spec


@pytest.fixture
def progress(tmp_path: Path) -> Progress:
    (tmp_path / "job").mkdir()
    return Progress(tmp_path / "job")


def sent(store: Hub, name: str = "") -> int:
    """Bytes that the hub has sent since its log was cleared, of one file or of all."""
    return sum(line["bytes"] for line in store.log() if name in line["path"])


# --- a kill costs the pieces in flight -----------------------------------------------------------

FETCH = """import json, sys
from pathlib import Path
from aibox.box import fetch
from aibox.box.job import Progress
fetch.fetch(json.load(sys.stdin), Progress(Path(sys.argv[1])))
"""


def killed(spec: Spec, folder: Path, store: Hub, share: float) -> int:
    """A fetch that is killed with SIGKILL at a share of the large file; what the hub had sent."""
    process = subprocess.Popen(
        [sys.executable, "-c", FETCH, str(folder)], cwd=PROJECT, stdin=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    process.stdin.write(json.dumps(spec))
    process.stdin.close()
    end = time.monotonic() + 120
    while sent(store, BALLAST) < share * BALLAST_BYTES:
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    return sent(store)


@pytest.mark.parametrize(
    "share",
    [pytest.param(0.1, marks=pytest.mark.long), 0.5, pytest.param(0.9, marks=pytest.mark.long)],
)
def test_a_killed_download_fetches_what_was_missing_and_little_more(
    spec_of: Callable[..., Spec], store: Hub, progress: Progress, tmp_path: Path, share: float
) -> None:
    spec = spec_of(WIDE)
    store.ctl(slow=12_000_000, only=BALLAST)
    before = killed(spec, tmp_path / "job", store, share)
    assert not Path(spec["folder"]).exists()
    store.ctl(reset=True, clear_log=True)
    fetch.fetch(spec, progress)
    total = sum(file["size"] for file in spec["files"].values())
    print(f"killed at {share:.0%}: {before} + {sent(store)} bytes of {total}")
    assert sent(store) <= total - before + MOST_LOST
    assert not sent(store, "tokenizer.json")
    assert fetch.check(spec, progress) == {"wrong": []}


@pytest.mark.long
@pytest.mark.parametrize("damage", ["empty journal", "no journal", "torn line", "a hole"])
def test_what_a_power_cut_can_leave_behind_is_no_obstacle(
    spec_of: Callable[..., Spec], store: Hub, progress: Progress, tmp_path: Path, damage: str
) -> None:
    spec = spec_of(WIDE)
    store.ctl(slow=12_000_000, only=BALLAST)
    killed(spec, tmp_path / "job", store, 0.5)
    store.ctl(reset=True, clear_log=True)
    file = Path(spec["folder"]).with_name(f".partial-{spec['commit']}") / BALLAST
    journal = journal_of(file)
    if damage == "empty journal":
        journal.write_text("")
    elif damage == "no journal":
        journal.unlink()
    elif damage == "torn line":
        journal.write_text(f"{journal.read_text()}3")
    else:
        number = int(journal.read_text().splitlines()[1])
        with file.open("r+b") as stream:
            stream.seek(number * (4 << 20))
            stream.write(b"\0" * 100)
    assert set(fetch.fetch(spec, progress)["fetched"]) <= {BALLAST, SHARD}
    assert fetch.check(spec, progress) == {"wrong": []}
    assert (sent(store) < BALLAST_BYTES) == (damage == "torn line")


# --- what the hub does ---------------------------------------------------------------------------


def refusal(spec: Spec, progress: Progress) -> tuple[str, str]:
    with pytest.raises(JobError) as error:
        fetch.fetch(spec, progress)
    assert not Path(spec["folder"]).exists()
    return error.value.refusal.found, error.value.refusal.remedy


@pytest.mark.parametrize(
    ("faults", "changes", "found", "remedy"),
    [
        ({"token": "hf_right"}, {}, "is gated: the hub wants a token (401", "secrets/hub-token"),
        (
            *({"token": "hf_right"}, {"secret": "hf_other"}),
            *("is gated, and not open to this token (403", "ask for access at"),
        ),
        ({"revision_missing": True}, {}, "has no commit", "make lock-model"),
        ({}, {"repository": "rehearsal/none"}, "knows no rehearsal/none", "correct `repository`"),
        ({}, {"hub": "http://127.0.0.1:9"}, "Connection refused", "reaches the hub"),
        ({"unavailable": 1000}, {}, "it answered with 503", "reaches the hub"),
    ],
)
def test_a_hub_that_does_not_give_says_why(
    spec_of: Callable[..., Spec],
    store: Hub,
    progress: Progress,
    monkeypatch: pytest.MonkeyPatch,
    faults: dict[str, Any],
    changes: dict[str, Any],
    found: str,
    remedy: str,
) -> None:
    monkeypatch.setattr("aibox.box.download.LONGEST_WAIT_S", 0.05)
    store.ctl(**faults)
    said = refusal(spec_of(TINY, **changes), progress)
    assert found in said[0] and remedy in said[1], said
    assert "hf_" not in " ".join(said)


def test_a_file_that_the_hub_has_no_more_or_in_another_size(
    spec_of: Callable[..., Spec], progress: Progress
) -> None:
    spec = spec_of(TINY)
    spec["files"]["gone.json"] = {"size": 3, "sha256": "0" * 64}
    assert refusal(spec, progress)[0].startswith("gone.json is not on the hub (404")
    del spec["files"]["gone.json"]
    spec["files"]["vocab.json"]["size"] += 10
    assert re.match(r"vocab\.json has \d+ bytes at", refusal(spec, progress)[0])


def test_a_gated_model_comes_with_the_right_token(
    spec_of: Callable[..., Spec], store: Hub, progress: Progress
) -> None:
    store.ctl(token="hf_right")
    fetch.fetch(spec_of(TINY, secret="hf_right"), progress)
    assert all(line["authorized"] for line in store.log() if "/resolve/" in line["path"])


def test_the_token_does_not_follow_to_another_host(
    spec_of: Callable[..., Spec], store: Hub, progress: Progress
) -> None:
    seen: list[str | None] = []

    class Elsewhere(BaseHTTPRequestHandler):
        """Another host: at first the hub that sends away, then the store that is asked."""

        def do_GET(self) -> None:
            self.send_response(302)
            self.send_header("Location", f"{store.url}{self.path}")
            self.end_headers()
            seen.append(self.headers["Authorization"])

        def log_message(self, *_words: object) -> None:
            """Nothing on the screen."""

    with HTTPServer(("127.0.0.1", 0), Elsewhere) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        hub = f"http://127.0.0.1:{server.server_port}"
        fetch.fetch(spec_of(TINY, secret="hf_mine", hub=hub), progress)
        server.shutdown()
    assert set(seen) == {"Bearer hf_mine"}
    assert store.log() and not any(line["authorized"] for line in store.log())


def test_cut_connections_and_a_busy_hub_are_tried_again(
    spec_of: Callable[..., Spec], store: Hub, progress: Progress
) -> None:
    store.ctl(truncate_after=300_000, truncate_times=2, only=SHARD, unavailable=2)
    fetch.fetch(spec_of(TINY), progress)
    assert sent(store, "cdn") < 1_100_000


def test_a_limit_is_kept(spec_of: Callable[..., Spec], progress: Progress) -> None:
    began = time.monotonic()
    fetch.fetch(spec_of(TINY, limit=400_000), progress)  # 1 MB
    assert time.monotonic() - began > 2


def test_a_stripped_head_costs_no_shard(
    spec_of: Callable[..., Spec], store: Hub, progress: Progress
) -> None:
    assert "the head was stripped" in refusal(spec_of("headless"), progress)[0]
    assert sent(store, SHARD) == 0


# --- taken over ----------------------------------------------------------------------------------


def cache_of(shelf: Path, folder: Path, spec: Spec, model: str = TINY) -> Path:
    """A hub cache as its client leaves it: blobs by their sum, a snapshot of links."""
    repo = folder / f"models--{spec['repository'].replace('/', '--')}"
    (repo / "blobs").mkdir(parents=True)
    snapshot = repo / "snapshots" / spec["commit"]
    snapshot.mkdir(parents=True)
    for path, file in spec["files"].items():
        shutil.copy(shelf / "models/rehearsal" / model / path, repo / "blobs" / file["sha256"])
        (snapshot / path).symlink_to(f"../../blobs/{file['sha256']}")
    return repo


def state(folder: Path) -> dict[str, tuple[int, int, int, int, int]]:
    """Everything of a folder that must stay as it is."""
    files = {str(path): path.lstat() for path in sorted(folder.rglob("*"))}
    return {
        name: (found.st_ino, found.st_mode, found.st_uid, found.st_size, found.st_mtime_ns)
        for name, found in files.items()
    }


@pytest.mark.parametrize("shape", ["HF_HOME", "hub", "repository", "snapshot", "plain"])
def test_what_is_on_the_box_is_linked_and_the_hub_sends_nothing(
    spec_of: Callable[..., Spec],
    shelf: Path,
    store: Hub,
    progress: Progress,
    tmp_path: Path,
    shape: str,
) -> None:
    spec = spec_of(TINY)
    repo = cache_of(shelf, tmp_path / "home/hub", spec)
    shutil.copytree(shelf / "models/rehearsal" / TINY, tmp_path / "home/plain")
    source = str(
        {
            "HF_HOME": tmp_path / "home",
            "hub": tmp_path / "home/hub",
            "repository": repo,
            "snapshot": repo / "snapshots" / spec["commit"],
            "plain": tmp_path / "home/plain",
        }[shape]
    )
    spec["take_over"] = [source]
    before = state(tmp_path / "home")
    done = fetch.fetch(spec, progress)
    assert (done["fetched"], store.log()) == ([], [])
    assert done["notes"] == [
        f"taken over from {source}: {len(spec['files'])} hard-linked"
        " (owner and mode stay as they are)"
    ]
    assert state(tmp_path / "home") == before
    assert all((Path(spec["folder"]) / path).stat().st_nlink == 2 for path in spec["files"])
    assert is_complete(spec)


def is_complete(spec: Spec) -> bool:
    found = weights.weights({"folder": spec["folder"]})
    text = json.dumps({key: spec[key] for key in ("repository", "commit", "files")})
    files = WeightsLock.parse(text).files
    return plan(
        files,
        {path: FileStamp(*stamp) for path, stamp in found["seen"].items()},
        {
            path: (FileStamp(*file["stamp"]), file["sha256"])
            for path, file in found["verified"]["files"].items()
        },
        listed=found["listed"] == content(files, spec["commit"]),
    ).complete


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o666])
def test_a_file_that_cannot_be_shared_is_copied_and_left_as_it_is(
    spec_of: Callable[..., Spec],
    shelf: Path,
    store: Hub,
    progress: Progress,
    tmp_path: Path,
    mode: int,
) -> None:
    spec = spec_of(TINY, take_over=[str(tmp_path / "hub")])
    repo = cache_of(shelf, tmp_path / "hub", spec)
    (repo / "blobs" / spec["files"][SHARD]["sha256"]).chmod(mode)
    before = state(tmp_path / "hub")
    assert "1 copied" in fetch.fetch(spec, progress)["notes"][0]
    assert (state(tmp_path / "hub"), store.log()) == (before, [])
    found = (Path(spec["folder"]) / SHARD).stat()
    assert (found.st_nlink, found.st_mode & 0o777) == (1, 0o644)


def test_a_damaged_file_of_the_cache_is_fetched_and_it_alone(
    spec_of: Callable[..., Spec], shelf: Path, store: Hub, progress: Progress, tmp_path: Path
) -> None:
    spec = spec_of(TINY, take_over=[str(tmp_path / "hub")])
    repo = cache_of(shelf, tmp_path / "hub", spec)
    blob = repo / "blobs" / spec["files"]["vocab.json"]["sha256"]
    blob.write_bytes(b"x" * blob.stat().st_size)
    before = state(tmp_path / "hub")
    done = fetch.fetch(spec, progress)
    assert done["fetched"] == ["vocab.json"]
    assert done["notes"][0].endswith("; 1 to be downloaded")
    assert state(tmp_path / "hub") == before
    assert sent(store) == spec["files"]["vocab.json"]["size"]


def test_what_a_person_does_to_a_linked_file_is_mended_without_touching_it(
    spec_of: Callable[..., Spec], shelf: Path, progress: Progress, tmp_path: Path
) -> None:
    spec = spec_of(TINY, take_over=[str(tmp_path / "hub")])
    repo = cache_of(shelf, tmp_path / "hub", spec)
    fetch.fetch(spec, progress)
    written, closed = (
        repo / "blobs" / spec["files"][path]["sha256"] for path in ("vocab.json", "merges.txt")
    )
    with written.open("r+b") as stream:
        stream.write(b"#")
    closed.chmod(0o600)
    before = state(tmp_path / "hub")
    assert fetch.fetch(spec, progress)["fetched"] == ["vocab.json"]
    assert state(tmp_path / "hub") == before
    for path in ("vocab.json", "merges.txt"):
        found = (Path(spec["folder"]) / path).stat()
        assert (found.st_nlink, found.st_mode & 0o777) == (1, 0o644)
    assert is_complete(spec)


def test_a_folder_to_take_over_from_that_is_not_there(
    spec_of: Callable[..., Spec], progress: Progress, tmp_path: Path
) -> None:
    said = refusal(spec_of(TINY, take_over=[str(tmp_path / "none")]), progress)
    assert said[0].endswith("which weights_from names")
    (tmp_path / "none").mkdir()
    notes = fetch.fetch(spec_of(TINY, take_over=[str(tmp_path / "none")]), progress)["notes"]
    assert notes[0].startswith("nothing to take over in")


# --- complete ------------------------------------------------------------------------------------


def test_the_same_commit_has_the_same_list_on_every_box(
    spec_of: Callable[..., Spec], progress: Progress, tmp_path: Path
) -> None:
    folders = [tmp_path / name / "x" for name in ("one", "two")]
    for folder in folders:
        fetch.fetch(spec_of(TINY, folder=str(folder)), progress)
    one, two = ((folder / ".manifest.json").read_bytes() for folder in folders)
    assert one == two
    assert (folders[0] / ".verified.json").stat().st_mode & 0o777 == 0o600


def test_same_size_corruption_costs_that_file_alone(
    spec_of: Callable[..., Spec], store: Hub, progress: Progress
) -> None:
    spec = spec_of(TINY)
    fetch.fetch(spec, progress)
    store.ctl(clear_log=True)
    file = Path(spec["folder"]) / SHARD
    before = file.stat()
    with file.open("r+b") as stream:
        stream.seek(500_000)
        stream.write(b"X")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert fetch.fetch(spec, progress)["fetched"] == []  # size, time and inode say nothing
    assert fetch.check(spec, progress) == {"wrong": [SHARD]}
    assert fetch.fetch(spec | {"full": True}, progress)["fetched"] == [SHARD]
    assert sent(store) == spec["files"][SHARD]["size"]


def test_a_secret_is_read_once_and_by_its_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "weights"
    folder.mkdir()
    (folder / "spec.json").write_text('{"verb": "weights"}')
    job.write_whole(folder / job.SECRET_FILE, '"hf_mine"', mode=0o600)
    assert (folder / job.SECRET_FILE).stat().st_mode & 0o777 == 0o600
    found = []

    def work(spec: Spec, _progress: Progress) -> dict[str, Any]:
        found.append((spec["secret"], (folder / job.SECRET_FILE).exists()))
        return {}

    assert job.work("weights", {"weights": work}, tmp_path) == 0
    assert found == [("hf_mine", False)]
    assert not any("hf_mine" in file.read_text() for file in folder.iterdir())
