"""Releases and their job: complete or absent, beside the old one, and not tied to a connection."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal import jobs
from tests.rehearsal import standin as vllm_standin
from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.jobs import Running, deploying, until
from tests.rehearsal.provision import HERE, Deploy, deploy, files_folder, standin

Data = dict[str, Any]

ACTIVE = "systemctl is-active -q aibox-release"
WHEEL = "*.whl"  # 33 kB
SLOW = 500  # bytes a second
HEALTH = "import urllib.request as r; r.urlopen('http://localhost:8000/health')"

_versions = count(1)


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("release", layer=layers("serving"), owned=True) as made:
        made.run("systemctl start vllm-coder")
        yield made


@pytest.fixture
def next_lock(tmp_path: Path, hub: Hub) -> Callable[[], Data]:
    """Host data with a lock that nobody has built yet."""

    def data() -> Data:
        number = next(_versions)
        folder = tmp_path / f"locks-{number}"
        folder.mkdir()
        for lock in (HERE / "group_data/locks").glob("*.txt"):
            (folder / lock.name).write_text(f"# version {number}\n{lock.read_text()}")
        return {**standin(hub.url), "locks_folder": str(folder)}

    return data


@pytest.fixture
def slow_wheel(box: Box, hub: Hub) -> Hub:
    """A hub that takes a minute for the wheel, and a box that has to ask for it."""
    box.run("rm -rf /var/cache/aibox/uv")
    hub.ctl(slow=SLOW, only=WHEEL, clear_log=True)
    return hub


def is_at_work(box: Box) -> bool:
    return box.run(ACTIVE, check=False).returncode == 0


def half_way(box: Box, hub: Hub, running: Running) -> None:
    """Wait until the job of a deploy is downloading."""

    def downloading() -> bool:
        assert running.process.poll() is None, running.said()
        return any(line["bytes"] and line["path"].endswith(".whl") for line in hub.log())

    until(downloading, "the release job did not begin to download")
    assert is_at_work(box)


def invocation(box: Box, unit: str = "vllm-coder") -> str:
    return box.run(f"systemctl show {unit} -p InvocationID --value").stdout.strip()


def starts(box: Box) -> int:
    """How often the release job was started."""
    shown = "journalctl -u aibox-release -o cat --no-pager | grep -c '^Started ' || true"
    return int(box.run(shown).stdout)


def serves_from(box: Box) -> str:
    """The release of the process that serves, by its own command line."""
    pid = box.run("systemctl show vllm-coder -p MainPID --value").stdout.strip()
    box.run(["python3", "-c", HEALTH])
    words = box.run(f"tr '\\0' '\\n' < /proc/{pid}/cmdline").stdout.splitlines()
    return next(word for word in words if word.endswith("/bin/vllm")).removesuffix("/bin/vllm")


def ended_well(box: Box, ended: Deploy, data: Data) -> None:
    """The release is there whole, with its record, and serves."""
    assert ended.code == 0, ended.said
    folder = jobs.wanted(data).release_folder
    record = json.loads(box.run(f"cat {folder}/release.json").stdout)
    assert record["version"] == data["vllm_version"]
    assert box.run(f"ls -A {folder}/.. | grep '^[.]' || true").stdout == ""
    assert serves_from(box) == folder


def failed_in_words(ended: Deploy, found: str) -> None:
    assert ended.code == 1, ended.said
    assert found in ended.said
    assert "Traceback" not in ended.said


@pytest.mark.long
def test_a_release_without_its_record_is_built_again(box: Box, hub: Hub) -> None:
    data = standin(hub.url)
    before, folder = invocation(box), jobs.wanted(data).release_folder
    box.run(f"rm {folder}/release.json")
    shown = deploy({box: data}, "--dry", "--json")
    plan = json.loads(shown.output)["plan"]
    name = f"Release | vLLM {folder.rpartition('/')[2]}"
    assert [row["name"] for row in plan if row["hosts_with_change"]] == [name]
    ended_well(box, deploy({box: data}, "-y"), data)
    assert invocation(box) != before  # what it ran from is gone


def test_a_release_killed_half_way_is_absent_and_built_by_the_next_run(
    box: Box, slow_wheel: Hub, next_lock: Callable[[], Data]
) -> None:
    data, before, old = next_lock(), invocation(box), serves_from(box)
    with deploying(box, data) as running:
        half_way(box, slow_wheel, running)
        box.run("systemctl kill aibox-release")
        failed_in_words(running.ended(), "aibox-release.service was ended before it was done")
    folder = jobs.wanted(data).release_folder
    assert box.run(f"test -e {folder}", check=False).returncode == 1
    assert invocation(box) == before
    slow_wheel.ctl(reset=True)

    ended_well(box, deploy({box: data}, "-y"), data)
    assert invocation(box) != before
    assert old != folder
    box.run(f"test -e {old}/release.json")  # the way back


@pytest.mark.long
def test_a_job_goes_on_without_its_control_and_is_followed_by_the_next(
    box: Box, slow_wheel: Hub, next_lock: Callable[[], Data]
) -> None:
    data, before = next_lock(), starts(box)
    with deploying(box, data) as running:
        half_way(box, slow_wheel, running)
        running.process.kill()
        running.process.wait()
    job = invocation(box, "aibox-release")
    with deploying(box, data) as running:
        until(lambda: "already under way on the box" in running.said(), running.said())
        assert invocation(box, "aibox-release") == job
        slow_wheel.ctl(reset=True)
        ended = running.ended()
    ended_well(box, ended, data)
    assert starts(box) == before + 1


@pytest.mark.long
def test_a_connection_that_is_cut_is_told_and_the_work_goes_on(
    box: Box, slow_wheel: Hub, next_lock: Callable[[], Data]
) -> None:
    data = next_lock()
    with deploying(box, data) as running:
        half_way(box, slow_wheel, running)
        box.run("pkill -f '^sshd: admin'")
        failed_in_words(running.ended(), "the box no longer answers")
    assert is_at_work(box)
    slow_wheel.ctl(reset=True)
    ended_well(box, deploy({box: data}, "-y"), data)


@pytest.mark.long
def test_one_job_at_a_time(box: Box, slow_wheel: Hub, next_lock: Callable[[], Data]) -> None:
    assert slow_wheel
    first, second = next_lock(), next_lock()
    assert jobs.start(box, "release", jobs.wanted(first).release_spec)["how"] == "started"
    job = invocation(box, "aibox-release")
    failed_in_words(deploy({box: second}, "-y"), "aibox-release.service is at work on another task")
    assert invocation(box, "aibox-release") == job
    box.run("systemctl stop aibox-release")  # as the refusal said
    slow_wheel.ctl(reset=True)
    ended_well(box, deploy({box: second}, "-y"), second)


@pytest.mark.long
def test_older_releases_go_and_the_way_back_stays(box: Box, next_lock: Callable[[], Data]) -> None:
    """Of all that the tests before have built, the current one and the one before it stay."""
    data, before = next_lock(), serves_from(box)
    folder = jobs.wanted(data).release_folder
    releases = Path(folder).parent
    box.run(f"mkdir {releases}/mine")
    ended_well(box, deploy({box: data}, "-y"), data)
    names = set(box.run(f"ls -A {releases}").stdout.split())
    assert names == {Path(folder).name, Path(before).name, "mine"}
    assert deploy({box: data}, "--dry", "--json").planned == []

    box.run(f"cp -a {before} {releases}/0.30.0-older && mkdir {releases}/.building-dead")
    box.run(f"touch -d -1day {releases}/0.30.0-older/release.json")
    removal = ["Proof | Releases that nobody asks for"]
    assert deploy({box: data}, "--dry", "--json").planned == removal
    ended_well(box, deploy({box: data}, "-y"), data)
    left = set(box.run(f"ls -A {releases}").stdout.split())
    assert left == names


@pytest.mark.long
def test_a_patched_release_is_another_one(box: Box, hub: Hub, tmp_path: Path) -> None:
    source = Path(vllm_standin.__file__).parent / "src/vllm/py.typed"
    assert source.read_bytes() == b""
    diff = "--- a/vllm/py.typed\n+++ b/vllm/py.typed\n@@ -0,0 +1 @@\n+patched\n"
    patch, left = tmp_path / "a.patch", tmp_path / "gone.patch"
    patch.write_text(diff)
    url = "https://example.org/pull/1"
    entry = {"file": str(patch), "upstream": url, "vllm": "==0.31.0"}
    entry["sha256"] = hashlib.sha256(diff.encode()).hexdigest()
    older = {**entry, "file": str(left), "vllm": "<0.31"}
    data = {**standin(hub.url), "release_patches": [entry, older]}
    ended = deploy({box: data}, "-y")
    ended_well(box, ended, data)
    assert f"patch {left} is for vLLM <0.31 and left out of {data['vllm_version']}" in ended.said
    folder = jobs.wanted(data).release_folder
    assert box.run(f"cat {folder}/lib/python3*/site-packages/vllm/py.typed").stdout == "patched\n"
    [recorded] = json.loads(box.run(f"cat {folder}/release.json").stdout)["patches"]
    assert list(recorded["files"]) == ["vllm/py.typed"]

    patch.write_text(diff.replace("@@ -0,0 +1 @@", "@@ -1 +1 @@\n-gone"))
    wrong = {**entry, "sha256": hashlib.sha256(patch.read_bytes()).hexdigest()}
    failed_in_words(deploy({box: {**data, "release_patches": [wrong]}}, "-y"), "does not apply")
    assert serves_from(box) == folder


def test_a_file_that_would_run_in_every_start_is_refused(box: Box, hub: Hub) -> None:
    before = serves_from(box)
    wheel = next(Path(files_folder()).glob("vllm-*.whl"))
    extra = {
        "url": f"{hub.url}/files/{wheel.name}",
        "sha256": hashlib.sha256(wheel.read_bytes()).hexdigest(),
        "path": "lib/python3.11/site-packages/stray.pth",
    }
    data = {**standin(hub.url), "release_extra_files": [extra]}
    failed_in_words(deploy({box: data}, "-y"), "stray.pth in the new venv")
    assert serves_from(box) == before
    assert box.run(f"ls -A {before}/.. | grep '^[.]' || true").stdout == ""


def test_a_box_that_can_start_no_job_says_why(box: Box, hub: Hub) -> None:
    spec = jobs.wanted(standin(hub.url)).release_spec
    box.run("chmod a-x /usr/bin/systemd-run")
    answer = jobs.start(box, "release", spec)
    box.run("chmod a+x /usr/bin/systemd-run")
    assert not answer["ok"]
    assert answer["refusal"]["found"] == "Permission denied at systemd-run"
