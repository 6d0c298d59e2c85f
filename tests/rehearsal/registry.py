"""Who has which box and address on this machine: shared by all checkouts and processes.

The record lies in /run/rehearsal-boxes under a lock. The first box brings the network up, the last
one takes it down. What a killed process left half-made, and what a restart of the machine left
behind, is cleared away whenever the record is opened.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from tests.rehearsal import cgroup, network
from tests.rehearsal.machine import RehearsalError, command, undisturbed

RUN = Path("/run/rehearsal-boxes")
RECORD = RUN / "record.json"
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Owner:
    """A process: its number, and its start in clock ticks since boot, since numbers come again."""

    process: int
    started: int

    @classmethod
    def me(cls) -> Owner:
        return cls(os.getpid(), start_of(os.getpid()))

    @property
    def lives(self) -> bool:
        return start_of(self.process) == self.started


def start_of(process: int) -> int:
    """When the process began, in clock ticks since boot; -1 when there is no such process."""
    try:
        stat = Path(f"/proc/{process}/stat").read_text()
    except OSError:
        return -1
    return int(stat.rpartition(")")[2].split()[19])


@dataclass(frozen=True)
class Entry:
    """One box. `owner` is the process whose end makes the box garbage: the one that is making it,
    or for an owned box the one that made it."""

    machine_name: str
    name: str
    checkout: str
    folder: str  # where its disk lies
    suite: str
    image: str  # folder name under images/
    layers: tuple[str, ...]  # folder names under layers/, topmost first
    address: str = ""
    disk_limit_mb: int | None = None
    binds: dict[str, str] = field(default_factory=dict)
    owner: Owner | None = None

    @property
    def is_garbage(self) -> bool:
        return not Path(self.checkout).is_dir() or bool(self.owner and not self.owner.lives)


@dataclass
class Registry:
    """The record, open and locked. Change it only inside `with opened()`."""

    boxes: dict[str, Entry] = field(default_factory=dict)
    holders: list[Owner] = field(default_factory=list)
    subnet: network.Subnet | None = None
    forwarding_before: str = "0"
    boot_id: str = ""

    def claim(self, entry: Entry) -> Entry:
        """Enter a box, give it the lowest free address, and have the network up."""
        if entry.machine_name in self.boxes:
            raise RehearsalError(
                f"The box {entry.name} is being made by another process of this checkout. Wait"
                " for it, or take another name."
            )
        subnet = self.network_up()
        taken = {other.address for other in self.boxes.values()}
        free = [address for address in subnet.box_addresses if address not in taken]
        if not free:
            raise RehearsalError(
                "All addresses for boxes are in use; take some down: `python -m tests.rehearsal"
                " list --everywhere` shows them."
            )
        entry = replace(entry, address=free[0])
        self.boxes[entry.machine_name] = entry
        self.save()
        return entry

    def network_up(self) -> network.Subnet:
        if self.subnet is None:
            network.remove_remnants()
            self.subnet = network.free_subnet()
            self.forwarding_before = network.forwarding()
            self.save()  # before the change: what is recorded can be undone after a kill
        network.bring_up(self.subnet)
        return self.subnet

    def drop(self, entry: Entry) -> None:
        """Take everything of a box away, and the network with the last one."""
        clear_away(entry)
        self.boxes.pop(entry.machine_name, None)
        self.save()
        self.network_down_if_unused()

    def network_down_if_unused(self) -> None:
        if self.subnet and not self.boxes and not self.holders:
            network.take_down(self.subnet, self.forwarding_before)
            self.subnet = None
            self.save()

    def heal(self) -> None:
        """Clear away what nobody will: of killed processes, lost checkouts, an earlier boot."""
        boot_id = BOOT_ID.read_text().strip()
        rebooted = self.boot_id != boot_id
        for entry in list(self.boxes.values()):
            if rebooted or entry.is_garbage:
                clear_away(entry)
                del self.boxes[entry.machine_name]
        self.holders = [holder for holder in self.holders if holder.lives and not rebooted]
        if rebooted:
            self.subnet = None  # the restart took the network away and set ip_forward anew
            self.boot_id = boot_id
        self.network_down_if_unused()

    def save(self) -> None:
        record = {
            "boxes": [asdict(entry) for entry in self.boxes.values()],
            "holders": [asdict(holder) for holder in self.holders],
            "subnet": self.subnet.text if self.subnet else None,
            "forwarding_before": self.forwarding_before,
            "boot_id": self.boot_id,
        }
        new = RECORD.with_suffix(".new")
        new.write_text(json.dumps(record, indent=1))
        new.replace(RECORD)

    @classmethod
    def load(cls) -> Registry:
        try:
            record = json.loads(RECORD.read_text())
        except FileNotFoundError:
            return cls()
        boxes = [entry_from(fields) for fields in record["boxes"]]
        return cls(
            boxes={entry.machine_name: entry for entry in boxes},
            holders=[Owner(**fields) for fields in record["holders"]],
            subnet=network.Subnet(record["subnet"]) if record["subnet"] else None,
            forwarding_before=record["forwarding_before"],
            boot_id=record["boot_id"],
        )


def entry_from(fields: dict[str, object]) -> Entry:
    owner = fields.pop("owner")
    layers = fields.pop("layers")
    assert isinstance(layers, list)
    return Entry(
        **fields,  # type: ignore[arg-type]  # our own file, written by save()
        layers=tuple(layers),
        owner=Owner(**owner) if isinstance(owner, dict) else None,
    )


@contextmanager
def opened() -> Iterator[Registry]:
    """The record, locked against everybody else on the machine, healed, and saved at the end."""
    RUN.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (RUN / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with undisturbed():
            registry = Registry.load()
            registry.heal()
            try:
                yield registry
            finally:
                registry.save()


@contextmanager
def network_held() -> Iterator[str]:
    """Have the bridge without a box, for a stand-in server; gives the address to listen on."""
    me = Owner.me()
    with opened() as registry:
        address = registry.network_up().bridge_address
        registry.holders.append(me)
    try:
        yield address
    finally:
        with opened() as registry:
            registry.holders.remove(me)
            registry.network_down_if_unused()


def subnet_now() -> network.Subnet:
    """The network that is up, or the one that would be chosen now."""
    with opened() as registry:
        return registry.subnet or network.free_subnet()


def is_running(entry: Entry) -> bool:
    return bool(cgroup.processes(entry.machine_name))


def clear_away(entry: Entry) -> None:
    """End the box's processes and remove its cable, mounts and disk."""
    cgroup.end(entry.machine_name)
    network.unplug(entry.machine_name)
    (RUN / "netns" / entry.machine_name).unlink(missing_ok=True)
    # systemd-nspawn empties it, but cannot remove it where /run is no tmpfs
    command("rm", "-rf", f"/run/systemd/nspawn/propagate/{entry.machine_name}")
    folder = Path(entry.folder)
    empty_disk(folder)
    command("rm", "-rf", "--one-file-system", folder)


def empty_disk(folder: Path) -> None:
    """Remove what a box has written; its small disk, a mount, goes as well."""
    disk = folder / "disk"
    if disk.is_mount():
        command("umount", "-l", disk)
    command("rm", "-rf", "--one-file-system", disk)
