"""A rehearsal box: a throw-away Debian host with real systemd, ssh, apt and journald.

    box = Box.up("rehearsal")                 from the pristine image, in about two seconds
    box.run("systemctl is-system-running")    over real ssh, as root
    box.snapshot("released", key="ab12")      keep what was written as a layer
    Box.up("other", layer="released-ab12")    start another box from there
    box.down()                                nothing is left

A name belongs to this checkout: two checkouts can both have a box "rehearsal". Stand-in servers for
the boxes listen on `bridge_address()`.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.rehearsal import cgroup, image, layer, machine, network, registry, supervise
from tests.rehearsal.machine import (
    CHECKOUT,
    CHECKOUT_ID,
    RehearsalError,
    cache_folder,
    command,
    locked,
    undisturbed,
)
from tests.rehearsal.registry import Entry, Owner

# numbers that systemd as process 1 understands: an orderly poweroff, an orderly reboot
POWER_OFF = signal.SIGRTMIN + 4
REBOOT = signal.SIGRTMIN + 5
UP_S = 180.0  # a box is up or off in two seconds; on a busy machine it takes its time


@dataclass(frozen=True)
class Box:
    """One box of this checkout. Every method looks at the box as it is now, none remembers."""

    name: str

    @classmethod
    def up(
        cls,
        name: str,
        *,
        suite: str = "bookworm",
        layer: str | None = None,
        binds: Mapping[str | Path, str] | None = None,
        disk_limit_mb: int | None = None,
        owned: bool = False,
        timeout_s: float = UP_S,
    ) -> Self:
        """Bring up a new box and wait until it answers; one of the same name is replaced.

        `layer` is the full name that snapshot returned. `binds` maps paths of the machine to
        paths in the box, writable. `disk_limit_mb` gives the box a disk of that size, in memory.
        An `owned` box is cleared away, at the next command for any box, when the process that made
        it has ended. Raises RehearsalError; then, and on Ctrl-C, nothing is left behind.
        """
        if not re.fullmatch(r"[a-z][a-z0-9-]{0,30}", name):
            raise RehearsalError(
                f"{name!r} is no name for a box: it is a host name of at most 31 small letters,"
                " digits and '-'."
            )
        machine.ready()
        new = cls(name)
        entry = new.describe(suite, layer, binds or {}, disk_limit_mb)
        with new.locked():
            new.remove()
            try:
                with registry.opened() as record:
                    record.claim(replace(entry, owner=Owner.me()))
                new.boot()
                new.wait(timeout_s)
                if not owned:
                    with registry.opened() as record:
                        settled = replace(record.boxes[new.machine_name], owner=None)
                        record.boxes[new.machine_name] = settled
            except BaseException:
                with undisturbed():
                    new.remove()
                raise
        return new

    def describe(
        self,
        suite: str,
        layer_name: str | None,
        binds: Mapping[str | Path, str],
        disk_limit_mb: int | None,
    ) -> Entry:
        pristine = image.ready(suite)
        if layer_name and not layer.exists(pristine, layer_name, bridge_address()):
            raise RehearsalError(
                f"There is no layer {layer_name!r} for the {suite} image as it is built now. Make"
                " it with snapshot from a box of this suite."
            )
        for outside in binds:
            if not Path(outside).exists():
                raise RehearsalError(f"{outside} cannot be bound into a box: it does not exist.")
        return Entry(
            machine_name=self.machine_name,
            name=self.name,
            checkout=str(CHECKOUT),
            folder=str(cache_folder() / "boxes" / self.machine_name),
            suite=suite,
            image=pristine,
            layers=layer.chain(pristine, layer_name) if layer_name else (),
            disk_limit_mb=disk_limit_mb,
            binds={str(Path(outside).resolve()): inside for outside, inside in binds.items()},
        )

    @classmethod
    def find(cls, name: str) -> Self:
        """The box of this name, running or not. Raises RehearsalError when there is none."""
        box = cls(name)
        _ = box.entry
        return box

    @classmethod
    def all(cls) -> list[Self]:
        """The boxes of this checkout, by name."""
        with registry.opened() as record:
            names = [one.name for one in record.boxes.values() if one.checkout == str(CHECKOUT)]
        return [cls(name) for name in sorted(names)]

    @property
    def machine_name(self) -> str:
        """The box's name among the boxes of all checkouts."""
        return f"{self.name}-{CHECKOUT_ID}"

    @property
    def entry(self) -> Entry:
        with registry.opened() as record:
            if entry := record.boxes.get(self.machine_name):
                return entry
        raise RehearsalError(
            f"There is no box {self.name!r}. Make it with `python -m tests.rehearsal up"
            f" {self.name}`."
        )

    @property
    def address(self) -> str:
        return self.entry.address

    @property
    def is_running(self) -> bool:
        return bool(cgroup.processes(self.machine_name))

    @property
    def root(self) -> Path:
        """The running box's file system, as the machine reaches it, with all that is mounted."""
        leader = cgroup.leader(self.machine_name)
        if leader is None:
            raise RehearsalError(f"The box {self.name} does not run; start it first.")
        return Path(f"/proc/{leader}/root")

    @property
    def console(self) -> str:
        """What the box has printed at its boots since it was made or reset."""
        log = Path(self.entry.folder, "console.log")
        return log.read_text(errors="replace") if log.exists() else ""

    def start(self, timeout_s: float = UP_S) -> None:
        """Switch a box on that is off, with its disk as it was; a running one is left alone."""
        with self.locked():
            if not self.is_running:
                self.boot()
                self.wait(timeout_s)

    def power_cut(self) -> None:
        """Pull the plug: everything in the box ends at once. What was written stays written."""
        with self.locked():
            self.stop()

    def shutdown(self, timeout_s: float = UP_S) -> None:
        """Shut down in order, and wait. Raises RehearsalError when it takes too long."""
        with self.locked():
            self.shut_down(timeout_s)

    def reboot(self, timeout_s: float = UP_S) -> None:
        """Restart in order, and wait until the box answers again."""
        before = cgroup.leader(self.machine_name)
        if before is None:
            raise RehearsalError(f"The box {self.name} does not run; start it first.")
        os.kill(before, REBOOT)
        self.until(lambda: cgroup.leader(self.machine_name) not in (before, None), timeout_s)
        self.wait(timeout_s)

    def reset(self, timeout_s: float = UP_S) -> None:
        """Throw away what the box has written and start it from its image and layers again."""
        with self.locked():
            entry = self.entry
            self.stop()
            wipe(entry)
            self.boot()
            self.wait(timeout_s)

    def down(self) -> None:
        """Take the box away with all that it was; no box is no error."""
        with self.locked():
            self.remove()

    def snapshot(self, name: str, key: str = "", timeout_s: float = UP_S) -> str:
        """Shut the box down and keep its disk as the read-only layer "name-key"; returns that.

        The box stays off and stands on the new layer: start() goes on from there. Its next start
        gives it a new machine-id and an empty journal, as every box from the layer gets.
        """
        full_name = layer.full_name(name, key)
        with self.locked():
            entry = self.entry
            if entry.disk_limit_mb:
                raise RehearsalError("A box with a small disk cannot be snapshotted.")
            if full_name in entry.layers:
                raise RehearsalError(f"The box {self.name} stands on {full_name!r} already.")
            if self.is_running:
                self.shut_down(timeout_s)
            bridge = bridge_address()
            # first the record: a box whose layer is missing is refused, never started as another
            with registry.opened() as record:
                standing = replace(entry, layers=(full_name, *entry.layers))
                record.boxes[self.machine_name] = standing
            upper = Path(entry.folder, "disk", "upper")
            layer.keep(upper, entry.image, name=name, key=key, below=entry.layers, bridge=bridge)
            wipe(entry)
        return full_name

    def run(
        self,
        words: str | Sequence[str],
        *,
        user: str = "root",
        check: bool = True,
        text: str | None = None,
        timeout_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a shell command (or a list of words) in the box over ssh, with `text` as its stdin.

        Users: root, admin (sudo without a password), guest (no sudo). With `check` a failure
        raises RehearsalError that shows what was said.
        """
        line = words if isinstance(words, str) else shlex.join(words)
        done = subprocess.run(
            [*self.ssh(user), "--", line],
            stdin=subprocess.DEVNULL if text is None else None,
            input=text,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if check and done.returncode:
            said = (done.stderr + done.stdout).strip()
            raise RehearsalError(
                f"`{line}` on {self.name} ended with {done.returncode}: {said[-2000:]}"
            )
        return done

    def ssh(self, user: str = "admin") -> list[str]:
        """The ssh command for this box, to add options or a command to."""
        return ["ssh", "-F", str(self.ssh_config), "-l", user, self.name]

    @property
    def ssh_config(self) -> Path:
        """An ssh_config with all boxes of this checkout by name, for `ssh -F` and what reads it."""
        return ssh_folder() / "ssh_config"

    @property
    def known_hosts(self) -> Path:
        """The host keys of all boxes of this checkout, by name and by address."""
        return ssh_folder() / "known_hosts"

    @property
    def private_key(self) -> Path:
        return image.private_key()

    def wait(self, timeout_s: float = UP_S) -> None:
        """Wait until the box lets its users in over ssh. Raises RehearsalError with its console."""
        address = self.address

        def lets_in() -> bool:
            # asked before its cable is plugged in, the kernel would try again only a second later
            plugged_in = self.root.exists()
            return plugged_in and answers(address) and not (self.root / "run/nologin").exists()

        self.until(lets_in, timeout_s)

    def until(self, done: Callable[[], bool], timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while True:
            try:
                if done():
                    return
            except (OSError, RehearsalError):
                pass  # the box is between two states
            off = not self.is_running
            if off or time.monotonic() > end:
                what = "went off again" if off else f"did not answer within {timeout_s:g} s"
                tail = "\n".join(self.console.splitlines()[-15:])
                raise RehearsalError(f"The box {self.name} {what}. Its console ends with:\n{tail}")
            time.sleep(0.03)

    # What follows is for a caller that holds the box's lock.

    def boot(self) -> None:
        entry = self.entry
        folder = Path(entry.folder)
        folder.mkdir(parents=True, exist_ok=True)
        disk = folder / "disk"
        if entry.disk_limit_mb and not disk.is_mount():
            disk.mkdir(exist_ok=True)
            size = f"size={entry.disk_limit_mb}m,mode=755"
            command("mount", "-t", "tmpfs", "-o", size, self.machine_name, disk)
        lower = [f"layers/{entry.image}/{one}/upper" for one in entry.layers]
        with registry.opened() as record:
            subnet = record.network_up()
        write_ssh_files()
        spec = supervise.Spec(
            machine_name=self.machine_name,
            hostname=self.name,
            address=entry.address,
            subnet=subnet.text,
            cache=str(folder.parents[1]),
            folder=f"boxes/{self.machine_name}",
            lower=[*lower, f"images/{entry.image}/root"],
            binds=entry.binds,
            namespace=str(registry.RUN / "netns" / self.machine_name),
        )
        cgroup.remove(self.machine_name)
        supervise.start(spec, CHECKOUT)

    def stop(self) -> None:
        _ = self.entry
        cgroup.end(self.machine_name)
        network.unplug(self.machine_name)

    def shut_down(self, timeout_s: float) -> None:
        if (leader := cgroup.leader(self.machine_name)) is not None:
            os.kill(leader, POWER_OFF)
        end = time.monotonic() + timeout_s
        while self.is_running:
            if time.monotonic() > end:
                raise RehearsalError(
                    f"The box {self.name} did not shut down within {timeout_s:g} s. Cut its power"
                    f" with `python -m tests.rehearsal power-cut {self.name}`."
                )
            time.sleep(0.03)
        self.stop()

    def remove(self) -> None:
        with registry.opened() as record:
            entry = record.boxes.get(self.machine_name)
            if entry is None:
                return
            # from here on whoever opens the record finishes this if we are killed
            record.boxes[self.machine_name] = replace(entry, owner=Owner.me())
        registry.clear_away(entry)
        with registry.opened() as record:
            record.drop(entry)
        write_ssh_files()

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One at a time may change the box; the others wait."""
        with locked(cache_folder() / "boxes" / f"{self.machine_name}.lock"):
            yield

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        fault: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.down()


def bridge_address() -> str:
    """The machine's address on the bridge, where stand-in servers for the boxes listen.

    It is known before a box is up; to listen there without one, use registry.network_held().
    """
    return registry.subnet_now().bridge_address


def layer_exists(name: str, key: str = "", *, suite: str = "bookworm") -> bool:
    """Whether Box.up could start from the layer "name-key" now; builds the image if need be."""
    full_name = layer.full_name(name, key)
    machine.ready()
    return layer.exists(image.ready(suite), full_name, bridge_address())


def drop_layers(name: str, keep_key: str = "", *, suite: str = "bookworm") -> list[str]:
    """Remove the layers of this name but "name-keep_key", unless in use; returns those removed."""
    machine.ready()
    return layer.drop(image.ready(suite), name, keep_key)


def wipe(entry: Entry) -> None:
    folder = Path(entry.folder)
    registry.empty_disk(folder)
    for name in ("prepared", "console.log"):
        (folder / name).unlink(missing_ok=True)


def answers(address: str) -> bool:
    """Whether an ssh server greets at the address."""
    with socket.create_connection((address, 22), timeout=2) as connection:
        return connection.recv(4) == b"SSH-"


def ssh_folder() -> Path:
    return cache_folder() / "ssh" / CHECKOUT_ID


SSH_ENTRY = """\
Host {name}
    HostName {address}
    User admin
    IdentityFile "{key}"
    IdentitiesOnly yes
    UserKnownHostsFile "{known_hosts}"
    GlobalKnownHostsFile /dev/null
    StrictHostKeyChecking yes
    ConnectTimeout 30
    LogLevel ERROR

"""


def write_ssh_files() -> None:
    """Lay ssh_config and known_hosts down for the boxes that this checkout has now."""
    folder = ssh_folder()
    folder.mkdir(parents=True, exist_ok=True)
    known_hosts = folder / "known_hosts"
    with registry.opened() as record:
        entries = [one for one in record.boxes.values() if one.checkout == str(CHECKOUT)]
        hosts = "".join(
            SSH_ENTRY.format(
                name=one.name, address=one.address, key=image.private_key(), known_hosts=known_hosts
            )
            for one in entries
        )
        keys = "".join(
            f"{one.name},{one.address} {key}\n"
            for one in entries
            for key in image.host_keys(one.image)
        )
        for file, text in ((folder / "ssh_config", hosts), (known_hosts, keys)):
            new = file.with_name(file.name + ".new")
            new.write_text(text)
            new.replace(file)
