"""A server that a person built by hand: what is kept of it, and how it stands on the disk now.

/var/lib/aibox/server/found.json, found-2.json, …   a unit of theirs with all that belongs to it

A record is never written again: a text, drop-in or link of theirs that has changed gets a further
one. Standard library and the probe only: a teardown sends this text to a box without aibox.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aibox.box.probe.files import SERVER_STATE, record_in
from aibox.box.probe.unit_files import FIRST_WORDS

STATE = SERVER_STATE
INSTALLED = Path("/etc/systemd/system")
# Where systemd looks for a unit's file that no program makes, /etc first.
STANDING = (INSTALLED, Path("/usr/local/lib/systemd/system"), Path("/usr/lib/systemd/system"))
NUMBERED = re.compile(r"found-(\d+)\.json")
KINDS = {
    "unit": str,
    "path": str,
    "text": str,
    "sha256": str,
    "active": bool,
    "drop_ins": dict,
    "files": dict,
    "links": dict,
    "when": float,
}
COMPARED = ("path", "text", "link", "drop_ins", "folder_link", "links")
NO_FILE = "/dev/null"  # what a masked unit leads to
WORLD_READABLE = 0o004

Record = dict[str, Any]


# --- the records ---------------------------------------------------------------------------------


def files() -> list[Path]:
    """Where they lie, the oldest first."""
    return sorted(STATE.glob("found*.json"), key=lambda path: (number_of(path), len(path.name)))


def number_of(path: Path) -> int:
    numbered = NUMBERED.fullmatch(path.name)
    return int(numbered[1]) if numbered else 1


def next_file() -> Path:
    """Where a further record goes; one that can't be read is not written over."""
    there = [number_of(path) for path in files()]
    return STATE / (f"found-{max(there) + 1}.json" if there else "found.json")


def records(unit: str | None = None) -> list[Record]:
    """Those that are whole, of one unit or of all, the oldest first.

    Each: {"unit": name with .service, "path": of its file, "text", "sha256": of the text, "mode":
    "644", "link": where the file points to or null, "drop_ins": {absolute path below /etc: text},
    "folder_link": where the drop-ins' folder points to or null (missing in older records),
    "enabled": as systemctl says, "active": bool, "when": epoch seconds, "command": words of its
    process or [], "files": {path: [uid, gid, mode as a number, mtime in ns, link or null]},
    "links": {path that enables it or is another name of it: its target}}. A masked unit has an
    empty text; so has a drop-in that is a link to nothing.
    """
    read = [record_in(path) for path in files()]
    whole = [one for one in read if one is not None and fault_of(one) is None]
    return [one for one in whole if unit in (None, one["unit"])]


def newest(unit: str) -> Record | None:
    """How a unit of theirs stood last."""
    return next(iter(reversed(records(unit))), None)


def newest_of_each() -> list[Record]:
    """The same of every unit, in the order in which they were last met."""
    last: dict[str, Record] = {}
    for one in records():
        last.pop(one["unit"], None)
        last[one["unit"]] = one
    return list(last.values())


def fault_of(record: Mapping[str, Any]) -> str | None:
    """Why a record can't be gone by."""
    for part, kind in KINDS.items():
        if not isinstance(record.get(part), kind):
            return f"its {part} is not as a deploy writes it"
    return None


def odd_in(record: Mapping[str, Any]) -> str | None:
    """A path of a record that is none of its unit's own, where `standing_parts` never reads."""
    unit, drop_ins, files, links = (record[one] for one in ("unit", "drop_ins", "files", "links"))
    folders = [str(folder / unit) for folder in STANDING]
    odd = [] if record["path"] in folders else [record["path"]]
    odd += [path for path in drop_ins if Path(path).parent != INSTALLED / f"{unit}.d"]
    odd += [path for path in links if not is_link_of(Path(path), unit)]
    odd += [path for path in (record["path"], *drop_ins) if len(files.get(path, ())) != 5]
    return next(iter(odd), None)


def is_link_of(path: Path, unit: str) -> bool:
    """Whether a link to a unit may have this path: what enables it, or another name of it."""
    if path.parent == INSTALLED:
        return path.name != unit and path.suffix == ".service"
    return path.parent.parent == INSTALLED and path.name == unit


# --- as it stands --------------------------------------------------------------------------------


def is_ours(text: str | None) -> bool:
    return text is not None and text.startswith(FIRST_WORDS)


def standing(unit: str) -> Path | None:
    """The unit's file after a reboot."""
    places = [folder / unit for folder in STANDING]
    return next((path for path in places if path.is_symlink() or path.exists()), None)


def standing_parts(unit: str) -> Record | None:
    """A person's unit as its files are now: {"path", "text", "link", "drop_ins", "folder_link",
    "links"}.

    None without one, and where it is ours, by its first line alone. A unit that is masked or empty
    is nobody's where another text of theirs is known: there is nothing in it to be lost.
    """
    path = standing(unit)
    text = "" if path is None else text_in(path) or ""
    if path is None or is_ours(text):
        return None
    known = None if text.strip() else newest(unit)
    if known is not None and known["text"].strip():
        return None
    folder = INSTALLED / f"{unit}.d"
    drop_ins = [one for one in sorted(folder.glob("*.conf")) if one.is_symlink() or one.is_file()]
    return {
        "path": str(path),
        "text": text,
        "link": target_of(path),
        "drop_ins": {str(one): text_in(one) or "" for one in drop_ins},
        "folder_link": target_of(folder),
        "links": links_of(unit),
    }


def is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return all(one.get(part) == other.get(part) for part in COMPARED)


def attributes(path: Path) -> list[Any]:
    """[uid, gid, mode, mtime in ns, link or null]; a link's mode is that of what it leads to."""
    status = path.lstat()
    link = target_of(path)
    mode = (path.stat() if link and path.exists() else status).st_mode & 0o7777
    return [status.st_uid, status.st_gid, mode, status.st_mtime_ns, link]


def links_of(unit: str) -> dict[str, str]:
    """{path: target} of the links that start a unit at boot, and of its other names (Alias=)."""
    kinds = ("wants", "requires", "upholds")
    folders = [path for kind in kinds for path in INSTALLED.glob(f"*.{kind}")]
    there = [folder / unit for folder in folders if (folder / unit).is_symlink()]
    return {str(path): str(path.readlink()) for path in sorted([*there, *aliases_of(unit)])}


def aliases_of(unit: str) -> list[Path]:
    """Links of other names in /etc/systemd/system that lead to the unit, or to his while ours
    stands."""
    ends = files_of(unit)
    links = [path for path in INSTALLED.glob("*.service") if path.is_symlink()]
    return [path for path in links if path.name != unit and os.path.realpath(path) in ends]


def files_of(unit: str) -> set[str]:
    """The files that a unit's name leads to now, and where it led to when it was kept last."""
    path, known = standing(unit), newest(unit)
    ends = {str(INSTALLED / unit), str(path or "")}
    ends |= {str(INSTALLED / (known["link"] or known["path"]))} if known else set()
    real = {os.path.realpath(one) for one in ends if one}
    others = {one for one in real if Path(one).parent in STANDING and Path(one).name != unit}
    return real - others - {NO_FILE}  # a unit of its own is no other name of this one


def target_of(path: Path) -> str | None:
    """Where a link points to; None for what is no link."""
    return str(path.readlink()) if path.is_symlink() else None


def locked_in(unit: str) -> str | None:
    """A file or folder of a unit that not even root can change, as after `chattr +i`."""
    folder, drop_ins = INSTALLED, INSTALLED / f"{unit}.d"
    there = [folder, folder / unit, drop_ins, *sorted(drop_ins.glob("*.conf"))]
    through_link = drop_ins.is_symlink()  # its files stay where they are
    own = [one for one in there if one.exists() and not one.is_symlink()]
    own = [one for one in own if not (through_link and one.parent == drop_ins)]
    return next((str(one) for one in own if not os.access(one, os.W_OK)), None)


def text_in(path: Path) -> str | None:
    """Every byte comes back when it is written: no line's end is changed, and no odd character."""
    try:
        return path.read_bytes().decode(errors="surrogateescape")
    except OSError:
        return None


# --- for a teardown ------------------------------------------------------------------------------


def content_of(parts: Mapping[str, Any]) -> str | None:
    """One sum over a unit's text and its drop-ins; None for a unit that says nothing (masked)."""
    if not parts["text"].strip():
        return None
    written = json.dumps([parts["text"], sorted(parts["drop_ins"].items())])
    return hashlib.sha256(written.encode()).hexdigest()


def content_standing(unit: str) -> str | None:
    """The same of a person's unit as it stands; None without one."""
    here = standing_parts(unit)
    return None if here is None else content_of(here)


def told() -> list[Record]:
    """Of each record what a teardown's decision needs, without texts, the oldest first.

    {"file", "unit", "sha256", "active", "when", "content": see content_of, "odd": see odd_in}, or
    {"file", "damaged": why}.
    """
    return [{"file": str(path), **told_of(path)} for path in files()]


def told_of(path: Path) -> Record:
    try:
        record = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        return {"damaged": str(error)}
    fault = fault_of(record) if isinstance(record, dict) else "no record"
    if fault is not None:
        return {"damaged": fault}
    plain = {key: record[key] for key in ("unit", "sha256", "active", "when")}
    return {**plain, "content": content_of(record), "odd": odd_in(record)}


def how_it_stands(unit: str) -> str | None:
    """ "as found", or "changed" for another text, drop-in or link than the newest record's; None
    where no unit of theirs stands, or none was found."""
    here, known = standing_parts(unit), newest(unit)
    if here is None or known is None:
        return None
    return "as found" if is_same(known, here) else "changed"
