"""The NVIDIA driver of a box: what was read, and what stands between it and the wanted one.

Each decision is a function from Evidence and DriverWanted to reasons in words; none means that
nothing is to be done.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from aibox.decide.driver_evidence import Evidence, Kernel, Loaded, Module
from aibox.decide.refusal import Refusal
from aibox.decide.spread import Choice

# NVIDIA's CUDA compatibility table: the first driver that runs any release of the major version.
FLOOR_OF_CUDA = {13: "580.65.06", 12: "525.60.13"}
# From this branch on NVIDIA's Ubuntu packages carry no branch in their names.
FIRST_WITHOUT_SUFFIX = 590

_VERSION = re.compile(r"\d{3,4}\.\d{1,3}(\.\d{1,3})?", re.ASCII)


def version_tuple(text: str) -> tuple[int, ...]:
    """ "580.65.06" -> (580, 65, 6), for comparing. Raises ValueError for anything else."""
    if not _VERSION.fullmatch(text):
        raise ValueError(f"{text!r} is not a driver version such as 580.178.04")
    return tuple(int(part) for part in text.split("."))


def floor_for_cuda(cuda: str | None) -> str | None:
    """The oldest driver for a CUDA version such as "13.0".

    None without CUDA, and for a major version older than the table. A newer one than the table
    knows demands at least what the newest known one does.
    """
    if cuda is None:
        return None
    major = int(cuda.split(".")[0])
    return FLOOR_OF_CUDA.get(min(major, max(FLOOR_OF_CUDA)))


def too_old(driver: str, floor: str | None) -> bool:
    """Whether a driver is older than a floor; no floor, never. ValueError if it is no version."""
    return floor is not None and version_tuple(driver) < version_tuple(floor)


def upstream(package_version: str) -> str:
    """NVIDIA's part of a package's version: "1:580.178.04-0ubuntu1" -> "580.178.04"."""
    return package_version.rpartition(":")[2].rpartition("-")[0] or package_version


# --- what is wanted ----------------------------------------------------------------------------


@dataclass(frozen=True)
class DriverWanted:
    """What the settings ask of a driver. url: the flat folder of this distribution's packages;
    cuda: such as "13.0", None for a release without CUDA; server_unit: without ".service";
    gpu_uuids, cards, cards_for: see Choice."""

    version: str
    os_id: str
    os_version: str
    url: str
    fingerprint: str
    cuda: str | None
    pci_ids: tuple[str, ...]
    gpu_uuids: tuple[str, ...]
    power_limit_w: int | None
    uvm_disable_hmm: bool
    reboot_while_serving: bool
    server_unit: str
    cards: int = 1
    cards_for: str = ""

    @property
    def cards_wanted(self) -> Choice:
        return Choice(self.gpu_uuids, self.cards, self.cards_for)

    @property
    def branch(self) -> str:
        return self.version.partition(".")[0]

    @property
    def packages(self) -> tuple[str, ...]:
        return package_set(self.os_id, self.os_version, self.version)


def package_set(os_id: str, os_version: str, version: str) -> tuple[str, ...]:
    """The packages of a headless driver with open modules, as NVIDIA's repository names them.

    Only they are asked for; what they depend on comes at the same version. os_version does not
    matter yet: every release of a distribution names them alike.
    """
    del os_version
    if os_id == "debian":
        return ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced")
    branch = version.partition(".")[0]
    suffix = f"-{branch}" if int(branch) < FIRST_WITHOUT_SUFFIX else ""
    return (
        f"libnvidia-compute{suffix}",
        f"nvidia-dkms{suffix}-open",
        f"nvidia-utils{suffix}",
        "nvidia-persistenced",
    )


# --- packages ----------------------------------------------------------------------------------

# Kernel modules by package, Debian's, NVIDIA's and Canonical's names.
_OPEN = re.compile(
    r"nvidia-kernel-open-dkms|nvidia-kernel-source-[\d-]+(-server)?-open"
    r"|nvidia-dkms(-\d+)?(-server)?-open|linux-modules-nvidia-\d+(-server)?-open-.+"
)
_PROPRIETARY = re.compile(
    r"nvidia-kernel-dkms|nvidia-dkms(-\d+)?(-server)?"
    r"|linux-modules-nvidia-\d+(-server)?-(?!open-).+"
)


def flavours(evidence: Evidence) -> tuple[list[str], list[str]]:
    """Installed packages with kernel modules: (open ones, proprietary ones)."""
    names = sorted(evidence.packages)
    return (
        [name for name in names if _OPEN.fullmatch(name)],
        [name for name in names if _PROPRIETARY.fullmatch(name)],
    )


def signed_route(evidence: Evidence, wanted: DriverWanted) -> bool:
    """Whether Secure Boot is on and a driver works under it that is the wanted one already.

    It is the distribution's signed one, not built by dkms; our packages would only break it.
    """
    works = _wrongly_loaded(evidence, wanted) is None and evidence.library == wanted.version
    built = any("dkms" in name for names in flavours(evidence) for name in names)
    return evidence.secure_boot is True and works and not built


def header_packages(evidence: Evidence) -> tuple[str, ...]:
    """Headers that are needed and not there.

    Those of the kernel that runs and of the one that boots next, and the meta packages that
    supply coming kernels: linux-image-amd64 has linux-headers-amd64 beside it.
    """
    missing = [
        f"linux-headers-{kernel.release}"
        for kernel in evidence.judged_kernels
        if not kernel.headers
    ]
    metas = [
        name.replace("linux-image-", "linux-headers-")
        for name in sorted(evidence.packages)
        if re.fullmatch(r"linux-image-(?!unsigned-)[a-z].*", name)
    ]
    return tuple(dict.fromkeys([*missing, *(one for one in metas if one not in evidence.packages)]))


def could_stay(
    evidence: Evidence, wanted: DriverWanted, offers: Mapping[str, Sequence[str]]
) -> str | None:
    """The version that is loaded, where it is another one that would do for this release.

    offers: the repository's versions by package. What of its packages is not installed must be
    among them: a pin to a version that nobody has would be refused next.
    """
    loaded = evidence.loaded
    if loaded is None or not loaded.open or loaded.version == wanted.version:
        return None
    try:
        if too_old(loaded.version, floor_for_cuda(wanted.cuda)):
            return None
    except ValueError:
        return None
    lacking = lacking_packages(evidence, replace(wanted, version=loaded.version))
    offered = all(loaded.version in map(upstream, offers.get(name, ())) for name in lacking)
    return loaded.version if offered else None


def packages_of_loaded(evidence: Evidence, wanted: DriverWanted) -> tuple[str, ...]:
    """What the loaded driver's packages would be, so that the repository can be asked for them."""
    loaded = evidence.loaded
    if loaded is None or not _VERSION.fullmatch(loaded.version):
        return ()
    return package_set(wanted.os_id, wanted.os_version, loaded.version)


def lacking_packages(evidence: Evidence, wanted: DriverWanted) -> list[str]:
    """NVIDIA's packages of the wanted driver that are not installed at its version."""
    there = {name: upstream(one.version) for name, one in evidence.packages.items()}
    return [name for name in wanted.packages if there.get(name) != wanted.version]


# Ubuntu's own names; modules that it signed carry the kernel's version.
_DISTRIBUTIONS = re.compile(
    r"(nvidia-(driver|headless|headless-no-dkms|compute-utils|dkms|utils)|libnvidia-compute"
    r"|linux-modules-nvidia)-(?P<branch>\d+)\b.*"
)


def exchanged(evidence: Evidence, wanted: DriverWanted) -> tuple[str, ...]:
    """The distribution's packages of a driver that is the wanted one already.

    It loads, and still NVIDIA's packages of the same version take their place: one source for
    driver, persistence and toolkit, and one pin that holds them together.
    """
    if _wrongly_loaded(evidence, wanted) or not lacking_packages(evidence, wanted):
        return ()
    named = ((name, _DISTRIBUTIONS.fullmatch(name)) for name in sorted(evidence.packages))
    return tuple(
        name
        for name, found in named
        if found and found["branch"] == wanted.branch and name not in wanted.packages
    )


def install_reasons(evidence: Evidence, wanted: DriverWanted) -> list[str]:
    """Why driver packages or headers must be installed or changed. The toolkit is apart."""
    if signed_route(evidence, wanted):
        return []
    reasons = []
    for name in wanted.packages:
        package = evidence.packages.get(name)
        if package is None:
            reasons.append(f"{name} is not installed")
        elif upstream(package.version) != wanted.version:
            reasons.append(f"{name} is {upstream(package.version)}, not {wanted.version}")
    reasons += [f"{name} holds the proprietary module" for name in flavours(evidence)[1]]
    if not reasons and evidence.library != wanted.version:
        found = evidence.library or "not there"
        reasons.append(f"the driver's library is {found}, not {wanted.version}")
    return reasons + [f"{name} is not installed" for name in header_packages(evidence)]


def hold_reasons(evidence: Evidence, wanted: DriverWanted) -> list[str]:
    """Installed driver packages that an `apt upgrade` may still move away from the pin."""
    if signed_route(evidence, wanted):
        return []
    return [
        f"{name} is not held at its version"
        for name in wanted.packages
        if name in evidence.packages and not evidence.packages[name].held
    ]


def kernels_to_build(evidence: Evidence, wanted: DriverWanted) -> tuple[str, ...]:
    """Kernels that have headers and lack the wanted open module."""
    if signed_route(evidence, wanted):
        return ()
    return tuple(
        kernel.release
        for kernel in evidence.judged_kernels
        if kernel.headers and not _is_wanted(kernel.module, wanted)
    )


def _is_wanted(module: Module | Loaded | None, wanted: DriverWanted) -> bool:
    return module is not None and module.open and module.version == wanted.version


# --- boot and modules --------------------------------------------------------------------------


def initramfs_reasons(evidence: Evidence) -> list[str]:
    """Initramfs images that do not know the module options that were laid down after them."""
    stale = (_stale_image(evidence, kernel) for kernel in evidence.judged_kernels)
    return [reason for reason in stale if reason is not None]


def _stale_image(evidence: Evidence, kernel: Kernel) -> str | None:
    if kernel.initrd_changed is None:
        return None
    if evidence.modprobe_changed is None:
        return f"the initramfs of {kernel.release} does not keep nouveau off"
    if kernel.initrd_changed < evidence.modprobe_changed:
        return f"the initramfs of {kernel.release} is older than the module options"
    return None


def uvm_reasons(evidence: Evidence) -> list[str]:
    """Why nvidia-uvm must be loaded: CUDA needs its device, and nothing asks for it headless."""
    return [] if evidence.uvm or evidence.loaded is None else ["/dev/nvidia-uvm is missing"]


def persistence_reasons(evidence: Evidence) -> list[str]:
    if evidence.persistenced == "active":
        return []
    return [f"nvidia-persistenced is {evidence.persistenced or 'not there'}"]


def reboot_reasons(evidence: Evidence, wanted: DriverWanted) -> list[str]:
    """What only a reboot brings from the state of now to the wanted one.

    It looks at what runs, so it foretells the reboot of an install that is still to come, and
    finds the one that a killed run owes.
    """
    reasons = []
    if evidence.nouveau:
        reasons.append("nouveau is loaded and holds the card")
    wrong = _wrongly_loaded(evidence, wanted)
    if wrong:
        reasons.append(wrong)
    # A kernel without HMM shows the option as set whatever was asked: only the other way counts.
    if not wrong and wanted.uvm_disable_hmm and evidence.uvm_disable_hmm is False:
        reasons.append("nvidia_uvm was loaded without uvm_disable_hmm=1")
    return reasons


def _wrongly_loaded(evidence: Evidence, wanted: DriverWanted) -> str | None:
    """How the loaded module is not the wanted one, in words."""
    if evidence.loaded is None:
        return "the nvidia module is not loaded"
    if evidence.loaded.version != wanted.version:
        return f"the loaded module is {evidence.loaded.version}, not {wanted.version}"
    return None if evidence.loaded.open else "the loaded module is the proprietary one"


def next_boot_reasons(evidence: Evidence, wanted: DriverWanted) -> list[str]:
    """Why the driver would not survive the next reboot, judged by the newest kernel."""
    newest, reasons = evidence.newest, []
    if not newest.headers and not signed_route(evidence, wanted):
        reasons.append(f"kernel {newest.release}, which boots next, has no headers")
    if newest.module is None:
        reasons.append(
            f"kernel {newest.release}, which boots next, has no nvidia module: "
            "the next reboot would lose the card"
        )
    elif not _is_wanted(newest.module, wanted):
        kind = "" if newest.module.open else "the proprietary "
        reasons.append(
            f"kernel {newest.release}, which boots next, has {kind}module "
            f"{newest.module.version}, not the open {wanted.version}"
        )
    stale = _stale_image(evidence, newest)
    return [*reasons, stale] if stale else reasons


# --- afterwards: did the pin win? --------------------------------------------------------------


def built_assertion(evidence: Evidence, wanted: DriverWanted) -> Refusal | None:
    """Before a reboot: packages, library and built module are exactly the wanted version."""
    faults = [
        *(one for one in install_reasons(evidence, wanted) if "linux-headers-" not in one),
        *_unbuilt(evidence, wanted),
    ]
    if not faults:
        return None
    return Refusal(
        "; ".join([*faults, *xid_report(evidence)]),
        f"driver {wanted.version} with open modules: packages, library and kernel module alike",
        f"look at `apt-cache policy {wanted.packages[0]}` and `dkms status` on the box, mend "
        "what they show, then run again",
    )


def assertion(evidence: Evidence, wanted: DriverWanted) -> Refusal | None:
    """After everything: installed, built, loaded and usable at exactly the wanted version."""
    refusal = built_assertion(evidence, wanted)
    faults = reboot_reasons(evidence, wanted) + uvm_reasons(evidence)
    if refusal is not None or not faults:
        return refusal
    log = xid_report(evidence)
    return Refusal(
        "; ".join([*faults, *log]),
        f"the open module {wanted.version} loaded, and /dev/nvidia-uvm",
        "mend what the kernel says, then run again"
        if log
        else "find the cause with `modprobe nvidia` and `dmesg | grep NVRM`, then run again",
    )


def _unbuilt(evidence: Evidence, wanted: DriverWanted) -> list[str]:
    kernel = evidence.running
    if signed_route(evidence, wanted) or _is_wanted(kernel.module, wanted):
        return []
    if kernel.module is None:
        headers = "" if kernel.headers else ", which has no headers"
        return [f"no nvidia module is built for kernel {kernel.release}{headers}"]
    kind = "open" if kernel.module.open else "proprietary"
    return [f"the module of kernel {kernel.release} is the {kind} {kernel.module.version}"]


# What the kernel's log says, by its own words, and what it means.
_KERNEL_WORDS = (
    (r"Xid \(.*\): 79,", "power, PCIe or the card's firmware: it takes a cold start, or a hand"),
    (r"BAR1 is 0M", 'switch on "Above 4G Decoding" and "Resizable BAR" in the firmware'),
    (r"requires use of the NVIDIA open kernel modules", "the proprietary module cannot drive it"),
    (r"Key was rejected|Required key not available", "Secure Boot refuses the unsigned module"),
    (r"API mismatch", "the driver was upgraded under the loaded module"),
    (r"RmInitAdapter failed", "the module cannot start the card"),
    (r"Xid \(", "a fault of the card"),
)


def xid_report(evidence: Evidence) -> list[str]:
    """What the kernel said of the card in this boot, each line once with its meaning."""
    found = []
    for line in dict.fromkeys(evidence.kernel_log):
        meaning = next((words for sign, words in _KERNEL_WORDS if re.search(sign, line)), None)
        if meaning is not None:
            found.append(f"the kernel says {line.strip()!r} ({meaning})")
    return found
