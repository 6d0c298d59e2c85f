"""One unit in the other's place: a person's own by ours, and back as it was. A cut is made good.

/etc/systemd/aibox/<unit>/   there only while one takes the other's place, see `turn`
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from aibox.box import adoption, found
from aibox.box.adoption import mode_of, remove_if_empty
from aibox.box.found import Record, is_ours, links_of, text_in
from aibox.box.job import JobError, write_whole
from aibox.box.service import Service, synced

CONTROL = Path("/etc/systemd/system.control")  # before all others, and a reboot leaves it
TURNING = Path("/etc/systemd/aibox")
HIS, OUR = "found", "ours"


def replace(service: Service, text: str) -> None:
    """Install ours, which is staged, where his may stand; what stands is kept. Raises OSError."""
    record = adoption.keep(service)
    if record is not None and adoption.set_aside(service):
        turn(service, record, text, OUR)
    else:
        service.staged.replace(service.installed)
        synced(service.installed.parent)
    links_to_ours(service)


def links_to_ours(service: Service) -> None:
    """Enabling it refuses links to another file, and by an alias his server would start."""
    for path in links_of(service.name):
        point(Path(path), str(service.installed))


def put_back(record: Record) -> None:
    """Everything of his as it was: enablement, unit or link, mode, drop-ins. It starts nothing.

    Where his unit lay below /usr, ours is taken from above it. Another unit of his that stands is
    kept first. A drop-in that somebody laid in the place of one of his stays, as newer. Raises
    OSError, and JobError for a record that names a place where no unit's files lie.
    """
    service = Service(record["unit"])
    checked(record)
    settle(service)
    adoption.keep(service)
    enable_as(service, record)
    going, ours = adoption.set_aside(service), service.installed_text()
    if going and found.target_of(service.drop_ins) != record.get("folder_link"):
        drop_ins_gone(service, going)
    if record["drop_ins"] and ours is not None and is_ours(ours):
        turn(service, record, ours, HIS)
    else:
        place(service, record, going)
    more = {path: going[path] for path in going.keys() - record["drop_ins"].keys()}
    if not service.drop_ins.is_symlink():
        drop_ins_gone(service, more)
    service.reload()


def give_back(record: Record) -> None:
    """The same where ours stands, or nothing; a unit that the person has changed since stays."""
    service = Service(record["unit"])
    settle(service)
    here = found.standing_parts(service.name)
    if here is None or found.is_same(record, here):
        put_back(record)


def checked(record: Record) -> None:
    """Nothing is written anywhere else than where `looked_at` has read. Raises JobError."""
    odd = found.odd_in(record)
    if odd is not None:
        raise JobError(
            f"the record of {record['unit']} that was found here names {odd}",
            "the unit's own files and links, as the deploy wrote them down",
            f"put the unit back by hand: its text is in {found.STATE}/found*.json",
        )


def unlocked(service: Service) -> None:
    """Asked before anything stops. Raises JobError."""
    locked = found.locked_in(service.name)
    if locked is not None:
        raise JobError(
            f"{locked} can't be changed, not even by root",
            f"files of {service.name} that another unit can take the place of",
            f"is it immutable? `lsattr -d {locked}` shows an i then: `sudo chattr -i {locked}`, "
            "then run this again; nothing was changed",
        )


def enable_as(service: Service, record: Record) -> None:
    """First of all: once his text stands, everything of his does but for what follows from it.

    Another name that leads elsewhere by now stays, and so does one that was given since.
    """
    now = links_of(service.name)
    for path in now.keys() - record["links"].keys():
        if Path(path).parent != service.installed.parent:
            Path(path).unlink()
    for path, target in record["links"].items():
        if path in now or not os.path.lexists(path):
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            point(Path(path), target)


def turn(service: Service, record: Record, ours: str, to: str) -> None:
    """Replace a unit and its drop-ins in one step, as several files can't be.

    Both lie ready in a folder each, and `now` is a link to one of them. Links through it stand
    before everything else that systemd reads; as long as they do, what `now` names is whole,
    whatever stands elsewhere. So: set up the links with `now` at what there is, turn `now`, change
    the files in /etc, take the links away. A cut between any two steps leaves one or the other.
    """
    folder = TURNING / service.name
    shutil.rmtree(folder, ignore_errors=True)
    drop_ins = {path: text for path, text in record["drop_ins"].items() if is_free(path, text)}
    lay(folder / HIS, {record["path"]: record["text"], **drop_ins}, record)
    names = [Path(path).name for path in drop_ins]
    lay(folder / OUR, {str(service.installed): ours, **dict.fromkeys(names, "")})
    point(folder / "now", HIS if to == OUR else OUR)
    for link in before_all(service, names):
        if link.is_symlink() or not link.exists():
            link.parent.mkdir(parents=True, exist_ok=True)
            point(link, str(folder / "now" / link.name))
    point(folder / "now", to)
    settle(service)


def is_free(path: str, text: str) -> bool:
    """Whether a drop-in may come or go: nothing is there, or it itself."""
    return not os.path.lexists(path) or is_itself(path, text)


def is_itself(path: str, text: str) -> bool:
    """Whether a drop-in stands as it was kept; a link to nothing has an empty text."""
    return os.path.lexists(path) and (text_in(Path(path)) or "") == text


def lay(folder: Path, files: Mapping[str, str], his: Record | None = None) -> None:
    folder.mkdir(parents=True)
    for path, text in files.items():
        mode = mode_of(his, path) if his else adoption.READABLE
        write_whole(folder / Path(path).name, text, mode)
    synced(folder)


def before_all(service: Service, names: Collection[str]) -> list[Path]:
    """The links of a turn, the unit's own last."""
    return [*(CONTROL / f"{service.name}.d" / name for name in names), CONTROL / service.name]


def is_turning(service: Service) -> bool:
    return (TURNING / service.name / "now").is_symlink()


def settle(service: Service) -> None:
    """Finish a turn, also one that a power cut ended in the middle. Raises OSError."""
    if not TURNING.exists():
        return
    folder = TURNING / service.name
    if is_turning(service):
        adoption.keep(service)  # it may have been changed since the cut
        record = adoption.of_text(service, text_in(folder / HIS / service.name))
        if record is None:
            return  # without the record, what `now` names is whole still
        end(service, record, folder)
    for empty in (CONTROL / f"{service.name}.d", CONTROL):
        remove_if_empty(empty)
    shutil.rmtree(folder, ignore_errors=True)
    remove_if_empty(TURNING)
    service.reload()


def end(service: Service, record: Record, folder: Path) -> None:
    """The files in /etc as `now` says, then without its links."""
    names = [path.name for path in (folder / OUR).iterdir() if path.name != service.name]
    if str((folder / "now").readlink()) == OUR:
        write_whole(service.installed, text_in(folder / OUR / service.name) or "")
        drop_ins_gone(service, record["drop_ins"])
        links_to_ours(service)
    else:
        place(service, record)
    synced(service.installed.parent)
    for link in before_all(service, names):
        if link.is_symlink() and str(link.readlink()).startswith(f"{folder}/"):
            link.unlink()
            synced(link.parent)


def drop_ins_gone(service: Service, drop_ins: Mapping[str, str]) -> None:
    """His drop-ins, but for those that were laid there since. Where their folder is a link, that
    goes alone: what it leads to is his, and stays."""
    if service.drop_ins.is_symlink():
        service.drop_ins.unlink()
        return
    for path, text in drop_ins.items():
        if is_itself(path, text):
            Path(path).unlink()
    remove_if_empty(service.drop_ins)


def place(service: Service, record: Record, going: Collection[str] = ()) -> None:
    """His files where they were, the drop-ins first. going: those of his that may be replaced."""
    folder_link, free = record.get("folder_link"), not os.path.lexists(service.drop_ins)
    if folder_link is not None and free:
        point(service.drop_ins, folder_link)
    for path, text in record["drop_ins"].items():
        if service.drop_ins.is_symlink():  # his files lie behind it, as he left them
            break
        if is_free(path, text) or path in going:
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            write_as(Path(path), text, record["files"][path])
    path = Path(record["path"])
    if path == service.installed:
        write_as(path, record["text"], record["files"][record["path"]])
    elif (service.installed_text() or "").strip():  # ours, or kept; no mask
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
