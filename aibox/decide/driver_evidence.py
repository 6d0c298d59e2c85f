"""What was read of a box's driver: the probe's answers to "driver", every value of its type."""

from collections.abc import Mapping
from dataclasses import dataclass

from aibox.decide.report import Part, document


@dataclass(frozen=True)
class Module:
    """A built nvidia.ko. license: as modinfo prints it, "Dual MIT/GPL" for the open one."""

    version: str
    license: str

    @property
    def open(self) -> bool:
        return "GPL" in self.license


@dataclass(frozen=True)
class Kernel:
    """A kernel that can boot. initrd_changed: epoch seconds, None without an initrd."""

    release: str
    headers: bool
    module: Module | None
    initrd_changed: float | None


@dataclass(frozen=True)
class PciCard:
    """An NVIDIA card on the bus. id: "10de:2bb1"; driver: the module that holds it."""

    slot: str
    id: str
    driver: str | None


@dataclass(frozen=True)
class Loaded:
    """The nvidia module that runs now."""

    version: str
    open: bool


@dataclass(frozen=True)
class Package:
    """An installed package of the distribution. held: apt may not change it."""

    version: str
    source: str
    held: bool


@dataclass(frozen=True)
class CudaProof:
    """What the last small kernel was compiled with."""

    nvcc: str
    glibc: str
    toolkit: str


@dataclass(frozen=True)
class Evidence:
    """The probe's answer to "driver". kernels: oldest first; times in epoch seconds."""

    kernel: str
    kernels: tuple[Kernel, ...]
    pci: tuple[PciCard, ...]
    secure_boot: bool | None
    mok_enrolled: bool | None
    loaded: Loaded | None
    uvm: bool  # whether /dev/nvidia-uvm is there
    uvm_disable_hmm: bool | None  # as the loaded nvidia_uvm has it; None: not loaded, or unknown
    nouveau: bool
    library: str | None
    packages: Mapping[str, Package]
    runfile: tuple[str, ...]
    sources: Mapping[str, str]
    key: str | None  # the armored text in the key's file
    key_fingerprint: str | None
    modprobe_changed: float | None
    boot_id: str
    persistenced: str
    kernel_log: tuple[str, ...]
    nvcc: Mapping[str, str]
    glibc: str | None
    cuda_proof: CudaProof | None

    @classmethod
    def parse(cls, text: str) -> "Evidence":
        """The probe's JSON. Raises ValueError that names the place and what stands there."""
        report = document("driver report", text)
        packages = report.parts("packages")
        return cls(
            kernel=report.text("kernel"),
            kernels=tuple(_kernel(part) for part in report.list_of_parts("kernels")),
            pci=tuple(_pci_card(part) for part in report.list_of_parts("pci")),
            secure_boot=report.truth_or_none("secure_boot"),
            mok_enrolled=report.truth_or_none("mok_enrolled"),
            loaded=_loaded(report.part_or_none("loaded")),
            uvm=report.truth("uvm"),
            uvm_disable_hmm=report.truth_or_none("uvm_disable_hmm"),
            nouveau=report.truth("nouveau"),
            library=report.text_or_none("library"),
            packages={name: _package(part) for name, part in packages.items()},
            runfile=report.texts("runfile"),
            sources=report.texts_by_name("sources"),
            key=report.text_or_none("key"),
            key_fingerprint=report.text_or_none("key_fingerprint"),
            modprobe_changed=report.seconds_or_none("modprobe_changed"),
            boot_id=report.text("boot_id"),
            persistenced=report.text("persistenced"),
            kernel_log=report.texts("kernel_log"),
            nvcc=report.texts_by_name("nvcc"),
            glibc=report.text_or_none("glibc"),
            cuda_proof=_proof(report.part_or_none("cuda_proof")),
        )

    @property
    def running(self) -> Kernel:
        """The kernel that runs. One that the probe did not list has neither headers nor module."""
        found = [kernel for kernel in self.kernels if kernel.release == self.kernel]
        return found[0] if found else Kernel(self.kernel, False, None, None)

    @property
    def newest(self) -> Kernel:
        """The kernel that the next reboot most likely starts."""
        return self.kernels[-1] if self.kernels else self.running

    @property
    def judged_kernels(self) -> tuple[Kernel, ...]:
        """The one that runs and the one that boots next; older ones are left alone."""
        both = (self.running, self.newest)
        return both if self.newest.release != self.kernel else both[:1]


def _kernel(part: Part) -> Kernel:
    module = part.part_or_none("module")
    return Kernel(
        release=part.text("release"),
        headers=part.truth("headers"),
        module=Module(module.text("version"), module.text("license")) if module else None,
        initrd_changed=part.seconds_or_none("initrd_changed"),
    )


def _pci_card(part: Part) -> PciCard:
    return PciCard(part.text("slot"), part.text("id").lower(), part.text_or_none("driver"))


def _loaded(part: Part | None) -> Loaded | None:
    return Loaded(part.text("version"), part.truth("open")) if part else None


def _package(part: Part) -> Package:
    return Package(part.text("version"), part.text("source"), part.truth("held"))


def _proof(part: Part | None) -> CudaProof | None:
    if part is None:
        return None
    return CudaProof(part.text("nvcc"), part.text("glibc"), part.text("toolkit"))
