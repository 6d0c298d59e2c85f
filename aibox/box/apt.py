"""Packages at exact versions, by apt-get: watched, explained, and the same end after any kill."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aibox.box import brought
from aibox.box.job import JobError, Progress, Spec
from aibox.box.probe import repository
from aibox.decide import apt as read
from aibox.decide.refusal import Refusal

LOCK_S = 300.0  # how long another package manager may take; unattended-upgrades needs minutes
LOCK_POLL_S = 2.0
LOCKS = tuple(
    Path(path)
    for path in (
        "/var/lib/dpkg/lock-frontend",
        "/var/lib/dpkg/lock",
        "/var/lib/apt/lists/lock",
        "/var/cache/apt/archives/lock",
    )
)
# dpkg's states of a package that was left half-way (dpkg-query(1))
UNFINISHED = ("half-installed", "unpacked", "half-configured", "triggers-awaited")
JOURNAL = Path("/var/lib/dpkg/updates")  # entries that dpkg had not merged when it was killed

# No question is put to anybody, no configuration file of a person is replaced, and needrestart
# restarts no server of ours in the middle.
ENVIRONMENT = {
    "LC_ALL": "C",
    "DEBIAN_FRONTEND": "noninteractive",
    "DEBCONF_NONINTERACTIVE_SEEN": "true",
    "APT_LISTCHANGES_FRONTEND": "none",
    "NEEDRESTART_SUSPEND": "1",
    "UCF_FORCE_CONFFOLD": "1",
}
# apt's own wait for the lock is off: ours names the holder, and covers dpkg and the lists too.
APT = ("apt-get", "-y", "-q", "-o", "DPkg::Lock::Timeout=0", "-o", "Dpkg::Use-Pty=0")
INSTALL = (
    "--no-install-recommends",
    "--allow-change-held-packages",
    "-o",
    "APT::Ignore-Hold=true",
    "-o",
    "Dpkg::Options::=--force-confdef",
    "-o",
    "Dpkg::Options::=--force-confold",
)


@dataclass(frozen=True)
class Package:
    """One package of dpkg's database that is there at all."""

    version: str
    state: str  # dpkg's word: "installed", "half-configured", …
    held: bool
    torn: bool  # killed while its files were laid out: dpkg wants it anew


def packages(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Bring packages to their versions.

    spec: {"refresh": whether to read the package lists anew, "install": [{"name", "version": a
    glob such as "580.178.04-*", or null for any}], "hold": [names], "unhold": [names, may be
    left out], "allow_downgrade": bool, "protect": a regular expression; only packages whose whole
    name fits it may be removed, or changed although they are on hold}.

    Returns {"mended": [what a killed run had left, in words], "installed": {name: version},
    "changed": [names], "removed": [names], "remarks": [words for a person]}. Raises JobError.
    """
    mended, failure = mend(spec, progress)
    stale = refresh(progress) if spec["refresh"] else []
    wanted = chosen(spec["install"], stale)
    before = database()
    removed, remarks = [], list(stale)
    if read.wrong_versions(wanted, installed(before)):
        command = installing(wanted, before, spec)
        removed = planned(command, wanted, spec["protect"], failure)
        progress.step("downloading packages")
        remarks += read.remarks(done(command, progress, download_size(command)))
    elif failure is not None:
        raise failure
    after = database()
    if wrong := read.wrong_versions(wanted, installed(after)):
        raise refused(read.versions_refusal(wrong, wanted))
    mark(spec, after, progress)
    return {
        "mended": mended,
        "installed": {name: after[name].version for name in wanted},
        "changed": changed(before, after),
        "removed": removed,
        "remarks": remarks,
    }


def refused(refusal: Refusal) -> JobError:
    return JobError(refusal.found, refusal.expected, refusal.remedy)


# --- what is there -----------------------------------------------------------------------------


def database() -> dict[str, Package]:
    """Every package of the box's own architecture that is installed, or was left half-way."""
    fields = ("Package", "Architecture", "Version", "db:Status-Status", "db:Status-Want")
    form = "\t".join(f"${{{field}}}" for field in (*fields, "db:Status-Eflag")) + "\n"
    done = run(["dpkg-query", "-W", "-f", form])
    own = run(["dpkg", "--print-architecture"]).strip()
    found = {}
    for line in done.splitlines():
        name, architecture, version, state, want, flag = line.split("\t")
        if architecture in (own, "all") and state not in ("not-installed", "config-files"):
            found[name] = Package(version, state, want == "hold", flag == "reinstreq")
    return found


def installed(database: Mapping[str, Package]) -> dict[str, str]:
    return {n: one.version for n, one in database.items() if one.state == "installed"}


def unfinished(database: Mapping[str, Package]) -> list[str]:
    return sorted(name for name, one in database.items() if one.state in UNFINISHED)


def changed(before: Mapping[str, Package], after: Mapping[str, Package]) -> list[str]:
    return sorted(
        name
        for name, one in after.items()
        if name not in before
        or (before[name].version, before[name].state) != (one.version, one.state)
    )


def run(command: list[str]) -> str:
    """What a command that only reads prints. Raises JobError."""
    done = subprocess.run(
        command, capture_output=True, text=True, errors="replace", check=False, env=environment()
    )
    if done.returncode:
        raise refused(read.explained(done.stderr + done.stdout))
    return done.stdout


def environment() -> dict[str, str]:
    path = os.environ.get("PATH", "/usr/bin:/bin")
    return {**os.environ, **ENVIRONMENT, "PATH": f"{path}:/usr/sbin:/sbin"}


# --- doing something ---------------------------------------------------------------------------


def work(
    command: Iterable[str], progress: Progress, download_bytes: int | None = None
) -> tuple[int, str]:
    """Run a command that changes packages; wait while others hold the lock. (exit code, words)"""
    until = time.monotonic() + LOCK_S
    step = progress.step_name
    while True:
        code, said = watched(list(command), progress, download_bytes)
        if code == 0 or not read.is_locked(said) or time.monotonic() > until:
            return code, said
        progress.step(f"waiting for {read.holder(said)} to end its work on packages")
        time.sleep(LOCK_POLL_S)
        while not is_free() and time.monotonic() < until:
            progress.say()
            time.sleep(LOCK_POLL_S)
        progress.step(step)


def is_free() -> bool:
    """Whether nobody holds a lock of apt or dpkg at this moment."""
    for path in LOCKS:
        try:
            with path.open("r+") as file:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except FileNotFoundError:
            continue
        except OSError:
            return False
    return True


def watched(command: list[str], progress: Progress, download_bytes: int | None) -> tuple[int, str]:
    """Run one command and pass on how far it is, when it is one that tells."""
    reading, writing = os.pipe()
    if command[0] == "apt-get" and "install" in command:
        command = [*command, "-o", f"APT::Status-Fd={writing}"]
    with subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        env=environment(),
        pass_fds=[writing],
    ) as running:
        os.close(writing)
        follower = threading.Thread(
            target=follow, args=(reading, progress, download_bytes), daemon=True
        )
        follower.start()
        said = []
        for line in running.stdout or ():
            sys.stderr.write(line)  # the journal keeps the whole of it
            said.append(line)
    follower.join(timeout=5)  # a daemon that a package has started may keep the pipe open
    return running.returncode, "".join(said)


def follow(reading: int, progress: Progress, download_bytes: int | None) -> None:
    """Read the lines of APT::Status-Fd until the last writer has closed it."""
    with os.fdopen(reading, errors="replace") as lines:
        for line in lines:
            status = read.status_of(line)
            if status is None:
                continue
            step = f"{status.phase} packages"
            if progress.step_name != step:
                progress.step(step)
            if status.phase == "downloading" and download_bytes:
                progress.say(status.percent / 100 * download_bytes, download_bytes, "bytes")
            else:
                progress.say(status.percent, 100, "%")


def done(command: Iterable[str], progress: Progress, download_bytes: int | None = None) -> str:
    """Run a command that changes packages and return its words. Raises JobError with the cause."""
    code, said = work(command, progress, download_bytes)
    if code:
        raise refused(read.explained(said))
    return said


# --- its steps ---------------------------------------------------------------------------------


def mend(spec: Spec, progress: Progress) -> tuple[list[str], JobError | None]:
    """Finish what a killed run left: what was mended, in words, and what could not be.

    A failure is not the last word: a version that never builds is often the one to be replaced.
    """
    before, failure = database(), None
    progress.step("looking at the packages that are there")
    if unfinished(before) or any(JOURNAL.glob("[0-9]*")):
        progress.step("finishing what an interrupted installation left")
        try:
            done(["dpkg", "--configure", "-a"], progress)
        except JobError as error:
            failure = error
    if unfinished(database()) or work(["apt-get", "-q", "check"], progress)[0]:
        try:
            fix(spec, progress)
            failure = None
        except JobError as error:
            failure = failure or error
    return [f"finished {name}, left half-way" for name in changed(before, database())], failure


def fix(spec: Spec, progress: Progress) -> None:
    """`apt-get -f install`, when it takes away nothing that it must not. Raises JobError."""
    progress.step("finishing what an interrupted installation left")
    command = [*APT, *INSTALL, *downgrades(spec), "-f"]
    for name in read.reinstall_required(simulated([*command, "install"])[1]):
        if re.fullmatch(spec["protect"], name):
            remove = ["dpkg", "--remove", "--force-remove-reinstreq", "--force-depends", name]
            done(remove, progress)
    planned([*command, "install"], {}, spec["protect"])
    code, said = work([*command, "install"], progress)
    # apt fetches a torn package again, but lays it out only where it is named, and it can be named
    # only when what it depends on is there: a second pass
    if torn := [name for name, one in database().items() if one.torn]:
        again = [*command, "--reinstall", "install", *torn]
        planned(again, {}, spec["protect"])
        done(again, progress)
    elif code:
        raise refused(read.explained(said))


def refresh(progress: Progress) -> list[str]:
    """Read the package lists anew: what could not be read, in words.

    That is no failure by itself: a person's own source may be broken, and what is asked for may
    still be offered by those that answer.
    """
    progress.step("reading the package lists")
    code, said = work([*APT, "update"], progress)
    if code and read.is_locked(said):
        raise refused(read.explained(said))
    return read.failed_refreshes(said)


def chosen(asked: list[dict[str, Any]], stale: list[str]) -> dict[str, str | None]:
    """{name: its exact version, or None where any will do}. Raises JobError: none offered."""
    names = [one["name"] for one in asked]
    offers = repository.madison(run(["apt-cache", "madison", *names])) if names else {}
    there = database()
    wanted: dict[str, str | None] = {}
    for one in asked:
        name, glob = one["name"], one["version"]
        offered = offers.get(name, [])
        if name in there and there[name].state == "installed":
            offered = [there[name].version, *offered]  # good as it is, also when it has left
        version = repository.fitting(glob or "*", offered)
        if version is None:
            if stale:
                raise refused(read.explained("\n".join(f"E: {word}" for word in stale)))
            raise refused(read.pin_refusal(name, glob or "in any version", offered))
        wanted[name] = None if glob is None else version
    return wanted


def installing(
    wanted: Mapping[str, str | None], there: Mapping[str, Package], spec: Spec
) -> list[str]:
    """The apt-get command; what may have any version is left as it is where it is installed."""
    asked = [
        name if version is None else f"{name}={version}"
        for name, version in wanted.items()
        if version is not None or name not in installed(there)
    ]
    return [*APT, *INSTALL, *downgrades(spec), "install", *asked]


def downgrades(spec: Spec) -> list[str]:
    return ["--allow-downgrades"] if spec["allow_downgrade"] else []


def simulated(command: list[str], *more: str) -> tuple[int, str]:
    """What apt-get says that it would do, or why it can't: (exit code, words)."""
    asked = subprocess.run(
        [*command, *(more or ["-s"])],
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
        env=environment(),
    )
    return asked.returncode, asked.stdout + asked.stderr


def download_size(command: list[str]) -> int:
    """Bytes that apt-get would fetch for a command."""
    return repository.download_size(simulated(command, "-qq", "--print-uris")[1])


def planned(
    command: list[str],
    wanted: Mapping[str, str | None],
    protect: str,
    failure: JobError | None = None,
) -> list[str]:
    """The packages that a command would remove. Raises JobError: it fails, or does too much.

    `failure` is why the mending failed: where nothing can be planned, that is the cause.
    """
    code, said = simulated(command)
    if code:
        raise failure or refused(read.explained(said))
    plan = repository.simulation(said)
    if too_much := read.outside(plan["removed"], protect):
        raise refused(read.removal_refusal(too_much))
    there = database()
    on_hold = [name for name in plan["installed"] if name in there and there[name].held]
    if theirs := read.outside(set(on_hold) - set(wanted), protect):
        raise refused(read.held_refusal(theirs))
    if wanted:
        note(plan, there)
    return list(plan["removed"])


def note(plan: Mapping[str, Any], there: Mapping[str, Package]) -> None:
    """Tell before it happens what these packages bring, and what they take the place of."""
    new = [name for name in plan["installed"] if name not in there]
    leaving = [*plan["installed"], *plan["removed"]]
    replaced = {name: there[name].version for name in leaving if name in there}
    told({"driver_packages": new, "replaced": replaced})


def told(more: dict[str, Any]) -> None:
    try:
        brought.add(more)
    except ValueError as error:
        raise JobError(
            f"{brought.RECORD} can't be read ({error})",
            "the record of what was brought to this box",
            "move it aside on the box and run again; a teardown then leaves these packages",
        ) from None


def mark(spec: Spec, there: Mapping[str, Package], progress: Progress) -> None:
    """Put on hold what is to be held, and only what is not yet. Raises JobError."""
    hold = [name for name in spec["hold"] if name in there and not there[name].held]
    free = [name for name in spec.get("unhold", []) if name in there and there[name].held]
    if hold:
        told({"held": hold})
    for act, names in (("hold", hold), ("unhold", free)):
        if names:
            done(["apt-mark", act, *names], progress)
