"""dkms for the NVIDIA modules: the same folders, words and exit codes, and text for modules.

/usr/src/nvidia-VERSION holds dkms.conf and `license`. /var/lib/dkms/nvidia/VERSION/source is there
once it is added, …/KERNEL/x86_64/module/*.ko once it is built, and /var/lib/dkms/nvidia/
kernel-KERNEL-x86_64 once it is installed.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NamedTuple

from .commands import CommandError
from .files import running_kernel, state
from .kernel import MODULES, by_version, has_headers, module_file

TREE = Path("/var/lib/dkms")
ARCHITECTURE = "x86_64"
HEADERS_MISSING, BUILD_FAILED, NOT_FOUND = 21, 10, 2
# NVIDIA facts, "Kernel 7.0": these two do not build there
NOT_FOR_KERNEL_7 = ("580.126.16", "590.48.01")
VALUED = ("-m", "-v", "-k", "-a", "-c", "--kernelsourcedir", "--arch", "--kernelver", "--directive")


class Asked(NamedTuple):
    """What the words ask for; version None is every one that is added."""

    module: str | None
    version: str | None
    kernels: list[str]
    every_kernel: bool


def dkms(words: list[str]) -> int:
    if not Path("/usr/sbin/dkms.distrib").exists():
        raise CommandError("dkms: command not found", 127)
    action = words[0] if words else ""
    asked = read(words[1:])
    if action == "status":
        return status(asked)
    if action == "autoinstall":
        return autoinstall(asked)
    actions = {
        "add": add,
        "build": build,
        "install": install,
        "uninstall": uninstall,
        "remove": remove,
    }
    if action == "--version":
        print("dkms-3.0.10")
        return 0
    if action not in actions:
        raise CommandError(f"Error! Unknown action specified: {action!r}", 1)
    if asked.module is None or asked.version is None:
        raise CommandError("Error! Arguments <module> and <module-version> are not specified.", 1)
    if os.geteuid() != 0:
        raise CommandError(f"Error! You must be root to use this command: {action}", 1)
    actions[action](asked)
    return 0


def read(words: list[str]) -> Asked:
    """NAME/VERSION or -m NAME -v VERSION; `-k K` and `-k K/x86_64`, several times."""
    values: dict[str, list[str]] = {}
    names, every = [], False
    rest = iter(words)
    for word in rest:
        if word in VALUED:
            values.setdefault(word.replace("--kernelver", "-k"), []).append(next(rest, ""))
        elif word == "--all":
            every = True
        elif not word.startswith("-"):
            names.append(word)
    module, _, version = (values.get("-m") or names or [""])[0].partition("/")
    version = (values.get("-v") or [version])[0]
    kernels = [kernel.split("/")[0] for kernel in values.get("-k", [])]
    return Asked(module or None, version or None, kernels, every)


def add(asked: Asked) -> None:
    source = Path("/usr/src", f"{asked.module}-{asked.version}")
    link = tree(asked) / "source"
    if not (source / "dkms.conf").exists():
        raise CommandError(
            f"Error! Could not find module source directory.\nDirectory: {source} does not exist.",
            NOT_FOUND,
        )
    if link.is_symlink():
        raise CommandError(
            f"Error! DKMS tree already contains: {asked.module}/{asked.version}\n"
            "You cannot add the same module/version combo more than once.",
            3,
        )
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(source)
    print(f"Creating symlink {link} -> {source}")


def tree(asked: Asked) -> Path:
    return TREE / str(asked.module) / str(asked.version)


def added(asked: Asked) -> Path:
    """The folder of a version, added if it was not, as build and install do it."""
    if not (tree(asked) / "source").is_symlink():
        add(asked)
    return tree(asked)


def build(asked: Asked) -> None:
    for kernel in asked.kernels or [running_kernel()]:
        folder = added(asked) / kernel / ARCHITECTURE
        if (folder / "module").is_dir():
            what = f"{asked.module}/{asked.version}"
            print(f"Module {what} already built for kernel {kernel} ({ARCHITECTURE}), skip.")
            continue
        # NVIDIA facts, "Fault cases", headers missing
        if not has_headers(kernel):
            place = f"/lib/modules/{kernel}"
            raise CommandError(
                f"Error! Your kernel headers for kernel {kernel} cannot be found at {place}/build"
                f" or {place}/source.\nPlease install the linux-headers-{kernel} package or use the"
                " --kernelsourcedir option to tell DKMS where it's located.",
                HEADERS_MISSING,
            )
        print(
            f"Building module:\nCleaning build area...\nmake -j2 KERNELRELEASE={kernel} modules...",
            flush=True,
        )
        compile_modules(asked, kernel, folder)


def compile_modules(asked: Asked, kernel: str, folder: Path) -> None:
    fault = state().get("build_error")
    if kernel.startswith("7.") and asked.version in NOT_FOR_KERNEL_7:
        fault = f"nvidia/nv-pat.c: error: implicit declaration of function, on kernel {kernel}"
    if fault:
        log = tree(asked) / "build/make.log"
        log.parent.mkdir(exist_ok=True)
        log.write_text(f"{fault}\nmake: *** [Makefile:123: modules] Error 2\n")
        raise CommandError(
            f"Error! Bad return status for module build on kernel: {kernel} ({ARCHITECTURE})\n"
            f"Consult {log} for more information.",
            BUILD_FAILED,
        )
    license_ = (tree(asked) / "source/license").read_text().strip()
    text = f"version={asked.version}\nlicense={license_}\nvermagic={kernel}\n"
    aside = folder / "module.new"
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    for module in MODULES:
        (aside / f"{module}.ko").write_text(text)
    aside.rename(folder / "module")


def install(asked: Asked) -> None:
    """Lay the built modules below /lib/modules; one version at a time, for each kernel."""
    for kernel in asked.kernels or [running_kernel()]:
        one = asked._replace(kernels=[kernel])
        build(one)
        before = installed_version(str(asked.module), kernel)
        if before and before != asked.version:
            uninstall(one._replace(version=before))
        for module in MODULES:
            target = module_file(kernel, module)
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_suffix(".new")
            shutil.copyfile(tree(asked) / kernel / ARCHITECTURE / "module" / f"{module}.ko", aside)
            aside.rename(target)
        link = installed_link(str(asked.module), kernel)
        link.unlink(missing_ok=True)
        link.symlink_to(f"{asked.version}/{kernel}/{ARCHITECTURE}")
        print(f"Installing {', '.join(MODULES)} to /lib/modules/{kernel}/updates/dkms/\ndepmod...")


def installed_link(module: str, kernel: str) -> Path:
    return TREE / module / f"kernel-{kernel}-{ARCHITECTURE}"


def installed_version(module: str, kernel: str) -> str | None:
    link = installed_link(module, kernel)
    return str(link.readlink()).split("/", maxsplit=1)[0] if link.is_symlink() else None


def uninstall(asked: Asked) -> None:
    for kernel in asked.kernels or [running_kernel()]:
        if installed_version(str(asked.module), kernel) == asked.version:
            for module in MODULES:
                module_file(kernel, module).unlink(missing_ok=True)
            installed_link(str(asked.module), kernel).unlink()


def remove(asked: Asked) -> None:
    """Take a version away for some kernels, or with --all from the whole tree."""
    folder = tree(asked)
    if not folder.is_dir():
        raise CommandError(
            f"Error! There are no instances of module: {asked.module}\n"
            f"{asked.version} are not located in the DKMS tree.",
            3,
        )
    built = [path.parent.name for path in folder.glob(f"*/{ARCHITECTURE}")]
    kernels = built if asked.every_kernel else asked.kernels or [running_kernel()]
    uninstall(asked._replace(kernels=kernels or built))
    for kernel in kernels:
        shutil.rmtree(folder / kernel, ignore_errors=True)
    if asked.every_kernel or not any(folder.glob(f"*/{ARCHITECTURE}")):
        shutil.rmtree(folder)


def autoinstall(asked: Asked) -> int:
    """Build and install the newest version of each module that is added, as a new kernel asks."""
    for module in sorted(path for path in TREE.glob("*") if path.is_dir()):
        versions = sorted((path.parent.name for path in module.glob("*/source")), key=by_version)
        for kernel in asked.kernels or [running_kernel()]:
            if versions and not installed_version(module.name, kernel):
                install(Asked(module.name, versions[-1], [kernel], False))
    return 0


def status(asked: Asked) -> int:
    """Lines such as "nvidia/580.178.04, 6.1.0-40-amd64, x86_64: installed"."""
    for source in sorted(TREE.glob("*/*/source"), key=lambda path: by_version(str(path))):
        version, module = source.parent.name, source.parents[1].name
        if asked.module not in (None, module) or asked.version not in (None, version):
            continue
        built = sorted(
            source.parent.glob(f"*/{ARCHITECTURE}"), key=lambda path: by_version(str(path))
        )
        kernels = [path.parent.name for path in built]
        if not kernels and not asked.kernels:
            print(f"{module}/{version}: added")
        for kernel in kernels:
            if not asked.kernels or kernel in asked.kernels:
                done = installed_version(module, kernel) == version
                word = "installed" if done else "built"
                print(f"{module}/{version}, {kernel}, {ARCHITECTURE}: {word}")
    return 0
