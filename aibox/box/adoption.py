"""The server that a person built by hand: kept for ever, set aside for ours, put back as it was.

/var/lib/aibox/server/found.json   his unit with all that belongs to it, written once
/etc/systemd/aibox/<unit>/         there only while one unit takes the other's place, see `turn`
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aibox.box import good_units, probe
from aibox.box.good_units import sum_of
from aibox.box.job import JobError, write_whole
from aibox.box.service import INSTALLED, Service, synced, text_in
from aibox.decide.candidate import OURS
from aibox.decide.history import AS_FOUND
from aibox.decide.manifest import DEPLOYED

# Where systemd looks for a unit's file that no program makes, /etc first.
STANDING = (INSTALLED, Path("/usr/local/lib/systemd/system"), Path("/usr/lib/systemd/system"))
CONTROL = Path("/etc/systemd/system.control")  # before all others, and a reboot leaves it
TURNING = Path("/etc/systemd/aibox")
HIS, OUR = "found", "ours"

Record = dict[str, Any]


def found() -> Record | None:
    """What was found on this box first, None where nothing was.

    {"unit": name with .service, "path": of its file, "text", "sha256": of the text, "mode": "644",
    "link": where the file points to or null, "drop_ins": {absolute path below /etc: text},
    "enabled": as systemctl says, "active": bool, "when": epoch seconds, "command": words of its
    process or [], "files": {path: [uid, gid, mode as a number, mtime in ns, link or null]},
    "links": {path that enables it: its target}}. A masked unit has an empty text.
    """
    return next(iter(good_units.found_records()), None)


def of(service: Service) -> Record | None:
    """What was found under this unit's name; a box can have had units of two names."""
    records = good_units.found_records()
    return next((one for one in records if one["unit"] == service.name), None)


def is_his(record: Mapping[str, Any] | None, text: str | None) -> bool:
    return record is not None and text is not None and sum_of(text) == record["sha256"]


# --- kept ----------------------------------------------------------------------------------------


def keep(service: Service) -> Record | None:
    """Write down what stands under this name, before anything of it is touched. Raises OSError.

    Once ours has served, the record is never written again. None where no person's unit was found.
    """
    known, here = of(service), looked_at(service)
    settled = any(entry.how != AS_FOUND for entry in good_units.passed())
    if here is None or (known and (settled or is_same(known, here))):
        return known
    first = found() in (None, known)
    good_units.write_found(
        good_units.FOUND_FILE.name if first else f"found-{service.name}.json", here
    )
    return here


def is_same(one: Record, other: Record) -> bool:
    return all(one[part] == other[part] for part in ("text", "link", "path", "drop_ins", "links"))


def looked_at(service: Service) -> Record | None:
    """A person's unit as it stands; None without one, or where it is ours.

    Where the last deploy's record names the unit, another content than ours is drift.
    """
    path = standing(service)
    deployed = (probe.record_in(Path(DEPLOYED)) or {}).get("server", {}).get("unit")
    text = "" if path is None else text_in(path) or ""
    if path is None or text.startswith(OURS) or deployed == service.name:
        return None
    drop_ins = {str(one): text_in(one) or "" for one in sorted(service.drop_ins.glob("*.conf"))}
    shown = service.properties()
    running = probe.process(int(shown["MainPID"] or 0), shown["ExecMainStartTimestamp"])
    return {
        "unit": service.name,
        "path": str(path),
        "text": text,
        "sha256": sum_of(text),
        "mode": f"{path.lstat().st_mode & 0o7777:o}",
        "link": str(path.readlink()) if path.is_symlink() else None,
        "drop_ins": drop_ins,
        "enabled": shown.get("UnitFileState") or "disabled",
        "active": shown["ActiveState"] in ("active", "activating"),
        "when": round(time.time(), 3),
        "command": running["command"] if running else [],
        "files": {str(one): attributes(one) for one in (path, *map(Path, drop_ins))},
        "links": links_of(service.name),
    }


def standing(service: Service) -> Path | None:
    """The unit's file after a reboot."""
    places = [service.installed, *(folder / service.name for folder in STANDING[1:])]
    return next((path for path in places if path.is_symlink() or path.exists()), None)


def attributes(path: Path) -> list[Any]:
    status = path.lstat()
    link = str(path.readlink()) if path.is_symlink() else None
    mode = status.st_mode & 0o7777
    return [status.st_uid, status.st_gid, mode, status.st_mtime_ns, link]


def links_of(unit: str) -> dict[str, str]:
    """{path: target} of the links that start a unit at boot."""
    found = [
        path for kind in ("wants", "requires", "upholds") for path in INSTALLED.glob(f"*.{kind}")
    ]
    there = [folder / unit for folder in found if (folder / unit).is_symlink()]
    return {str(path): str(path.readlink()) for path in sorted(there)}


# --- beside a candidate --------------------------------------------------------------------------


def set_aside(service: Service) -> dict[str, str]:
    """{path: text} of his drop-ins that go when ours is accepted; none once it has been."""
    record = of(service) or looked_at(service)
    if record is None or not (is_in_force(service, record) or is_turning(service)):
        return {}
    drop_ins: dict[str, str] = record["drop_ins"]
    return {path: text for path, text in drop_ins.items() if text_in(Path(path)) == text}


def is_in_force(service: Service, record: Record) -> bool:
    """Whether it is his unit that a reboot would start."""
    path = standing(service)
    return path is not None and sum_of(text_in(path) or "") == record["sha256"]


def changes_hands(service: Service, text: str) -> bool:
    """Whether his unit is loaded and ours comes, or the other way round.

    What runs is stopped by its own unit then, before systemd reads the other.
    """
    record = of(service)
    return record is not None and is_his(record, service.text()) != is_his(record, text)


def lay_beside(service: Service, text: str) -> None:
    """Give a candidate with this text the drop-ins it is to have, in /run: a reboot forgets them.

    Ours: an empty file for each of his, which takes its place. His own: those that /etc lacks.
    """
    clear_beside(service)
    record = of(service)
    if is_his(record, text):
        assert record is not None
        drop_ins: dict[str, str] = record["drop_ins"]
        wanted = {path: one for path, one in drop_ins.items() if text_in(Path(path)) != one}
    else:
        wanted = dict.fromkeys(set_aside(service), "")
    for path, content in wanted.items():
        service.tried_drop_ins.mkdir(parents=True, exist_ok=True)
        write_whole(service.tried_drop_ins / Path(path).name, content)


def clear_beside(service: Service) -> None:
    record = of(service)
    for path in record["drop_ins"] if record else ():
        (service.tried_drop_ins / Path(path).name).unlink(missing_ok=True)
    remove_if_empty(service.tried_drop_ins)


# --- one in the other's place --------------------------------------------------------------------


def replace(service: Service, text: str) -> None:
    """Install ours, which is staged, where his stands. Raises OSError."""
    record = of(service)
    if record is not None and set_aside(service):
        turn(service, record, text, OUR)
    else:
        service.staged.replace(service.installed)
        synced(service.installed.parent)
    for path in links_of(service.name):  # enabling it refuses links to another file
        point(Path(path), str(service.installed))


def put_back(record: Record) -> None:
    """Everything of his as it was: unit or link, mode, drop-ins, enablement. It starts nothing.

    Where his unit lay below /usr, ours is taken from above it. Raises OSError, and JobError for a
    record that names a place where no unit's files lie.
    """
    service = Service(record["unit"])
    checked(service, record)
    settle(service)
    ours = service.installed_text()
    if record["drop_ins"] and ours is not None and not is_his(record, ours):
        turn(service, record, ours, HIS)
    else:
        place(service, record)
    for path in links_of(service.name):
        if path not in record["links"]:
            Path(path).unlink()
    for path, target in record["links"].items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        point(Path(path), target)
    service.reload()


def checked(service: Service, record: Record) -> None:
    """Nothing is written anywhere else than where `looked_at` has read. Raises JobError."""
    drop_ins, files, links = (record.get(part) or {} for part in ("drop_ins", "files", "links"))
    odd = [path for path in drop_ins if Path(path).parent != service.drop_ins]
    odd += [path for path in links if Path(path).parent.parent != service.installed.parent]
    odd += [path for path in links if Path(path).name != service.name]
    odd += [path for path in (record["path"], *drop_ins) if len(files.get(path, ())) != 5]
    if odd:
        raise JobError(
            f"the record of {service.name} that was found here names {odd[0]}",
            "the unit's own files and links, as the deploy wrote them down",
            f"put the unit back by hand: its text is in {good_units.FOUND_FILE}",
        )


def turn(service: Service, record: Record, ours: str, to: str) -> None:
    """Replace a unit and its drop-ins in one step, as several files can't be.

    Both lie ready in a folder each, and `now` is a link to one of them. Links through it stand
    before everything else that systemd reads; as long as they do, what `now` names is whole,
    whatever stands elsewhere. So: set up the links with `now` at what there is, turn `now`, change
    the files in /etc, take the links away. A cut between any two steps leaves one or the other.
    """
    folder = TURNING / service.name
    shutil.rmtree(folder, ignore_errors=True)
    drop_ins = {Path(path).name: text for path, text in record["drop_ins"].items()}
    lay(folder / HIS, {**drop_ins, service.name: record["text"]})
    lay(folder / OUR, {**dict.fromkeys(drop_ins, ""), service.name: ours})
    point(folder / "now", HIS if to == OUR else OUR)
    for link in before_all(service, drop_ins):
        if link.is_symlink() or not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            point(link, str(folder / "now" / link.name))
    point(folder / "now", to)
    settle(service)


def lay(folder: Path, files: Mapping[str, str]) -> None:
    folder.mkdir(parents=True)
    for name, text in files.items():
        write_whole(folder / name, text)
    synced(folder)


def before_all(service: Service, drop_ins: Mapping[str, str]) -> list[Path]:
    """The links of a turn, the unit's own last."""
    return [*(CONTROL / f"{service.name}.d" / name for name in drop_ins), CONTROL / service.name]


def is_turning(service: Service) -> bool:
    return (TURNING / service.name / "now").is_symlink()


def settle(service: Service) -> None:
    """Finish a turn, also one that a power cut ended in the middle. Raises OSError."""
    folder, record = TURNING / service.name, of(service)
    if not TURNING.exists() or (is_turning(service) and record is None):
        return  # without the record, what `now` names is whole still
    if is_turning(service) and record is not None:
        if str((folder / "now").readlink()) == OUR:
            write_whole(service.installed, text_in(folder / OUR / service.name) or "")
            for path in record["drop_ins"]:
                Path(path).unlink(missing_ok=True)
            remove_if_empty(service.drop_ins)
        else:
            place(service, record)
        synced(service.installed.parent)
        names = {Path(path).name: "" for path in record["drop_ins"]}
        for link in before_all(service, names):
            if link.is_symlink() and str(link.readlink()).startswith(f"{folder}/"):
                link.unlink()
                synced(link.parent)
    for empty in (CONTROL / f"{service.name}.d", CONTROL):
        remove_if_empty(empty)
    shutil.rmtree(folder, ignore_errors=True)
    remove_if_empty(TURNING)
    service.reload()


def place(service: Service, record: Record) -> None:
    """His files where they were, the drop-ins first."""
    for path, text in record["drop_ins"].items():
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        write_as(Path(path), text, record["files"][path])
    path = Path(record["path"])
    if path == service.installed:
        write_as(path, record["text"], record["files"][record["path"]])
    elif (service.installed_text() or "").startswith(OURS):
        service.installed.unlink()
    synced(service.installed.parent)


def write_as(path: Path, text: str, attributes: list[Any]) -> None:
    """A file with its owner, mode and time, or a link."""
    uid, gid, mode, mtime, link = attributes
    if link is not None:
        point(path, link)
        return
    if path.is_symlink() or text_in(path) != text:
        write_whole(path, text, mode=mode)
    os.chown(path, uid, gid)
    path.chmod(mode)
    os.utime(path, ns=(mtime, mtime))


def point(link: Path, target: str) -> None:
    """Make a path a link to a target, in one step."""
    if link.is_symlink() and str(link.readlink()) == target:
        return
    aside = link.with_name(f".{link.name}.new")
    aside.unlink(missing_ok=True)
    aside.symlink_to(target)
    aside.replace(link)
    synced(link.parent)


def remove_if_empty(folder: Path) -> None:
    with contextlib.suppress(OSError):
        folder.rmdir()
