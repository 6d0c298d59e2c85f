"""The emulated NVIDIA repository: flat, signed, one folder per distribution, under the file server.

    repositories = served(files)
    repositories.url(hub.url)                       what stands for NVIDIA's base URL
    repositories.url(hub.url, "wrong-signature")    the same with a fault
    repositories.fingerprint                        of the key that signed it

It is built once for all that decides its content, and then lies whole in its place.
"""

from __future__ import annotations

import gzip
import hashlib
import os
import platform
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.rehearsal.emulation import debian_package, gpu, nvidia_packages, signing
from tests.rehearsal.emulation.debian_package import Package, deb, stanza
from tests.rehearsal.emulation.nvidia_packages import DISTRIBUTIONS, catalogue
from tests.rehearsal.emulation.signing import Signer
from tests.rehearsal.image import UNUSED_FOR_S
from tests.rehearsal.machine import locked

BASE = "compute/cuda/repos"  # NVIDIA facts, "Base"
ARCHITECTURE = "x86_64"
KEY_FILE = "3bf863cc.pub"  # as NVIDIA calls it in each of its repositories
MADE_AT = "Thu, 09 Oct 2025 08:53:20 UTC"
WHOLE = "whole"
WRONG_SIGNATURE = "wrong-signature"  # changed after it was signed
OTHER_KEY = "other-key"  # signed by another key than the one that lies beside it
WITHOUT_HEADERS = "without-headers"  # whole, but its headers are gone
VARIANTS = (WHOLE, WRONG_SIGNATURE, OTHER_KEY, WITHOUT_HEADERS)


@dataclass(frozen=True)
class Repositories:
    """The built repositories. `files` is the file server's folder, `fingerprint` 40 hex digits."""

    files: Path
    content_key: str
    fingerprint: str

    def url(self, hub: str, variant: str = WHOLE) -> str:
        """What the file server of `hub` serves in the place of NVIDIA's `…/cuda/repos`."""
        return f"{hub}/files/nvidia/{self.content_key}/{variant}/{BASE}"

    def flat(self, distribution: str, variant: str = WHOLE) -> Path:
        """The folder with Packages, InRelease and the packages of one distribution."""
        return _flat(self.files / "nvidia" / self.content_key, variant, distribution)


@cache
def content_key() -> str:
    """Twelve hex digits for everything that decides what the packages hold and who signs them."""
    digest = hashlib.sha256(gpu.fingerprint().encode())
    for module in (debian_package, nvidia_packages, signing):
        digest.update(Path(str(module.__file__)).read_bytes())
    digest.update(Path(__file__).read_bytes())
    digest.update(f"{platform.release()}\0{signing.fingerprint('nvidia')}".encode())
    return digest.hexdigest()[:12]


def served(files: Path) -> Repositories:
    """Have the repositories below the folder `files`; a few seconds when they must be built.

    RehearsalError when gpg fails, RuntimeError when a library does not compile.
    """
    found = Repositories(files, content_key(), signing.fingerprint("nvidia"))
    place = files / "nvidia" / found.content_key
    if not place.is_dir():
        with locked(files.parent / "nvidia.lock"):
            if not place.is_dir():
                build(place)
                remove_unused(place)
    os.utime(place)
    return found


def build(place: Path) -> None:
    """Build all variants aside and move them to `place` when they are whole."""
    aside = place.with_suffix(".building")
    shutil.rmtree(aside, ignore_errors=True)  # of a build that was killed
    with signing.signer("nvidia") as key, signing.signer("nvidia-other") as other:
        public, keyring = key.public(), key.keyring()
        for distribution in DISTRIBUTIONS:
            packages = catalogue(distribution, platform.release(), keyring)
            flat = {variant: _flat(aside, variant, distribution) for variant in VARIANTS}
            for folder in flat.values():
                folder.mkdir(parents=True)
                (folder / KEY_FILE).write_text(public)
            index = lay_packages(flat[WHOLE], packages)
            for variant in VARIANTS[1:]:
                link_packages(flat[WHOLE], flat[variant])
            lay_index(flat[WHOLE], index.values(), key)
            lay_index(flat[OTHER_KEY], index.values(), other)
            lay_index(flat[WRONG_SIGNATURE], index.values(), key)
            change_signed(flat[WRONG_SIGNATURE])
            rest = (text for name, text in index.items() if not name.startswith("linux-headers-"))
            lay_index(flat[WITHOUT_HEADERS], rest, key)
    aside.rename(place)


def _flat(place: Path, variant: str, distribution: str) -> Path:
    return place / variant / BASE / distribution / ARCHITECTURE


def lay_packages(folder: Path, packages: Iterable[Package]) -> dict[str, str]:
    """Write the packages; their paragraphs of the index by file name."""
    index: dict[str, str] = {}
    for package in packages:
        file = deb(package)
        (folder / package.file_name).write_bytes(file)
        index[package.file_name] = stanza(package, file)
    return index


def link_packages(whole: Path, folder: Path) -> None:
    for file in whole.glob("*.deb"):
        os.link(file, folder / file.name)


def lay_index(folder: Path, stanzas: Iterable[str], signer: Signer) -> None:
    """Write Packages, Packages.gz, and the signed Release in both its forms."""
    packages = "\n".join(stanzas).encode()
    indexes = {"Packages": packages, "Packages.gz": gzip.compress(packages, 6, mtime=0)}
    for name, content in indexes.items():
        (folder / name).write_bytes(content)
    release = release_text(indexes)
    (folder / "Release").write_text(release)
    (folder / "InRelease").write_text(signer.clear_signed(release))
    (folder / "Release.gpg").write_text(signer.detached(release))


def release_text(indexes: Mapping[str, bytes]) -> str:
    """Release of a flat repository: no suite, no component, and NVIDIA's name for itself."""
    lines = ["Origin: NVIDIA", "Label: NVIDIA CUDA", "Architectures: amd64", f"Date: {MADE_AT}"]
    for field, algorithm in (("MD5Sum", "md5"), ("SHA256", "sha256")):
        lines.append(f"{field}:")
        for name, content in indexes.items():
            lines.append(f" {hashlib.new(algorithm, content).hexdigest()} {len(content)} {name}")
    return "\n".join(lines) + "\n"


def change_signed(folder: Path) -> None:
    """Change what was signed and leave the signatures as they are."""
    for name in ("InRelease", "Release"):
        file = folder / name
        file.write_text(file.read_text().replace("NVIDIA CUDA", "NVIDIA CUDA, changed"))


def remove_unused(place: Path) -> None:
    """Remove what other sources or another kernel had built and nobody lately asked for."""
    for old in place.parent.iterdir():
        if old != place and time.time() - old.stat().st_mtime > UNUSED_FOR_S:
            shutil.rmtree(old, ignore_errors=True)
