"""Kernels, built modules and the settings of modprobe, as they lie on the disk."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path

from .files import replace

MODULES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm")
# the first that has a file of a name wins, as in modprobe.d(5)
MODPROBE_FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d")
LOAD_FOLDERS = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")
OPEN_LICENSE = "Dual MIT/GPL"  # NVIDIA facts, row 2; the proprietary one's is "NVIDIA"


def by_version(release: str) -> list[tuple[int, str]]:
    """A key that sorts 6.1.0-9 before 6.1.0-40."""
    return [
        (int(part), "") if part.isdigit() else (-1, part)
        for part in re.findall(r"\d+|\D+", release)
    ]


def installed_kernels() -> list[str]:
    """The kernels of /boot, oldest first."""
    names = (path.name.removeprefix("vmlinuz-") for path in Path("/boot").glob("vmlinuz-*"))
    return sorted(names, key=by_version)


def lay_kernel(release: str) -> None:
    """Have what the package of a kernel lays down; headers are another package's."""
    Path("/lib/modules", release).mkdir(parents=True, exist_ok=True)
    image = Path("/boot", f"vmlinuz-{release}")
    if not image.exists():
        replace(image, f"emulated kernel {release}\n")
    if not initrd(release).exists():
        write_initrd(release)


def has_headers(release: str) -> bool:
    return Path("/lib/modules", release, "build").exists()


def module_file(release: str, module: str) -> Path:
    return Path("/lib/modules", release, "updates/dkms", f"{module}.ko")


def module_fields(release: str, module: str = "nvidia") -> dict[str, str] | None:
    """version, license, vermagic of a built module; None without one for this kernel."""
    try:
        lines = module_file(release, module).read_text().splitlines()
    except FileNotFoundError:
        return None
    return dict(line.split("=", 1) for line in lines if "=" in line)


def settings(folders: Iterable[str]) -> dict[str, str]:
    """The *.conf files that count, by path: {"etc/modprobe.d/x.conf": text}."""
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted(Path(folder).glob("*.conf")):
            if path.is_file():
                found.setdefault(path.name, path)
    texts = {path: path.read_text(errors="replace") for path in found.values()}
    return {str(path).lstrip("/"): text for path, text in texts.items()}


def lines_of(texts: Iterable[str]) -> list[list[str]]:
    """The words of each line that is no comment."""
    lines = (line.split() for text in texts for line in text.splitlines())
    return [words for words in lines if words and words[0][0] not in "#;"]


def blacklisted(texts: Iterable[str]) -> set[str]:
    """Modules that the settings forbid, by `blacklist` or by `install NAME /bin/false`."""
    names = set()
    for words in lines_of(texts):
        forbidden = words[0] == "install" and words[2:3] in (["/bin/false"], ["/bin/true"])
        if len(words) > 1 and (words[0] == "blacklist" or forbidden):
            names.add(words[1].replace("_", "-"))
    return names


def install_is_false(module: str) -> bool:
    """Whether even an explicit modprobe is refused; a blacklist alone does not do that."""
    lines = lines_of(settings(MODPROBE_FOLDERS).values())
    wanted = (
        ["install", module, "/bin/false"],
        ["install", module.replace("-", "_"), "/bin/false"],
    )
    return any(words[:3] in wanted for words in lines)


def option(module: str, name: str) -> str | None:
    """The value that `options MODULE NAME=VALUE` gives now; the last one counts."""
    value = None
    for words in lines_of(settings(MODPROBE_FOLDERS).values()):
        if words[0] == "options" and words[1].replace("_", "-") == module:
            for word in words[2:]:
                if word.startswith(f"{name}="):
                    value = word.split("=", 1)[1]
    return value


def modules_to_load() -> list[str]:
    """The names in modules-load.d, with '-'."""
    lines = lines_of(settings(LOAD_FOLDERS).values())
    return [words[0].replace("_", "-") for words in lines]


def initrd(release: str) -> Path:
    return Path("/boot", f"initrd.img-{release}")


def write_initrd(release: str) -> None:
    """Make the initramfs of a kernel anew, with the settings of modprobe as they are now."""
    files = settings(MODPROBE_FOLDERS)
    for module in MODULES:
        path = module_file(release, module)
        if path.exists():
            files[f"usr{path}"] = path.read_text()
    replace(initrd(release), json.dumps({"kernel": release, "files": files}, indent=1) + "\n")


def initrd_files(path: Path) -> dict[str, str]:
    """What an initramfs holds, by path. Raises ValueError when it is none."""
    files = json.loads(path.read_text())["files"]
    return {str(name): str(text) for name, text in files.items()}


def initrd_blacklist(release: str) -> set[str]:
    try:
        files = initrd_files(initrd(release))
    except (FileNotFoundError, ValueError):
        return set()
    return blacklisted(text for name, text in files.items() if "/modprobe.d/" in name)
