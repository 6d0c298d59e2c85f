"""Debian packages and their index, made in memory: the same input gives the same bytes.

Two hundred small packages by dpkg-deb and apt-ftparchive are half a minute of processes; these are
a second. dpkg and apt themselves judge the result, in the tests.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

MAINTAINER = "Rehearsal <rehearsal@invalid>"
MADE_AT = 1_760_000_000  # October 2025, in every package


@dataclass(frozen=True)
class Link:
    """A symbolic link in a package."""

    target: str


@dataclass(frozen=True)
class Package:
    """One binary package.

    `source` as in the field Source, `relations` such as {"Depends": "libc6"}, `files` by path
    without a leading slash: bytes are a plain file, or a program where the path lies in a bin
    folder. `scripts` by their name, such as "postinst". `claimed_kb` is for Installed-Size, in KiB,
    where it is not to be the true one.
    """

    name: str
    version: str
    source: str
    relations: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes | Link] = field(default_factory=dict)
    scripts: Mapping[str, str] = field(default_factory=dict)
    architecture: str = "amd64"
    claimed_kb: int | None = None

    @property
    def file_name(self) -> str:
        """A ':' of an epoch is not in file names, as in the real archives."""
        return f"{self.name}_{self.version.split(':')[-1]}_{self.architecture}.deb"

    @property
    def control(self) -> str:
        """The control file, without the fields that only an index has."""
        true_kb = sum(-(-len(c) // 1024) for c in self.files.values() if isinstance(c, bytes)) + 4
        fields = {
            "Package": self.name,
            "Source": self.source,
            "Version": self.version,
            "Architecture": self.architecture,
            "Maintainer": MAINTAINER,
            "Installed-Size": str(true_kb if self.claimed_kb is None else self.claimed_kb),
            "Section": "misc",
            "Priority": "optional",
            **self.relations,
            "Description": f"stand-in for {self.name} on rehearsal boxes",
        }
        return "".join(f"{name}: {value}\n" for name, value in fields.items() if value)


def deb(package: Package) -> bytes:
    """The package as a .deb file."""
    control: dict[str, bytes | Link] = {"control": package.control.encode()}
    if conffiles := [f"/{path}\n" for path in package.files if path.startswith("etc/")]:
        control["conffiles"] = "".join(conffiles).encode()
    if any(".so." in path for path in package.files):
        control["triggers"] = b"activate-noawait ldconfig\n"
    programs = {
        name: f"#!/bin/sh\nset -e\n{text}".encode() for name, text in package.scripts.items()
    }
    note = f"usr/share/doc/{package.name}/README.rehearsal"
    data = {**package.files, note: b"Made up for rehearsal boxes; nothing of it is NVIDIA's.\n"}
    members = {
        "debian-binary": b"2.0\n",
        "control.tar.gz": _packed({**control, **programs}, set(programs)),
        "data.tar.gz": _packed(data, {path for path in data if "bin" in path.split("/")[:-1]}),
    }
    return b"!<arch>\n" + b"".join(_member(name, body) for name, body in members.items())


def stanza(package: Package, file: bytes) -> str:
    """The package's paragraph in the index `Packages` of the folder that the file lies in."""
    sums = {
        "MD5sum": hashlib.md5(file).hexdigest(),
        "SHA256": hashlib.sha256(file).hexdigest(),
    }
    place = {"Filename": f"./{package.file_name}", "Size": str(len(file)), **sums}
    return package.control + "".join(f"{name}: {value}\n" for name, value in place.items())


def _member(name: str, body: bytes) -> bytes:
    """One member of an ar archive: 60 bytes of head, the body, padded to an even length."""
    head = f"{name:<16}{0:<12}{0:<6}{0:<6}{'100644':<8}{len(body):<10}`\n"
    return head.encode() + body + b"\n" * (len(body) % 2)


def _packed(files: Mapping[str, bytes | Link], programs: set[str]) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for folder in _folders(files):
            tar.addfile(_entry(folder, tarfile.DIRTYPE, 0o755))
        for path, content in sorted(files.items()):
            if isinstance(content, Link):
                entry = _entry(path, tarfile.SYMTYPE, 0o777)
                entry.linkname = content.target
                tar.addfile(entry)
                continue
            entry = _entry(path, tarfile.REGTYPE, 0o755 if path in programs else 0o644)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))
    return gzip.compress(stream.getvalue(), 1, mtime=0)


def _folders(files: Mapping[str, object]) -> Iterator[str]:
    """Every folder above a file, the outer ones first."""
    found = {str(parent) for path in files for parent in PurePosixPath(path).parents}
    return iter(sorted(found))


def _entry(path: str, kind: bytes, mode: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo("./" if path == "." else f"./{path}")
    entry.type = kind
    entry.mode = mode
    entry.uname = entry.gname = "root"
    entry.mtime = MADE_AT
    return entry
