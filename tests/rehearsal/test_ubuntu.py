"""Ubuntu's package sets, on a Debian box that calls itself Ubuntu 24.04.

Its /etc/os-release says so, and the emulated repository has a folder for Ubuntu; what the packages
need of the distribution comes from Debian. No real Ubuntu is part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import HostData, deploy, standin
from tests.rehearsal.test_drift import check, rows

NAME = "ubuntu"
OS_RELEASE = """\
PRETTY_NAME="Ubuntu 24.04.3 LTS"
NAME="Ubuntu"
VERSION_ID="24.04"
VERSION="24.04.3 LTS (Noble Numbat)"
VERSION_CODENAME=noble
ID=ubuntu
ID_LIKE=debian
UBUNTU_CODENAME=noble
"""
UP_TO_580 = ("libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-utils-580")
FROM_590 = ("libnvidia-compute", "nvidia-dkms-open", "nvidia-utils")
SETS = {"580.178.04": UP_TO_580, "595.71.05": FROM_590}
DEBIANS = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms")


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """A bare card, with the distribution's packages of the base stage."""
    with Box.up(NAME, layer=layers("based"), owned=True) as box:
        box.run("rm /etc/os-release && cat >/etc/os-release", text=OS_RELEASE)
        yield box


def data(hub: Hub, version: str) -> HostData:
    return {**standin(hub.url), "driver_version": version, "reboot_while_serving": True}


@pytest.mark.parametrize(
    "version",
    ["580.178.04", pytest.param("595.71.05", marks=pytest.mark.long)],
)
def test_the_plan_names_ubuntus_packages(box: Box, hub: Hub, version: str) -> None:
    found = check({box: data(hub, version)})
    assert found.code == 2, found.said
    lacking = rows(found, NAME).splitlines()
    for name in (*SETS[version], "nvidia-persistenced"):
        assert f"Driver: {name} is not installed" in lacking, found.said
    assert not any(name in found.table for name in DEBIANS)
    assert "/etc/apt/sources.list.d/aibox-nvidia.sources is not there" in found.table
    assert "contrib" not in found.table  # Debian's alone


@pytest.mark.long
@pytest.mark.parametrize("version", [*SETS, "580.178.04"])
def test_it_gets_that_driver_and_serves(box: Box, hub: Hub, version: str) -> None:
    boot = box.run("cat /proc/sys/kernel/random/boot_id").stdout
    ended = deploy({box: data(hub, version)}, "-y")
    assert ended.code == 0, ended.said
    assert ended.said.count("up again after") == 1, ended.said
    assert box.run("cat /proc/sys/kernel/random/boot_id").stdout != boot
    assert box.run("cat /sys/module/nvidia/version").stdout.strip() == version
    held = set(box.run("apt-mark showhold").stdout.split())
    assert set(SETS[version]) <= held
    there = box.run("dpkg-query -W -f '${Package} ${db:Status-Status}\\n'").stdout.splitlines()
    others = {name for names in SETS.values() for name in names} - set(SETS[version])
    assert others.isdisjoint(line.split()[0] for line in there if line.endswith(" installed"))
    source = box.run("cat /etc/apt/sources.list.d/aibox-nvidia.sources").stdout
    assert "/ubuntu2404/x86_64/" in source
    assert deploy({box: data(hub, version)}, "--dry", "--json").planned == []
