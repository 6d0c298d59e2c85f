"""Kernels, modules, packages and sources of the NVIDIA driver."""

import platform
import re
from pathlib import Path
from typing import Any

from aibox.box.probe.commands import ran, text_of
from aibox.box.probe.files import changed_at, named, path_of, read_text, record_in
from aibox.box.probe.openpgp import fingerprint
from aibox.box.probe.units import active_state

NVIDIA = "0x10de"  # PCI vendor
DISPLAY = "0x03"  # PCI class: a display controller
SECURE_BOOT = "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
# the machine's own keys that dkms signs modules with: Debian's place, Ubuntu's place
MOK_KEYS = ("var/lib/dkms/mok.pub", "var/lib/shim-signed/mok/MOK.der")
UNINSTALLERS = ("usr/bin/nvidia-uninstall", "usr/local/bin/nvidia-uninstall")
RUNFILE_LOG = "var/log/nvidia-installer.log"
OUR_MODPROBE = "etc/modprobe.d/aibox-nvidia.conf"
CUDA_PROOF = "var/lib/aibox/cuda.json"
PACKAGE_FAMILIES = ("cuda-toolkit", "cuda-nvcc", "cuda-drivers", "linux-headers-")
PACKAGE_FORM = "${db:Status-Abbrev}\t${Package}\t${Architecture}\t${Version}\t${source:Package}\n"


def driver(asked: dict[str, Any]) -> dict[str, Any]:
    """Kernels, modules, packages and sources of the NVIDIA driver.

    asked: {"key_file": path of the repository's key, "cuda": "13.0" or null}. The commands run at
    the same time: a compressed module takes modinfo tenths of a second.
    """
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  slow to import

    with ThreadPoolExecutor(8) as pool:
        modules = {one: pool.submit(built_module, one) for one in kernels()}
        listing = pool.submit(text_of, ["dpkg-query", "-W", "-f", PACKAGE_FORM])
        cache = pool.submit(text_of, ["ldconfig", "-p"])
        log = pool.submit(kernel_log)
        persistence = pool.submit(active_state, "nvidia-persistenced.service")
        compiler = pool.submit(nvcc_version, asked["cuda"]) if asked.get("cuda") else None
        secure_boot = secure_boot_on()
        library = library_file(cache.result() or "")
        key = read_text(path_of(asked["key_file"]))
        nvcc = compiler.result() if compiler else None
        return {
            "kernel": platform.release(),
            "kernels": [kernel(one, built.result()) for one, built in modules.items()],
            "pci": cards_on_the_bus(),
            "secure_boot": secure_boot,
            "mok_enrolled": mok_enrolled() if secure_boot else None,
            "loaded": loaded_module(),
            "uvm": path_of("dev/nvidia-uvm").exists(),
            "uvm_disable_hmm": uvm_disable_hmm(),
            "nouveau": path_of("sys/module/nouveau").is_dir(),
            "library": library_version(library),
            "packages": driver_packages(listing.result() or ""),
            "runfile": runfile(library),
            "sources": sources(),
            "key_fingerprint": fingerprint(key or ""),
            "key": key,
            "modprobe_changed": changed_at(path_of(OUR_MODPROBE)),
            "boot_id": (read_text(path_of("proc/sys/kernel/random/boot_id")) or "").strip(),
            "persistenced": persistence.result() or "unknown",
            "kernel_log": log.result(),
            "nvcc": {asked["cuda"]: nvcc} if nvcc else {},
            "glibc": platform.libc_ver()[1] or None,
            "cuda_proof": record_in(path_of(CUDA_PROOF)),
        }


def kernels() -> list[str]:
    """Kernels that can boot, and the one that runs; the newest last."""
    running = platform.release()
    found = [
        folder.name
        for folder in path_of("lib/modules").glob("*")
        if folder.name == running or path_of(f"boot/vmlinuz-{folder.name}").exists()
    ]
    return sorted(found, key=kernel_order)


def kernel_order(release: str) -> list[tuple[int, int, str]]:
    """Numbers count as numbers, and a release candidate comes before its release."""
    words = re.findall(r"\d+|\D+", release.replace("-rc", "!rc"))
    return [(1, int(word), "") if word.isdigit() else (0, 0, word) for word in words]


def kernel(release: str, built: dict[str, str] | None) -> dict[str, Any]:
    return {
        "release": release,
        "headers": (path_of("lib/modules") / release / "build").exists(),
        "module": built,
        "initrd_changed": changed_at(path_of(f"boot/initrd.img-{release}")),
    }


def built_module(release: str) -> dict[str, str] | None:
    """Version and licence of the nvidia module that is built for a kernel."""
    said = text_of(["modinfo", "-k", release, "nvidia"])
    if said is None:
        return None
    fields = dict(re.findall(r"^(version|license): *(.*?) *$", said, re.MULTILINE))
    if "version" not in fields:
        return None
    return {"version": fields["version"], "license": fields.get("license", "")}


def cards_on_the_bus() -> list[dict[str, Any]]:
    found = []
    for device in sorted(path_of("sys/bus/pci/devices").glob("*")):
        vendor, kind = (read_text(device / name) or "" for name in ("vendor", "class"))
        if vendor.strip() != NVIDIA or not kind.startswith(DISPLAY):
            continue
        identity = (read_text(device / "device") or "").strip().removeprefix("0x")
        link = device / "driver"
        held_by = link.resolve().name if link.is_symlink() else None
        found.append({"slot": device.name, "id": f"10de:{identity}", "driver": held_by})
    return found


def secure_boot_on() -> bool | None:
    """As the firmware's own variable says; a box that was not booted by EFI has none."""
    firmware = path_of("sys/firmware/efi")
    if not firmware.is_dir():
        return False
    try:
        return (firmware / "efivars" / SECURE_BOOT).read_bytes()[-1] == 1
    except (OSError, IndexError):
        pass
    said = ran(["mokutil", "--sb-state"])
    words = said.stdout.lower() if said is not None else ""
    if "secureboot enabled" in words:
        return True
    return False if "secureboot disabled" in words else None


def mok_enrolled() -> bool | None:
    """Whether the firmware trusts the key that dkms signs with; without such a key: no."""
    keys = [path_of(path) for path in MOK_KEYS if path_of(path).exists()]
    if not keys:
        return False
    said = ran(["mokutil", "--test-key", str(keys[0])])
    words = said.stdout + said.stderr if said is not None else ""
    if "already enrolled" in words:
        return True
    return False if "not enrolled" in words else None


def loaded_module() -> dict[str, Any] | None:
    """The nvidia module that runs. The open one says so in its own line in /proc."""
    version = (read_text(path_of("sys/module/nvidia/version")) or "").strip()
    line = (read_text(path_of("proc/driver/nvidia/version")) or "").partition("\n")[0]
    found = re.search(r"Kernel Module(?: for \S+)?\s+(\S+)", line)
    if not version and found is None:
        return None
    return {
        "version": version or (found[1] if found else ""),
        "open": "Open Kernel Module" in line,
    }


def uvm_disable_hmm() -> bool | None:
    said = read_text(path_of("sys/module/nvidia_uvm/parameters/uvm_disable_hmm"))
    return {"Y": True, "1": True, "N": False, "0": False}.get((said or "").strip())


def library_file(cache: str) -> Path | None:
    """The driver's NVML as the loader finds it, from `ldconfig -p`."""
    found = re.search(
        r"^\s*libnvidia-ml\.so\.1 \(libc6,(?:x86-64|AArch64)[^)]*\) => (\S+)", cache, re.MULTILINE
    )
    return path_of(found[1]).resolve() if found else None


def library_version(path: Path | None) -> str | None:
    found = re.search(r"\.so\.(\d+\.[\d.]+)$", path.name) if path else None
    return found[1] if found else None


def driver_packages(listing: str) -> dict[str, Any]:
    """{name: {"version", "source", "held"}} of installed packages that concern the driver.

    A package of another architecture than the box's own is "name:architecture".
    """
    own = {"x86_64": "amd64", "aarch64": "arm64"}.get(platform.machine(), platform.machine())
    found = {}
    for line in listing.splitlines():
        state, name, architecture, version, source = line.split("\t")
        meta = re.match(r"linux-image-(?!\d|unsigned-)", name)
        ours = "nvidia" in name or "nvidia" in source or name.startswith(PACKAGE_FAMILIES)
        if state[1:2] == "i" and (meta or ours):
            shown = name if architecture in (own, "all") else f"{name}:{architecture}"
            found[shown] = {"version": version, "source": source, "held": state[0] == "h"}
    return found


def runfile(library: Path | None) -> list[str]:
    """Traces of NVIDIA's own installer. Its log stays behind after an orderly removal, so it only
    counts while a library is there that no package owns."""
    found = [f"/{path}" for path in UNINSTALLERS if path_of(path).exists()]
    if path_of(RUNFILE_LOG).exists() and library is not None and not owned(library):
        found.append(f"/{RUNFILE_LOG}")
    return found


def owned(path: Path) -> bool:
    """Whether a package holds a file; /usr/lib may be listed as /lib."""
    names = [str(path), str(path).removeprefix("/usr")]
    return any(text_of(["dpkg-query", "-S", name]) is not None for name in names)


def sources() -> dict[str, str]:
    """{path: whole text} of apt's sources."""
    folder = path_of("etc/apt/sources.list.d")
    paths = [path_of("etc/apt/sources.list"), *sorted(folder.glob("*.list"))]
    paths += sorted(folder.glob("*.sources"))
    texts = {path: read_text(path) for path in paths}
    return {named(path): text for path, text in texts.items() if text is not None}


def kernel_log() -> list[str]:
    """What this boot's kernel said of the card: NVRM and Xid, refused modules, nouveau's errors.

    The last 20 lines.
    """
    said = kernel_lines("NVRM|nouveau|nvidia|Key was rejected|unavailable key")
    telling = re.compile(
        r"NVRM|Xid|[Kk]ey|(?:nouveau|nvidia).*(?:fail|error|unknown|unsupported|timeout|reject)"
    )
    return [line for line in said if telling.search(line)][-20:]


def kernel_lines(pattern: str) -> list[str]:
    """All that this boot's kernel said that matches."""
    command = ["journalctl", "-b", "-o", "cat", "-t", "kernel", "--no-pager", "-q"]
    return (text_of([*command, "--grep", pattern]) or "").splitlines()


def nvcc_version(toolkit: str) -> str | None:
    """The full version of a toolkit's compiler: "13.0" -> "13.0.88"."""
    path = path_of(f"usr/local/cuda-{toolkit}/bin/nvcc")
    found = re.search(r"\bV(\d+\.\d+\.\d+)", text_of([str(path), "--version"]) or "")
    return found[1] if found else None


QUESTIONS = {"driver": driver}
