import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aibox.decide import driver, driver_refusals, driver_sources, toolkit
from aibox.decide.driver import DriverWanted
from aibox.decide.driver_evidence import Evidence
from tests.unit.driver_report import (
    NEW,
    OLD,
    UBUNTU,
    WANTED,
    bare,
    driven,
    evidence,
    kernel,
    package,
    with_packages,
)

# --- reading ---


def test_a_report_is_read_whole() -> None:
    found = evidence()
    assert found.running.release == found.newest.release == NEW
    assert found.running.module is not None and found.running.module.open
    assert found.packages["nvidia-persistenced"].held
    assert evidence(bare()).loaded is None


@pytest.mark.parametrize("name", list(driven()))
def test_a_missing_answer_is_named(name: str) -> None:
    report = driven()
    del report[name]
    with pytest.raises(ValueError, match=rf"driver report\.{name}: missing"):
        evidence(report)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"kernel": 6}, "driver report.kernel: expected text, found 6"),
        ({"kernels": [{}]}, "driver report.kernels[0].module: missing"),
        ({"kernels": [kernel(NEW, initrd_changed="x")]}, "initrd_changed: expected seconds"),
        ({"secure_boot": "on"}, "driver report.secure_boot: expected true or false"),
        ({"uvm": None}, "driver report.uvm: expected true or false, found null"),
        ({"packages": {"a": 1}}, "driver report.packages.a: expected an object"),
        ({"sources": {"/a": 1}}, "driver report.sources./a: expected text"),
        ({"loaded": {"version": "580.1"}}, "driver report.loaded.open: missing"),
        ({"cuda_proof": {"nvcc": "13"}}, "driver report.cuda_proof.glibc: missing"),
        ({"kernel_log": [None]}, "driver report.kernel_log: expected texts"),
        ({"modprobe_changed": 1e300}, "driver report.modprobe_changed: expected seconds"),
    ],
)
def test_a_malformed_answer_is_a_value_error(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        evidence(**changes)
    assert words in str(caught.value)


# --- the sets ---


@pytest.mark.parametrize(
    ("os_id", "os_version", "version", "names"),
    [
        (
            "debian",
            "12",
            "580.178.04",
            "nvidia-driver-cuda nvidia-kernel-open-dkms nvidia-persistenced",
        ),
        (
            "debian",
            "13",
            "595.71.05",
            "nvidia-driver-cuda nvidia-kernel-open-dkms nvidia-persistenced",
        ),
        (
            "ubuntu",
            "24.04",
            "580.178.04",
            "libnvidia-compute-580 nvidia-dkms-580-open nvidia-utils-580 nvidia-persistenced",
        ),
        (
            "ubuntu",
            "24.04",
            "590.48.01",
            "libnvidia-compute nvidia-dkms-open nvidia-utils nvidia-persistenced",
        ),
        (
            "ubuntu",
            "26.04",
            "595.71.05",
            "libnvidia-compute nvidia-dkms-open nvidia-utils nvidia-persistenced",
        ),
    ],
)
def test_the_packages_of_a_headless_open_driver(
    os_id: str, os_version: str, version: str, names: str
) -> None:
    assert " ".join(driver.package_set(os_id, os_version, version)) == names


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("580.178.04-1", "580.178.04"),
        ("580.178.04-0ubuntu1", "580.178.04"),
        ("1:580.178.04-1ubuntu1", "580.178.04"),
        ("580.178.04", "580.178.04"),
        ("535.261.03-1~deb12u1", "535.261.03"),
    ],
)
def test_a_package_carries_nvidias_version(text: str, version: str) -> None:
    assert driver.upstream(text) == version


@pytest.mark.parametrize(
    ("report", "names"),
    [
        (driven(), ""),
        (bare(), f"linux-headers-{NEW} linux-headers-amd64"),
        # the kernel that runs is an older one
        (
            driven() | {"kernel": OLD, "kernels": [kernel(OLD), kernel(NEW, None, headers=False)]},
            f"linux-headers-{NEW}",
        ),
        # older kernels than the running one are left alone
        (driven() | {"kernels": [kernel(OLD, None, headers=False), kernel(NEW)]}, ""),
        (
            driven()
            | {
                "packages": with_packages(
                    {
                        "linux-image-generic-hwe-24.04": package(),
                        "linux-image-6.8.0-1-generic": package(),
                        "linux-image-unsigned-6.8.0-1-generic": package(),
                    }
                )
            },
            "linux-headers-generic-hwe-24.04",
        ),
        # a kernel of a person's own, in no list at all
        (driven() | {"kernels": []}, f"linux-headers-{NEW}"),
    ],
)
def test_headers_that_are_needed_and_not_there(report: dict[str, Any], names: str) -> None:
    assert " ".join(driver.header_packages(evidence(report))) == names


# --- what is to be done: every reason is a row ---

PROPRIETARY = {"version": "580.178.04", "license": "NVIDIA"}
Reasons = Callable[[Evidence, DriverWanted], list[str]]


def initramfs_reasons(found: Evidence, _: DriverWanted) -> list[str]:
    return driver.initramfs_reasons(found)


def uvm_reasons(found: Evidence, _: DriverWanted) -> list[str]:
    return driver.uvm_reasons(found)


def persistence_reasons(found: Evidence, _: DriverWanted) -> list[str]:
    return driver.persistence_reasons(found)


def to_build(found: Evidence, wanted: DriverWanted) -> list[str]:
    return list(driver.kernels_to_build(found, wanted))


DECISIONS: tuple[Reasons, ...] = (
    driver.install_reasons,
    driver.hold_reasons,
    to_build,
    initramfs_reasons,
    uvm_reasons,
    persistence_reasons,
    driver.reboot_reasons,
    driver.next_boot_reasons,
)


@pytest.mark.parametrize("decide", DECISIONS)
def test_a_box_that_is_as_it_should_be_needs_nothing(decide: Reasons) -> None:
    assert decide(evidence(), WANTED) == []
    assert driver.built_assertion(evidence(), WANTED) is None
    assert driver.assertion(evidence(), WANTED) is None


ROWS: list[tuple[str, Reasons, dict[str, Any], str]] = [
    (
        "a bare box: packages",
        driver.install_reasons,
        bare(),
        "nvidia-kernel-open-dkms is not installed",
    ),
    ("a bare box: headers", driver.install_reasons, bare(), f"linux-headers-{NEW} is not"),
    ("nouveau holds the card", driver.reboot_reasons, bare(), "nouveau is loaded and holds"),
    ("nouveau holds the card: initramfs", initramfs_reasons, bare(), "does not keep nouveau off"),
    ("persistence is off", persistence_reasons, bare(), "nvidia-persistenced is inactive"),
    (
        "built but not loaded",
        driver.reboot_reasons,
        driven() | {"loaded": None},
        "the nvidia module is not loaded",
    ),
    (
        "killed between install and reboot",
        driver.reboot_reasons,
        driven() | {"loaded": {"version": "570.195.03", "open": True}},
        "the loaded module is 570.195.03, not 580.178.04",
    ),
    (
        "upgraded under the loaded module: packages",
        driver.install_reasons,
        driven()
        | {
            "library": "595.71.05",
            "packages": with_packages({"nvidia-driver-cuda": package("595.71.05-1")}),
        },
        "nvidia-driver-cuda is 595.71.05, not 580.178.04",
    ),
    (
        "another library than the packages'",
        driver.install_reasons,
        driven() | {"library": "570.1"},
        "the driver's library is 570.1",
    ),
    (
        "the proprietary module is loaded",
        driver.reboot_reasons,
        driven() | {"loaded": {"version": "580.178.04", "open": False}},
        "the loaded module is the proprietary one",
    ),
    (
        "the proprietary module is installed",
        driver.install_reasons,
        driven()
        | {
            "packages": with_packages(
                {"nvidia-kernel-open-dkms": None, "nvidia-kernel-dkms": package()}
            )
        },
        "nvidia-kernel-dkms holds the proprietary module",
    ),
    (
        "the proprietary module is built",
        to_build,
        driven() | {"kernels": [kernel(NEW, module=PROPRIETARY)]},
        NEW,
    ),
    (
        "Debian's own 535 is replaced",
        driver.install_reasons,
        driven()
        | {"packages": with_packages({"nvidia-kernel-open-dkms": package("535.261.03-1~deb12u1")})},
        "nvidia-kernel-open-dkms is 535.261.03",
    ),
    (
        "nothing keeps apt from moving it",
        driver.hold_reasons,
        driven() | {"packages": with_packages({"nvidia-driver-cuda": package(held=False)})},
        "nvidia-driver-cuda is not held",
    ),
    (
        "an initramfs older than the blacklist",
        initramfs_reasons,
        driven() | {"modprobe_changed": 3000.0},
        f"the initramfs of {NEW} is older than the module options",
    ),
    (
        "/dev/nvidia-uvm missing",
        uvm_reasons,
        driven() | {"uvm": False},
        "/dev/nvidia-uvm is missing",
    ),
    (
        "the next kernel has no module",
        driver.next_boot_reasons,
        driven() | {"kernel": OLD, "kernels": [kernel(OLD), kernel(NEW, None)]},
        f"kernel {NEW}, which boots next, has no nvidia module",
    ),
    (
        "the next kernel has no module: built",
        to_build,
        driven() | {"kernel": OLD, "kernels": [kernel(OLD), kernel(NEW, None)]},
        NEW,
    ),
    (
        "the next kernel has no headers",
        driver.next_boot_reasons,
        driven() | {"kernel": OLD, "kernels": [kernel(OLD), kernel(NEW, headers=False)]},
        f"kernel {NEW}, which boots next, has no headers",
    ),
    (
        "the next kernel has another module",
        driver.next_boot_reasons,
        driven() | {"kernel": OLD, "kernels": [kernel(OLD), kernel(NEW, "570.1")]},
        "module 570.1, not the open 580.178.04",
    ),
    (
        "the next kernel's initramfs is old",
        driver.next_boot_reasons,
        driven() | {"kernels": [kernel(NEW, initrd_changed=10.0)]},
        "older than the module options",
    ),
]


@pytest.mark.parametrize(
    ("decide", "report", "words"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS]
)
def test_each_state_has_its_reason(decide: Reasons, report: dict[str, Any], words: str) -> None:
    assert any(words in reason for reason in decide(evidence(report), WANTED))


def test_without_headers_nothing_is_built() -> None:
    assert to_build(evidence(bare()), WANTED) == []


def test_no_uvm_is_asked_for_before_the_module_is_loaded() -> None:
    assert uvm_reasons(evidence(bare()), WANTED) == []


def test_a_kernel_without_initramfs_has_none_that_is_old() -> None:
    assert initramfs_reasons(evidence(kernels=[kernel(NEW, initrd_changed=None)]), WANTED) == []


@pytest.mark.parametrize(
    ("loaded", "wanted", "reboots"),
    [(False, True, True), (True, True, False), (None, True, False), (True, False, False)],
)
def test_uvm_disable_hmm_counts_once_the_module_is_loaded_anew(
    loaded: bool | None, wanted: bool, reboots: bool
) -> None:
    asked = replace(WANTED, uvm_disable_hmm=wanted)
    assert bool(driver.reboot_reasons(evidence(uvm_disable_hmm=loaded), asked)) == reboots


def test_another_branch_needs_packages_modules_and_a_reboot() -> None:
    asked = replace(WANTED, version="595.71.05")
    assert driver.install_reasons(evidence(), asked)
    assert driver.reboot_reasons(evidence(), asked)
    assert driver.kernels_to_build(evidence(), asked) == (NEW,)


def test_on_ubuntu_a_change_of_branch_changes_the_names() -> None:
    suffixed = ("libnvidia-compute-580", "nvidia-dkms-580-open", "nvidia-utils-580")
    packages = {name: package("580.178.04-1ubuntu1") for name in suffixed}
    packages["nvidia-persistenced"] = package("580.178.04-1ubuntu1")
    assert driver.install_reasons(evidence(packages=packages), UBUNTU) == []
    asked = replace(UBUNTU, version="595.71.05")
    reasons = driver.install_reasons(evidence(packages=packages), asked)
    assert "nvidia-dkms-open is not installed" in reasons
    assert "nvidia-persistenced is 580.178.04, not 595.71.05" in reasons


SIGNED: dict[str, Any] = {
    "secure_boot": True,
    "packages": {"linux-modules-nvidia-580-server-open-generic": package(held=False)},
}


def test_the_distributions_signed_driver_is_left_as_it_is() -> None:
    found = evidence(**SIGNED)
    assert driver.install_reasons(found, UBUNTU) == driver.hold_reasons(found, UBUNTU) == []
    assert driver.kernels_to_build(found, UBUNTU) == ()
    assert driver.assertion(found, UBUNTU) is None
    assert driver.install_reasons(found, replace(UBUNTU, version="580.65.06"))


def test_under_secure_boot_our_own_packages_stay_ours() -> None:
    found = evidence(secure_boot=True, packages=with_packages({"nvidia-persistenced": None}))
    assert driver.install_reasons(found, WANTED) == ["nvidia-persistenced is not installed"]


# --- afterwards ---


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"library": "570.1"}, "the driver's library is 570.1"),
        ({"packages": {}}, "nvidia-driver-cuda is not installed"),
        ({"kernels": [kernel(NEW, None)]}, f"no nvidia module is built for kernel {NEW}"),
        ({"kernels": [kernel(NEW, None, headers=False)]}, "which has no headers"),
        ({"kernels": [kernel(NEW, "570.1")]}, "is the open 570.1"),
        ({"kernels": [kernel(NEW, module=PROPRIETARY)]}, "is the proprietary 580.178.04"),
        ({"loaded": None}, "the nvidia module is not loaded"),
        ({"loaded": {"version": "570.1", "open": True}}, "the loaded module is 570.1"),
        ({"loaded": {"version": "580.178.04", "open": False}}, "the proprietary one"),
        ({"uvm": False}, "/dev/nvidia-uvm is missing"),
    ],
)
def test_a_pin_that_did_not_win_is_refused(changes: dict[str, Any], words: str) -> None:
    refusal = driver.assertion(evidence(**changes), WANTED)
    assert refusal is not None
    assert words in refusal.found
    assert "580.178.04" in refusal.expected


def test_before_the_reboot_only_what_is_installed_is_asserted() -> None:
    assert driver.built_assertion(evidence(loaded=None, uvm=False), WANTED) is None


KERNEL_SAYS = [
    ("NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", "cold start"),
    ("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)", "Above 4G Decoding"),
    ("NVRM: installed in this system requires use of the NVIDIA open kernel modules.", "propriet"),
    ("NVRM: RmInitAdapter failed! (0x22:0x56:884)", "cannot start the card"),
    ("modprobe: ERROR: could not insert 'nvidia': Key was rejected by service", "Secure Boot"),
    ("nvidia: Required key not available", "Secure Boot"),
    ("NVRM: API mismatch: the client has the version 595.71.05", "upgraded under"),
    ("NVRM: Xid (PCI:0000:01:00): 31, MMU fault", "a fault of the card"),
]


@pytest.mark.parametrize(("line", "words"), KERNEL_SAYS)
def test_what_the_kernel_says_is_told_with_its_meaning(line: str, words: str) -> None:
    [told] = driver.xid_report(evidence(kernel_log=[line, line]))
    assert line in told
    assert words in told
    refusal = driver.assertion(evidence(kernel_log=[line], loaded=None), WANTED)
    assert refusal is not None and line in refusal.found


def test_a_fault_of_the_card_is_no_reason_to_reboot() -> None:
    found = evidence(kernel_log=[KERNEL_SAYS[0][0], "NVRM: loading NVIDIA UNIX Open Kernel"])
    assert len(driver.xid_report(found)) == 1
    assert driver.reboot_reasons(found, WANTED) == []


# --- the toolkit ---


@pytest.mark.parametrize(
    ("changes", "cuda", "words"),
    [
        ({}, "13.0", None),
        ({}, None, None),
        ({"packages": {}}, "13.0", "cuda-toolkit-13-0 is not installed"),
        ({"nvcc": {}}, "13.0", "/usr/local/cuda-13.0/bin/nvcc is missing"),
        ({"nvcc": {"12.9": "12.9.86"}}, "12.9", "cuda-toolkit-12-9 is not installed"),
    ],
)
def test_the_toolkit_is_of_torchs_own_minor(
    changes: dict[str, Any], cuda: str | None, words: str | None
) -> None:
    assert toolkit.toolkit_reasons(evidence(**changes), cuda) == ([words] if words else [])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, None),
        ({"cuda_proof": None}, "no kernel has been compiled"),
        ({"cuda_proof": {"nvcc": "12.9.86", "glibc": "2.36", "toolkit": "12.9"}}, "no kernel has"),
        ({"nvcc": {"13.0": "13.0.99"}}, "nvcc was 13.0.88 at the last proof and is 13.0.99"),
        ({"nvcc": {}}, "is missing now"),
        ({"glibc": "2.42"}, "glibc was 2.36 at the last proof and is 2.42"),
        ({"glibc": None}, None),
    ],
)
def test_a_proof_holds_for_one_compiler_and_one_c_library(
    changes: dict[str, Any], words: str | None
) -> None:
    reasons = toolkit.proof_reasons(evidence(**changes), "13.0")
    assert (words is None) == (not reasons)
    assert words is None or words in reasons[0]


@pytest.mark.parametrize(
    ("nvcc", "words"),
    [
        ("13.0.88", None),
        ("13.1.80", "/usr/local/cuda-13.0/bin/nvcc is 13.1.80"),
        ("13.01", "nvcc is 13.01"),
        (None, "nvcc is missing"),
    ],
)
def test_nvcc_of_another_minor_is_refused(nvcc: str | None, words: str | None) -> None:
    found = evidence(nvcc={} if nvcc is None else {"13.0": nvcc})
    refusal = toolkit.toolkit_assertion(found, "13.0")
    assert (words is None) == (refusal is None)
    assert refusal is None or words is None or words in refusal.found


def test_a_box_without_cuda_owes_nothing() -> None:
    assert toolkit.toolkit_assertion(evidence(bare()), None) is None
    assert toolkit.proof_reasons(evidence(bare()), None) == []


def test_the_evidence_is_json_all_the_way() -> None:
    assert Evidence.parse(json.dumps(driven())) == evidence()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)
texts = st.text(max_size=30)
shaped = st.fixed_dictionaries(
    {},
    optional={
        "kernel": texts,
        "kernels": st.lists(st.builds(kernel, texts, st.none() | texts), max_size=3),
        "library": st.none() | texts,
        "loaded": st.none() | st.fixed_dictionaries({"version": texts, "open": st.booleans()}),
        "packages": st.dictionaries(texts, st.builds(package, texts), max_size=3),
        "sources": st.dictionaries(
            texts | st.sampled_from(["/a.list", "/a.sources"]),
            st.text("deb URIs: Suites Components main[=]#\n/", max_size=80),
        ),
        "kernel_log": st.lists(texts, max_size=2),
        "nvcc": st.dictionaries(st.just("13.0"), texts),
    },
)


@given(st.dictionaries(st.sampled_from(list(driven())), json_values, min_size=1) | shaped)
@settings(max_examples=200, deadline=None)
def test_any_answer_is_judged_or_a_value_error(changes: dict[str, Any]) -> None:
    try:
        found = evidence(**changes)
    except ValueError as error:
        assert "driver report" in str(error)
        return
    for decide in DECISIONS:
        decide(found, WANTED)
    driver.assertion(found, WANTED)
    driver_refusals.refusals(found, WANTED, None)
    driver_sources.repository_question(found, WANTED)
    toolkit.proof_reasons(found, "13.0")
