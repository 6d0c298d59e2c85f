"""What keeps driver, CUDA and card from being set up, each on a box: cause and remedy in words,
exit 1, the box in its old state, and a run after the mend goes on.

Cards that a driver shows as wrong (MIG, two of them, too small) are in test_refusals.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation import gpu, nvidia_repository
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.emulation.nvidia_repository import (
    OTHER_KEY,
    WITHOUT_HEADERS,
    WRONG_SIGNATURE,
)
from tests.rehearsal.machine import cache_folder
from tests.rehearsal.provision import deploy, standin
from tests.rehearsal.refusal import (
    Said,
    refusals_in,
    run_planned,
    run_refused,
    settings_faults,
    the_one_refusal,
    untouched,
)

KERNEL_7 = "7.0.0-1-amd64"  # one for which the repository has headers
MOK = "/var/lib/dkms/mok.pub"
UNINSTALLER = "/usr/bin/nvidia-uninstall"
PROOF = "/var/lib/aibox/cuda.json"  # of the compiler: made once for each nvcc and C library


def faulty(**faults: Any) -> gpu.State:
    return cast(gpu.State, {**gpu.CARDS["workstation"], **faults})


# --- a bare box: judged before the first change -------------------------------------------------


@pytest.fixture(scope="module")
def bare_box() -> Iterator[Box]:
    """One box with a card and no driver, for all that is refused."""
    with Box.up("driver-refused", owned=True) as box:
        box.run("sudo -n true", user="admin")  # Debian's sudo leaves a mark in the home, once
        yield box


@pytest.fixture
def bare(bare_box: Box) -> Iterator[Box]:
    """That box; the hardware is whole again at the test's end."""
    yield bare_box
    gpu.write_state(bare_box.root, gpu.CARDS["workstation"])


@pytest.fixture
def refused(bare: Box, hub: Hub) -> Callable[..., Said]:
    return lambda **data: run_refused(bare, {**standin(hub.url), **data})


@pytest.fixture
def accepted(bare: Box, hub: Hub) -> Callable[..., object]:
    return lambda **data: run_planned(bare, {**standin(hub.url), **data})


@contextmanager
def enrolled_key(box: Box) -> Iterator[None]:
    """dkms's own key, and a mokutil whose firmware trusts it; the emulated one knows no keys."""
    real = "/usr/bin/mokutil.distrib"  # what the emulated one hands other questions on to
    box.run(f"test ! -e {real} && install -D /dev/null {MOK}")
    box.run(f"cat >{real} && chmod 755 {real}", text='#!/bin/sh\necho "$2 is already enrolled"\n')
    try:
        yield
    finally:
        box.run(f"rm -r {real} {MOK.rpartition('/')[0]}")


@pytest.mark.long
def test_secure_boot_is_refused_and_names_both_ways_out(
    bare: Box, refused: Callable[..., Said], accepted: Callable[..., object]
) -> None:
    gpu.write_state(bare.root, faulty(secure_boot=True))
    said = refused()
    assert said.found.startswith("Secure Boot is on, and the driver needs work: ")
    assert "nouveau is loaded" in said.found
    assert "modules that the firmware lets in" in said.expected
    assert "switch Secure Boot off" in said.do and f"mokutil --import {MOK}" in said.do
    with enrolled_key(bare):
        accepted()
    gpu.write_state(bare.root, faulty(secure_boot=False))
    accepted()


@pytest.mark.long
def test_a_driver_of_the_run_file_is_refused_until_it_is_uninstalled(
    bare: Box, refused: Callable[..., Said], accepted: Callable[..., object]
) -> None:
    bare.run(f"cat >{UNINSTALLER} && chmod 755 {UNINSTALLER}", text="#!/bin/sh\nrm $0\n")
    said = refused()
    assert said.found == f"a driver installed by NVIDIA's .run file ({UNINSTALLER})"
    assert said.expected.startswith("a driver from packages, or none")
    (command,) = re.findall(r"`(.*?)`, reboot", said.do)
    bare.run(command)
    accepted()


@pytest.mark.parametrize(
    ("card", "found", "expected", "do"),
    [
        ("6000d", "RTX PRO 6000D (10de:2bb2) in slot 0000:01:00.0", "10de:2bb1", "gpu_pci_ids"),
        ("rtx5090", "GeForce RTX 5090 (10de:2b85) in slot", "RTX PRO 6000", "gpu_pci_ids"),
        ("no-gpu", "no NVIDIA card on the PCI bus", "at least 96 GB", "lspci -d 10de:"),
    ],
)
def test_a_card_is_judged_by_its_pci_id_before_there_is_a_driver(
    bare: Box, refused: Callable[..., Said], card: str, found: str, expected: str, do: str
) -> None:
    gpu.write_state(bare.root, gpu.CARDS[card])
    said = refused()
    assert said.found.startswith(found)
    assert expected in said.expected
    assert do in said.do


@pytest.mark.long
def test_a_kernel_that_the_driver_does_not_build_for_is_refused(
    bare: Box, refused: Callable[..., Said], accepted: Callable[..., object]
) -> None:
    bare.run(f"mkdir /lib/modules/{KERNEL_7} && touch /boot/vmlinuz-{KERNEL_7}")
    said = refused(driver_version="580.126.16")
    assert said.found == f"kernel {KERNEL_7} and driver 580.126.16"
    assert "580 up to 580.126.16 does not" in said.expected
    assert '"580.178.04"' in said.do
    accepted(driver_version="580.178.04")
    bare.run(f"rm -r /lib/modules/{KERNEL_7} /boot/vmlinuz-{KERNEL_7}")


def test_a_branch_older_than_cuda_needs_is_a_fault_of_the_settings(bare: Box, hub: Hub) -> None:
    with untouched(bare):
        ended = deploy({bare: {**standin(hub.url), "driver_version": "570.195.03"}}, "-y")
    (fault,) = settings_faults(ended)
    assert "driver_version: 570.195.03 is older than 580.65.06, which CUDA 13.0" in fault
    assert "set driver_version to 580.65.06 or newer" in fault


# --- NVIDIA's repository ------------------------------------------------------------------------


def variant(hub: Hub, name: str) -> str:
    return nvidia_repository.served(cache_folder() / "files").url(hub.url, name)


@pytest.mark.long
def test_headers_gone_from_the_archive_ask_for_a_reboot_into_the_current_kernel(
    bare: Box, refused: Callable[..., Said], hub: Hub
) -> None:
    kernel = bare.run("uname -r").stdout.strip()
    said = refused(nvidia_repository=variant(hub, WITHOUT_HEADERS))
    assert said.found == (
        f"kernel {kernel} has no headers, and no source offers linux-headers-{kernel}"
    )
    assert "which the driver's module is built with" in said.expected
    assert "install the current kernel" in said.do and "reboot into it" in said.do


@pytest.mark.long
def test_a_repository_that_is_not_there_is_refused(refused: Callable[..., Said], hub: Hub) -> None:
    said = refused(nvidia_repository=f"{hub.url}/files/nowhere")
    assert f"{hub.url}/files/nowhere/debian12/x86_64/" in said.found and "404" in said.found
    assert "NVIDIA's repository for this distribution" in said.expected
    assert "check nvidia_repository" in said.do


@pytest.mark.parametrize("name", [WRONG_SIGNATURE, OTHER_KEY])
def test_a_repository_whose_signature_does_not_hold_is_refused(
    refused: Callable[..., Said], hub: Hub, name: str
) -> None:
    said = refused(nvidia_repository=variant(hub, name))
    assert variant(hub, name) in said.found
    assert ("BADSIG" if name == WRONG_SIGNATURE else "NO_PUBKEY") in said.found
    assert "signed by the key that nvidia_key names" in said.expected
    assert "do not go round" in said.do


@pytest.mark.long
def test_a_key_of_another_fingerprint_is_refused(refused: Callable[..., Said], hub: Hub) -> None:
    offered = standin(hub.url)["nvidia_key"]
    said = refused(nvidia_key="A" * 40)
    assert said.found.endswith(f"hands out the key {offered}")
    assert said.expected == f"the key {'A' * 40}, which nvidia_key names"
    assert "compare nvidia_key with what NVIDIA publishes" in said.do


@pytest.mark.long
def test_a_version_that_nobody_offers_names_those_that_are(refused: Callable[..., Said]) -> None:
    said = refused(driver_version="580.99.99")
    assert "offers no nvidia-driver-cuda, nvidia-kernel-open-dkms" in said.found
    assert said.found.endswith("580.178.04, 580.126.16, 580.65.06")
    assert "595.71.05, 590.48.01" in said.found
    assert said.expected == "driver 580.99.99, which driver_version names"
    assert said.do == 'set driver_version = "580.178.04", or another of them'


def test_all_that_keeps_a_driver_from_a_box_comes_in_one_answer(bare: Box, hub: Hub) -> None:
    gpu.write_state(bare.root, {**gpu.CARDS["6000d"], "secure_boot": True})
    data = {**standin(hub.url), "driver_version": "580.99.99", "disk_reserve_gb": 400_000}
    with untouched(bare):
        ended = deploy({bare: data}, "-y")
    assert ended.code == 1, ended.said
    found = [said.found for said in refusals_in(ended)]
    assert len(found) == 4, found
    for words in ("RTX PRO 6000D", "Secure Boot is on", "offers no nvidia-driver-cuda", "GB free"):
        assert any(words in one for one in found), (words, found)


def test_the_box_of_all_these_refusals_is_taken_once_it_is_mended(
    accepted: Callable[..., object],
) -> None:
    accepted()


# --- a box that serves --------------------------------------------------------------------------


@pytest.fixture(scope="module")
def serving_box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """One deployed box. The last test reboots it."""
    with Box.up("driver-serving", layer=layers("serving"), owned=True) as box:
        box.run("sudo -n true", user="admin")
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture
def serving(serving_box: Box) -> Iterator[Box]:
    """That box; hardware and server are whole again at the test's end."""
    yield serving_box
    gpu.write_state(serving_box.root, gpu.CARDS["workstation"])
    serving_box.run("systemctl start vllm-coder")


def run_well(box: Box, hub: Hub, **data: object) -> None:
    ended = deploy({box: {**standin(hub.url), **data}}, "-y")
    assert ended.code == 0, ended.said
    assert refusals_in(ended) == [], ended.said


@pytest.mark.long
def test_a_server_that_answers_is_not_rebooted_unless_allowed(serving: Box, hub: Hub) -> None:
    data = {**standin(hub.url), "driver_version": "595.71.05"}
    said = run_refused(serving, data)
    who = "the server (vllm-coder.service, port 8000)"
    assert said.found.startswith(f"{who} answers, and the run would install driver 595.71.05")
    assert "and reboot: the loaded module is 580.178.04, not 595.71.05" in said.found
    assert said.expected == "a server that may be interrupted"
    assert "`systemctl stop vllm-coder`" in said.do and "reboot_while_serving = True" in said.do
    run_planned(serving, {**data, "reboot_while_serving": True})
    serving.run("systemctl stop vllm-coder")
    run_planned(serving, data)


@pytest.mark.long
def test_mixed_flavours_are_refused_until_one_is_purged(serving: Box, hub: Hub) -> None:
    name = "linux-modules-nvidia-580-generic"  # Canonical's, with the proprietary module
    control = f"Package: {name}\nVersion: 1\nArchitecture: all\nMaintainer: a\nDescription: b\n"
    serving.run("mkdir -p /tmp/closed/DEBIAN && cat >/tmp/closed/DEBIAN/control", text=control)
    serving.run("dpkg-deb -b /tmp/closed /tmp/closed.deb && dpkg -i /tmp/closed.deb")
    said = run_refused(serving, standin(hub.url))
    assert said.found == (
        f"mixed drivers: nvidia-kernel-open-dkms (open) beside {name} (proprietary)"
    )
    assert "Blackwell needs the open one" in said.expected
    (command,) = re.findall(r"`apt-get (purge .*?)`, reboot", said.do)
    serving.run(f"apt-get -qy {command}")
    run_planned(serving, standin(hub.url))


@pytest.mark.long
@pytest.mark.parametrize("watts", [pytest.param(100, marks=pytest.mark.long), 700])
def test_a_power_limit_beyond_what_the_card_allows_is_refused(
    serving: Box, hub: Hub, watts: int
) -> None:
    said = run_refused(serving, {**standin(hub.url), "power_limit_w": watts})
    assert said.found == f"power_limit_w = {watts}"
    assert said.expected.startswith("150 to 600 W, which NVIDIA RTX PRO 6000 Blackwell Work")
    assert "set power_limit_w within that" in said.do
    if watts == 700:
        run_planned(serving, {**standin(hub.url), "power_limit_w": 400})


@pytest.mark.long
def test_cuda_that_waits_for_a_fabric_is_refused(serving: Box, hub: Hub) -> None:
    gpu.write_state(serving.root, faulty(cu_init=802))
    said = run_refused(serving, standin(hub.url))
    assert said.found.startswith("cuInit answers 802 CUDA_ERROR_SYSTEM_NOT_READY")
    assert "nvidia-smi alone is no proof" in said.expected
    assert "a single card needs no fabric manager" in said.do
    gpu.write_state(serving.root, gpu.CARDS["workstation"])
    run_well(serving, hub)


@pytest.mark.long
def test_memory_that_another_process_holds_is_refused_with_its_name(serving: Box, hub: Hub) -> None:
    serving.run("systemctl stop vllm-coder")
    gpu.write_state(serving.root, gpu.CARDS["busy"])
    said = run_refused(serving, standin(hub.url))
    assert said.found.endswith("free on card 0, held by python3 (pid 4242) with 86.09 GiB")
    assert "gpu-memory-utilization" in said.expected
    assert said.do.startswith("stop what holds it (`ps -fp 4242` shows it)")
    gpu.write_state(serving.root, gpu.CARDS["workstation"])
    run_well(serving, hub)  # and starts the server


@pytest.mark.long
def test_a_compiler_that_does_not_know_the_c_library_is_refused(serving: Box, hub: Hub) -> None:
    """nvcc 13.0 against glibc 2.43, as on Ubuntu 26.04; the kernel of the proof includes cmath."""
    serving.run(f"rm {PROOF}")
    gpu.write_state(serving.root, faulty(glibc="2.43"))
    said = the_one_refusal(deploy({serving: standin(hub.url)}, "-y"))
    assert said.found.startswith("nvcc of CUDA 13.0 fails on glibc 2.")
    assert 'previous function "rsqrt"' in said.found
    assert "compiles a small kernel for sm_120" in said.expected
    assert "2.42 and later declare rsqrt too" in said.do and "Debian 12, 13" in said.do
    serving.run(f"test ! -e {PROOF} && systemctl is-active vllm-coder")
    gpu.write_state(serving.root, gpu.CARDS["workstation"])
    run_well(serving, hub)
    serving.run(f"test -e {PROOF}")


KERNEL_SAYS = {
    "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.": "it takes a cold start",
    "NVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)": '"Above 4G Decoding" and "Resizable BAR"',
    "NVRM: GPU 0000:01:00.0: RmInitAdapter failed! (0x22:0x56:884)": "cannot start the card",
}


@pytest.mark.long
def test_what_the_kernel_says_of_the_card_is_told_with_its_meaning(serving: Box, hub: Hub) -> None:
    gpu.write_state(serving.root, faulty(xid=list(KERNEL_SAYS)))
    with untouched(serving):
        ended = deploy({serving: standin(hub.url)}, "--dry")
    assert ended.code == 0, ended.said
    for line, meaning in KERNEL_SAYS.items():
        told = [one for one in ended.log.splitlines() if f"the kernel says '{line}'" in one]
        assert told, ended.log
        assert all(meaning in one for one in told), told


@pytest.mark.long
def test_cuda_that_hmm_keeps_from_starting_is_refused_until_hmm_is_off(
    serving: Box, hub: Hub
) -> None:
    gpu.write_state(serving.root, faulty(cu_init=999, hmm_fault=True))
    said = run_refused(serving, standin(hub.url))
    assert said.found.startswith("cuInit answers 999 CUDA_ERROR_UNKNOWN")
    assert "nvidia-smi alone is no proof" in said.expected
    assert "set uvm_disable_hmm = True" in said.do
    boot = serving.run("cat /proc/sys/kernel/random/boot_id").stdout
    run_well(serving, hub, uvm_disable_hmm=True, reboot_while_serving=True)
    assert serving.run("cat /proc/sys/kernel/random/boot_id").stdout != boot
    serving.run("systemctl is-active vllm-coder")
