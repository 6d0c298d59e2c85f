"""What of ours is on a box, for a teardown: by its records, and by the places where it always goes.

Standard library and the probe only: control sends both texts, for a box may hold no aibox.
It changes nothing and follows no link out of a folder of ours.
"""

from __future__ import annotations

import grp
import hashlib
import json
import os
import pwd
import re
import subprocess
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from aibox.box import found
from aibox.box.probe.commands import text_of
from aibox.box.probe.files import read_text
from aibox.box.probe.units import unit_properties

STATE = Path("/var/lib/aibox")
UNITS = found.INSTALLED
TRIED = Path("/run/systemd/system.control")
COMMIT = re.compile(r"[0-9a-f]{40}")
UNFINISHED = re.compile(r"\.(partial|removed)-[0-9a-f]{40}")
HALF = (".building-", ".removing-")
NO_JOBS = (
    *("aibox-teardown.service", "aibox-power.service", "aibox-firewall.service"),
    *("aibox-gpu-exporter.service", "aibox-facts.service"),
)
EXTENDED_STATES = Path("/var/lib/apt/extended_states")
LISTS = (".manifest.json", ".verified.json")
LEFT_OVERS = ("aibox-repository-*", "aibox-cuda-*")  # below /var/tmp, of runs that were cut off


def records() -> dict[str, Any]:
    """The deploy's records without what may be secret: each as it is, null, or {"damaged": why}.

    "found": see found.told. "state": what lies beside them.
    """
    return {
        "deployed": record("deployed.json"),
        "brought": record("brought.json"),
        "found": found.told(),
        "state": names_in(STATE) if is_folder(str(STATE)) else None,
    }


def record(name: str) -> dict[str, Any] | None:
    try:
        read = json.loads((STATE / name).read_text())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        return {"damaged": str(error)}
    return read if isinstance(read, dict) else {"damaged": "no record"}


def names_in(folder: Path) -> list[str]:
    """What lies in a folder; nothing where it is none, or a link."""
    if folder.is_symlink() or not folder.is_dir():
        return []
    return sorted(path.name for path in folder.iterdir())


def look(asked: dict[str, Any]) -> dict[str, Any]:
    """Answers what of it is there.

    asked: {"units", "others": names of units, "files": paths, "releases", "models": folders,
    "trees": folders that go whole, "folders": folders that we made, "sources": {path: [text before
    us, ours]}, "users", "groups", "packages": names, "aibox": the folder of the venvs, "carried":
    what of it is a teardown's own, "there_before", "left_folders": folders, "left_users": names}.
    """
    units = sorted({*asked["units"], *units_of_ours()})
    return {
        "units": {name: unit(name) for name in units},
        "enabled": [name for name in asked["others"] if is_enabled(name)],
        "files": {path: file(path) for path in asked["files"] if is_there(path)},
        "sources": [path for path, both in asked["sources"].items() if is_as_cleaned(path, both)],
        "releases": [path for folder in real(asked["releases"]) for path in releases_in(folder)],
        "models": [str(path) for path in real(asked["models"])],
        "weights": [one for folder in real(asked["models"]) for one in weights_in(folder)],
        "trees": [path for path in asked["trees"] if is_folder(path)],
        "folders": [path for path in asked["folders"] if is_folder(path)],
        "there_before": [path for path in asked["there_before"] if is_there(path)],
        "left_users": [name for name in asked["left_users"] if is_user(name)],
        "left_folders": [path for path in asked["left_folders"] if is_folder(path)],
        "users": [name for name in asked["users"] if is_user(name)],
        "groups": [name for name in asked["groups"] if is_group(name)],
        "packages": packages(asked["packages"]),
        "jobs": jobs(),
        "aibox": [name for name in names_in(Path(asked["aibox"])) if name != asked["carried"]],
        "left_overs": [str(path) for path in left_overs()],
    }


# --- units ---------------------------------------------------------------------------------------


def units_of_ours() -> list[str]:
    """Units in /etc whose first line says that a deploy wrote them."""
    files = (path for path in UNITS.glob("*.service") if path.is_file())
    return [path.name for path in files if begins_as_ours(path)]


def begins_as_ours(path: Path) -> bool:
    try:
        return found.is_ours(path.read_text(errors="replace"))
    except OSError:
        return False


def unit(name: str) -> dict[str, Any]:
    """ "file": the sha256 of what is installed, null without one; "traces": files of a trial;
    "his": how a person's own stands, see found.how_it_stands; "content": see found.content_of."""
    path = UNITS / name
    shown = unit_properties(name)
    tried, turning = TRIED / name, UNITS.with_name("system.control") / name
    traces = [
        TRIED / name,
        TRIED / f"{name}.d",
        UNITS / f".{name}.candidate",
        UNITS / f".{name}.new",
    ]
    return {
        "ours": path.is_file() and begins_as_ours(path),
        "file": sum_of(path),
        "his": found.how_it_stands(name),
        "content": found.content_standing(name),
        "tried": is_there(str(tried)) or is_there(str(turning)),
        "traces": [str(one) for one in traces if is_there(str(one))],
        "state": shown.get("ActiveState", ""),
        "enabled": shown.get("UnitFileState", ""),
    }


def is_enabled(name: str) -> bool:
    return unit_properties(name).get("UnitFileState") == "enabled"


def jobs() -> list[str]:
    """Units of our jobs that are at work, but for a teardown itself."""
    words = ["systemctl", "list-units", "--plain", "--no-legend", "--no-pager", "--all"]
    shown = text_of([*words, "--state=active,activating,deactivating", "aibox-*.service"])
    names = [line.split()[0] for line in (shown or "").splitlines() if line.strip()]
    return [name for name in names if name not in NO_JOBS]


# --- files and folders ---------------------------------------------------------------------------


def is_there(path: str) -> bool:
    return os.path.lexists(path)


def is_as_cleaned(path: str, both: list[str | None]) -> bool:
    """Whether a source is as the deploy left it: cleaned, or put out of apt's way whole."""
    before, ours = both[:2]
    if ours is None:
        return not is_there(path) and text_in(f"{path}.disabled") == before
    return text_in(path) == ours


def text_in(path: str) -> str | None:
    return None if Path(path).is_symlink() else read_text(Path(path))


def is_folder(path: str) -> bool:
    return Path(path).is_dir() and not Path(path).is_symlink()


def real(folders: list[str]) -> list[Path]:
    """Where a person's own link to another disk leads; below that no link is followed."""
    return list(dict.fromkeys(Path(folder).resolve() for folder in folders))


def file(path: str) -> dict[str, Any]:
    """{"sha256": of a regular file, null for anything else, "size"}."""
    status = Path(path).lstat()
    return {
        "sha256": None if Path(path).is_symlink() else sum_of(Path(path)),
        "size": status.st_size,
    }


def sum_of(path: Path) -> str | None:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


def releases_in(folder: Path) -> Iterator[str]:
    """Releases, and what a killed run left of one; nothing else that lies beside them."""
    for name in names_in(folder):
        path = folder / name
        whole = (path / "release.json").is_file()
        if is_folder(str(path)) and (whole or name.startswith(HALF)):
            yield str(path)


def weights_in(folder: Path) -> Iterator[dict[str, Any]]:
    """Commits of models: {"folder", "bytes": of all files, "own": of those that have no other name,
    "model"}."""
    for model in names_in(folder):
        for name in names_in(folder / model):
            path = folder / model / name
            listed = COMMIT.fullmatch(name) and any((path / one).is_file() for one in LISTS)
            if is_folder(str(path)) and (listed or UNFINISHED.fullmatch(name)):
                yield {"folder": str(path), "model": model, **sizes(path)}


def sizes(folder: Path) -> dict[str, int]:
    statuses = [path.lstat() for path in folder.rglob("*") if path.is_file()]
    own = sum(status.st_size for status in statuses if status.st_nlink == 1)
    return {"bytes": sum(status.st_size for status in statuses), "own": own}


def left_overs() -> Iterable[Path]:
    for pattern in LEFT_OVERS:
        for path in Path("/var/tmp").glob(pattern):  # noqa: S108  only listed
            if is_folder(str(path)) and path.lstat().st_uid == 0:
                yield path


# --- users and packages --------------------------------------------------------------------------


def is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def is_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def packages(names: list[str]) -> dict[str, dict[str, Any]]:
    """Those that are there: {name: {"version", "held", "manual"}}."""
    form = "${Package}\t${Architecture}\t${Version}\t${db:Status-Want}\t${db:Status-Status}\n"
    said = subprocess.run(
        ["dpkg-query", "-W", "-f", form], capture_output=True, text=True, check=False
    )
    automatic, wanted, there = marked_automatic(), set(names), {}
    for line in said.stdout.splitlines():
        name, _, version, want, state = line.split("\t")
        if name in wanted and state not in ("not-installed", "config-files"):
            held, manual = want == "hold", name not in automatic
            there[name] = {"version": version, "held": held, "manual": manual}
    return there


def marked_automatic() -> set[str]:
    """Packages that nobody has asked for, by apt's own list; its commands would write a cache."""
    text = read_text(EXTENDED_STATES) or ""
    stanzas = (
        dict(re.findall(r"^([\w-]+): *(.*)$", one, re.MULTILINE)) for one in text.split("\n\n")
    )
    return {one.get("Package", "") for one in stanzas if one.get("Auto-Installed") == "1"}


QUESTIONS = {"records": lambda _asked: records(), "look": look}
