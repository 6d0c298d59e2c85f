"""The emulated machine behaves as the NVIDIA facts say that a real one does."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, cast

import pytest

from tests.rehearsal import by_hand
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation import gpu
from tests.rehearsal.emulation.hub import Hub

# Of the rehearsal itself; every deploy of the short tests stands on it too.
pytestmark = pytest.mark.long

OPEN_MODULE = "NVIDIA UNIX Open Kernel Module for x86_64  580.178.04"
BLACKLIST = "/etc/modprobe.d/nouveau.conf"
SECURE_BOOT = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
CU_INIT = "python3 -c \"import ctypes; print(ctypes.CDLL('libcuda.so.1').cuInit(0))\""
OTHER_KERNEL = "7.0.0-1-amd64"  # one for which the repository has headers
KERNEL_OF_CMATH = "#include <cmath>\n__global__ void k(float *x) { *x = sqrtf(*x); }\n"


@pytest.fixture(scope="module")
def driven_box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("driver-emulation", layer=layers("driven"), owned=True) as box:
        yield box


@pytest.fixture
def driven(driven_box: Box) -> Iterator[Box]:
    """A box with a driver; the hardware is whole again at the test's end."""
    yield driven_box
    gpu.write_state(driven_box.root, gpu.CARDS["workstation"])


@pytest.fixture(scope="module")
def bare() -> Iterator[Box]:
    with Box.up("driver-bare", owned=True) as box:
        yield box


def faulty(**faults: Any) -> gpu.State:
    return cast(gpu.State, {**gpu.CARDS["workstation"], **faults})


def said(box: Box, command: str, user: str = "root") -> tuple[int, str]:
    done = box.run(command, check=False, user=user)
    return done.returncode, (done.stdout + done.stderr).strip()


def text(box: Box, command: str) -> str:
    return box.run(command).stdout.strip()


def kernel_log(box: Box) -> str:
    return text(box, "journalctl -b -o cat -t kernel --no-pager")


def driver_of_card(box: Box) -> str:
    link = "/sys/bus/pci/devices/0000:01:00.0/driver"
    return text(box, f"readlink {link} || true").rpartition("/")[2]


def reboot(box: Box, commands: str = "true") -> None:
    box.run(commands)
    box.reboot()


# --- a bare machine -----------------------------------------------------------------------------


def test_a_bare_machine_has_a_card_and_no_driver(bare: Box) -> None:
    card = "/sys/bus/pci/devices/0000:01:00.0"
    assert text(bare, f"cat {card}/{{vendor,device,class}}").split() == [
        "0x10de",
        "0x2bb1",
        "0x030000",
    ]
    assert text(bare, f"cat {card[:-1]}1/class") == "0x040300"  # its sound function
    assert driver_of_card(bare) == "nouveau"
    assert "nouveau" in text(bare, "lsmod") and said(bare, "ls /sys/module/nvidia")[0] != 0
    assert said(bare, "ls /dev/nvidia*")[0] != 0
    assert "libnvidia-ml" not in text(bare, "ldconfig -p")
    assert said(bare, "command -v nvidia-smi")[0] == 1
    assert text(bare, "systemctl is-system-running") == "running"


def test_the_running_kernel_lies_on_the_disk_without_its_headers(bare: Box) -> None:
    kernel = text(bare, "uname -r")
    bare.run(f"test -s /boot/vmlinuz-{kernel} && test -s /boot/initrd.img-{kernel}")
    assert text(bare, f"ls /lib/modules/{kernel}") == ""


def test_sys_stays_read_only_so_that_no_udev_starts(bare: Box) -> None:
    assert said(bare, "mkdir /sys/mine")[0] != 0
    assert said(bare, "systemctl is-active systemd-udevd")[1] == "inactive"


@pytest.mark.parametrize("write", ["by a root file system", "by a command"])
def test_another_card_is_seen_on_the_bus_at_once(bare: Box, write: str) -> None:
    where = bare.root if "file system" in write else bare.run
    gpu.write_state(where, gpu.CARDS["6000d"])
    assert text(bare, "cat /sys/bus/pci/devices/0000:01:00.0/device") == "0x2bb2"
    assert driver_of_card(bare) == "nouveau"
    gpu.write_state(where, None)
    assert text(bare, "ls /sys/bus/pci/devices") == ""
    gpu.write_state(where, gpu.CARDS["workstation"])


@pytest.mark.parametrize(
    ("state", "last_byte", "words"),
    [(True, "01", "SecureBoot enabled"), (False, "00", "SecureBoot disabled")],
)
def test_secure_boot_is_an_efi_variable(bare: Box, state: bool, last_byte: str, words: str) -> None:
    gpu.write_state(bare.root, faulty(secure_boot=state))
    assert text(bare, f"od -An -tx1 {SECURE_BOOT}").split()[4:] == [last_byte]
    assert text(bare, "mokutil --sb-state") == words


def test_a_machine_without_efi_has_no_secure_boot(bare: Box) -> None:
    gpu.write_state(bare.root, faulty(secure_boot=None))
    assert said(bare, "ls /sys/firmware/efi")[0] != 0
    assert said(bare, "mokutil --sb-state") == (1, "EFI variables are not supported on this system")


def test_dkms_is_there_only_with_its_package(bare: Box) -> None:
    assert said(bare, "dkms status") == (127, "dkms: command not found")


# --- nouveau and the initramfs ------------------------------------------------------------------


def test_nouveau_stays_until_disk_and_initramfs_both_forbid_it(bare: Box) -> None:
    reboot(bare, f"echo blacklist nouveau >{BLACKLIST}")
    assert driver_of_card(bare) == "nouveau"
    reboot(bare, "update-initramfs -u")
    assert driver_of_card(bare) == ""
    assert "etc/modprobe.d/nouveau.conf" in text(bare, "lsinitramfs /boot/initrd.img-$(uname -r)")
    reboot(bare, f"rm {BLACKLIST}")
    assert driver_of_card(bare) == "nouveau"
    bare.run("update-initramfs -u -k all")


# --- a driver -----------------------------------------------------------------------------------


def test_a_driven_machine_answers(driven: Box) -> None:
    assert driver_of_card(driven) == "nvidia"
    assert text(driven, "cat /sys/module/nvidia/version") == "580.178.04"
    assert OPEN_MODULE in text(driven, "head -1 /proc/driver/nvidia/version")
    assert "Workstation" in text(driven, "cat /proc/driver/nvidia/gpus/0000:01:00.0/information")
    assert text(driven, "modinfo -F license nvidia") == "Dual MIT/GPL"
    assert text(driven, "dkms status") == (
        f"nvidia/580.178.04, {text(driven, 'uname -r')}, x86_64: installed"
    )
    driven.run("test -c /dev/nvidia0 && test -c /dev/nvidiactl && test -c /dev/nvidia-uvm")
    assert text(driven, CU_INIT) == "0"
    assert text(driven, f"CUDA_VISIBLE_DEVICES=-1 {CU_INIT}") == "100"
    query = "name,memory.total,driver_version,mig.mode.current,power.limit,uuid"
    form = "--format=csv,noheader,nounits"
    assert text(driven, f"nvidia-smi --query-gpu={query} {form}").split(", ") == [
        "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "97887",
        "580.178.04",
        "[N/A]",
        "600.00",
        "GPU-5bd1e9a4-0000-4000-8000-000000000001",
    ]


def test_the_table_cuts_the_name_short(driven: Box) -> None:
    table = text(driven, "nvidia-smi")
    assert "Driver Version: 580.178.04" in table and "CUDA Version: 13.0" in table
    assert "RTX PRO 6000 Blac" in table and "Workstation" not in table


@pytest.mark.parametrize("code", [3, 999, 802])
def test_a_working_nvidia_smi_is_no_proof(driven: Box, code: int) -> None:
    gpu.write_state(driven.root, faulty(cu_init=code))
    assert said(driven, "nvidia-smi -L")[0] == 0
    assert text(driven, CU_INIT) == str(code)


def test_an_xid_is_in_the_kernel_log_of_each_boot(driven: Box) -> None:
    line = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    gpu.write_state(driven.root, faulty(xid=[line]))
    grep = "journalctl -b -o cat -t kernel --grep 'NVRM|nouveau' --no-pager"
    assert line in text(driven, grep)
    driven.reboot()
    assert text(driven, grep).count(line) == 1


def test_power_limit_and_persistence_end_with_the_boot(driven: Box) -> None:
    limit = "nvidia-smi --query-gpu=power.limit,persistence_mode --format=csv,noheader"
    code, words = said(driven, "nvidia-smi -pl 100")
    assert code == 2 and "should be between 150.00 W and 600.00 W" in words
    assert said(driven, "nvidia-smi -pl 300", user="guest")[0] == 4
    driven.run("nvidia-smi -i GPU-5bd1e9a4-0000-4000-8000-000000000001 -pl 300")
    assert text(driven, limit) == "300.00 W, Enabled"
    reboot(driven, "systemctl disable nvidia-persistenced")
    assert text(driven, limit) == "600.00 W, Disabled"
    driven.run("nvidia-smi -pl 300")
    assert text(driven, limit) == "600.00 W, Disabled"  # nothing keeps it
    driven.run("nvidia-smi -pm 1 && nvidia-smi -pl 300")
    assert text(driven, limit) == "300.00 W, Enabled"
    reboot(driven, "systemctl enable nvidia-persistenced")
    assert text(driven, limit) == "600.00 W, Enabled"


def test_uvm_comes_by_modules_load_d_or_by_hand(driven: Box) -> None:
    reboot(driven, "mv /etc/modules-load.d/nvidia-uvm.conf /root/")
    assert said(driven, "test -e /dev/nvidia-uvm")[0] == 1
    assert said(driven, "nvidia-smi -L")[0] == 0
    assert text(driven, CU_INIT) == "999"
    driven.run("modprobe nvidia-uvm")
    assert text(driven, CU_INIT) == "0"
    driven.run("mv /root/nvidia-uvm.conf /etc/modules-load.d/")


def test_it_comes_back_after_a_power_cut(driven: Box) -> None:
    driven.power_cut()
    driven.start()
    assert text(driven, CU_INIT) == "0"


# --- changes of the driver ----------------------------------------------------------------------


def test_an_upgrade_under_the_loaded_module_is_a_mismatch_until_a_reboot(
    make_box: MakeBox, hub: Hub
) -> None:
    box = make_box("driver-upgraded", "driven")
    by_hand.install_driver(box, hub.url, "595.71.05")
    assert text(box, "modinfo -F version nvidia") == "595.71.05"
    assert text(box, "cat /sys/module/nvidia/version") == "580.178.04"
    code, words = said(box, "nvidia-smi")
    assert (code, words) == (18, "Failed to initialize NVML: Driver/library version mismatch")
    assert "NVRM: API mismatch: the client has the version 595.71.05" in kernel_log(box)
    assert text(box, CU_INIT) == "803"
    box.reboot()
    assert "595.71.05" in text(box, "nvidia-smi")
    assert text(box, CU_INIT) == "0"


def test_the_proprietary_module_loads_and_finds_no_card(make_box: MakeBox, hub: Hub) -> None:
    box = make_box("driver-closed", "driven")
    by_hand.install_driver(box, hub.url, module=by_hand.PROPRIETARY)
    assert text(box, "modinfo -F license nvidia") == "NVIDIA"
    box.reboot()
    assert said(box, "nvidia-smi") == (6, "No devices were found")
    assert "NVIDIA UNIX x86_64 Kernel Module  580" in text(box, "cat /proc/driver/nvidia/version")
    assert "requires use of the NVIDIA open kernel modules." in kernel_log(box)
    assert "RmInitAdapter failed! (0x22:0x56:884)" in kernel_log(box)


def test_a_driver_beside_nouveau_is_not_loaded(make_box: MakeBox, hub: Hub) -> None:
    box = make_box("driver-nouveau", "based")
    by_hand.install_driver(box, hub.url)
    code, words = said(box, "nvidia-smi")
    assert code == 9 and "couldn't communicate with the NVIDIA driver" in words
    assert said(box, "modprobe nvidia") == (
        1,
        "modprobe: ERROR: could not insert 'nvidia': No such device",
    )
    assert "obtained ownership of the NVIDIA device(s)" in kernel_log(box)
    assert said(box, "systemctl start nvidia-persistenced")[0] == 1
    assert said(box, "modprobe -r nouveau")[0] == 1
    reboot(box, f"echo blacklist nouveau >{BLACKLIST}; update-initramfs -u")
    assert said(box, "nvidia-smi -L")[0] == 0


def test_secure_boot_rejects_the_module(driven: Box) -> None:
    gpu.write_state(driven.root, faulty(secure_boot=True))
    driven.reboot()
    assert said(driven, "modprobe nvidia") == (
        1,
        "modprobe: ERROR: could not insert 'nvidia': Key was rejected by service",
    )
    assert said(driven, "nvidia-smi")[0] == 9
    gpu.write_state(driven.root, gpu.CARDS["workstation"])
    driven.run("modprobe -a nvidia nvidia-uvm")
    assert text(driven, CU_INIT) == "0"


def test_a_kernel_without_headers_gets_no_module(driven: Box) -> None:
    other = "6.99.0-1-amd64"
    driven.run(f"mkdir /lib/modules/{other} && touch /boot/vmlinuz-{other}")
    code, words = said(driven, f"dkms install nvidia/580.178.04 -k {other}")
    assert code == 21
    missing = f"Error! Your kernel headers for kernel {other} cannot be found at /lib/modules/"
    assert words.startswith(f"{missing}{other}/build")
    driven.run(f"mkdir /lib/modules/{other}/build && dkms autoinstall -k {other}")
    assert f"nvidia/580.178.04, {other}, x86_64: installed" in text(driven, "dkms status")
    assert text(driven, f"modinfo -k {other} -F version nvidia-uvm") == "580.178.04"
    driven.run(
        f"dkms remove nvidia/580.178.04 -k {other}; rm -r /lib/modules/{other} /boot/*{other}"
    )


@pytest.mark.parametrize(("version", "code"), [("590.48.01", 10), ("580.178.04", 0)])
def test_some_drivers_do_not_build_on_kernel_7(driven: Box, version: str, code: int) -> None:
    source = f"/usr/src/nvidia-{version}"
    driven.run(f"mkdir -p /lib/modules/{OTHER_KERNEL}/build {source}")
    driven.run(
        f"test -e {source}/dkms.conf || echo NVIDIA | tee {source}/license >{source}/dkms.conf"
    )
    ended, words = said(driven, f"dkms build -m nvidia -v {version} -k {OTHER_KERNEL}")
    assert ended == code, words
    assert ("Bad return status for module build on kernel" in words) == bool(code)
    driven.run(f"dkms remove nvidia/{version} -k {OTHER_KERNEL}; rm -r /lib/modules/{OTHER_KERNEL}")


def test_a_build_fails_as_the_state_says(driven: Box) -> None:
    gpu.write_state(driven.root, faulty(build_error="cc1: error: no such luck"))
    driven.run("mkdir -p /lib/modules/6.98.0/build")
    code, words = said(driven, "dkms build nvidia/580.178.04 -k 6.98.0")
    assert code == 10
    assert "no such luck" in text(driven, f"cat {words.split('Consult ')[1].split()[0]}")
    driven.run("rm -r /lib/modules/6.98.0")


# --- nvcc ---------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toolkit(driven_box: Box) -> Box:
    """The box with nvcc where the packages of CUDA 13.0 and 12.0 put it."""
    for short, release in (("13.0", "13.0.88"), ("12.0", "12.0.140")):
        folder = f"/usr/local/cuda-{short}"
        driven_box.run(f"mkdir -p {folder}/bin && ln -s {gpu.CORE} {folder}/bin/nvcc")
        versions = json.dumps({"cuda_nvcc": {"name": "CUDA NVCC", "version": release}})
        driven_box.run(f"cat >{folder}/version.json", text=versions)
    driven_box.run("cat >x.cu", text=KERNEL_OF_CMATH)
    return driven_box


def test_nvcc_tells_its_release_and_compiles(toolkit: Box, driven: Box) -> None:
    nvcc = "/usr/local/cuda-13.0/bin/nvcc"
    assert "release 13.0, V13.0.88" in text(toolkit, f"{nvcc} --version")
    toolkit.run(f"{nvcc} -arch=sm_120 -c x.cu -o x.o && test -s x.o")
    code, words = said(toolkit, "/usr/local/cuda-12.0/bin/nvcc -arch=sm_120 -cubin x.cu")
    assert (code, words) == (1, "nvcc fatal   : Unsupported gpu architecture 'compute_120'")
    gpu.write_state(driven.root, faulty(glibc="2.43"))
    code, words = said(toolkit, f"{nvcc} -arch=sm_120 -c x.cu -o x.o")
    assert code == 2 and 'previous function "rsqrt"' in words


def test_nvcc_needs_a_host_compiler(toolkit: Box) -> None:
    code, words = said(toolkit, "PATH=/nowhere /usr/local/cuda-13.0/bin/nvcc -c x.cu")
    assert (code, words) == (1, "nvcc fatal   : Failed to preprocess host compiler properties.")


def test_a_call_is_fast(driven: Box) -> None:
    took = text(driven, "bash -c 'TIMEFORMAT=%U; time for i in {1..10}; do dkms status; done' 2>&1")
    assert float(took.splitlines()[-1]) / 10 < 0.06  # seconds of a processor
