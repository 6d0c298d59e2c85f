"""Drift of driver and toolkit: each kind is introduced on a serving box and seen named.

One box for all, with a power limit set; each check sees several kinds that have nothing to do with
each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from aibox.decide import driver_sources
from aibox.decide.driver_sources import (
    KEY,
    MODPROBE,
    MODULES_LOAD,
    POWER_UNIT,
    PREFERENCES,
    SOURCE,
    UNATTENDED,
)
from tests.rehearsal.box import Box
from tests.rehearsal.emulation.gpu import CORE
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.emulation.nvidia_packages import OTHER_KERNEL
from tests.rehearsal.provision import HostData, deploy, standin
from tests.rehearsal.test_drift import Checked, Drift, check, edited, gone, rows, touched

NAME = "driver-drift"
WATTS = 450
VERSION = "580.178.04"
PERSISTENCE = "nvidia-persistenced.service"
POWER_FILE = f"/etc/systemd/system/{POWER_UNIT}"
NVCC = "/usr/local/cuda-13.0/bin/nvcc"
DPKG = "/var/lib/dpkg/status"
OTHER_SOURCE = "/etc/apt/sources.list.d/cuda-debian12-x86_64.list"
ALIKE = "https://mirror.invalid/compute/cuda/repos/debian12/x86_64/"
MODULE = "/lib/modules/$(uname -r)/updates/dkms/nvidia.ko"
OTHER_MODULES = f"/lib/modules/{OTHER_KERNEL}"


def data(hub: Hub, watts: int = WATTS) -> HostData:
    return {**standin(hub.url), "power_limit_w": watts}


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None], hub: Hub) -> Iterator[Box]:
    with Box.up(NAME, layer=layers("serving"), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        ended = deploy({box: data(hub)}, "-y")
        assert ended.code == 0, ended.said
        yield box


def in_dpkg(package: str, script: str) -> tuple[str, str]:
    """Deed and undoing of a change in what dpkg knows of a package."""
    return edited(DPKG, f"/^Package: {package}$/,/^Version/{script}")


def absent(path: str) -> tuple[str, str]:
    """Deed and undoing of a path that the shell has yet to make a word of."""
    return f"mv {path} /root/kept-nvidia", f"mv /root/kept-nvidia {path}"


KINDS = {
    "an edited pin": Drift(
        1,
        *edited(PREFERENCES, f"s/{VERSION}/595.71.05/"),
        (
            f"Driver: {PREFERENCES} has another content",
            "-Pin: version 595.71.05-*",
            f"+Pin: version {VERSION}-*",
        ),
    ),
    "unattended upgrades may move it": Drift(
        1, *gone(UNATTENDED), (f"Driver: {UNATTENDED} is not there as a file",)
    ),
    "a hold that is taken away": Drift(
        1,
        "apt-mark -q unhold nvidia-driver-cuda",
        "apt-mark -q hold nvidia-driver-cuda",
        ("Driver: nvidia-driver-cuda is not held at its version",),
    ),
    "the repository listed twice": Drift(
        1,
        f"echo 'deb [trusted=yes] {ALIKE} /' >{OTHER_SOURCE}",
        f"rm {OTHER_SOURCE}",
        (f"Driver: {OTHER_SOURCE} lists NVIDIA's repository too",),
    ),
    "another source": Drift(
        1,
        *edited(SOURCE, "s/^Signed-By: .*/Trusted: yes/"),
        (f"Driver: {SOURCE} has another content", "-Trusted: yes"),
    ),
    "nvidia-uvm no longer at boot": Drift(
        1, *gone(MODULES_LOAD), (f"Driver: {MODULES_LOAD} is not there as a file",)
    ),
    "an initramfs older than the module options": Drift(
        1, *touched(MODPROBE), ("Driver: the initramfs of ", "is older than the module options")
    ),
    "persistence that does not start at boot": Drift(
        1,
        f"systemctl disable -q {PERSISTENCE}",
        f"systemctl enable -q {PERSISTENCE}",
        (f"Driver: {PERSISTENCE} is disabled or masked",),
    ),
    "a power limit set by hand": Drift(
        1,
        "nvidia-smi -pl 300",
        f"nvidia-smi -pl {WATTS}",
        (f"Driver: the power limit is 300 W, not {WATTS} W",),
    ),
    "a newer kernel without the module": Drift(
        1,
        f"mkdir -p {OTHER_MODULES}/build && touch /boot/vmlinuz-{OTHER_KERNEL}",
        f"rm -r {OTHER_MODULES} /boot/vmlinuz-{OTHER_KERNEL}",
        (
            f"Driver: no module {VERSION} for kernel {OTHER_KERNEL}",
            f"Driver: kernel {OTHER_KERNEL}, which boots next, has no nvidia module: the next "
            "reboot would lose the card",
        ),
    ),
    "a compiler that is not proven": Drift(
        1,
        *gone("/var/lib/aibox/cuda.json"),
        ("CUDA: no kernel has been compiled with it yet",),
    ),
    "a pin that is gone": Drift(
        2, *gone(PREFERENCES), (f"Driver: {PREFERENCES} is not there as a file",)
    ),
    "nouveau no longer off": Drift(
        2,
        *gone(MODPROBE),
        (f"Driver: {MODPROBE} is not there as a file", "does not keep nouveau off"),
    ),
    "another signing key": Drift(
        2, *edited(KEY, "s/^Comment.*//; 3s/./x/"), (f"Driver: {KEY} has another content",)
    ),
    "persistence that is stopped": Drift(
        2,
        f"systemctl stop {PERSISTENCE}",
        f"systemctl start {PERSISTENCE}; systemctl restart {POWER_UNIT}",
        ("Driver: nvidia-persistenced is inactive", f"is 600 W, not {WATTS} W"),
    ),
    "a power limit that a reboot would lose": Drift(
        2,
        f"systemctl disable -q {POWER_UNIT}",
        f"systemctl enable -q {POWER_UNIT}",
        (f"Driver: {POWER_UNIT} is disabled or masked",),
    ),
    "no node for unified memory": Drift(
        2,
        "rm /dev/nvidia-uvm",
        f"{CORE} refresh",
        ("Driver: /dev/nvidia-uvm is missing", "VRAM: cuInit answers 999"),
    ),
    "a toolkit that is gone": Drift(
        2,
        *in_dpkg("cuda-toolkit-13-0", "s/^Status.*/Status: deinstall ok config-files/"),
        ("CUDA: cuda-toolkit-13-0 is not installed",),
    ),
    "another driver in dpkg": Drift(
        3,
        *in_dpkg("nvidia-driver-cuda", "s/^Version.*/Version: 595.71.05-1/"),
        (f"Driver: nvidia-driver-cuda is 595.71.05, not {VERSION}",),
    ),
    "another driver that is loaded": Drift(
        4,
        f"sed -i 's/{VERSION}/595.71.05/' /sys/module/nvidia/version /proc/driver/nvidia/version",
        f"{CORE} refresh",
        (f"Driver: the loaded module is 595.71.05, not {VERSION}",),
    ),
    "a signing key that is gone": Drift(3, *gone(KEY), (f"Driver: {KEY} is not there as a file",)),
    "a module that is gone": Drift(
        3, *absent(MODULE), (f"Driver: no module {VERSION} for kernel ",)
    ),
    "an edited power limit": Drift(
        3,
        *edited(POWER_FILE, f"s/{WATTS}/600/"),
        (
            f"Driver: {POWER_FILE} has another content",
            f"+ExecStart=/usr/bin/nvidia-smi -pl {WATTS}",
        ),
    ),
    "a compiler that is gone": Drift(
        3, *gone(NVCC), (f"CUDA: {NVCC} is missing", "CUDA: nvcc was 13.0.88 at the last proof")
    ),
}


@pytest.fixture(scope="module")
def looks(box: Box, hub: Hub) -> Callable[[int], Checked]:
    """A check of everything that belongs to it, each undone at once."""

    @cache
    def run(number: int) -> Checked:
        kinds = [kind for kind in KINDS.values() if kind.look == number]
        box.run("\n".join(["set -e", *(kind.deed for kind in kinds)]))
        found = check({box: data(hub)})
        box.run("\n".join(["set -e", *(kind.undo for kind in reversed(kinds))]))
        return found

    return run


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_drift_is_named(looks: Callable[[int], Checked], kind: Drift) -> None:
    found = looks(kind.look)
    assert found.code == 2, found.said
    assert found.box(NAME)["foreign"] == []
    for words in kind.named:
        assert words in rows(found, NAME), found.said


def test_every_file_of_the_stage_is_among_them() -> None:
    files = {KEY, SOURCE, PREFERENCES, UNATTENDED, MODPROBE, MODULES_LOAD}
    named = "\n".join(words for kind in KINDS.values() for words in kind.named)
    assert all(file in named for file in files)
    assert driver_sources.POWER_UNIT in named


@pytest.mark.long
def test_what_was_undone_is_in_sync_again(
    box: Box, hub: Hub, looks: Callable[[int], Checked]
) -> None:
    for number in {kind.look for kind in KINDS.values()}:
        looks(number)
    found = check({box: data(hub)})
    assert found.code == 0, found.said


MENDED_TOGETHER = (
    "an edited pin",
    "a hold that is taken away",
    "the repository listed twice",
    "another signing key",
    "persistence that is stopped",
    "no node for unified memory",
    "nouveau no longer off",
    "a newer kernel without the module",
)


@pytest.mark.long
def test_a_deploy_mends_it_and_a_new_power_limit_holds_at_once(box: Box, hub: Hub) -> None:
    for name in MENDED_TOGETHER:
        box.run(KINDS[name].deed)
    ended = deploy({box: data(hub, watts=400)}, "-y")
    assert ended.code == 0, ended.said
    limit = box.run("nvidia-smi --query-gpu=power.limit --format=csv,noheader,nounits").stdout
    assert float(limit) == 400
    found = check({box: data(hub, watts=400)})
    assert found.code == 0, found.said
