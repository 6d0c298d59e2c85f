"""What a run is about to do to a box, on one screen, before anybody agrees to it.

Rows are (label, text); an empty label goes on with the row above. Nothing is decided here: each
stage has, and the facts are its own words and figures.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from aibox.decide.driver_sources import MODPROBE
from aibox.decide.figures import duration, gigabytes, size
from aibox.decide.launch import launched, of_unit
from aibox.decide.preflight import BoxReport, Need
from aibox.decide.secrecy import words_without_secrets
from aibox.decide.unit import flag_changes

Rows = list[tuple[str, str]]

ROLLBACK = "pyinfra inventory tasks/rollback.py"
MOST = 3  # reasons or names in one row
MOST_FLAGS = 6
NOUVEAU = "Driver | nouveau is off"


@dataclass(frozen=True)
class Fetch:
    """Something that comes over the network. size: bytes, None where nobody tells it before."""

    what: str
    size: int | None
    note: str = ""


@dataclass(frozen=True)
class Rate:
    """What one connection to the hub gave just now: bytes a second, or why it was not measured.

    limited: by the setting download_limit_mbps.
    """

    per_second: float | None
    why: str | None
    limited: bool = False


@dataclass(frozen=True)
class DiskChange:
    """A file system before and after, bytes."""

    mount: str
    free: int
    needed: int


@dataclass(frozen=True)
class Service:
    """What the server's clients will notice.

    restart: whether its process goes. serves: whether it answers now. down: seconds without
    service in an earlier switch, start: of its longest start; None where none was measured. good:
    whether something has passed the gate on this box.
    """

    unit: str
    restart: bool
    serves: bool
    down: float | None = None
    start: float | None = None
    good: bool = False


@dataclass(frozen=True)
class PlanFacts:
    """steps: stage -> (operations with something to do, all of them), in their order.

    cut_off: who serves now and is ended by a reboot, in words. pins: the weights that this run
    pins, in words; None where they are pinned. added: to apt and to the boot, see added(). doors:
    which stand, in words. watched: the exporters likewise. monitor: what watches. replaced: what
    is a person's own and makes way. found: whether a unit of theirs does. changes: flags of the
    server that change, come or go. driver_stays: whether the driver's own packages and modules are
    right already.
    """

    steps: Mapping[str, tuple[int, int]]
    fetches: Sequence[Fetch]
    rate: Rate | None
    disks: Sequence[DiskChange]
    reboot: Sequence[str]
    service: Service
    replaced: Sequence[str]
    found: bool
    pins: str | None = None
    cut_off: Sequence[str] = ()
    added: Sequence[tuple[str, str]] = ()
    doors: Sequence[str] = ()
    watched: Sequence[str] = ()
    monitor: Sequence[str] = ()
    changes: Sequence[str] = ()
    driver_stays: bool = False


def rows(facts: PlanFacts) -> Rows:
    """The page; empty where no stage has anything to do."""
    if not any(due for due, _ in facts.steps.values()):
        return []
    return [
        ("steps", _steps(facts.steps, driver_stays=facts.driver_stays)),
        *([("pins", facts.pins)] if facts.pins else []),
        *labelled("fetches", [*_fetches(facts.fetches), *_how_long(facts.fetches, facts.rate)]),
        *labelled("disk", [_disk(one) for one in facts.disks]),
        ("reboot", _reboot(facts.reboot, facts.cut_off)),
        ("service", _service(facts.service)),
        *labelled("changes", cut(facts.changes, MOST_FLAGS, " (--diff)")),
        *facts.added,
        *labelled("doors", facts.doors),
        *labelled("metrics", facts.watched),
        *labelled("monitor", facts.monitor),
        *labelled("replaces", list(facts.replaced) or ["nothing of yours"]),
        *labelled("undo", _undo(facts)),
    ]


# What a run adds to the machine beside packages and files of its own, by its operations' names.
_APT = {
    "Base | apt waits for its lock": "5 minutes of patience with its lock",
    "Driver | NVIDIA's repository": "NVIDIA's repository, by its own key",
    "Driver | Debian's component contrib": "Debian's component contrib",
    "Driver | The driver's version is pinned": "a pin of the driver's version",
    "Driver | Unattended upgrades leave it alone": "no unattended upgrades of the driver",
    "Monitor | Grafana's repository": "Grafana's repository, by its own key",
}
_BOOT = {
    NOUVEAU: "nouveau blacklisted",
    "Driver | nvidia-uvm at boot": "nvidia-uvm loaded",
    "Driver | Initramfs without nouveau": "the initramfs made anew",
    "Driver | Persistence starts at boot": "nvidia-persistenced started",
}


def added(due: Collection[str], off_by: Sequence[str] = ()) -> Rows:
    """What comes into apt's settings and into the boot. due: names of operations with work.
    off_by: a person's files that turn nouveau off already."""
    boot = dict(_BOOT)
    if off_by:
        again = f"written down again in {PurePosixPath(MODPROBE).name}"
        boot[NOUVEAU] = f"nouveau blacklisted (already off by {shortened(off_by)}; {again})"
    texts = {
        "apt": [words for name, words in _APT.items() if name in due],
        "boot": [words for name, words in boot.items() if name in due],
    }
    return [(label, f"gets {', '.join(words)}") for label, words in texts.items() if words]


def labelled(label: str, texts: Sequence[str]) -> Rows:
    return [(label if at == 0 else "", text) for at, text in enumerate(texts)]


def flags_that_change(command: Sequence[str], unit: str | None, wanted: Sequence[str]) -> list[str]:
    """From what runs to what is wanted, without secrets. command: of the process, empty where none
    runs; unit: the text of the unit that would start one."""
    start, ours = launched(command) or of_unit(unit or ""), launched(wanted)
    if start is None or ours is None:
        return []
    return flag_changes(words_without_secrets(start.without()), ours.without())


def cut(rows: Sequence[str], most: int, see: str = "") -> list[str]:
    """Rows of a screen: so many of them, and how many more there are. see: where those stand."""
    more = len(rows) - most
    return [*rows[:most], *([f"and {more} more{see}"] if more > 0 else [])]


def _steps(steps: Mapping[str, tuple[int, int]], *, driver_stays: bool) -> str:
    note = {"Driver": " (its files and services: the driver itself stays)"} if driver_stays else {}
    due = [f"{stage} {n}{note.get(stage, '')}" for stage, (n, _) in steps.items() if n]
    total, everything = (sum(pair[at] for pair in steps.values()) for at in (0, 1))
    return f"{total} of {everything} have something to do: {', '.join(due)}"


def _fetches(fetches: Sequence[Fetch]) -> list[str]:
    texts = []
    for one in fetches:
        amount = {None: "not known before it comes", 0: "nothing"}.get(one.size)
        texts.append(f"{one.what}: {amount or size(one.size or 0)}{_noted(one.note)}")
    return texts or ["nothing"]


def _noted(note: str) -> str:
    return f"; {note}" if note else ""


def _how_long(fetches: Sequence[Fetch], rate: Rate | None) -> list[str]:
    total = sum(one.size or 0 for one in fetches)
    if rate is None or not total:
        return []
    if rate.per_second is None:
        return [f"how long is not measured: {rate.why}"]
    unknown = any(one.size is None for one in fetches)
    limit = ", held back by download_limit_mbps" if rate.limited else ""
    return [
        f"{size(total)}{' and what is not known' if unknown else ''}: about "
        f"{span(total / rate.per_second)} at {size(rate.per_second)}/s, measured just now with one "
        f"connection{limit}"
    ]


def _disk(one: DiskChange) -> str:
    after = one.free - one.needed
    return f"{one.mount}: {gigabytes(one.free)} free now, about {gigabytes(after)} afterwards"


def disk_changes(report: BoxReport, needs: Sequence[Need]) -> list[DiskChange]:
    """Each file system that is written to, once."""
    needed: dict[str, int] = {}
    for need in needs:
        disk = report.disks.get(need.folder)
        if disk is not None:
            needed[disk.filesystem] = needed.get(disk.filesystem, 0) + need.size
    disks = {disk.filesystem: disk for disk in report.disks.values()}
    return [
        DiskChange(disks[name].mount, disks[name].free_bytes, size) for name, size in needed.items()
    ]


def _reboot(reasons: Sequence[str], cut_off: Sequence[str]) -> str:
    if not reasons:
        return "none"
    cut = f"; it cuts off {shortened(cut_off)}" if cut_off else ""
    return f"once, by itself: {shortened(reasons)}{cut}"


def shortened(reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - MOST} more" if len(reasons) > MOST else ""
    return "; ".join(reasons[:MOST]) + more


def _service(service: Service) -> str:
    if not service.restart:
        return f"{service.unit} is not restarted"
    if not service.serves:
        return f"{service.unit} does not serve now: nobody is cut off from it"
    until = f"{service.unit} serves until its turn, and then pauses"
    if service.down is not None:
        return f"{until} for about {span(service.down)}, as in the last switch"
    if service.start is not None:
        return f"{until} for at least {span(service.start)}, which its last start took"
    return f"{until} for one start of the server; how long that takes here is not known yet"


def _undo(facts: PlanFacts) -> list[str]:
    if not facts.service.restart:
        return []
    texts = []
    if facts.service.serves or facts.service.good:
        texts.append("a server that fails its gate makes way by itself for what serves now")
    if facts.found:
        texts += [
            "your own unit is kept for ever, and comes back with",
            f"  {ROLLBACK} --data to=found",
        ]
    elif facts.service.good:
        texts += ["what serves now is kept, and comes back with", f"  {ROLLBACK}"]
    return texts


def span(seconds: float) -> str:
    """Nothing takes no time at all."""
    return duration(max(1.0, seconds))
