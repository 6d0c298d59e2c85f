"""A driver judged from outside: over ssh, by testinfra, with none of the product's own code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import testinfra
from testinfra.host import Host

from tests.rehearsal.box import Box

CARD = "/sys/bus/pci/devices/0000:01:00.0/driver"
LIBRARY = "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"
CU_INIT = "python3 -c \"import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))\""
PACKAGES = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced")  # Debian's
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"


def host_of(box: Box) -> Host:
    """The box as testinfra sees it, with sudo."""
    return testinfra.get_host(
        f"ssh://{box.name}", ssh_config=str(box.ssh_config), sudo=True, ssh_identity_file=None
    )


def boots(box: Box) -> list[str]:
    """The boots that the journal has kept, by id, oldest first."""
    lines = box.run("journalctl --list-boots -q --no-pager").stdout.splitlines()
    return [line.split()[1] for line in lines if line.split()[1] != "BOOT"]


@contextmanager
def reboots(box: Box, expected: int) -> Iterator[None]:
    """Sees that meanwhile the box has booted so often, by its journal and by its boot id."""
    before, known = box.run(BOOT_ID).stdout, boots(box)
    yield
    now = boots(box)
    assert now[: len(known)] == known
    assert len(now) - len(known) == expected, f"{len(now) - len(known)} reboots, not {expected}"
    assert (box.run(BOOT_ID).stdout != before) == bool(expected)


def assert_driver(box: Box, version: str) -> None:
    """Exactly this driver, with open modules: on dpkg, library and module, loaded and usable."""
    host = host_of(box)
    for name in PACKAGES:
        assert host.package(name).version == f"{version}-1"
    held = host.check_output("apt-mark showhold").split()
    assert set(PACKAGES) <= set(held)
    assert host.check_output("dpkg --audit") == ""
    assert host.file(LIBRARY).linked_to == f"{LIBRARY.removesuffix('1')}{version}"
    assert host.check_output("modinfo -F version nvidia") == version
    assert host.check_output("modinfo -F license nvidia") == "Dual MIT/GPL"
    assert host.file("/sys/module/nvidia/version").content_string.strip() == version
    assert f"Open Kernel Module for x86_64  {version} " in host.check_output(
        "head -1 /proc/driver/nvidia/version"
    )
    assert host.check_output(f"basename $(readlink {CARD})") == "nvidia"
    assert not host.file("/sys/module/nouveau").exists
    query = "nvidia-smi --query-gpu=driver_version,persistence_mode --format=csv,noheader"
    assert host.check_output(query) == f"{version}, Enabled"
    assert host.file("/dev/nvidia-uvm").exists
    assert host.check_output(CU_INIT) == "0"
    persistence = host.service("nvidia-persistenced")
    assert persistence.is_running and persistence.is_enabled


def installations(box: Box) -> int:
    """How many of the driver's packages dpkg has unpacked since the box was made."""
    said = box.run("grep -cE ' (install|upgrade) .*nvidia-' /var/log/dpkg.log || true").stdout
    return int(said)
