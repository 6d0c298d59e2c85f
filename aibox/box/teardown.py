"""Take off the box what deploys have laid down, and leave or put back what was there before.

Every step looks at what is there, so that a run that was killed anywhere is made good by the next:
the records by which all of it is known go last.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from aibox.box import apt, brought, found, job, ours, turning
from aibox.box.job import JobError, Progress, Spec, write_whole
from aibox.box.probe import repository
from aibox.box.probe.processes import name_of, unit_of
from aibox.box.probe.sockets import links_of
from aibox.box.probe.units import unit_properties
from aibox.box.service import Service
from aibox.decide import apt as read
from aibox.decide import teardown as decide
from aibox.decide.driver_sources import POWER_UNIT, REMOVABLE
from aibox.decide.teardown import Plan, Wish

LONGEST_WAIT_S = 3600.0  # for packages that an earlier run is still installing
POLL_S = 1.0
ANSWER_S = 5.0  # what a server that is put back gets to show that it stays up
# What holds people's files and is no other machine's.
DISKS = re.compile(r"ext[234]|xfs|btrfs|zfs|f2fs|bcachefs|jfs|overlay|vfat|ntfs3?")
ARCHIVES = Path("/var/cache/apt/archives")
TOOLKIT = (
    r"cuda[-.\w]*|lib(cublas|cufft|cufile|curand|cusolver|cusparse|npp|nv\w+)[-.\w]*"
    r"|nsight[-.\w]*|gds-tools[-.\w]*"
)


def teardown(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Remove what is ours. spec: {"weights", "driver": whether they go too, "places": the folders
    of today's settings, see decide.teardown.question}. Returns {"removed": rows, "notes": words}.

    Raises JobError: refused before anything was changed, or stopped at a step that may be repeated.
    """
    progress.step("looking at what is ours")
    plan = planned(spec)
    in_use(plan)
    for name in (*plan.stop, *plan.back):
        turning.unlocked(Service(name))
    notes: list[str] = []
    for name, step in STEPS:
        progress.step(name)
        notes += step(plan, spec, progress) or []
    return {"removed": [list(row) for row in plan.removes], "notes": notes}


def planned(spec: Spec) -> Plan:
    """What a person has agreed to, decided anew from what is there now. Raises JobError."""
    records = ours.records()
    asked = decide.question(records, spec["places"])
    if isinstance(asked, list):
        first = asked[0]
        raise JobError(first.found, first.expected, first.remedy)
    wish = Wish(weights=spec["weights"], driver=spec["driver"])
    return decide.plan(records, ours.look(asked), wish)


def in_use(plan: Plan) -> None:
    """Raises JobError where a process that is not ours runs from what is to go."""
    going = [*plan.releases, *plan.folders]
    own = {*plan.stop, *plan.jobs, job.unit_of("teardown")}
    for pid in sorted(int(path.name) for path in Path("/proc").glob("[0-9]*")):
        unit = unit_of(pid)
        used = next(iter(used_by(pid, going)), None) if unit not in own else None
        if used is not None:
            raise JobError(
                f"process {pid} ({name_of(pid)}{f' of {unit}' if unit else ''}) uses {used}",
                "nothing that runs from what is to be removed, but our own server",
                "end it when it may end, then run this again; nothing was changed",
            )


def used_by(pid: int, folders: Iterable[str]) -> list[str]:
    """Those of the folders that a process names on its command line, has mapped or has open."""
    process = Path(f"/proc/{pid}")
    try:
        words = (process / "cmdline").read_bytes() + (process / "maps").read_bytes()
        open_now = [link.encode(errors="replace") for link in links_of(pid)]
    except OSError:  # it has ended meanwhile
        return []
    held = b"\n".join([words, *open_now])
    return [folder for folder in folders if f"{folder}/".encode() in held]


# --- the server --------------------------------------------------------------------------------


def jobs_ended(plan: Plan, _spec: Spec, progress: Progress) -> None:
    """Packages are waited for: apt is not to be cut off. The rest is ended."""
    began = time.monotonic()
    for name in plan.jobs:
        if name not in decide.PACKAGE_JOBS:
            systemctl("stop", name)
        while name in decide.PACKAGE_JOBS and name in ours.jobs():
            progress.say()
            if time.monotonic() - began > LONGEST_WAIT_S:
                remedy = f"look at `journalctl -u {name}` on the box, then run this again"
                raise JobError(f"{name} is still at work", "packages that are installed", remedy)
            time.sleep(POLL_S)


def server_gone(plan: Plan, _spec: Spec, _progress: Progress) -> list[str]:
    """Ours is stopped and taken out; the person's own comes back in its place and is started."""
    notes = older_kept(plan)
    for name in plan.quiet:
        systemctl("disable", "--now", name)
    for name in plan.stop:
        systemctl("stop", name)
    for path in plan.traces:
        removed(Path(path))
    for name in plan.stop:
        if name not in plan.back and ours.begins_as_ours(ours.UNITS / name):
            systemctl("disable", name)
            removed(ours.UNITS / name)
    if plan.stop or plan.traces:
        systemctl("daemon-reload")
    for record in found.newest_of_each():
        turning.give_back(record)
    return notes + [note for name in plan.start for note in started(name)]


def older_kept(plan: Plan) -> list[str]:
    """A person's older units as plain files, before anything else: the records of them go."""
    folder = Path(decide.KEPT)
    for file, name in plan.older:
        record = json.loads(Path(file).read_text())
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_whole(folder / name, record["text"], mode=0o600)
        for path, text in record["drop_ins"].items():
            beside = folder / f"{name}.d"
            beside.mkdir(mode=0o700, exist_ok=True)
            write_whole(beside / Path(path).name, text, mode=0o600)
    names = ", ".join(name for _, name in plan.older)
    return [f"your own unit as it stood before is kept in {folder}: {names}"] if names else []


def started(name: str) -> list[str]:
    """Start a person's own unit; what became of it, in words."""
    systemctl("reset-failed", name)
    done = systemctl("start", name)
    end = time.monotonic() + ANSWER_S
    while time.monotonic() < end and state_of(name) in ("active", "activating"):
        time.sleep(POLL_S)
    if done and state_of(name) == "active":
        return [f"your own {name} runs again; a vLLM takes minutes until it answers"]
    return [
        f"your own {name} is back as it was found, but does not run ({state_of(name)}): "
        f"see `journalctl -u {name}` on the box"
    ]


def state_of(name: str) -> str:
    return unit_properties(name).get("ActiveState", "unknown")


def systemctl(*words: str) -> bool:
    done = subprocess.run(["systemctl", *words], capture_output=True, check=False)
    return done.returncode == 0


# --- the driver --------------------------------------------------------------------------------


def power_gone(plan: Plan, _spec: Spec, _progress: Progress) -> None:
    if plan.power:
        systemctl("disable", "--now", POWER_UNIT)
        removed(Path(decide.POWER_FILE))
        systemctl("daemon-reload")


def packages_gone(plan: Plan, _spec: Spec, progress: Progress) -> list[str]:
    """Driver and toolkit go where that was asked for; nothing else goes with them."""
    for name in plan.disable:
        systemctl("disable", name)
    if plan.unhold:
        apt.done(["apt-mark", "unhold", *plan.unhold], progress)
    if not plan.purge:
        return []
    families = rf"({REMOVABLE})|({TOOLKIT})"
    failure = apt.mend({"protect": families, "allow_downgrade": True}, progress)[1]
    if failure is not None:
        raise failure
    progress.step(f"removing {decide.families(plan.purge)}")
    for name in plan.purge:  # what apt has kept of the downloads
        for file in ARCHIVES.glob(f"{name}_*.deb"):
            file.unlink(missing_ok=True)
    names = purgeable(list(plan.purge), families)
    if names:
        apt.done([*apt.APT, "purge", *names], progress)
    left = sorted(set(plan.purge) & apt.database().keys())
    if left:
        apt.done(["apt-mark", "auto", *left], progress)
    return [f"left, because other packages need them: {', '.join(left)}"] if left else []


def purgeable(names: list[str], families: str) -> list[str]:
    """What of the packages may go without taking another one along. Raises JobError: no driver may.

    What the distribution gave to them (dkms, headers) may have become somebody else's need.
    """
    there = [name for name in names if name in apt.database()]
    nvidia = [name for name in there if re.fullmatch(families, name)]
    others: list[str] = []
    for wanted in (there, nvidia):
        code, said = apt.simulated([*apt.APT, "purge", *wanted]) if wanted else (0, "")
        if code:
            raise apt.refused(read.explained(said))
        others = sorted(set(repository.simulation(said)["removed"]) - set(wanted))
        if not others:
            return wanted
    raise JobError(
        f"without {decide.families(names)} these would go too: {', '.join(others)}",
        "packages that nothing else needs",
        "remove those yourself, or run this without remove_driver, then it stays",
    )


def files_gone(plan: Plan, _spec: Spec, progress: Progress) -> None:
    """The initramfs holds a copy of the module options: that it is to be made anew is written down
    before they go."""
    due = ours.STATE / decide.DUE
    if plan.boot_files:
        ours.STATE.mkdir(exist_ok=True)
        write_whole(due, "")
    for path in (*plan.boot_files, *plan.files):
        removed(Path(path))
    for folder in decide.WATCH_FOLDERS:
        with_nothing_in_it(Path(folder))
    if plan.quiet:
        systemctl("daemon-reload")
    for path in plan.sources:
        given_back(Path(path))
    if plan.initramfs:
        if shutil.which("update-initramfs", path=apt.environment()["PATH"]):
            progress.step("making the initramfs without our module options")
            apt.done(["update-initramfs", "-u", "-k", "all"], progress)
        due.unlink(missing_ok=True)


def given_back(source: Path) -> None:
    """A person's own apt source as it was before the deploy cleaned it."""
    before = brought.known()["sources"][str(source)][0]
    aside = Path(f"{source}.disabled")
    if not source.exists() and ours.text_in(str(aside)) == before:
        aside.rename(source)
    else:
        write_whole(source, before)


# --- files, folders, users ---------------------------------------------------------------------


def releases_gone(plan: Plan, _spec: Spec, progress: Progress) -> None:
    """Renamed first: one that is half gone is never taken for a release."""
    for at, name in enumerate(plan.releases):
        progress.say(at, len(plan.releases), "releases")
        path = Path(name)
        if not path.name.startswith(ours.HALF):
            path = path.rename(path.with_name(f".removing-{path.name}"))
        tree_gone(path)


def folders_gone(plan: Plan, _spec: Spec, progress: Progress) -> None:
    """Weights by another name first, as a deploy does it."""
    for at, name in enumerate(plan.folders):
        progress.say(at, len(plan.folders), "folders")
        path = Path(name)
        if ours.COMMIT.fullmatch(path.name):
            path = path.rename(path.with_name(f".removed-{path.name}"))
        tree_gone(path)


def tree_gone(folder: Path) -> None:
    """A folder with all in it. No link is followed, and what is mounted in it is not touched."""
    if folder.is_symlink() or not folder.is_dir():
        return
    if mounts := [one for one in mounted() if Path(one).is_relative_to(folder)]:
        raise JobError(
            f"{mounts[0]} is mounted within {folder}, which is to be removed",
            "a folder of ours without another file system in it",
            f"`umount {mounts[0]}` on the box, then run this again",
        )
    shutil.rmtree(folder)


def removed(path: Path) -> None:
    """A file, a link or a folder of ours; what is not there is no error."""
    if path.is_dir() and not path.is_symlink():
        tree_gone(path)
    else:
        path.unlink(missing_ok=True)


def users_gone(plan: Plan, _spec: Spec, progress: Progress) -> list[str]:
    notes = []
    for name in plan.users:
        progress.step(f"looking for other files of {name}")
        left = file_of("-user", name)
        if left is None:
            # of a group that was there before, userdel would take the name as well
            if name not in plan.groups:
                subprocess.run(["usermod", "-g", "nogroup", name], check=True)
            subprocess.run(["userdel", name], check=True)
        else:
            notes.append(f"user {name} stays: {left} belongs to it")
    for name in plan.groups:
        left = file_of("-group", name) if ours.is_group(name) else None
        if left is not None:
            notes.append(f"group {name} stays: {left} belongs to it")
        elif ours.is_group(name) and name not in [one for one in plan.users if ours.is_user(one)]:
            subprocess.run(["groupdel", name], check=True)
    return notes


def file_of(kind: str, name: str) -> str | None:
    """A file of a user or group on any disk of the box; what was to go has gone by now."""
    disks = [mount for mount, system in mounted_as().items() if DISKS.fullmatch(system)]
    command = ["find", *disks, "-xdev", kind, name, "-print", "-quit"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    return next(iter(done.stdout.splitlines()), None)


def mounted() -> list[str]:
    return list(mounted_as())


def mounted_as() -> dict[str, str]:
    """{folder: kind of its file system} of everything that is mounted here."""
    found = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        before, _, after = line.partition(" - ")
        folder = re.sub(r"\\([0-7]{3})", lambda code: chr(int(code[1], 8)), before.split()[4])
        found[folder] = after.split()[0]
    return found


def packages_left(plan: Plan, _spec: Spec, progress: Progress) -> None:
    """Those of the distribution stay, as nobody's wish: `apt autoremove` may take them."""
    if plan.auto:
        apt.done(["apt-mark", "auto", *plan.auto], progress)


def aibox_gone(plan: Plan, spec: Spec, _progress: Progress) -> None:
    folder = Path(spec["places"]["aibox"])
    for name in plan.aibox:
        removed(folder / name)
    with_nothing_in_it(folder)


def records_gone(plan: Plan, _spec: Spec, _progress: Progress) -> None:
    """The last: what tells a next run what to do. What stays by wish is still known then."""
    models = [path for folder in map(Path, plan.models) for path in folder.glob("*")]
    for path in [*models, *map(Path, plan.empty)]:
        with_nothing_in_it(path)
    if not plan.record:
        tree_gone(ours.STATE)
        return
    for path in ours.STATE.iterdir():
        if path != brought.RECORD:
            removed(path)
    brought.write(dict(plan.record))


def with_nothing_in_it(folder: Path) -> None:
    try:
        folder.rmdir()
    except OSError:  # it holds something, or is no folder any more
        return


Step = Callable[[Plan, Spec, Progress], "list[str] | None"]
STEPS: tuple[tuple[str, Step], ...] = (
    ("ending jobs", jobs_ended),
    ("taking the server out", server_gone),
    ("taking the power limit off", power_gone),
    ("looking at packages", packages_gone),
    ("removing releases", releases_gone),
    ("removing folders", folders_gone),
    ("removing files", files_gone),
    ("removing users", users_gone),
    ("marking packages", packages_left),
    ("removing aibox", aibox_gone),
    ("removing the records", records_gone),
)
