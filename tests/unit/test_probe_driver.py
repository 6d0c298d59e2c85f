"""What the probe says of kernels, cards, modules and packages, below a made-up root folder."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from aibox.box.probe import driver, files, openpgp
from aibox.decide.driver_evidence import Evidence

KEY_FILE = "/usr/share/keyrings/aibox-nvidia.asc"


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    return tmp_path


def write(root: Path, path: str, text: str = "") -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    return target


def asked() -> dict[str, Any]:
    answer: dict[str, Any] = driver.driver({"key_file": KEY_FILE, "cuda": "13.0"})
    return answer


def test_a_bare_root_has_nothing_and_is_understood(root: Path) -> None:
    answer = asked()
    assert answer["kernels"] == []
    assert answer["pci"] == []
    assert answer["loaded"] is None
    assert answer["sources"] == {}
    assert answer["nvcc"] == {}
    assert Evidence.parse(json.dumps(answer)).running.module is None
    assert list(root.iterdir()) == []


def test_kernels_are_sorted_by_version_and_only_those_that_can_boot(root: Path) -> None:
    for release in ("6.1.0-9-amd64", "6.12.43+deb12-amd64", "6.1.0-40-amd64", "6.12-rc4-amd64"):
        write(root, f"lib/modules/{release}/modules.dep")
        write(root, f"boot/vmlinuz-{release}")
    write(root, "lib/modules/5.10.0-leftover/modules.dep")
    write(root, f"lib/modules/{os.uname().release}/modules.dep")  # runs, its image is elsewhere
    found = driver.kernels()
    assert os.uname().release in found
    found.remove(os.uname().release)
    assert found == ["6.1.0-9-amd64", "6.1.0-40-amd64", "6.12-rc4-amd64", "6.12.43+deb12-amd64"]


def test_a_kernel_has_headers_and_an_initrd(root: Path) -> None:
    write(root, "lib/modules/6.1.0-40-amd64/build/Makefile")
    os.utime(write(root, "boot/initrd.img-6.1.0-40-amd64"), (1000, 2000))
    built = {"version": "580.178.04", "license": "Dual MIT/GPL"}
    assert driver.kernel("6.1.0-40-amd64", built) == {
        "release": "6.1.0-40-amd64",
        "headers": True,
        "module": built,
        "initrd_changed": 2000.0,
    }
    (root / "lib/modules/6.2").mkdir()
    (root / "lib/modules/6.2/build").symlink_to("/usr/src/gone")
    assert driver.kernel("6.2", None)["headers"] is False


MODINFO = """#!/bin/sh
test "$*" = "-k 6.1 nvidia" || { echo "modinfo: ERROR: Module nvidia not found." >&2; exit 1; }
cat <<END
filename:       /lib/modules/6.1/updates/dkms/nvidia.ko
firmware:       nvidia/580.178.04/gsp_ga10x.bin
version:        580.178.04
license:        Dual MIT/GPL
srcversion:     0123456789
END
"""


def test_a_built_module_is_read_by_modinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, "bin/modinfo", MODINFO).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    assert driver.built_module("6.1") == {"version": "580.178.04", "license": "Dual MIT/GPL"}
    assert driver.built_module("6.2") is None


def device(root: Path, slot: str, vendor: str, kind: str, holder: str | None = None) -> None:
    folder = f"sys/bus/pci/devices/{slot}"
    write(root, f"{folder}/vendor", f"{vendor}\n")
    write(root, f"{folder}/device", "0x2bb1\n")
    write(root, f"{folder}/class", f"{kind}\n")
    if holder:
        (root / f"sys/bus/pci/drivers/{holder}").mkdir(parents=True, exist_ok=True)
        (root / folder / "driver").symlink_to(root / f"sys/bus/pci/drivers/{holder}")


def test_only_nvidias_display_controllers_are_cards(root: Path) -> None:
    device(root, "0000:01:00.0", "0x10de", "0x030000", "nouveau")
    device(root, "0000:01:00.1", "0x10de", "0x040300")  # its sound
    device(root, "0000:02:00.0", "0x8086", "0x030000")
    device(root, "0000:03:00.0", "0x10de", "0x030200")
    assert driver.cards_on_the_bus() == [
        {"slot": "0000:01:00.0", "id": "10de:2bb1", "driver": "nouveau"},
        {"slot": "0000:03:00.0", "id": "10de:2bb1", "driver": None},
    ]


@pytest.mark.parametrize(
    ("variable", "on"), [(b"\6\0\0\0\1", True), (b"\6\0\0\0\0", False), (b"", None)]
)
def test_secure_boot_is_the_firmwares_word(
    root: Path, monkeypatch: pytest.MonkeyPatch, variable: bytes, on: bool | None
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert driver.secure_boot_on() is False  # not booted by EFI
    folder = root / "sys/firmware/efi/efivars"
    folder.mkdir(parents=True)
    assert driver.secure_boot_on() is None  # no variable, no mokutil
    (folder / driver.SECURE_BOOT).write_bytes(variable)
    assert driver.secure_boot_on() is on


@pytest.mark.parametrize(
    ("said", "on"),
    [("SecureBoot enabled", True), ("SecureBoot disabled\n", False), ("unsupported", None)],
)
def test_mokutil_is_asked_where_the_variable_is_hidden(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: str, on: bool | None
) -> None:
    (root / "sys/firmware/efi").mkdir(parents=True)
    write(root, "bin/mokutil", f"#!/bin/sh\necho '{said}'\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
    assert driver.secure_boot_on() is on


@pytest.mark.parametrize(
    ("said", "enrolled"),
    [("/x is already enrolled", True), ("/x is not enrolled", False), ("EFI off", None)],
)
def test_a_key_of_the_machine_counts_when_it_is_enrolled(
    root: Path, monkeypatch: pytest.MonkeyPatch, said: str, enrolled: bool | None
) -> None:
    assert driver.mok_enrolled() is False
    write(root, "var/lib/dkms/mok.pub")
    write(root, "bin/mokutil", f"#!/bin/sh\necho '{said}'; exit 1\n").chmod(0o755)
    monkeypatch.setenv("PATH", f"{root}/bin:/usr/bin:/bin")
    assert driver.mok_enrolled() is enrolled


OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.178.04  Release Build  (root)\n"
    "GCC version:  gcc version 12.2.0\n"
)
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.178.04  Mon Oct  6 2026\n"


@pytest.mark.parametrize(("line", "is_open"), [(OPEN, True), (PROPRIETARY, False)])
@pytest.mark.parametrize("with_sys", [True, False])
def test_the_loaded_module_says_its_flavour(
    root: Path, line: str, is_open: bool, with_sys: bool
) -> None:
    write(root, "proc/driver/nvidia/version", line)
    if with_sys:
        write(root, "sys/module/nvidia/version", "580.178.04\n")
    assert driver.loaded_module() == {"version": "580.178.04", "open": is_open}


LDCONFIG = """\
512 libs found in cache `/etc/ld.so.cache'
\tlibnvidia-ml.so.1 (libc6) => /lib/i386-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so.1
\tlibnvidia-ml.so (libc6,x86-64) => /lib/x86_64-linux-gnu/libnvidia-ml.so
"""


def test_the_library_has_the_version_of_the_file_behind_its_link(root: Path) -> None:
    real = write(root, "lib/x86_64-linux-gnu/libnvidia-ml.so.580.178.04")
    (real.parent / "libnvidia-ml.so.1").symlink_to(real.name)
    assert driver.library_version(driver.library_file(LDCONFIG)) == "580.178.04"
    assert driver.library_file("") is None
    assert driver.library_version(None) is None
    assert driver.library_version(Path("/lib/libnvidia-ml.so.1")) is None


LISTING = """\
ii \tnvidia-driver-cuda\tamd64\t580.178.04-1\tnvidia-graphics-drivers
hi \tlibcuda1\tamd64\t580.178.04-1\tnvidia-graphics-drivers
ii \tlibcuda1\ti386\t580.178.04-1\tnvidia-graphics-drivers
ii \tcuda-toolkit-13-0\tall\t13.0.2-1\tcuda-toolkit
ii \tlinux-image-amd64\tamd64\t6.1.158-1\tlinux-signed-amd64
ii \tlinux-image-6.1.0-40-amd64\tamd64\t6.1.153-1\tlinux-signed-amd64
ii \tlinux-image-unsigned-6.8.0-1\tamd64\t6.8\tlinux
ii \tlinux-headers-6.1.0-40-amd64\tamd64\t6.1.153-1\tlinux
iF \tnvidia-kernel-open-dkms\tamd64\t580.178.04-1\tnvidia-graphics-drivers
rc \tnvidia-old\tamd64\t535\tnvidia-graphics-drivers
ii \tbash\tamd64\t5.2\tbash
"""


@pytest.mark.skipif(os.uname().machine != "x86_64", reason="the listing is one of that machine")
def test_packages_are_those_of_the_driver_that_are_really_installed() -> None:
    found = driver.driver_packages(LISTING)
    assert sorted(found) == [
        "cuda-toolkit-13-0",
        "libcuda1",
        "libcuda1:i386",
        "linux-headers-6.1.0-40-amd64",
        "linux-image-amd64",
        "nvidia-driver-cuda",
    ]
    assert found["libcuda1"] == {
        "version": "580.178.04-1",
        "source": "nvidia-graphics-drivers",
        "held": True,
    }
    assert found["libcuda1:i386"]["held"] is False


def test_a_runfiles_log_counts_with_a_library_that_no_package_owns(root: Path) -> None:
    write(root, "var/log/nvidia-installer.log")
    library = write(root, "usr/lib/libnvidia-ml.so.580.1")
    assert driver.runfile(None) == []
    assert driver.runfile(library) == ["/var/log/nvidia-installer.log"]
    write(root, "usr/bin/nvidia-uninstall")
    assert driver.runfile(None) == ["/usr/bin/nvidia-uninstall"]


@pytest.mark.skipif(shutil.which("dpkg-query") is None, reason="asks dpkg itself")
def test_a_packages_file_is_owned() -> None:
    assert driver.owned(Path("/usr/bin/dpkg"))
    assert not driver.owned(Path("/usr/bin/no-such-program"))


def test_sources_are_whole_texts(root: Path) -> None:
    write(root, "etc/apt/sources.list", "# empty\n")
    write(root, "etc/apt/sources.list.d/b.sources", "Types: deb\n")
    write(root, "etc/apt/sources.list.d/a.list", "deb x y z\n")
    write(root, "etc/apt/sources.list.d/old.list.save", "deb old\n")
    assert driver.sources() == {
        "/etc/apt/sources.list": "# empty\n",
        "/etc/apt/sources.list.d/a.list": "deb x y z\n",
        "/etc/apt/sources.list.d/b.sources": "Types: deb\n",
    }


NVCC = """#!/bin/sh
echo "nvcc: NVIDIA (R) Cuda compiler driver"
echo "Cuda compilation tools, release 13.0, V13.0.88"
echo "Build cuda_13.0.r13.0/compiler.36424714_0"
"""


def test_the_rest_of_a_driven_box_is_read(root: Path) -> None:
    write(root, "dev/nvidia-uvm")
    write(root, "sys/module/nvidia_uvm/parameters/uvm_disable_hmm", "Y\n")
    write(root, "sys/module/nouveau/version")
    write(root, "proc/sys/kernel/random/boot_id", "c0ffee\n")
    os.utime(write(root, "etc/modprobe.d/aibox-nvidia.conf"), (5, 5))
    write(root, "usr/local/cuda-13.0/bin/nvcc", NVCC).chmod(0o755)
    proof = {"nvcc": "13.0.88", "glibc": "2.36", "toolkit": "13.0"}
    write(root, "var/lib/aibox/cuda.json", json.dumps(proof))
    answer = asked()
    assert (answer["uvm"], answer["uvm_disable_hmm"], answer["nouveau"]) == (True, True, True)
    assert answer["boot_id"] == "c0ffee"
    assert answer["modprobe_changed"] == 5
    assert answer["nvcc"] == {"13.0": "13.0.88"}
    assert answer["cuda_proof"] == proof
    Evidence.parse(json.dumps(answer))


LOG = """\
NVRM: loading NVIDIA UNIX Open Kernel Module for x86_64  580.178.04
nvidia: module license 'Dual MIT/GPL' taints kernel.
nouveau 0000:01:00.0: NVIDIA GB202 (1b2000a1)
nouveau 0000:01:00.0: unknown chipset (1b2000a1)
Loading of module with unavailable key is rejected
NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.
"""


def test_the_kernels_telling_lines_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = f"#!/bin/sh\ncat <<'END'\n{LOG}END\n"
    write(tmp_path, "bin/journalctl", script).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    lines = LOG.splitlines()
    assert driver.kernel_log() == [lines[0], lines[3], lines[4], lines[5]]


# --- keys ---


@pytest.fixture(scope="module")
def armored(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """(an armored public key, its fingerprint as gpg names it)."""
    if shutil.which("gpg") is None:
        pytest.skip("makes its key with gpg, which is not on this machine")
    home = str(tmp_path_factory.mktemp("keys"))
    gpg = ["gpg", "--homedir", home, "--batch", "--quiet"]
    subprocess.run(
        [*gpg, "--passphrase", "", "--quick-gen-key", "Stand-in <a@b>", "rsa2048"],
        check=True,
        capture_output=True,
    )
    listed = subprocess.run(
        [*gpg, "--list-keys", "--with-colons"], check=True, capture_output=True, text=True
    )
    name = next(line.split(":")[9] for line in listed.stdout.splitlines() if line[:3] == "fpr")
    text = subprocess.run(
        [*gpg, "--armor", "--export"], check=True, capture_output=True, text=True
    ).stdout
    subprocess.run(
        ["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True
    )
    return text, name


def test_a_fingerprint_is_the_one_that_gpg_names(armored: tuple[str, str]) -> None:
    text, name = armored
    assert openpgp.fingerprint(text) == name
    assert openpgp.fingerprint("a banner\n" + text.replace("\n", "\r\n")) == name


def test_what_is_no_key_has_no_fingerprint(armored: tuple[str, str]) -> None:
    text, _ = armored
    lines = text.splitlines()
    assert openpgp.fingerprint("") is None
    assert openpgp.fingerprint("<html>404</html>") is None
    assert openpgp.fingerprint("\n".join([*lines[:3], lines[-1]])) is None  # cut short
    assert openpgp.fingerprint(text.replace(lines[2], "!" * 64)) is None
    assert openpgp.fingerprint(text.replace("PUBLIC KEY BLOCK", "SIGNATURE")) is None


def test_a_signature_is_no_key() -> None:
    assert openpgp.first_packet(b"\x88\x02\x04\x00") is None  # tag 2
    assert openpgp.first_packet(b"\xc6\x02\x04\x00") == b"\x04\x00"  # new format, tag 6
    assert openpgp.first_packet(b"\x98\x05\x04\x00") is None  # shorter than it says
