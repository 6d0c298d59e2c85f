"""The probe's answer to "driver" on boxes that the tests judge, and what they are asked for."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from aibox.decide.driver import DriverWanted
from aibox.decide.driver_evidence import Evidence

OLD, NEW = "6.1.0-39-amd64", "6.1.0-40-amd64"
URL = "https://mirror.example/compute/cuda/repos/debian12/x86_64/"
WANTED = DriverWanted(
    version="580.178.04",
    os_id="debian",
    os_version="12",
    url=URL,
    fingerprint="A" * 40,
    cuda="13.0",
    pci_ids=("10de:2bb1", "10de:2bb4", "10de:2bb5"),
    gpu_uuids=(),
    power_limit_w=None,
    uvm_disable_hmm=False,
    reboot_while_serving=False,
    server_unit="vllm-coder",
)
UBUNTU = replace(WANTED, os_id="ubuntu", os_version="24.04")


def package(version: str = "580.178.04-1", *, held: bool = True) -> dict[str, Any]:
    return {"version": version, "source": "nvidia-driver", "held": held}


def kernel(release: str, version: str | None = "580.178.04", **changes: Any) -> dict[str, Any]:
    module = None if version is None else {"version": version, "license": "Dual MIT/GPL"}
    made = {"release": release, "headers": True, "module": module, "initrd_changed": 2000.0}
    return made | changes


def driven() -> dict[str, Any]:
    """A Debian 12 box whose driver is as it should be."""
    return {
        "kernel": NEW,
        "kernels": [kernel(NEW)],
        "pci": [{"slot": "0000:01:00.0", "id": "10de:2bb1", "driver": "nvidia"}],
        "secure_boot": False,
        "mok_enrolled": None,
        "loaded": {"version": "580.178.04", "open": True},
        "uvm": True,
        "uvm_disable_hmm": False,
        "nouveau": False,
        "library": "580.178.04",
        "packages": {
            "nvidia-driver-cuda": package(),
            "nvidia-kernel-open-dkms": package(),
            "nvidia-persistenced": package(),
            "cuda-toolkit-13-0": package("13.0.2-1", held=False),
            "linux-image-amd64": package("6.1.140-1", held=False),
            "linux-headers-amd64": package("6.1.140-1", held=False),
        },
        "runfile": [],
        "sources": {"/etc/apt/sources.list": "deb http://deb.example/debian bookworm main\n"},
        "key_fingerprint": "A" * 40,
        "key": "-----BEGIN",
        "modprobe_changed": 1000.0,
        "boot_id": "1",
        "persistenced": "active",
        "kernel_log": [],
        "nvcc": {"13.0": "13.0.88"},
        "glibc": "2.36",
        "cuda_proof": {"nvcc": "13.0.88", "glibc": "2.36", "toolkit": "13.0"},
    }


def bare() -> dict[str, Any]:
    """The same box as it comes: a card that nouveau holds, no driver, no headers."""
    return driven() | {
        "kernels": [kernel(NEW, None, headers=False)],
        "pci": [{"slot": "0000:01:00.0", "id": "10de:2bb1", "driver": "nouveau"}],
        "loaded": None,
        "uvm": False,
        "uvm_disable_hmm": None,
        "nouveau": True,
        "library": None,
        "packages": {"linux-image-amd64": package("6.1.140-1", held=False)},
        "key_fingerprint": None,
        "key": None,
        "modprobe_changed": None,
        "persistenced": "inactive",
        "nvcc": {},
        "cuda_proof": None,
    }


def with_packages(changes: Mapping[str, Any]) -> dict[str, Any]:
    """The packages of a driven box with some of them changed; None takes one away."""
    packages = driven()["packages"] | dict(changes)
    return {name: value for name, value in packages.items() if value is not None}


def evidence(report: dict[str, Any] | None = None, **changes: Any) -> Evidence:
    """A driven box unless another report is given, with some answers changed."""
    return Evidence.parse(json.dumps((driven() if report is None else report) | changes))
