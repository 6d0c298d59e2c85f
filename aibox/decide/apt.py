"""What apt and dpkg say, read: how far they are, what they would do, and why they failed.

Two generations are read: apt 2 (Debian 12, Ubuntu 24.04) writes "E:" and "W:", apt 3 (Debian 13
on) writes "Error:" and "Warning:" where it speaks to a terminal. All of it in the C locale.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from aibox.decide.refusal import Refusal, some

CONF = "/etc/apt/apt.conf.d/90aibox"  # apt waits for its lock
LONGEST_BLOCK = 12  # lines of apt's own words that a refusal repeats

_ERROR = re.compile(r"^(?:E|Error): ?(.*)", re.MULTILINE)
_COMPLAINT = re.compile(r"^(?:E|W|Error|Warning): ?(.*)", re.MULTILINE)
# "W: Some index files failed to download …" names nothing
_EMPTY_WORDS = ("Some index files failed", "Some packages could not be", "Sub-process")

AGAIN = "run the deploy again; what is done already is kept"


# --- how far it is -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Status:
    """One line of APT::Status-Fd: the phase, how much of it is done, and of what it speaks."""

    phase: str  # "downloading" or "installing"
    percent: float
    what: str


def status_of(line: str) -> Status | None:
    """Read `dlstatus:1:42.1:Retrieving …` or `pmstatus:PACKAGE:60.0:Configuring …`; else None."""
    kind, _, rest = line.strip().partition(":")
    phase = {"dlstatus": "downloading", "pmstatus": "installing"}.get(kind)
    # a package may be named with its architecture: pmstatus:libc6:amd64:…
    found = re.match(r"(.*?):(\d+(?:\.\d+)?):(.*)", rest)
    if phase is None or found is None:
        return None
    return Status(phase, float(found[2]), found[3])


# --- choosing versions -------------------------------------------------------------------------


def pin_refusal(name: str, glob: str, offered: Sequence[str]) -> Refusal:
    """No offered version fits: apt itself would quietly take another one."""
    if not offered:
        found = f"no source of this box offers the package {name}"
        remedy = "see that the setting nvidia_repository is right and its server answers"
    else:
        found = f"{name} is offered as {some(offered, 8)}"
        remedy = "set driver_version to one that is offered, or leave the sources as they were"
    return Refusal(found, f"{name} {glob}", remedy)


def outside(removed: Iterable[str], protect: str) -> list[str]:
    """The packages that would be removed although their names do not match `protect`."""
    return sorted(name for name in removed if not re.fullmatch(protect, name))


def removal_refusal(removed: Sequence[str]) -> Refusal:
    return Refusal(
        f"apt would remove {', '.join(removed)}",
        "an installation that removes nothing but packages of the driver and of CUDA",
        "look at it with `apt-get -s install` on the box; take away what stands against it"
        " by hand, or choose another version",
    )


def held_refusal(names: Sequence[str]) -> Refusal:
    return Refusal(
        f"apt would change what is held back on this box: {', '.join(names)}",
        "packages that others put on hold stay as they are",
        f"if they may change: `sudo apt-mark unhold {' '.join(names)}`, then deploy again",
    )


def wrong_versions(
    wanted: Mapping[str, str | None], installed: Mapping[str, str]
) -> dict[str, str | None]:
    """{name: what is installed} of every package that is not at its version (None: any)."""
    return {
        name: installed.get(name)
        for name, version in wanted.items()
        if name not in installed or version not in (None, installed[name])
    }


def versions_refusal(wrong: Mapping[str, str | None], wanted: Mapping[str, str | None]) -> Refusal:
    found = ", ".join(f"{name} {version or 'not installed'}" for name, version in wrong.items())
    expected = ", ".join(f"{name} {wanted[name] or ''}".strip() for name in wrong)
    return Refusal(
        f"after apt ended well: {found}",
        expected,
        "look for a pin that says otherwise with `apt-cache policy` on the box",
    )


# --- who holds the lock ------------------------------------------------------------------------

_LOCKED = re.compile(
    r"^(?:E|Error): Could not get lock (?P<path>\S+?)\.? "
    r"|^(?:E|Error): Unable to (?:acquire the dpkg frontend lock|lock (?:the )?(?:administration )?"
    r"(?:directory|download directory)) ?\(?(?P<other>[^\s)]*)"
    r"|dpkg frontend lock was locked|dpkg database (?:lock was )?(?:is )?locked by",
    re.MULTILINE,
)
_HOLDER = re.compile(
    r"held by process (?P<pid>\d+)(?: \((?P<name>[^)]*)\))?"
    r"|locked by (?:another|(?P<program>\S+)) process with pid (?P<other>\d+)"
)


def is_locked(said: str) -> bool:
    """Whether a command ended because somebody else held a lock of apt or dpkg."""
    return _LOCKED.search(said) is not None


def holder(said: str) -> str:
    """Who holds the lock, as far as apt says it: "unattended-upgr (process 812)"."""
    found = _HOLDER.search(said)
    if found is None:
        return "another program"
    name = found["name"] or (found["program"] or "").rpartition("/")[2]
    return f"{name or 'a program'} (process {found['pid'] or found['other']})"


# --- why it failed -----------------------------------------------------------------------------


def explained(said: str) -> Refusal:
    """Why apt-get or dpkg failed, from all that it said. The most telling cause comes first."""
    for cause in CAUSES:
        refusal = cause(said)
        if refusal is not None:
            return refusal
    words = complaints(said) or said.strip().splitlines()[-3:] or ["no word"]
    return Refusal(
        "apt failed: " + "; ".join(words[:4]),
        "an apt that goes through",
        "mend this on the box (`apt-get check` shows it), then run the deploy again",
    )


def complaints(said: str) -> list[str]:
    """Errors and warnings that say something, in order, each once."""
    words = [found.strip() for found in _COMPLAINT.findall(said)]
    return list(dict.fromkeys(word for word in words if word and not word.startswith(_EMPTY_WORDS)))


def failed_refreshes(said: str) -> list[str]:
    """What `apt-get update` could not read anew; it ends with 0 even then."""
    telling = ("fail", "not signed", "release file", "gpg", "openpgp", "invalid", "expired")
    words = [word for word in complaints(said) if any(sign in word.lower() for sign in telling)]
    return words or [word.strip() for word in _ERROR.findall(said)]


def _lock(said: str) -> Refusal | None:
    if not is_locked(said):
        return None
    return Refusal(
        f"{holder(said)} works on this box's packages and did not end in time",
        "a package manager that is free",
        f"wait until it is done (`ps` on the box shows it), then {AGAIN}",
    )


def _disk_full(said: str) -> Refusal | None:
    found = re.search(
        r"(?:.*You don't have enough free space in (?P<folder>\S+)"
        r"|(?P<line>.*No space left on device.*))",
        said,
    )
    if found is None:
        return None
    where = f"in {found['folder'].rstrip('.')}" if found["folder"] else f": {found['line'].strip()}"
    return Refusal(
        f"no space left on the disk {where}".replace(" :", ":"),
        "room for the packages",
        f"free space on the box (`sudo apt-get clean` is a start), then {AGAIN}",
    )


def _signature(said: str) -> Refusal | None:
    signs = (
        "NO_PUBKEY",
        "BADSIG",
        "EXPKEYSIG",
        "REVKEYSIG",
        "signatures were invalid",
        "signatures couldn't be verified",
        "signature verification failed",
        "is not signed",
        "Clearsigned file isn't valid",
        "cannot be authenticated",
    )
    lines = [line for line in complaints(said) if any(sign in line for sign in signs)]
    if not lines:
        return None
    key = re.search(r"NO_PUBKEY ([0-9A-F]{8,40})|Missing key ([0-9A-F]{8,40})", said)
    signer = (
        f" (signed by {key[1] or key[2]}, a key that is not trusted for this source)" if key else ""
    )
    return Refusal(
        f"{lines[0]}{signer}",
        "a repository whose signature holds, by the key that its source names",
        "install nothing from it; see who stands between (a proxy, a mirror), or whether the"
        " publisher has changed the key, and compare its fingerprint with the publisher's page",
    )


def _twice(said: str) -> Refusal | None:
    found = re.search(r"Conflicting values set for option Signed-By regarding source (\S+)", said)
    if found is None:
        return None
    return Refusal(
        f"the repository {found[1]} is listed twice, with different keys",
        "each repository once in /etc/apt",
        f"`grep -r {found[1].rstrip('/')} /etc/apt` names the files; take one out,"
        " then run the deploy again",
    )


def _changed_files(said: str) -> Refusal | None:
    if not re.search(r"Hash Sum mismatch|File has unexpected size", said):
        return None
    url = _failed_url(said)
    return Refusal(
        f"{url} is not what its repository's index says (size or sum)",
        "files that the signed index names",
        "wait some minutes (a mirror may be half-way through an update) and run the deploy again;"
        " if it stays, a proxy keeps an old copy",
    )


def _not_found(said: str) -> Refusal | None:
    if not re.search(r"\b404\s+Not Found|does not have a Release file", said):
        return None
    url = _failed_url(said)
    return Refusal(
        f"{url}: 404, not found",
        "a repository that has what its address and its lists name",
        "see that the address is right; packages that have left the archive need fresh lists:"
        " run the deploy again, and reboot first if they belong to an older kernel",
    )


def _network(said: str) -> Refusal | None:
    found = re.search(
        r"(Could not resolve '[^']+'|(?:Could not|Cannot|Unable to) (?:connect|initiate)[^\n]*"
        r"|Connection (?:failed|timed out|reset)[^\n]*|Temporary failure resolving '[^']+'"
        r"|Certificate verification failed[^\n]*|[45]\d\d  [A-Z][A-Za-z ]+)",
        said,
    )
    if found is None or "ailed to fetch" not in said:
        return None
    return Refusal(
        f"{_failed_url(said)}: {found[1].strip()}",
        "package servers that answer",
        f"see to the box's network (or the server's state), then {AGAIN}",
    )


def _failed_url(said: str) -> str:
    for form in (
        r"ailed to fetch (\S+)",
        r"The repository '(\S+)[^']*' (?:does not|is not|no longer)",
        r"^Err:\d+ (\S+)",
    ):
        found = re.search(form, said, re.MULTILINE)
        if found:
            return found[1]
    return "a package server"


def _unknown(said: str) -> Refusal | None:
    found = re.search(
        r"Unable to locate package (?P<name>\S+)"
        r"|Version '(?P<version>[^']*)' for '(?P<of>[^']*)' was not found"
        r"|Package '?(?P<without>[^\s']+)'? has no installation candidate"
        r"|[Cc]ouldn't find any package by (?:glob|regex) '(?P<glob>[^']*)'",
        said,
    )
    if found is None:
        return None
    name = found["name"] or found["without"] or found["glob"]
    what = name if name else f"{found['of']} {found['version']}"
    return Refusal(
        f"no source of this box offers {what}",
        "sources that offer every package asked for",
        f"`apt-cache policy {name or found['of']}` on the box shows what is offered",
    )


def _headers(said: str) -> Refusal | None:
    """Only where a package failed by it: dkms says it too of kernels that it may leave out."""
    lines = said.splitlines()
    ends = next((at for at, line in enumerate(lines) if line.startswith(_DPKG_ERROR)), 0)
    before = "\n".join(lines[max(0, ends - 12) : ends])
    found = re.search(r"kernel headers for kernel (\S+) cannot be found[^\n]*", before)
    if found is None:
        return None
    return Refusal(
        f"dkms: {found[0]}",
        f"the headers of kernel {found[1]}, to build the driver's module with",
        f"install linux-headers-{found[1]}; if it has left the archive, reboot into the newest"
        " kernel, then run the deploy again",
    )


def _build(said: str) -> Refusal | None:
    found = re.search(r"Bad return status for module build on kernel: (\S+)", said)
    if found is None:
        return None
    log = re.search(r"Consult (/\S+make\.log)", said)
    module = re.search(r"/var/lib/dkms/([^/\s]+/[^/\s]+)/", said)
    what = module[1] if module else "the driver's module"
    return Refusal(
        f"dkms: {what} does not build for kernel {found[1]}"
        + (f"; its compiler's words are in {log[1]}" if log else ""),
        "a driver whose module builds for every kernel of this box",
        "choose a driver_version that knows this kernel (for 7.0: 580.178.04, or 595 and later),"
        " or take the kernel off the box; then run the deploy again",
    )


def _unmet(said: str) -> Refusal | None:
    block = unmet_block(said)
    if block is None:
        return None
    contrib = "; on Debian it may be in the component contrib" if "installable" in block else ""
    return Refusal(
        block,
        "packages that can be installed together",
        "see which source or pin keeps the missing part away (`apt-cache policy NAME` on the box)"
        + contrib,
    )


def unmet_block(said: str) -> str | None:
    """apt's own account of what can't be satisfied, a few lines long."""
    lines = said.splitlines()
    begins = next(
        (at for at, line in enumerate(lines) if "packages have unmet dependencies" in line), None
    )
    if begins is None:
        found = re.search(r"Held packages were changed[^\n]*|held broken packages[^\n]*", said)
        return found[0] if found else None
    block = [lines[begins].strip()]
    for line in lines[begins + 1 :]:
        if not line.startswith((" ", "\t")):
            break
        block.append(re.sub(r"\s+", " ", line.strip()))
    return "\n".join(block[:LONGEST_BLOCK])


_DPKG_ERROR = "dpkg: error processing"
_NOT_ITS_OWN = ("dependency problems - leaving", "too many errors")


def _dpkg(said: str) -> Refusal | None:
    """A package's own script failed: its name, dpkg's word, and the last lines before it."""
    lines = [line.rstrip() for line in said.splitlines() if not status_of(line)]
    for at, line in enumerate(lines):
        found = re.match(r"dpkg: error processing (?:package|archive) (\S+) \(-+([a-z-]+)\):", line)
        why = " ".join(one.strip() for one in _indented(lines[at + 1 :]))
        if found is None or why.startswith(_NOT_ITS_OWN):
            continue
        before = [one for one in lines[max(0, at - 6) : at] if one.strip()][-4:]
        return Refusal(
            "\n".join([f"{found[1]}: {why} ({found[2]}). Before it:", *before]),
            "packages whose own scripts succeed",
            f"`sudo dpkg --configure -a` on the box shows it again; mend the cause, then {AGAIN}",
        )
    return _waiting(lines)


def _waiting(lines: list[str]) -> Refusal | None:
    """A package that can't be configured, because another that it needs is not."""
    for at, line in enumerate(lines):
        found = re.match(r"dpkg: dependency problems prevent configuration of (\S+):", line)
        if found:
            why = " ".join(one.strip() for one in _indented(lines[at + 1 :]))
            return Refusal(
                f"{found[1]} can't be set up: {why}",
                "packages whose dependencies are set up",
                f"`sudo apt-get -f install` on the box shows what it would do; then {AGAIN}",
            )
    return None


def _indented(lines: Sequence[str]) -> list[str]:
    """The lines up to the first that does not begin with a blank."""
    return list(itertools.takewhile(lambda line: line.startswith(" "), lines))


CAUSES: tuple[Callable[[str], Refusal | None], ...] = (
    _lock,
    _disk_full,
    _twice,
    _signature,
    _changed_files,
    _not_found,
    _build,
    _headers,
    _dpkg,
    _unmet,
    _unknown,
    _network,
)


def reinstall_required(said: str) -> list[str]:
    """Packages that a kill left half unpacked, at a version that no source offers any more."""
    return re.findall(r"The package (\S+) needs to be reinstalled, but I can't find", said)


def remarks(said: str) -> list[str]:
    """What a person should know of an installation that went well: dkms skipping a kernel."""
    found = re.findall(
        r"[^\n]*(?:kernel headers for kernel \S+ cannot be found|headers for kernel \S+ (?:are|do)"
        r" not|Module build for kernel \S+ was skipped)[^\n]*",
        said,
    )
    return list(dict.fromkeys(line.strip() for line in found))
