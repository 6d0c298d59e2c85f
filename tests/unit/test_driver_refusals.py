import json
from dataclasses import replace
from typing import Any

import pytest

from aibox.decide.driver import DriverWanted, could_stay, exchanged
from aibox.decide.driver_evidence import Loaded
from aibox.decide.driver_refusals import (
    NvmlAnswer,
    RepositoryAnswer,
    reboot_refusal,
    refusals,
    repository_refusals,
)
from aibox.decide.refusal import Refusal
from aibox.decide.vram import Card
from tests.unit.driver_report import (
    NEW,
    OLD,
    UBUNTU,
    URL,
    WANTED,
    bare,
    driven,
    evidence,
    kernel,
    package,
    with_packages,
)

MIB = 2**20
GB = 10**9
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def pci(*ids: str) -> dict[str, Any]:
    cards = enumerate(ids, start=1)
    return {"pci": [{"slot": f"0000:0{at}:00.0", "id": one, "driver": None} for at, one in cards]}


def card(
    name: str = WORKSTATION,
    mib: int = 97887,
    major: int = 12,
    mig: str | None = None,
    index: int = 0,
) -> Card:
    return Card(index, name, f"GPU-0000000{index}", mib * MIB, (major, 0), mig)


def nvml(*cards: Card, error: str | None = None) -> NvmlAnswer:
    return NvmlAnswer(error, cards)


def the_refusal(
    report: dict[str, Any], answer: NvmlAnswer | None, wanted: DriverWanted = WANTED
) -> Refusal:
    found = refusals(evidence(report), wanted, answer)
    assert len(found) == 1, found
    return found[0]


# --- the card ---

PASSES: list[tuple[str, dict[str, Any], NvmlAnswer | None, DriverWanted]] = [
    ("a driven box", driven(), nvml(card()), WANTED),
    ("a bare box", bare(), None, WANTED),
    ("a bare box with Max-Q", bare() | pci("10de:2bb4"), None, WANTED),
    ("a bare box with Server", bare() | pci("10de:2bb5"), None, WANTED),
    ("an id in capitals", bare() | pci("10DE:2BB1"), None, WANTED),
    ("an unknown id that NVML vouches for", driven() | pci("10de:2bff"), nvml(card()), WANTED),
    ("two cards, one known, no driver yet", bare() | pci("10de:2b85", "10de:2bb1"), None, WANTED),
    (
        "two cards, the right UUID",
        driven() | pci("10de:2b85", "10de:2bb1"),
        nvml(card("NVIDIA GeForce RTX 5090", 32607), card(index=1)),
        replace(WANTED, gpu_uuids=("GPU-00000001",)),
    ),
    (
        "the driver was upgraded under the loaded module",
        driven() | {"library": "595.71.05"},
        nvml(error="Driver/library version mismatch"),
        WANTED,
    ),
    (
        "installed, and not loaded yet",
        driven() | {"loaded": None},
        nvml(error="Driver Not Loaded"),
        WANTED,
    ),
    (
        "an old driver",
        driven() | {"loaded": {"version": "570.195.03", "open": True}},
        nvml(card()),
        WANTED,
    ),
    (
        "the proprietary module finds no device",
        driven() | {"loaded": {"version": "580.178.04", "open": False}},
        nvml(),
        WANTED,
    ),
    (
        "an old driver that fails",
        driven() | {"loaded": {"version": "570.195.03", "open": True}},
        nvml(error="Unknown Error"),
        WANTED,
    ),
]


@pytest.mark.parametrize(
    ("report", "answer", "wanted"), [row[1:] for row in PASSES], ids=[row[0] for row in PASSES]
)
def test_the_run_goes_on(
    report: dict[str, Any], answer: NvmlAnswer | None, wanted: DriverWanted
) -> None:
    assert refusals(evidence(report), wanted, answer) == []


REFUSED: list[tuple[str, dict[str, Any], NvmlAnswer | None, DriverWanted, list[str]]] = [
    ("no GPU", bare() | pci(), None, WANTED, ["no NVIDIA card on the PCI bus", "lspci"]),
    ("no GPU, with a driver", driven() | pci(), nvml(), WANTED, ["no NVIDIA card on the PCI bus"]),
    (
        "a card that fell off the bus",
        driven() | pci() | {"kernel_log": ["NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off"]},
        nvml(),
        WANTED,
        ["no NVIDIA card", "79, GPU has fallen off", "cold start"],
    ),
    ("6000D by its id", bare() | pci("10de:2bb2"), None, WANTED, ["RTX PRO 6000D (10de:2bb2)"]),
    ("RTX 5090 by its id", bare() | pci("10de:2b85"), None, WANTED, ["GeForce RTX 5090"]),
    ("H100 NVL by its id", bare() | pci("10de:2321"), None, WANTED, ["H100 NVL (10de:2321)"]),
    ("H200 by its id", bare() | pci("10de:2335"), None, WANTED, ["H200", "gpu_pci_ids"]),
    ("an unknown id", bare() | pci("10de:1234"), None, WANTED, ["10de:1234 in slot 0000:01:00.0"]),
    (
        "6000D by NVML",
        driven() | pci("10de:2bb2"),
        nvml(card("NVIDIA RTX PRO 6000D Blackwell Workstation Edition", 80110)),
        WANTED,
        ["80110 MiB", "too little memory"],
    ),
    (
        "H100 NVL, of the same size",
        driven() | pci("10de:2321"),
        nvml(card("NVIDIA H100 NVL", 95830, 9)),
        WANTED,
        ["another GPU architecture"],
    ),
    (
        "MIG on while the memory still reads 97887",
        driven(),
        nvml(card(mig="enabled")),
        WANTED,
        ["97887 MiB", "MIG enabled", "-mig 0"],
    ),
    (
        "MIG on under an old driver",
        driven() | {"loaded": {"version": "570.195.03", "open": True}},
        nvml(card(mig="enabled")),
        WANTED,
        ["MIG enabled"],
    ),
    (
        "two cards and no UUID",
        driven() | pci("10de:2b85", "10de:2bb1"),
        nvml(card("NVIDIA GeForce RTX 5090", 32607), card(index=1)),
        WANTED,
        ['set gpu_uuid = "GPU-00000001"'],
    ),
    (
        "two cards, the wrong UUID",
        driven() | pci("10de:2b85", "10de:2bb1"),
        nvml(card("NVIDIA GeForce RTX 5090", 32607), card(index=1)),
        replace(WANTED, gpu_uuids=("GPU-00000000",)),
        ["RTX 5090", "too little memory"],
    ),
    (
        "BAR1 is 0M",
        driven() | {"kernel_log": ["NVRM: BAR1 is 0M @ 0x0 (PCI:0000:01:00.0)"]},
        nvml(),
        WANTED,
        ["no card", "BAR1 is 0M", "Above 4G Decoding"],
    ),
    (
        "the right driver fails",
        driven(),
        nvml(error="GPU is lost"),
        WANTED,
        ["NVML says: GPU is lost"],
    ),
]


@pytest.mark.parametrize(
    ("report", "answer", "wanted", "words"),
    [row[1:] for row in REFUSED],
    ids=[row[0] for row in REFUSED],
)
def test_another_card_is_refused(
    report: dict[str, Any], answer: NvmlAnswer | None, wanted: DriverWanted, words: list[str]
) -> None:
    refusal = the_refusal(report, answer, wanted)
    for word in words:
        assert word in str(refusal)


# --- Secure Boot ---

ON = {"secure_boot": True, "mok_enrolled": False}


@pytest.mark.parametrize(
    ("report", "refused"),
    [
        (bare() | ON, True),
        (driven() | ON, False),
        (driven() | ON | {"loaded": None}, True),
        (driven() | ON | {"kernels": [kernel(NEW, None)]}, True),
        (driven() | ON | {"kernel": OLD, "kernels": [kernel(OLD), kernel(NEW, None)]}, True),
        (bare() | ON | {"mok_enrolled": True}, False),
        (bare() | ON | {"mok_enrolled": None}, True),
        (bare() | {"secure_boot": None}, False),
        (bare() | {"secure_boot": False}, False),
    ],
)
def test_secure_boot_is_refused_only_where_a_module_must_be_built_or_loaded(
    report: dict[str, Any], refused: bool
) -> None:
    found = refusals(evidence(report), WANTED, None)
    assert any("Secure Boot is on" in one.found for one in found) == refused


def test_secure_boot_names_both_ways_out() -> None:
    remedy = the_refusal(bare() | ON, None).remedy
    assert "switch Secure Boot off in the firmware" in remedy
    assert "mokutil --import /var/lib/dkms/mok.pub" in remedy
    assert "at the console" in remedy
    ubuntu = the_refusal(bare() | ON, None, UBUNTU).remedy
    assert "linux-modules-nvidia-580-server-open-generic" in ubuntu
    assert "/var/lib/shim-signed/mok/MOK.der" in ubuntu


# --- what a person installed ---


def test_a_runfile_install_is_refused() -> None:
    refusal = the_refusal(driven() | {"runfile": ["/usr/bin/nvidia-uninstall"]}, nvml(card()))
    assert ".run file (/usr/bin/nvidia-uninstall)" in refusal.found
    assert "`/usr/bin/nvidia-uninstall`, reboot" in refusal.remedy
    only_log = the_refusal(driven() | {"runfile": ["/var/log/nvidia-installer.log"]}, nvml(card()))
    assert "--uninstall" in only_log.remedy


@pytest.mark.parametrize(
    ("packages", "purged"),
    [
        ({"nvidia-kernel-dkms": package()}, "nvidia-kernel-dkms"),
        ({"nvidia-dkms-570": package("570.1-1")}, "nvidia-dkms-570"),
        (
            {"linux-modules-nvidia-570-generic": package("6.8.0-1")},
            "linux-modules-nvidia-570-generic",
        ),
        ({"nvidia-kernel-open-dkms": None, "nvidia-kernel-dkms": package()}, None),
        ({"linux-modules-nvidia-580-open-generic": package()}, None),
        ({"nvidia-kernel-open-dkms": package("550.163.01-2")}, None),
    ],
)
def test_mixed_flavours_are_refused_and_one_flavour_is_replaced(
    packages: dict[str, Any], purged: str | None
) -> None:
    report = driven() | {"packages": with_packages(packages)}
    if purged is None:
        assert refusals(evidence(report), WANTED, nvml(card())) == []
    else:
        refusal = the_refusal(report, nvml(card()))
        assert refusal.found.startswith("mixed drivers: nvidia-kernel-open-dkms (open)")
        assert f"apt-get purge {purged}`" in refusal.remedy


@pytest.mark.parametrize(
    ("release", "version", "refused"),
    [
        ("7.0.0-10-generic", "580.126.16", True),
        ("7.0.0-10-generic", "580.65.06", True),
        ("7.0.0-10-generic", "590.48.01", True),
        ("7.0.0-10-generic", "580.178.04", False),
        ("7.0.0-10-generic", "595.71.05", False),
        ("6.8.0-10-generic", "580.126.16", False),
        ("mine", "580.126.16", False),
    ],
)
def test_kernel_7_needs_a_newer_driver(release: str, version: str, refused: bool) -> None:
    report = bare() | {"kernel": release, "kernels": [kernel(release, None)]}
    found = refusals(evidence(report), replace(WANTED, version=version), None)
    assert any(f"kernel {release} and driver {version}" in one.found for one in found) == refused


def test_cuda_older_than_the_card_is_refused() -> None:
    assert refusals(evidence(), replace(WANTED, cuda="12.9"), nvml(card())) == []
    refusal = the_refusal(driven(), nvml(card()), replace(WANTED, cuda="12.8"))
    assert "CUDA 12.8" in refusal.found


def test_all_faults_come_at_once() -> None:
    report = bare() | ON | pci("10de:2b85") | {"runfile": ["/usr/bin/nvidia-uninstall"]}
    packages = {"nvidia-dkms-open": package(), "nvidia-dkms": package()}
    assert len(refusals(evidence(report | {"packages": packages}), WANTED, None)) == 4


# --- a reboot while the server answers ---

OURS = ("the server", "`systemctl stop vllm-coder`")


@pytest.mark.parametrize(
    ("reasons", "serving", "allowed", "refused"),
    [
        (["nouveau is loaded"], [OURS], False, True),
        (["nouveau is loaded"], [OURS], True, False),
        (["nouveau is loaded"], [], False, False),
        ([], [OURS], False, False),
    ],
)
def test_a_server_that_answers_is_not_rebooted_away(
    reasons: list[str], serving: list[tuple[str, str]], allowed: bool, refused: bool
) -> None:
    wanted = replace(WANTED, reboot_while_serving=allowed)
    refusal = reboot_refusal(reasons, ["a is 1, not 2"], serving, wanted)
    assert (refusal is not None) == refused
    if refusal is not None:
        assert refusal.found.startswith("the server answers, and the run would install driver ")
        assert "580.178.04 (a is 1, not 2) and reboot" in refusal.found
        assert "nouveau is loaded" in refusal.found
        assert "systemctl stop vllm-coder" in refusal.remedy
        assert refusal.remedy.endswith("reboot_while_serving = True")


def test_each_that_answers_is_named_with_how_to_stop_it() -> None:
    two = [OURS, ("qwen.service (port 9000)", "`systemctl stop qwen.service`")]
    refusal = reboot_refusal(["nouveau is loaded"], [], two, WANTED)
    assert refusal is not None
    assert refusal.found.startswith("the server, qwen.service (port 9000) answer, and the run")
    assert "(`systemctl stop vllm-coder`, `systemctl stop qwen.service`)" in refusal.remedy


def test_a_driver_that_would_do_may_stay() -> None:
    kept = reboot_refusal(["595 is loaded"], [], [OURS], WANTED, keeps="595.71.05")
    assert kept is not None
    assert kept.remedy.endswith('keep the driver that runs: driver_version = "595.71.05"')


@pytest.mark.parametrize(
    ("loaded", "stays"),
    [
        (None, None),
        ({"version": "595.71.05", "open": True}, "595.71.05"),
        ({"version": "595.71.05", "open": False}, None),
        ({"version": "580.65.06", "open": True}, "580.65.06"),
        ({"version": "580.65.05", "open": True}, None),
        ({"version": "580.178.04", "open": True}, None),  # it is the wanted one
        ({"version": "odd", "open": True}, None),
    ],
)
def test_which_driver_would_do(loaded: dict[str, Any] | None, stays: str | None) -> None:
    found = replace(evidence(driven()), loaded=Loaded(**loaded) if loaded else None)
    versions = [f"{one}-1" for one in ("595.71.05", "580.65.06", "580.65.05", "580.178.04")]
    assert could_stay(found, WANTED, dict.fromkeys(WANTED.packages, versions)) == stays


def test_a_driver_whose_packages_nobody_has_is_no_way_out() -> None:
    found = replace(evidence(driven()), loaded=Loaded("595.71.05", open=True))
    some = {name: ["595.71.05-1"] for name in WANTED.packages[1:]}
    assert could_stay(found, WANTED, some) is None
    assert could_stay(found, WANTED, {}) is None
    there = evidence(driven() | {"packages": with_packages(dict.fromkeys(WANTED.packages, NEWER))})
    assert could_stay(replace(there, loaded=found.loaded), WANTED, {}) == "595.71.05"
    assert could_stay(replace(UBUNTUS, loaded=found.loaded), IN_595, {}) is None


NEWER = package("595.71.05-1")
IN_595 = replace(UBUNTU, version="595.58.03")
UBUNTUS = evidence(
    driven()
    | {
        "loaded": {"version": "595.71.05", "open": True},
        "library": "595.71.05",
        "packages": {
            "libnvidia-compute-595": package("595.71.05-0ubuntu0.24.04.1"),
            "linux-modules-nvidia-595-open-generic": package("6.8.0-60.63"),
            "nvidia-driver-595-open": package("595.71.05-0ubuntu0.24.04.1"),
            "nvidia-settings": package("510.47.03-0ubuntu4"),
        },
    }
)


def test_a_right_driver_of_the_distributions_own_packages_is_known() -> None:
    wanted = replace(UBUNTU, version="595.71.05")
    assert exchanged(UBUNTUS, wanted) == (
        "libnvidia-compute-595",
        "linux-modules-nvidia-595-open-generic",
        "nvidia-driver-595-open",
    )
    assert exchanged(UBUNTUS, IN_595) == ()  # another version: the driver itself is replaced
    assert exchanged(evidence(driven()), WANTED) == ()
    mine = dict.fromkeys(wanted.packages, NEWER)
    both = evidence(driven() | {"packages": mine | {"nvidia-driver-595-open": NEWER}})
    assert exchanged(replace(both, loaded=UBUNTUS.loaded), wanted) == ()


# --- the repository ---

OFFERS = {
    "nvidia-driver-cuda": ["595.71.05-1", "580.178.04-1", "580.65.06-1", "535.1-1"],
    "nvidia-kernel-open-dkms": ["595.71.05-1", "580.178.04-1", "580.65.06-1", "535.1-1"],
    "nvidia-persistenced": ["595.71.05-1", "580.178.04-1", "580.65.06-1", "535.1-1~deb12u1"],
    "cuda-toolkit-13-0": ["13.0.2-1"],
    f"linux-headers-{NEW}": ["6.1.140-1"],
    "linux-headers-amd64": ["6.1.140-1"],
}
ANSWER: dict[str, Any] = {
    "key": "-----BEGIN",
    "key_fingerprint": "A" * 40,
    "error": None,
    "offers": OFFERS,
    "removes": [],
    "download_bytes": 1 * GB,
    "disk_bytes": 4 * GB,
    "unresolved": None,
}


def of_repository(report: dict[str, Any] | None = None, **changes: Any) -> list[Refusal]:
    answer = RepositoryAnswer.parse(json.dumps(ANSWER | changes))
    found = evidence(bare() if report is None else report)
    return repository_refusals(answer, found, WANTED)


def test_a_repository_with_everything_is_taken() -> None:
    assert of_repository() == []


REPOSITORY: list[tuple[str, dict[str, Any], list[str]]] = [
    (
        "404 for the key",
        {"key": None, "key_fingerprint": None, "error": f"{URL}k.pub: HTTP 404 Not Found"},
        [f"found     {URL}k.pub: HTTP 404 Not Found", "check nvidia_repository"],
    ),
    (
        "404 for the lists",
        {"error": f"E: The repository '{URL}  Release' does not have a Release file."},
        ["does not have a Release file", "check nvidia_repository"],
    ),
    (
        "another key",
        {"key_fingerprint": "B" * 40},
        [f"hands out the key {'B' * 40}", f"the key {'A' * 40}", "do not trust it"],
    ),
    (
        "a page in the place of the key",
        {"key": "<html>", "key_fingerprint": None},
        ["no OpenPGP key"],
    ),
    (
        "a wrong signature",
        {"error": f"Err:2 {URL}\nThe following signatures were invalid: BADSIG 0123\nE: {URL} x"},
        [
            f"{URL}: The following signatures were invalid: BADSIG 0123\n",
            "a mirror or proxy between may have changed it",
        ],
    ),
    (
        "a wrong signature behind an address that speaks of signatures",
        {"error": f"Err:2 {URL}signature/404 InRelease\nThe following signatures: BADSIG 0123"},
        [f"{URL}: The following signatures: BADSIG 0123\n", "unchanged since"],
    ),
    (
        "a wrong signature, by sqv",
        {"error": "Sub-process /usr/bin/sqv returned an error code (1), error message is: Missing"},
        ["sqv", "signed by the key that nvidia_key names"],
    ),
    (
        "a mirror half way",
        {"error": "E: Failed to fetch Packages.gz  File has unexpected size (1 != 2)"},
        ["unexpected size", "until the mirror is whole"],
    ),
    (
        "no name server",
        {"key": None, "key_fingerprint": None, "error": "Temporary failure in name resolution"},
        ["Temporary failure", "network, name server or proxy"],
    ),
    ("something else", {"error": "E: Malformed entry 1"}, ["Malformed entry", "apt-get update"]),
    (
        "a pin that matches nothing",
        {"offers": OFFERS | {"nvidia-kernel-open-dkms": ["580.65.06-1", "595.71.05-1", "x-1"]}},
        [
            "offers no nvidia-kernel-open-dkms of version 580.178.04",
            "whole it offers 595.71.05, 580.65.06\n",
            'set driver_version = "580.65.06"',  # of the same branch
        ],
    ),
    (
        "a pin that matches nothing of its branch",
        {"offers": OFFERS | {"nvidia-kernel-open-dkms": ["595.71.05-1", "535.1-1"]}},
        ["whole it offers 595.71.05\n", 'set driver_version = "595.71.05"'],
    ),
    (
        "a package that is not there at all",
        {"offers": {name: OFFERS[name] for name in OFFERS if "dkms" not in name}},
        ["whole it offers none", "one that NVIDIA offers"],
    ),
    (
        "headers gone from the archive",
        {"offers": OFFERS | {f"linux-headers-{NEW}": []}},
        [f"kernel {NEW} has no headers", "install the current kernel", "reboot into it"],
    ),
    (
        "no toolkit",
        {"offers": OFFERS | {"cuda-toolkit-13-0": []}},
        ["offers no cuda-toolkit-13-0", "CUDA 13.0"],
    ),
    (
        "dependencies that cannot be had",
        {"unresolved": "The following packages have unmet dependencies:\n a : Depends: b"},
        ["unmet dependencies: a : Depends: b", "apt-mark showhold"],
    ),
    (
        "other packages would go",
        {"removes": ["gdm3", "nvidia-kernel-dkms"]},
        ["apt would remove gdm3", "apt-get remove gdm3"],
    ),
]


@pytest.mark.parametrize(
    ("changes", "words"), [row[1:] for row in REPOSITORY], ids=[row[0] for row in REPOSITORY]
)
def test_a_repository_that_cannot_give_it_is_refused(
    changes: dict[str, Any], words: list[str]
) -> None:
    [refusal] = of_repository(**changes)
    for word in words:
        assert word in str(refusal)


@pytest.mark.parametrize(
    ("report", "remedy"),
    [
        # the archive has only the newest kernel's headers
        (
            {
                "kernel": OLD,
                "kernels": [kernel(OLD, None, headers=False), kernel(NEW, None, headers=False)],
            },
            f"reboot into kernel {NEW}",
        ),
        (
            {"kernel": OLD, "kernels": [kernel(OLD, None), kernel("7.1-mine", headers=False)]},
            "apt-get purge linux-image-7.1-mine",
        ),
    ],
)
def test_headers_that_nobody_offers_name_the_way_out(report: dict[str, Any], remedy: str) -> None:
    [refusal] = of_repository(bare() | report)
    assert remedy in refusal.remedy


def test_what_is_installed_need_not_be_offered() -> None:
    assert of_repository(driven(), offers={}) == []


@pytest.mark.parametrize(
    ("download", "disk", "needed"), [(GB, 4 * GB, 5 * GB), (None, None, 0), (7, -5, 7)]
)
def test_room_for_packages_is_download_and_growth(
    download: int | None, disk: int | None, needed: int
) -> None:
    changes = {"download_bytes": download, "disk_bytes": disk}
    assert RepositoryAnswer.parse(json.dumps(ANSWER | changes)).needed_bytes == needed


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"offers": []}, "repository report.offers: expected an object"),
        ({"offers": {"a": "1"}}, "repository report.offers.a: expected a list of texts"),
        ({"removes": None}, "repository report.removes: expected a list of texts"),
        ({"download_bytes": -1}, "repository report.download_bytes: expected 0 or more"),
        ({"error": 404}, "repository report.error: expected text or null"),
    ],
)
def test_a_malformed_answer_is_a_value_error(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        of_repository(**changes)
    assert words in str(caught.value)
