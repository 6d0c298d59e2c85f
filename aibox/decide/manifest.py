"""What a box is made of, in three tiers, and how two boxes differ.

bit: must be the same on every box that is deployed from one commit. version: the same version, by
whoever built it. recorded: written down only; the distribution may have moved on between two boxes.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from aibox.decide.report import json_value

FORMAT = 1  # of the manifest and of the deploy's record, which it goes by
TIERS = ("bit", "version", "recorded")
PROMISED = ("bit", "version")
ABSENT = "absent"

AIBOX_FOLDER = "/opt/aibox"
AIBOX = f"{AIBOX_FOLDER}/current/bin/aibox"
STATE_FOLDER = "/var/lib/aibox"
DEPLOYED = f"{STATE_FOLDER}/deployed.json"  # what the last deploy laid down

Manifest = dict[str, Any]

# Each is left out because it differs between two boxes that are the same.
LEFT_OUT = (
    ("venvs: __pycache__ and *.pyc", "bytecode holds the time of its source, which is compared"),
    ("venvs: the version lines of pyvenv.cfg", "the distribution's own Python, which is recorded"),
    ("venvs: flashinfer/data/aot and kernels.json", "kernels that the box's own compiler made"),
    ("weights: .verified.json", "times and inodes of the files, whose sums are compared"),
    ("weights: owner and mode of hard-linked files", "they are those of the person's own file"),
    (f"{STATE_FOLDER}/proof.json", "what a proof measured"),
    (f"{STATE_FOLDER}/server", "what passed its gate and when"),
    (f"{STATE_FOLDER}/doors", "what of the doors passed its gate, and how long that took"),
    (f"{STATE_FOLDER}/brought.json", "what was not there before: each box had something else"),
    ("/var/cache and the server's folder in /var/lib", "downloads and what the server compiled"),
    ("numbers of users and groups", "the next free ones; the names are compared"),
    ("secrets: their content", "each box has its own; owner and mode are compared"),
)
VENV_CONFIG = "pyvenv.cfg"
WEIGHTS_RECORD = ".verified.json"  # the stamps of the last verification, for root alone
WEIGHTS_LIST = ".manifest.json"  # path, size and sha256 of each file, written last


@dataclass(frozen=True)
class Entry:
    """One thing in a folder. kind: file, folder, link or special. mode: octal, "644". content:
    the sha256 of a file, the target of a link, else empty."""

    path: str
    kind: str
    mode: str
    user: str
    group: str
    content: str


@dataclass(frozen=True)
class Venv:
    """A venv as it stands in its folder: everything that is compared, and its pyvenv.cfg."""

    entries: tuple[Entry, ...]
    config: str


@dataclass(frozen=True)
class Readings:
    """What was read from a box; None stands for what is not there.

    deployed: the record of the last deploy. links: {path: target}. units: {name: properties as
    systemctl names them}. drop_ins: {unit: its drop-in files}. users: {name: (home, shell)}.
    groups: {name: members, those of whom it is the own group included}. packages: every package
    of the distribution, {name: version}. held: those of them that apt may not change. driver: the
    NVIDIA module that is loaded, the one that is built for this kernel, and the library.
    recorded: further text that is only written down.
    """

    deployed: Mapping[str, Any]
    venvs: Mapping[str, Venv | None]
    weights: tuple[Entry, ...] | None
    files: Mapping[str, Entry | None]
    links: Mapping[str, str | None]
    units: Mapping[str, Mapping[str, str]]
    drop_ins: Mapping[str, tuple[Entry, ...]]
    users: Mapping[str, tuple[str, str] | None]
    groups: Mapping[str, tuple[str, ...] | None]
    kernel_settings: Mapping[str, str | None]
    python: str
    packages: Mapping[str, str]
    held: tuple[str, ...]
    driver: Mapping[str, str | None]
    recorded: Mapping[str, str]


def left_out_of_venv(path: str) -> bool:
    """Whether a path within a venv is passed over. pyvenv.cfg is compared in its own way."""
    name = path.rpartition("/")[2]
    compiled = path.endswith("/flashinfer/data/aot") or path == "kernels.json"
    return name == "__pycache__" or name.endswith(".pyc") or path == VENV_CONFIG or compiled


def left_out_of_weights(path: str) -> bool:
    return path == WEIGHTS_RECORD


def build(found: Readings) -> Manifest:
    """The manifest: {"format", "bit", "version", "recorded", "left_out", "sums" of two tiers}."""
    bit, version = to_the_bit(found), to_the_version(found)
    return {
        "format": FORMAT,
        "sums": {"bit": sum_of(bit), "version": sum_of(version)},
        "bit": bit,
        "version": version,
        "recorded": {
            "python": found.python,
            "packages": dict(found.packages),
            **found.recorded,
        },
        "left_out": dict(LEFT_OUT),
    }


def to_the_bit(found: Readings) -> dict[str, Any]:
    return {
        "aibox": found.deployed["aibox"]["identity"],
        "release": found.deployed["release"]["id"],
        "doors": {
            name: one["folder"].rpartition("/")[2]
            for name, one in found.deployed.get("doors", {}).items()
        },
        "venvs": {
            name: ABSENT if venv is None else in_parts(venv) for name, venv in found.venvs.items()
        },
        "weights": {
            "commit": found.deployed["weights"]["commit"],
            "files": ABSENT if found.weights is None else by_path(found.weights),
        },
        "files": {
            path: described(entry, secret=is_secret(found.deployed, path))
            for path, entry in found.files.items()
        },
        "links": {path: target or ABSENT for path, target in found.links.items()},
        "units": {name: state_of(found, name) for name in found.units},
        "users": {
            name: {"home": user[0], "shell": user[1]} if user else ABSENT
            for name, user in found.users.items()
        },
        "groups": {
            name: ABSENT if members is None else sorted(members)
            for name, members in found.groups.items()
        },
        "kernel settings": {
            name: ABSENT if value is None else value
            for name, value in found.kernel_settings.items()
        },
    }


def to_the_version(found: Readings) -> dict[str, Any]:
    return {
        "packages": {
            name: version_of(found.packages.get(name), pin)
            for name, pin in found.deployed["packages"].items()
        },
        "held": sorted(set(found.held) & set(found.deployed["packages"])),
        "driver": {part: text or ABSENT for part, text in found.driver.items()},
        "python": ".".join(found.python.split(".")[:2]),
    }


def version_of(installed: str | None, pin: str | None) -> str:
    """Of a package whose version the deploy leaves to the distribution: only that it is there."""
    if installed is None:
        return ABSENT
    return installed if pin else "installed"


def is_secret(deployed: Mapping[str, Any], path: str) -> bool:
    """Whether the deploy laid a file down without saying its sum."""
    return path in deployed["files"] and deployed["files"][path]["sha256"] is None


def described(entry: Entry | None, *, secret: bool = False) -> dict[str, str] | str:
    if entry is None:
        return ABSENT
    row = {"kind": entry.kind, "mode": entry.mode, "owner": f"{entry.user}:{entry.group}"}
    names = {"file": "sha256", "link": "target"}
    if entry.kind in names:
        row[names[entry.kind]] = "secret" if secret else entry.content
    return row


def by_path(entries: Iterable[Entry]) -> dict[str, dict[str, str] | str]:
    return {entry.path: described(entry) for entry in entries}


def in_parts(venv: Venv) -> dict[str, Any]:
    """A venv with a sum for each part: a package's folder or file, or a folder at the top.

    Each sum is over path, kind, mode, owner and content of everything in the part: a release of
    35,000 files is a few hundred rows, and a difference still has an address.
    """
    parts: dict[str, Any] = {}
    for entry in sorted(venv.entries, key=lambda entry: entry.path):
        row = (entry.path, entry.kind, entry.mode, entry.user, entry.group, entry.content)
        digest = parts.setdefault(part_of(entry.path), hashlib.sha256())
        digest.update("\0".join(row).encode(errors="surrogateescape") + b"\n")
    return {
        "distributions": distributions(entry.path for entry in venv.entries),
        "settings": settings_of(venv.config),
        "parts": {part: digest.hexdigest() for part, digest in parts.items()},
    }


PACKAGES = re.compile(r"lib/python[^/]+/site-packages/([^/]+)")
DIST_INFO = re.compile(r"lib/python[^/]+/site-packages/([^/]+)-([^/-]+)\.dist-info")


def part_of(path: str) -> str:
    within = PACKAGES.match(path)
    return within[0] if within else path.split("/", 1)[0]


def distributions(paths: Iterable[str]) -> dict[str, str]:
    """{name: version} of what is installed, by the .dist-info folders."""
    found = (DIST_INFO.fullmatch(path) for path in paths)
    return {re.sub(r"[-_.]+", "-", one[1]).lower(): one[2] for one in found if one}


def settings_of(config: str) -> dict[str, str]:
    """pyvenv.cfg without what names the distribution's Python to the last digit."""
    rows = (line.partition("=") for line in config.splitlines() if "=" in line)
    settings = {name.strip(): value.strip() for name, _, value in rows}
    return {name: settings[name] for name in settings if name not in ("version", "version_info")}


def state_of(found: Readings, name: str) -> dict[str, Any]:
    unit = found.units[name]
    return {
        "enabled": unit.get("UnitFileState") or ABSENT,
        "state": unit.get("ActiveState") or "unknown",
        "file": unit.get("FragmentPath") or ABSENT,
        "needs a reload": unit.get("NeedDaemonReload") or "unknown",
        "drop-ins": by_path(found.drop_ins[name]),
    }


def sum_of(tier: Mapping[str, Any]) -> str:
    """Two tiers with one sum are the same: what a person compares by eye."""
    return hashlib.sha256(json.dumps(tier, sort_keys=True).encode()).hexdigest()


# --- comparison --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Difference:
    """One thing that is not the same. where: the way to it; None: it is only on the other one."""

    tier: str
    where: tuple[str, ...]
    first: str | None
    second: str | None

    def __str__(self) -> str:
        """One line: "bit       files /etc/a mode: A 644, B 600"."""
        where = printable(" ".join(self.where))
        if self.first is None or self.second is None:
            return f"{self.tier:<9} {where}: only in {'B' if self.first is None else 'A'}"
        return f"{self.tier:<9} {where}: A {shortened(self.first)}, B {shortened(self.second)}"


def shortened(value: str) -> str:
    return f"{value[:12]}..." if re.fullmatch(r"[0-9a-f]{64}", value) else printable(value)


def printable(text: str) -> str:
    """Names of files may hold anything, what moves a terminal's cursor too."""
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)


def parse(text: str) -> Manifest:
    """A manifest's JSON. Raises ValueError with what is wrong with it."""
    document = json_value(text)
    if not isinstance(document, dict) or any(
        not isinstance(document.get(key), dict) for key in (*TIERS, "left_out")
    ):
        raise ValueError("not a manifest: expected what `aibox status --manifest` prints")
    if document.get("format") != FORMAT:
        raise ValueError(f"a manifest of format {document.get('format')}, expected {FORMAT}")
    return document


def compare(first: Manifest, second: Manifest) -> list[Difference]:
    """Everything in which two manifests differ, the promised tiers first."""
    found = [
        Difference(tier, where, a, b)
        for tier in TIERS
        for where, a, b in differences(first[tier], second[tier], ())
    ]
    # What one of them passed over cannot be called the same.
    rows = differences(first["left_out"], second["left_out"], ("left out of the comparison",))
    return [Difference("bit", where, a, b) for where, a, b in rows] + found


def differences(
    a: object, b: object, where: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], str | None, str | None]]:
    """(where, first, second) for each smallest thing that differs; lists are taken as sets."""
    a, b = as_mapping(a), as_mapping(b)
    if not isinstance(a, dict) or not isinstance(b, dict):
        if a != b:
            yield where, in_words(a), in_words(b)
        return
    for key in sorted(a.keys() | b.keys()):
        if key not in b:
            yield (*where, key), in_words(a[key]), None
        elif key not in a:
            yield (*where, key), None, in_words(b[key])
        else:
            yield from differences(a[key], b[key], (*where, key))


def as_mapping(value: object) -> object:
    return {str(item): True for item in value} if isinstance(value, list) else value


def in_words(value: object) -> str:
    if isinstance(value, dict | list):
        return "there" if value else "empty"
    return str(value)


def are_the_same(found: Iterable[Difference]) -> bool:
    """Whether nothing differs that was promised; what is only recorded may."""
    return all(difference.tier not in PROMISED for difference in found)
