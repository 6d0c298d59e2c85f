"""What the emulated NVIDIA repository carries, per distribution.

"Facts" are the rows of NVIDIA facts that the project stands on. Where they are silent and two ways
are thinkable, the packages here take the one that asks more of a deploy: nothing blacklists
nouveau, nothing rebuilds an initramfs, metas name a least version only, and nvcc brings no g++.
"""

from __future__ import annotations

import functools
import json
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.rehearsal.emulation import gpu
from tests.rehearsal.emulation.debian_package import Link, Package

DEBIAN = ("debian12", "debian13")
UBUNTU = ("ubuntu2404", "ubuntu2604")
DISTRIBUTIONS = (*DEBIAN, *UBUNTU)
# Facts, rows 1, "Kernel 7.0" and the fault table know all but the last; 595 is a branch they know,
# its exact version is made up.
DRIVERS = ("580.65.06", "580.126.16", "580.178.04", "590.48.01", "595.71.05")
LAST_SUFFIXED = 580  # facts, "Ubuntu, branch ≤ 580" and "≥ 590"
# A kernel that no box runs: for what is installed beside the running one. Facts, "Kernel 7.0".
OTHER_KERNEL = "7.0.0-1-amd64"
# {minor: (toolkit, nvcc)}. 13.0 as in the lock of vLLM 0.31.0 (nvidia-cuda-nvcc 13.0.88); the
# others, and the toolkits' third numbers, are made up.
TOOLKITS = {
    "12.9": ("12.9.1", "12.9.86"),
    "13.0": ("13.0.2", "13.0.88"),
    "13.1": ("13.1.0", "13.1.80"),
}
NEWEST_TOOLKIT = "13.1"
# A real one takes several GB; this is what apt counts with, so that it fits on any machine.
TOOLKIT_KB = 400 * 1024
LIBRARIES = "usr/lib/x86_64-linux-gnu"
# Facts, "Base" and "Key fingerprint": the key's file is called by its last eight digits.
REAL_BASE = "https://developer.download.nvidia.com/compute/cuda/repos"
CORE = Link(gpu.CORE)

OPEN, PROPRIETARY = "Dual MIT/GPL", "NVIDIA"  # facts, row 2

ASKS_FOR_REBOOT = """\
touch /var/run/reboot-required
echo {name} >> /var/run/reboot-required.pkgs
"""
# As the common.postinst of Debian's dkms: a kernel without headers is passed over in words, and a
# module that does not build fails the package.
BUILDS_MODULE = """\
[ "$1" = configure ] || exit 0
[ -n "$(dkms status -m nvidia -v {version})" ] || dkms add -m nvidia -v {version}
for kernel in $( (uname -r; ls /lib/modules) | sort -u); do
  if [ -e "/lib/modules/$kernel/build" ]; then
    echo "Building for $kernel"
    dkms build -m nvidia -v {version} -k "$kernel"
    dkms install -m nvidia -v {version} -k "$kernel" --force
  elif [ "$kernel" = "$(uname -r)" ]; then
    echo "Module build for kernel $kernel was skipped since the"
    echo "kernel headers for this kernel do not seem to be installed."
  fi
done
"""
REMOVES_MODULE = """\
[ -z "$(dkms status -m nvidia -v {version})" ] || dkms remove -m nvidia -v {version} --all
"""
# As Debian's linux-headers do: whoever builds modules is told.
TELLS_DKMS = """\
[ "$1" = configure ] || exit 0
[ ! -d /etc/kernel/header_postinst.d ] ||
  run-parts --report --exit-on-error --arg={kernel} /etc/kernel/header_postinst.d
"""
PERSISTENCED_UNIT = b"""\
[Unit]
Description=NVIDIA Persistence Daemon
Wants=syslog.target

[Service]
Type=forking
PIDFile=/run/nvidia-persistenced/nvidia-persistenced.pid
ExecStart=/usr/bin/nvidia-persistenced --verbose
ExecStopPost=/bin/rm -rf /run/nvidia-persistenced

[Install]
WantedBy=multi-user.target
"""
# What debhelper writes for a package with a unit: enabled, and started as well as may be.
STARTS_PERSISTENCED = """\
[ "$1" = configure ] || exit 0
deb-systemd-helper enable nvidia-persistenced.service >/dev/null
if [ -d /run/systemd/system ]; then
  systemctl daemon-reload
  deb-systemd-invoke restart nvidia-persistenced.service >/dev/null || true
fi
"""
STOPS_PERSISTENCED = """\
[ "$1" = remove ] || exit 0
[ ! -d /run/systemd/system ] || deb-systemd-invoke stop nvidia-persistenced.service
"""
FORGETS_PERSISTENCED = """\
[ "$1" = remove ] || exit 0
deb-systemd-helper purge nvidia-persistenced.service >/dev/null
[ ! -d /run/systemd/system ] || systemctl daemon-reload
"""


def catalogue(distribution: str, kernel: str, keyring: bytes) -> list[Package]:
    """Every package of one of DISTRIBUTIONS.

    `kernel` is the running kernel's release, whose headers no archive has; `keyring` the
    repository's public key, not armored. RuntimeError when a library does not compile.
    """
    drivers = debian_driver if distribution in DEBIAN else ubuntu_driver
    packages = [package for version in DRIVERS for package in drivers(version)]
    packages += [package for version in DRIVERS for package in pinning(version)]
    packages += [package for minor in TOOLKITS for package in toolkit(minor)]
    packages += [*unversioned_toolkit(), own_dkms(), cuda_keyring(distribution, keyring)]
    packages += [headers(release) for release in (kernel, OTHER_KERNEL)]
    return list({(each.name, each.version): each for each in packages}.values())


def debian_driver(driver: str) -> list[Package]:
    """Facts, "Debian": nvidia-open, or headless nvidia-driver-cuda nvidia-kernel-open-dkms.

    nvidia-smi lies in nvidia-driver-cuda, as in NVIDIA's packages for other systems (unverified
    here). From the component contrib comes nvidia-installer-cleanup; that something does is a fact,
    which package it is is not.
    """
    version, own = f"{driver}-1", "nvidia-driver"
    same = functools.partial("{} (= {})".format)
    userland = f"{same('libcuda1', version)}, {same('libnvidia-ml1', version)}"
    userland += ", nvidia-persistenced, nvidia-modprobe, nvidia-installer-cleanup"
    takes_over = {"Provides": "nvidia-smi", "Conflicts": "nvidia-smi", "Replaces": "nvidia-smi"}
    return [
        Package("libnvidia-ml1", version, own, {"Depends": "libc6"}, library("nvml", driver)),
        Package("libcuda1", version, own, {"Depends": "libc6"}, library("cuda", driver)),
        Package(
            "nvidia-driver-cuda",
            version,
            own,
            {"Depends": userland, **takes_over},
            {"usr/bin/nvidia-smi": CORE},
        ),
        *kernel_modules(driver, version, "nvidia-kernel-open-dkms", "nvidia-kernel-dkms"),
        *beside_the_driver(version),
        *metas(driver, version, "nvidia-driver-cuda", "nvidia-kernel{}-dkms"),
    ]


def ubuntu_driver(driver: str) -> list[Package]:
    """Facts, "Ubuntu": names with the branch up to 580, without it from 590 on.

    "-0ubuntu1" is a fact for 580.65.06; "-1ubuntu1" from 590 on is unverified. nvidia-smi does not
    come along with the headless set, which the facts leave open.
    """
    branch = int(driver.split(".", maxsplit=1)[0])
    named = branch <= LAST_SUFFIXED
    version = f"{driver}-0ubuntu1" if named else f"{driver}-1ubuntu1"
    tail, source = (f"-{branch}" if named else ""), "nvidia-graphics-drivers"
    compute = f"libnvidia-compute{tail}"
    own = f"{source}{tail}"
    return [
        Package(
            compute,
            version,
            own,
            {"Depends": "libc6", **instead_of("libnvidia-compute", tail)},
            {**library("nvml", driver), **library("cuda", driver)},
        ),
        Package(
            f"nvidia-utils{tail}",
            version,
            own,
            {"Depends": f"{compute} (= {version})", **instead_of("nvidia-utils", tail)},
            {"usr/bin/nvidia-smi": CORE},
        ),
        *kernel_modules(driver, version, f"nvidia-dkms{tail}-open", f"nvidia-dkms{tail}", own),
        *beside_the_driver(version),
        *ubuntu_metas(driver, version, tail, own),
    ]


def ubuntu_metas(driver: str, version: str, tail: str, own: str) -> list[Package]:
    parts = (f"libnvidia-compute{tail}", f"nvidia-dkms{tail}-open", f"nvidia-utils{tail}")
    exact = ", ".join(f"{name} (= {version})" for name in parts)
    whole = f"{exact}, nvidia-persistenced, nvidia-modprobe"
    proprietary = whole.replace(parts[1], f"nvidia-dkms{tail}")
    drivers = Package("cuda-drivers", version, "cuda-drivers", {"Depends": proprietary})
    metas = [Package(f"nvidia-open{tail}", version, own, {"Depends": whole}), drivers]
    if tail:
        newest = {"Depends": f"nvidia-open{tail} (>= {driver})"}
        metas.append(Package("nvidia-open", version, own, newest))
    return metas


def instead_of(name: str, tail: str) -> dict[str, str]:
    """A package with a branch in its name and the one without exclude each other."""
    others = [name] if tail else [f"{name}-{branch}" for branch in suffixed_branches()]
    return {"Conflicts": ", ".join(others), "Replaces": ", ".join(others)}


def suffixed_branches() -> list[int]:
    branches = {int(driver.split(".")[0]) for driver in DRIVERS}
    return sorted(branch for branch in branches if branch <= LAST_SUFFIXED)


def kernel_modules(
    driver: str, version: str, open_: str, proprietary: str, own: str = "nvidia-kmod"
) -> list[Package]:
    """The open and the proprietary module, as sources for dkms; one excludes the other.

    The names of Debian's own packages are among those that an open module excludes.
    """
    known = {
        *(f"nvidia-dkms{tail}{flavour}" for tail in ubuntu_tails() for flavour in ("", "-open")),
        "nvidia-kernel-dkms",
        "nvidia-kernel-open-dkms",
        "nvidia-open-kernel-dkms",
    }

    def module(name: str, license_: str) -> Package:
        source = f"usr/src/nvidia-{driver}"
        configuration = f'PACKAGE_NAME="nvidia"\nPACKAGE_VERSION="{driver}"\nAUTOINSTALL="yes"\n'
        others = ", ".join(sorted(known - {name}))
        return Package(
            name,
            version,
            own,
            {"Depends": "dkms", "Conflicts": others, "Replaces": others},
            {
                f"{source}/dkms.conf": configuration.encode(),
                f"{source}/license": f"{license_}\n".encode(),
            },
            {
                "postinst": BUILDS_MODULE.format(version=driver)
                + ASKS_FOR_REBOOT.format(name=name),
                "prerm": REMOVES_MODULE.format(version=driver),
            },
        )

    return [module(open_, OPEN), module(proprietary, PROPRIETARY)]


def ubuntu_tails() -> list[str]:
    return ["", *(f"-{branch}" for branch in suffixed_branches())]


def beside_the_driver(version: str) -> list[Package]:
    """Packages that have a source of their own and the same name everywhere."""
    return [
        Package(
            "nvidia-persistenced",
            version,
            "nvidia-persistenced",
            {"Depends": "libc6, init-system-helpers"},
            {
                "usr/bin/nvidia-persistenced": CORE,
                "usr/lib/systemd/system/nvidia-persistenced.service": PERSISTENCED_UNIT,
            },
            {
                "postinst": STARTS_PERSISTENCED,
                "prerm": STOPS_PERSISTENCED,
                "postrm": FORGETS_PERSISTENCED,
            },
        ),
        Package(
            "nvidia-modprobe",
            version,
            "nvidia-modprobe",
            {"Depends": "libc6"},
            {"usr/bin/nvidia-modprobe": CORE},
        ),
    ]


def metas(driver: str, version: str, userland: str, module: str) -> list[Package]:
    """nvidia-open and cuda-drivers, with a least version only.

    That cuda-drivers of 580.105.08 names its parts by ">=" and so pulled 590 in was reported in
    NVIDIA's forum; a pin decides, or chance.
    """

    def depends(flavour: str) -> dict[str, str]:
        names = (userland, module.format(flavour))
        return {"Depends": ", ".join(f"{name} (>= {driver})" for name in names)}

    return [
        Package("nvidia-open", version, "nvidia-driver", depends("-open")),
        Package("cuda-drivers", version, "cuda-drivers", depends("")),
    ]


def pinning(driver: str) -> list[Package]:
    """Facts, "Pinning": for a branch or a full version, one at a time.

    How their files are called is unverified; apt reads none that ends in ".06".
    """
    branch = driver.split(".", maxsplit=1)[0]

    def package(of: str, pinned: str) -> Package:
        preferences = (
            "Package: src:*nvidia*:any src:cuda-drivers:any src:cuda-compat:any\n"
            f"Pin: version {pinned}\nPin-Priority: 1000\n"
        )
        name, one = f"nvidia-driver-pinning-{of}", "nvidia-driver-pinning"
        return Package(
            name,
            f"{of}-1",
            one,
            {"Provides": one, "Conflicts": one, "Replaces": one},
            {f"etc/apt/preferences.d/{name}.pref": preferences.encode()},
            architecture="all",
        )

    return [package(branch, f"{branch}.*"), package(driver, f"{driver}-*")]


def toolkit(minor: str) -> list[Package]:
    """Facts, row 6: cuda-toolkit-13-0 and its kind, with nothing in them but nvcc."""
    version, nvcc = TOOLKITS[minor]
    folder, dashed = f"usr/local/cuda-{minor}", minor.replace(".", "-")
    parts = {
        "cuda": {"name": "CUDA SDK", "version": version},
        "cuda_nvcc": {"name": "CUDA NVCC", "version": nvcc},
    }
    default = (
        f"update-alternatives --install /usr/local/cuda cuda /{folder} {minor.replace('.', '')}\n"
    )
    return [
        Package(
            f"cuda-nvcc-{dashed}",
            f"{nvcc}-1",
            f"cuda-nvcc-{dashed}",
            {},
            {f"{folder}/bin/nvcc": CORE, f"{folder}/version.json": json.dumps(parts).encode()},
        ),
        Package(
            f"cuda-toolkit-{dashed}",
            f"{version}-1",
            f"cuda-toolkit-{dashed}",
            {"Depends": f"cuda-nvcc-{dashed} (>= {nvcc})"},
            {},
            {
                "postinst": default,
                "prerm": f'[ "$1" = upgrade ] || update-alternatives --remove cuda /{folder}\n',
            },
            claimed_kb=TOOLKIT_KB,
        ),
    ]


def unversioned_toolkit() -> list[Package]:
    """Facts, row 6: never these. They follow the newest minor, and `cuda` brings a driver."""
    version = f"{TOOLKITS[NEWEST_TOOLKIT][0]}-1"
    newest = f"cuda-toolkit-{NEWEST_TOOLKIT.replace('.', '-')} (>= {version})"
    both = f"{newest}, cuda-drivers (>= {DRIVERS[-1]})"
    return [
        Package("cuda-toolkit", version, "cuda-toolkit", {"Depends": newest}),
        Package("cuda", version, "cuda", {"Depends": both}),
    ]


def own_dkms() -> Package:
    """NVIDIA's own build of dkms, newer than any distribution's. Facts, "dkms stays Debian's".

    Its version is made up; whoever installs it has lost the build of other modules' rules.
    """
    return Package("dkms", "1:3.3.0-1", "dkms", {"Depends": "kmod, make"}, architecture="all")


def cuda_keyring(distribution: str, keyring: bytes) -> Package:
    """Facts, "Keyring package": the key, and a list file of its own that names NVIDIA's server."""
    path = "usr/share/keyrings/cuda-archive-keyring.gpg"
    line = f"deb [signed-by=/{path}] {REAL_BASE}/{distribution}/x86_64/ /\n"
    listed = f"etc/apt/sources.list.d/cuda-{distribution}-x86_64.list"
    files: Mapping[str, bytes] = {path: keyring, listed: line.encode()}
    return Package("cuda-keyring", "1.1-1", "cuda-keyring", {}, files, architecture="all")


def headers(kernel: str) -> Package:
    """Headers of a kernel. Facts, "Emulating it": the guest's kernel belongs to no archive."""
    number = re.match(r"[0-9.]*[0-9]", kernel)
    return Package(
        f"linux-headers-{kernel}",
        f"{number[0] if number else '0'}-1",
        "linux",
        {},
        {f"usr/lib/modules/{kernel}/build/Makefile": b"# nothing to build with\n"},
        {"postinst": TELLS_DKMS.format(kernel=kernel)},
    )


@functools.cache
def library(kind: str, driver: str) -> dict[str, bytes | Link]:
    """A compiled library of the emulation under the names that a driver package gives it."""
    compile_, soname = {
        "nvml": (gpu.compile_nvml, "libnvidia-ml.so"),
        "cuda": (gpu.compile_cuda, "libcuda.so"),
    }[kind]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder) / soname
        compile_(built, driver)
        content = built.read_bytes()
    return {
        f"{LIBRARIES}/{soname}.{driver}": content,
        f"{LIBRARIES}/{soname}.1": Link(f"{soname}.{driver}"),
    }
