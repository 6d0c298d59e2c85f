"""What keeps the driver stage from beginning, judged before the first change."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from aibox.decide import driver, toolkit, vram
from aibox.decide.driver import DriverWanted
from aibox.decide.driver_evidence import Evidence, PciCard
from aibox.decide.driver_sources import REMOVABLE
from aibox.decide.refusal import Refusal
from aibox.decide.report import document

# What people take for the right card, by PCI id (NVIDIA's list of ids).
NAMES = {
    "10de:2bb2": "RTX PRO 6000D",
    "10de:2b85": "GeForce RTX 5090",
    "10de:2321": "H100 NVL",
    "10de:2335": "H200",
}
# The last version of a branch that is known not to build for the kernel, by the kernel's major.
LAST_THAT_FAILS = {7: {"580": "580.126.16", "590": "590.48.01"}}


@dataclass(frozen=True)
class NvmlAnswer:
    """What NVML said. error: its own text when it could not be asked."""

    error: str | None
    cards: tuple[vram.Card, ...]


def refusals(evidence: Evidence, wanted: DriverWanted, nvml: NvmlAnswer | None) -> list[Refusal]:
    """Why nothing may be begun on this box. nvml: None where its library is not there."""
    faults = [
        _card(evidence, wanted, nvml),
        _secure_boot(evidence, wanted),
        _runfile(evidence),
        _mixed(evidence),
        _kernel_too_new(evidence, wanted),
        toolkit.toolkit_refusal(wanted.cuda),
    ]
    return [fault for fault in faults if fault is not None]


# --- the card ----------------------------------------------------------------------------------


def _card(evidence: Evidence, wanted: DriverWanted, nvml: NvmlAnswer | None) -> Refusal | None:
    """The bus first; then NVML's word where it has one, else the ids on the bus."""
    if not evidence.pci:
        return Refusal(
            "; ".join(["no NVIDIA card on the PCI bus", *driver.xid_report(evidence)]),
            vram.EXPECTED,
            "seat the card, or pass it through to the machine; `lspci -d 10de:` must list it",
        )
    if nvml is not None and _is_answer(evidence, wanted, nvml):
        judged = vram.judge(nvml.cards, nvml.error, wanted.cards_wanted)
        return _with_log(judged, evidence) if isinstance(judged, Refusal) else None
    right = sum(card.id in wanted.pci_ids for card in evidence.pci)
    if right:
        shown = "; ".join(_named(card) for card in evidence.pci)
        return vram.too_few(wanted.cards_wanted, right, shown)
    return Refusal(
        "; ".join(_named(card) for card in evidence.pci),
        f"an RTX PRO 6000 Blackwell (96 GB): {', '.join(wanted.pci_ids)}",
        "use a box with such a card; if this is one, add its id to gpu_pci_ids",
    )


def _is_answer(evidence: Evidence, wanted: DriverWanted, nvml: NvmlAnswer) -> bool:
    """Whether NVML's word counts, or is only that of a driver which the stage replaces.

    Cards that it shows are what they are under any driver. An error, or no card at all, is a
    finding only where the right module is loaded: an older one, the proprietary one and one that
    does not fit its library cannot know better.
    """
    if nvml.error is None and nvml.cards:
        return True
    if nvml.error is not None and re.search(r"mismatch|not loaded", nvml.error, re.IGNORECASE):
        return False
    loaded = evidence.loaded
    return loaded is not None and loaded.open and loaded.version == wanted.version


def _with_log(refusal: Refusal, evidence: Evidence) -> Refusal:
    found = "; ".join([refusal.found, *driver.xid_report(evidence)])
    return Refusal(found, refusal.expected, refusal.remedy)


def _named(card: PciCard) -> str:
    name = NAMES.get(card.id)
    return f"{name} ({card.id}) in slot {card.slot}" if name else f"{card.id} in slot {card.slot}"


# --- the system --------------------------------------------------------------------------------


def _secure_boot(evidence: Evidence, wanted: DriverWanted) -> Refusal | None:
    """Refused only if a module must be built or loaded that no enrolled key has signed."""
    to_build = driver.kernels_to_build(evidence, wanted)
    work = [f"kernel {kernel} has no module {wanted.version}" for kernel in to_build]
    work += driver.reboot_reasons(evidence, wanted)
    if evidence.secure_boot is not True or evidence.mok_enrolled is True or not work:
        return None
    if wanted.os_id == "ubuntu":
        own_key = "/var/lib/shim-signed/mok/MOK.der"
        signed = (
            f", or install Canonical's signed modules (linux-modules-nvidia-{wanted.branch}"
            "-server-open-generic) and set driver_version to theirs"
        )
    else:
        own_key, signed = "/var/lib/dkms/mok.pub", ""
    return Refusal(
        f"Secure Boot is on, and the driver needs work: {'; '.join(work)}",
        "modules that the firmware lets in: it rejects what is built on the box",
        f"switch Secure Boot off in the firmware{signed}, or enrol the box's own key (dkms makes "
        "it with its first module, or by `dkms generate_mok`): "
        f"`mokutil --import {own_key}`, reboot, and confirm it at the console",
    )


def _runfile(evidence: Evidence) -> Refusal | None:
    if not evidence.runfile:
        return None
    uninstaller = [path for path in evidence.runfile if path.endswith("nvidia-uninstall")]
    remedy = (
        f"on the box: `{uninstaller[0]}`, reboot, then run again"
        if uninstaller
        else "on the box: run the same .run file with --uninstall, remove its log, reboot"
    )
    return Refusal(
        f"a driver installed by NVIDIA's .run file ({', '.join(evidence.runfile)})",
        "a driver from packages, or none: files of both would overwrite each other",
        remedy,
    )


def _mixed(evidence: Evidence) -> Refusal | None:
    opened, proprietary = driver.flavours(evidence)
    if not (opened and proprietary):
        return None
    return Refusal(
        f"mixed drivers: {', '.join(opened)} (open) beside {', '.join(proprietary)} (proprietary)",
        "one kind of kernel module; Blackwell needs the open one",
        f"on the box: `apt-get purge {' '.join(proprietary)}`, reboot, then run again",
    )


def _kernel_too_new(evidence: Evidence, wanted: DriverWanted) -> Refusal | None:
    for kernel in evidence.judged_kernels:
        match = re.match(r"\d+", kernel.release)
        last = LAST_THAT_FAILS.get(int(match[0]) if match else 0, {}).get(wanted.branch)
        built = kernel.module is not None and kernel.module.version == wanted.version
        if last is None or built or driver.too_old(last, wanted.version):
            continue
        return Refusal(
            f"kernel {kernel.release} and driver {wanted.version}",
            f"a driver that builds for it: {wanted.branch} up to {last} does not",
            'set driver_version to a newer one, such as "580.178.04" or one of 595',
        )
    return None


def reboot_refusal(
    reasons: Sequence[str],
    changes: Sequence[str],
    serving: Sequence[tuple[str, str]],
    wanted: DriverWanted,
    keeps: str | None = None,
) -> Refusal | None:
    """A server that answers is not rebooted away. reasons: for the reboot; changes: what would be
    installed before it; serving: (who serves, how to stop it); keeps: a version that could stay."""
    if not reasons or not serving or wanted.reboot_while_serving:
        return None
    would = [f"install driver {wanted.version} ({'; '.join(changes)})"] if changes else []
    return Refusal(
        f"{', '.join(who for who, _ in serving)} answer{'s' if len(serving) == 1 else ''}, and the "
        f"run would {' and '.join([*would, 'reboot'])}: "
        f"{'; '.join(reasons)}",
        "a server that may be interrupted",
        f"when it suits, stop it ({', '.join(stop for _, stop in serving)}) and run again, or set "
        "reboot_while_serving = True"
        + (f'; or keep the driver that runs: driver_version = "{keeps}"' if keeps else ""),
    )


def next_boot_refusal(reasons: Sequence[str], wanted: DriverWanted) -> Refusal:
    """After everything: the kernel that boots next would still come up without the card."""
    return Refusal(
        "; ".join(reasons),
        f"the open module {wanted.version} in the newest kernel and its initramfs",
        "look at `dkms status` on the box, mend what it shows or purge that kernel, then run again",
    )


# --- the repository ----------------------------------------------------------------------------


@dataclass(frozen=True)
class RepositoryAnswer:
    """What trying the repository in a folder of its own gave. error: the key's or apt's own text;
    offers: versions by package; sizes in bytes; unresolved: apt's text on what cannot be had."""

    key: str | None
    key_fingerprint: str | None
    error: str | None
    offers: Mapping[str, tuple[str, ...]]
    removes: tuple[str, ...]
    download_bytes: int | None
    disk_bytes: int | None
    unresolved: str | None

    @classmethod
    def parse(cls, text: str) -> "RepositoryAnswer":
        """The probe's JSON. Raises ValueError that names the place and what stands there."""
        report = document("repository report", text)
        growth = report.number_or_none("disk_bytes")  # negative where the new one is smaller
        return cls(
            key=report.text_or_none("key"),
            key_fingerprint=report.text_or_none("key_fingerprint"),
            error=report.text_or_none("error"),
            offers=report.lists_by_name("offers"),
            removes=report.texts("removes"),
            download_bytes=report.count_or_none("download_bytes"),
            disk_bytes=None if growth is None else int(growth),
            unresolved=report.text_or_none("unresolved"),
        )

    @property
    def needed_bytes(self) -> int:
        """Room for the packages and for what they unpack to."""
        return (self.download_bytes or 0) + max(0, self.disk_bytes or 0)


def repository_refusals(
    answer: RepositoryAnswer, evidence: Evidence, wanted: DriverWanted
) -> list[Refusal]:
    """Why the repository cannot give what is wanted; one that cannot be read hides the rest.

    Whether there is room for it, preflight judges with everything else that takes room.
    """
    unreadable = _other_key(answer, wanted) or _unreadable(answer, wanted)
    if unreadable is not None:
        return [unreadable]
    faults = [
        _not_offered(answer, evidence, wanted),
        _no_headers(answer, evidence),
        _no_toolkit(answer, evidence, wanted),
    ]
    faults = [fault for fault in faults if fault is not None] or [_unresolved(answer)]
    faults.append(_removals(answer))
    return [fault for fault in faults if fault is not None]


def _other_key(answer: RepositoryAnswer, wanted: DriverWanted) -> Refusal | None:
    found = answer.key_fingerprint
    if found is None or found.upper() == wanted.fingerprint.upper():
        return None
    return Refusal(
        f"{wanted.url} hands out the key {found}",
        f"the key {wanted.fingerprint}, which nvidia_key names",
        "do not trust it unseen: compare nvidia_key with what NVIDIA publishes, and "
        "nvidia_repository with NVIDIA's address",
    )


# apt's own words (gpgv and sqv both), what they mean, and what to do.
_ERRORS = (
    (
        r"NO_PUBKEY|BADSIG|EXPKEYSIG|REVKEYSIG|not signed|[Mm]issing key|signature|sqv|gpgv",
        "the repository signed by the key that nvidia_key names, and unchanged since",
        "check nvidia_repository: a mirror or proxy between may have changed it; do not go round",
    ),
    (
        r"\b404\b|Not Found|does not have a Release file",
        "NVIDIA's repository for this distribution at that address",
        "check nvidia_repository: the folders of the distributions lie directly below it",
    ),
    (
        r"Hash Sum mismatch|unexpected size|File has changed",
        "lists that belong together",
        "wait some minutes until the mirror is whole, then run again",
    ),
    (
        r"Could not resolve|Temporary failure|Name or service|[Uu]nreachable|refused|timed out",
        "an answer from NVIDIA's repository",
        "mend the box's network, name server or proxy, then run again",
    ),
)


def _unreadable(answer: RepositoryAnswer, wanted: DriverWanted) -> Refusal | None:
    if answer.error is None and answer.key_fingerprint is not None:
        return None
    lines = (answer.error or "what stands in the place of its key is no OpenPGP key").splitlines()
    for words, expected, remedy in _ERRORS:
        telling = next((line for line in lines if re.search(words, _without_urls(line))), None)
        if telling is not None:
            return Refusal(_said_of(wanted.url, telling), expected, remedy)
    return Refusal(
        _said_of(wanted.url, " ".join(lines)),
        "a repository that apt can read",
        "try it on the box with `apt-get update`, and check nvidia_repository",
    )


def _without_urls(line: str) -> str:
    """An address may hold any of the words that tell a cause."""
    return re.sub(r"\b\w+://\S+", "", line)


def _said_of(url: str, words: str) -> str:
    """What was said, with the address in front where it does not stand in it."""
    said = " ".join(words.split())
    return said if url.rstrip("/") in said else f"{url}: {said}"


def _not_offered(
    answer: RepositoryAnswer, evidence: Evidence, wanted: DriverWanted
) -> Refusal | None:
    """A pin that matches nothing would let apt take another version without a word."""
    if not driver.install_reasons(evidence, wanted):
        return None
    lacking = [
        name
        for name in wanted.packages
        if wanted.version not in map(driver.upstream, answer.offers.get(name, ()))
    ]
    if not lacking:
        return None
    versions = _whole_versions(answer, wanted)
    nearest = [one for one in versions if one.startswith(f"{wanted.branch}.")] or versions
    return Refusal(
        f"{wanted.url} offers no {', '.join(lacking)} of version {wanted.version}; whole it offers "
        + (", ".join(versions) or "none"),
        f"driver {wanted.version}, which driver_version names",
        f'set driver_version = "{nearest[0]}", or another of them'
        if nearest
        else "set driver_version to one that NVIDIA offers for this distribution",
    )


def _whole_versions(answer: RepositoryAnswer, wanted: DriverWanted) -> list[str]:
    """Versions at which every package of the set is offered and CUDA runs, newest first."""
    sets = [set(map(driver.upstream, answer.offers.get(name, ()))) for name in wanted.packages]
    floor = driver.floor_for_cuda(wanted.cuda)
    fitting = [
        one
        for one in set.intersection(*sets)
        if _is_version(one) and not driver.too_old(one, floor)
    ]
    return sorted(fitting, key=driver.version_tuple, reverse=True)


def _is_version(text: str) -> bool:
    try:
        driver.version_tuple(text)
    except ValueError:
        return False
    return True


def _no_headers(answer: RepositoryAnswer, evidence: Evidence) -> Refusal | None:
    """The archive keeps headers of the newest kernels only."""
    for kernel in evidence.judged_kernels:
        name = f"linux-headers-{kernel.release}"
        if kernel.headers or answer.offers.get(name):
            continue
        if kernel.release != evidence.kernel:
            remedy = f"remove that kernel (`apt-get purge linux-image-{kernel.release}`), run again"
        elif evidence.newest.release != kernel.release:
            remedy = f"reboot into kernel {evidence.newest.release}, then run again"
        else:
            remedy = (
                "on the box: install the current kernel (`apt-get update && apt-get upgrade "
                "--with-new-pkgs`), reboot into it, then run again"
            )
        return Refusal(
            f"kernel {kernel.release} has no headers, and no source offers {name}",
            "headers of the kernel, which the driver's module is built with",
            remedy,
        )
    return None


def _no_toolkit(
    answer: RepositoryAnswer, evidence: Evidence, wanted: DriverWanted
) -> Refusal | None:
    if wanted.cuda is None or not toolkit.toolkit_reasons(evidence, wanted.cuda):
        return None
    name = toolkit.toolkit_package(wanted.cuda)
    if answer.offers.get(name):
        return None
    return Refusal(
        f"{wanted.url} offers no {name}",
        f"the toolkit of CUDA {wanted.cuda}, which the release's torch is built for",
        "set vllm_version to a release of a CUDA that NVIDIA offers for this distribution",
    )


def _unresolved(answer: RepositoryAnswer) -> Refusal | None:
    if answer.unresolved is None:
        return None
    return Refusal(
        f"apt cannot install it: {' '.join(answer.unresolved.split())}",
        "packages whose dependencies can be had together",
        "on the box: take away holds (`apt-mark showhold`) and pins (/etc/apt/preferences.d) that "
        "forbid them, then run again",
    )


def _removals(answer: RepositoryAnswer) -> Refusal | None:
    others = [name for name in answer.removes if not re.fullmatch(REMOVABLE, name)]
    if not others:
        return None
    return Refusal(
        f"apt would remove {', '.join(others)}",
        "a driver that pushes out nothing but other versions of itself",
        f"on the box: remove what you can spare (`apt-get remove {' '.join(others)}`), run again",
    )
