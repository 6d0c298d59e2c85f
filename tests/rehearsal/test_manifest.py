"""What a box is made of: the same on two boxes of one commit, and every difference has a name."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from aibox.decide import driver_sources, manifest
from aibox.decide.manifest import WEIGHTS_LIST, Manifest
from tasks.box import AIBOX, AIBOX_FOLDER
from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import deploy, standin

UNIT = "/etc/systemd/system/vllm-coder.service"
APT = "/etc/apt/apt.conf.d/90aibox"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def boxes(layers: Callable[[str], str | None], hub: Hub) -> Iterator[tuple[Box, Box]]:
    """Two fresh boxes, deployed from one commit."""
    names = "manifest-a", "manifest-b"
    made = [Box.up(name, layer=layers("based"), owned=True) for name in names]
    try:
        ended = deploy({box: standin(hub.url) for box in made}, "-y")
        assert ended.code == 0, ended.said
        last = ended.log.rstrip().splitlines()[-2:]
        assert [line.split()[:3] for line in last] == [
            [name, "serves", "tiny-qwen3.5-mtp,"] for name in names
        ]
        assert all(line.endswith(" changes") for line in last)
        yield made[0], made[1]
    finally:
        for box in made:
            box.down()


def text_of(box: Box, *words: str) -> str:
    return box.run([AIBOX, "status", "--manifest", *words]).stdout


def manifest_of(box: Box, *words: str) -> Manifest:
    return manifest.parse(text_of(box, *words))


@pytest.fixture(scope="module")
def undisturbed(boxes: tuple[Box, Box]) -> Manifest:
    return manifest_of(boxes[0])


def differences(first: Manifest, second: Manifest) -> list[str]:
    """The places in which two manifests differ, without the values."""
    return [str(one).partition(":")[0] for one in manifest.compare(first, second)]


def test_two_boxes_of_one_commit_are_the_same(
    boxes: tuple[Box, Box], undisturbed: Manifest
) -> None:
    assert [str(one) for one in manifest.compare(undisturbed, manifest_of(boxes[1]))] == []


def test_it_holds_what_the_deploy_laid_down(
    boxes: tuple[Box, Box], undisturbed: Manifest, hub: Hub
) -> None:
    box, wanted, bit = boxes[0], jobs.wanted(standin(hub.url)), undisturbed["bit"]
    assert {APT, UNIT, "/var/lib/aibox/deployed.json"} <= set(bit["files"])
    assert bit["files"][UNIT]["sha256"] == box.run(f"sha256sum {UNIT}").stdout.split()[0]
    assert bit["groups"] == {"vllm": ["vllm"]}
    assert bit["units"]["vllm-coder.service"]["state"] == "active"
    assert bit["venvs"]["release"]["distributions"] == {
        "nvidia-cuda-runtime": "13.0.96+standin",
        "vllm": "0.31.0+standin",
    }
    assert set(bit["venvs"]["aibox"]["distributions"]) == {"aibox", "nvidia-ml-py", "uv"}
    sums = {path: file.sha256 for path, file in wanted.settings.weights.files.items()}
    found = bit["weights"]["files"]
    assert WEIGHTS_LIST in found  # written last: where it stands, all of them are there
    beside = (".", WEIGHTS_LIST)
    assert {path: found[path]["sha256"] for path in found if path not in beside} == sums
    assert undisturbed["version"]["packages"]["gcc"] == "installed"
    assert undisturbed["recorded"]["packages"]["gcc"]


DRIVER = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced")


def test_it_holds_the_driver_to_the_version(undisturbed: Manifest) -> None:
    version, bit = undisturbed["version"], undisturbed["bit"]
    assert {name: version["packages"][name] for name in DRIVER} == dict.fromkeys(
        DRIVER, "580.178.04-1"
    )
    assert version["packages"]["cuda-toolkit-13-0"] == "13.0.2-1"
    assert version["held"] == list(DRIVER)
    assert version["driver"] == {
        "loaded": "580.178.04, open modules",
        "module": "580.178.04, Dual MIT/GPL",
        "library": "580.178.04",
    }
    kept = {driver_sources.PREFERENCES, driver_sources.MODPROBE, driver_sources.MODULES_LOAD}
    assert kept <= set(bit["files"])
    assert bit["units"]["nvidia-persistenced.service"]["enabled"] == "enabled"


RELEASE = "release=$(echo /opt/vllm/releases/*)"
PACKAGE = "$release/lib/python3*/site-packages/vllm"
DROP_IN = f"{UNIT}.d/90-mine.conf"
WITH_DROP_IN = f"mkdir {UNIT}.d; printf '[Service]\\nNice=1\\n' > {DROP_IN}"
NO_DROP_IN = f"rm -r {UNIT}.d; systemctl daemon-reload"

# what is done, the one place where it shows, how it is undone
CHANGES = {
    "a file": (f"echo '#' >> {APT}", f"bit       files {APT} sha256", f"sed -i '$d' {APT}"),
    "a mode": (f"chmod 600 {APT}", f"bit       files {APT} mode", f"chmod 644 {APT}"),
    "an owner": (f"chown guest {APT}", f"bit       files {APT} owner", f"chown root {APT}"),
    "no file": (f"mv {APT} /root/kept", f"bit       files {APT}", f"mv /root/kept {APT}"),
    "a member": (
        "gpasswd -a guest vllm",
        "bit       groups vllm guest",
        "gpasswd -d guest vllm",
    ),
    "a module of the release": (
        f"{RELEASE}; cp {PACKAGE}/server.py /root/kept; echo '#' >> {PACKAGE}/server.py",
        "bit       venvs release parts lib/python3.11/site-packages/vllm",
        f"{RELEASE}; cp /root/kept {PACKAGE}/server.py",
    ),
    "a drop-in": (
        f"{WITH_DROP_IN}; systemctl daemon-reload",
        f"bit       units vllm-coder.service drop-ins {DROP_IN}",
        NO_DROP_IN,
    ),
    "a drop-in that waits for a reload": (
        WITH_DROP_IN,
        "bit       units vllm-coder.service needs a reload",
        NO_DROP_IN,
    ),
    "a pin": (
        f"sed -i s/1000/500/ {driver_sources.PREFERENCES}",
        f"bit       files {driver_sources.PREFERENCES} sha256",
        f"sed -i s/500/1000/ {driver_sources.PREFERENCES}",
    ),
    "a hold": (
        f"apt-mark -q unhold {DRIVER[0]}",
        f"version   held {DRIVER[0]}",
        f"apt-mark -q hold {DRIVER[0]}",
    ),
    "a stray file among the weights": (
        "touch $(dirname /srv/models/*/*/vocab.json)/stray",
        "bit       weights files stray",
        "rm /srv/models/*/*/stray",
    ),
}


@pytest.mark.parametrize("change", CHANGES)
def test_one_change_is_one_difference(
    boxes: tuple[Box, Box], undisturbed: Manifest, change: str
) -> None:
    box = boxes[1]
    doing, place, undoing = CHANGES[change]
    box.run(doing)
    try:
        assert differences(undisturbed, manifest_of(box)) == [place]
    finally:
        box.run(undoing)


def test_bytecode_is_left_out(boxes: tuple[Box, Box], undisturbed: Manifest) -> None:
    boxes[1].run(f"{RELEASE}; touch {PACKAGE}/server.py; python3 -m compileall -q {PACKAGE}")
    assert differences(undisturbed, manifest_of(boxes[1])) == []


def test_weights_that_changed_unseen_are_found_by_reading_them(
    boxes: tuple[Box, Box], undisturbed: Manifest
) -> None:
    box, file = boxes[1], "/srv/models/*/*/vocab.json"
    turned = f"""set -e
        cd /root; file=$(echo {file}); touch -r $file stamp
        printf %s "$1" | dd of=$file conv=notrunc status=none; touch -r stamp $file"""
    box.run(f"set -- '['; {turned}")
    assert differences(undisturbed, manifest_of(box)) == []
    assert differences(undisturbed, manifest_of(box, "--full")) == [
        "bit       weights files vocab.json sha256"
    ]
    box.run(f"set -- '{{'; {turned}")
    assert differences(undisturbed, manifest_of(box, "--full")) == []


@pytest.mark.long
def test_a_rebuilt_box_is_the_same(boxes: tuple[Box, Box], undisturbed: Manifest, hub: Hub) -> None:
    box = boxes[1]
    release = jobs.wanted(standin(hub.url)).release_folder
    # beside the current aibox, as after an update, another one: it is none of the manifest's
    box.run(f"rm -rf {release} {AIBOX_FOLDER}; mkdir -p {AIBOX_FOLDER}/0.0.1-00000000")
    ended = deploy({box: standin(hub.url)}, "-y")
    assert ended.code == 0, ended.said
    assert [str(one) for one in manifest.compare(undisturbed, manifest_of(box))] == []


def compared(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """`compare` as a person runs it on control."""
    return subprocess.run(
        [sys.executable, "-m", "aibox.box", "compare", *words],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_compare_tells_by_its_exit_code(
    boxes: tuple[Box, Box], undisturbed: Manifest, tmp_path: Path
) -> None:
    one, same, other, half = (tmp_path / name for name in ("one", "same", "other", "half"))
    one.write_text(json.dumps(undisturbed))
    recorded = undisturbed["recorded"] | {"kernel": "7.0"}
    same.write_text(json.dumps(undisturbed | {"recorded": recorded}))
    version = undisturbed["version"] | {"python": "3.14"}
    other.write_text(json.dumps(undisturbed | {"version": version}))
    half.write_text(one.read_text()[:1000])

    ended = compared(one, same)
    assert ended.returncode == 0, ended.stderr
    assert "recorded  kernel: A " in ended.stdout
    assert "the same; 1 in what is only recorded" in ended.stdout
    ended = compared(one, other)
    assert ended.returncode == 2, ended.stderr
    assert "version   python: A 3.11, B 3.14" in ended.stdout
    for words in ((one, half), (one, tmp_path / "nothing"), (one, tmp_path), (one,), ()):
        ended = compared(*words)
        assert ended.returncode == 1, ended.stdout
        assert ended.stderr and "Traceback" not in ended.stderr
    box = boxes[0]  # and on a box
    box.run(f"{AIBOX} status --manifest > one; sed s/3.11/3.14/ one > other; chmod 644 one other")
    assert box.run(f"{AIBOX} compare one one", check=False).returncode == 0
    assert box.run(f"{AIBOX} compare one other", check=False).returncode == 2


def test_status_says_what_serves(boxes: tuple[Box, Box]) -> None:
    box = boxes[0]
    shown = box.run([AIBOX, "status"]).stdout
    rows = dict(line.split(maxsplit=1) for line in shown.splitlines())
    labels = ["serves", "since", "model", "release", "driver"]
    assert list(rows) == [*labels, "MTP", "speed", "memory", "gate", "proof"]
    assert rows["driver"] == "580.178.04, open modules"
    assert rows["serves"] == "tiny-qwen3.5-mtp on http://localhost:8000/v1"
    assert "drafted tokens accepted" in rows["MTP"]
    assert "tokens/s" in rows["proof"]


def refused(box: Box, *, user: str = "root") -> str:
    done = box.run([AIBOX, "status", "--manifest"], user=user, check=False)
    assert (done.returncode, done.stdout) == (1, "")
    assert "found " in done.stderr and "Traceback" not in done.stderr
    return done.stderr


def test_status_refuses_in_words(boxes: tuple[Box, Box]) -> None:
    box = boxes[0]
    assert "sudo" in refused(box, user="guest")
    box.run("mv /var/lib/aibox/deployed.json /root/kept")
    assert "no record of a deploy" in refused(box)
    box.run("sed 's/.format.: 1/\"format\": 0/' /root/kept > /var/lib/aibox/deployed.json")
    assert "a record of format 0" in refused(box)
    box.run("mv /root/kept /var/lib/aibox/deployed.json; systemctl stop vllm-coder")
    done = box.run([AIBOX, "status"], check=False)
    assert done.returncode == 1
    assert "serves    nothing on http://localhost:8000/v1" in done.stdout
