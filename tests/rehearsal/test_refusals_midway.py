"""What only shows while the work is done: refused in words, nothing half there, and mended by
running again. The server that is up meanwhile goes on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rehearsal import fingerprint
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation import gpu
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import HERE, STANDIN_VERSION, deploy, standin
from tests.rehearsal.refusal import Said, refusals_in, the_one_refusal, untouched

NAME = "tiny-qwen3.5-mtp"
MODEL, RELEASES = f"/srv/models/{NAME}", "/opt/vllm/releases"
PINNED = json.loads((HERE / f"group_data/models/{NAME}.lock.json").read_text())
FINAL, PARTIAL = PINNED["commit"], f".partial-{PINNED['commit']}"
TENSORS = "model-00001-of-00001.safetensors"
LOCK = f"vllm-{STANDIN_VERSION}-py311.txt"
SMALL = {"release_disk_gb": 0, "disk_reserve_gb": 0}  # what a disk must have to get past preflight


@pytest.fixture(scope="module")
def deployed(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """One deployed box for the whole file."""
    with Box.up("refusals-midway", layer=layers("serving"), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture
def box(deployed: Box) -> Iterator[Box]:
    """The deployed box, whose server must not notice what happens in the test."""
    before = start_of_the_server(deployed)
    yield deployed
    assert start_of_the_server(deployed) == before


@pytest.fixture
def release(deployed: Box) -> str:
    """The name of the release that is on the box, by the hash of its lock."""
    name = release_of((HERE / "group_data/locks" / LOCK).read_text())
    assert inside(deployed, RELEASES) == {name}
    return name


def release_of(lock: str) -> str:
    return f"{STANDIN_VERSION}-{hashlib.sha256(lock.encode()).hexdigest()[:8]}"


def start_of_the_server(box: Box) -> str:
    """What is another one with every start; the server must be up."""
    shown = box.run("systemctl is-active vllm-coder; systemctl show -P InvocationID vllm-coder")
    state, number = shown.stdout.split()
    assert state == "active"
    return number


def inside(box: Box, folder: str) -> set[str]:
    """The names in a folder, hidden ones too."""
    return set(box.run(f"ls -A {folder}").stdout.split())


def run_refused(box: Box, hub: Hub, **data: object) -> Said:
    return the_one_refusal(deploy({box: {**standin(hub.url), **data}}, "-y"))


def run_well(box: Box, hub: Hub, **data: object) -> None:
    ended = deploy({box: {**standin(hub.url), **data}}, "-y")
    assert ended.code == 0, ended.said
    assert refusals_in(ended) == [], ended.said


def assert_weights_whole(box: Box) -> None:
    """Exactly the pinned commit is there, by the sums in the lock."""
    assert inside(box, MODEL) == {FINAL}
    sums = "".join(f"{file['sha256']}  {path}\n" for path, file in PINNED["files"].items())
    box.run(f"cd {MODEL}/{FINAL} && sha256sum --quiet -c", text=sums)


@contextmanager
def small_disk(box: Box, folder: str, size: int) -> Iterator[Callable[[], None]]:
    """Another disk of `size` bytes over a folder, empty; what is given makes it large enough."""
    box.run(f"mount -t tmpfs -o size={size},mode=755 small {folder}")

    def enlarge() -> None:
        box.run(f"mount -o remount,size=64m {folder}")

    try:
        yield enlarge
    finally:
        box.run(f"umount -l {folder}")


# --- hashes -------------------------------------------------------------------------------------


def test_a_lock_with_one_wrong_digit_builds_nothing(
    box: Box, hub: Hub, release: str, tmp_path: Path
) -> None:
    text = (HERE / "group_data/locks" / LOCK).read_text()
    right = text.split("sha256:")[1].split()[0]
    wrong = ("0" if right[0] != "0" else "1") + right[1:]
    (tmp_path / LOCK).write_text(text.replace(right, wrong))
    before = fingerprint.taken(box)
    said = run_refused(box, hub, locks_folder=str(tmp_path))
    for words in ("Hash mismatch for `vllm==0.31.0+standin`", wrong, right):
        assert words in said.found, said
    assert "the lock's hashes" in said.expected
    assert said.do.startswith("do not install it") and "Restore the lock from git" in said.do
    assert inside(box, RELEASES) == {release}
    changed = {line.split(":")[0] for line in before.changes(fingerprint.taken(box))}
    assert {path for path in changed if not path.startswith("/var/cache/aibox/")} <= {RELEASES}
    run_well(box, hub)


@pytest.mark.long
def test_weights_that_arrive_damaged_are_not_used_and_fetched_anew(box: Box, hub: Hub) -> None:
    box.run(f"rm -rf {MODEL}")
    hub.ctl(corrupt=True, only=f"*{TENSORS}")
    said = run_refused(box, hub)
    assert said.found.startswith(f"{TENSORS} came with another sha256 than the lock's")
    assert FINAL[:12] in said.expected
    assert said.do.startswith("run the deploy again")
    assert inside(box, MODEL) == {PARTIAL}
    assert inside(box, f"{MODEL}/{PARTIAL}") == set(PINNED["files"]) - {TENSORS}
    hub.ctl(reset=True, clear_log=True)
    run_well(box, hub)
    assert_weights_whole(box)
    asked = {row["path"].split("/")[-1] for row in hub.log() if "/resolve/" in row["path"]}
    assert asked == {TENSORS}


# --- disks that fill in the middle --------------------------------------------------------------


@pytest.mark.long
def test_a_disk_that_fills_under_the_weights_is_named_and_the_download_goes_on(
    box: Box, hub: Hub
) -> None:
    exact = sum(file["size"] for file in PINNED["files"].values())  # files take whole pages
    with small_disk(box, "/srv/models", exact) as enlarge:
        said = run_refused(box, hub, **SMALL)
        assert said.found == f"no space left on the disk at {MODEL}/{PARTIAL}"
        assert said.expected.startswith("room for")
        assert said.do.startswith("free space on the box and run the deploy again")
        assert inside(box, MODEL) == {PARTIAL}
        enlarge()
        run_well(box, hub, **SMALL)
        assert_weights_whole(box)


def test_a_disk_that_fills_under_a_release_is_named_and_leaves_nothing(
    deployed: Box, hub: Hub, release: str
) -> None:
    before = start_of_the_server(deployed)
    with small_disk(deployed, RELEASES, 64 * 1024) as enlarge:
        said = run_refused(deployed, hub, **SMALL)
        assert said.found.startswith(f"no space left on the disk at {RELEASES}/")
        assert said.expected.startswith("room for")
        assert said.do.startswith("free space on the box and run the deploy again")
        assert inside(deployed, RELEASES) == set()
        assert start_of_the_server(deployed) == before
        enlarge()
        run_well(deployed, hub, **SMALL)
        assert inside(deployed, RELEASES) == {release}
        assert start_of_the_server(deployed) != before  # the release was built under it


# --- cards, once more, by nvidia-ml-py ----------------------------------------------------------


def test_a_deployed_box_with_another_card_is_left_as_it_is(box: Box, hub: Hub) -> None:
    gpu.write_state(box.root, gpu.CARDS["mig-enabled"])
    with untouched(box):
        said = run_refused(box, hub)
    assert "MIG enabled" in said.found and "-mig 0" in said.do
    gpu.write_state(box.root, gpu.CARDS["workstation"])


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (gpu.CARDS["memory-not-supported"], '"memory_bytes": null'),
        (gpu.CARDS["capability-not-supported"], '"capability": null'),
        (gpu.CARDS["mig-not-available"], '"mig": null'),
        (gpu.CARDS["no-gpu"], '"error": null, "cards": []'),
        (gpu.CARDS["version-mismatch"], '"error": "'),
        (None, '"error": "'),
    ],
    ids=["no memory", "no capability", "no MIG", "no card", "mismatch", "no driver"],
)
def test_nvidia_ml_py_on_the_box_answers_whatever_the_card_says(
    deployed: Box, state: gpu.State | None, words: str
) -> None:
    gpu.write_state(deployed.root, state)
    try:
        answer = deployed.run("/opt/aibox/current/bin/aibox vram")
    finally:
        gpu.write_state(deployed.root, gpu.CARDS["workstation"])
    assert words in answer.stdout
    assert answer.stderr == ""


# --- several boxes ------------------------------------------------------------------------------

SERVES = """python3 -c '
import urllib.request
for path in ("health", "v1/models"):
    print(urllib.request.urlopen("http://127.0.0.1:8000/" + path).status)
'"""


@pytest.mark.long
def test_one_box_refused_and_the_other_built_to_the_end(make_box: MakeBox, hub: Hub) -> None:
    wrong, right = make_box("refusals-wrong", "driven"), make_box("refusals-right", "driven")
    wrong.run("sudo -n true", user="admin")  # Debian's sudo leaves a mark in the home, once
    gpu.write_state(wrong.root, gpu.CARDS["h200"])
    with untouched(wrong):
        ended = deploy({wrong: standin(hub.url), right: standin(hub.url)}, "-y", timeout_s=600)
    said = the_one_refusal(ended)
    assert said.box == wrong.name
    assert "150.8 GB (143771 MiB), compute capability 9.0" in said.found
    assert "continue?" not in ended.said  # nobody is asked anything
    assert right.run(SERVES).stdout.split() == ["200", "200"]
    assert f"[{right.name}] serves" in ended.log
    first, second = ended.log.rstrip().splitlines()[-2:]
    assert first.split()[:2] == [wrong.name, "refused:"], ended.log
    assert second.split()[:2] == [right.name, "serves"], ended.log
