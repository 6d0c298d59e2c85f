"""What a box is, read from outside it: to see that a refusal left everything as it was."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.rehearsal import cgroup
from tests.rehearsal.box import Box

# The kernel's own, what ends with a reboot, logs, and what a login leaves behind.
NOT_LOOKED_AT = ("proc", "sys", "dev", "run", "tmp", "var/tmp", "var/log", "var/lib/apt/lists")
# Units that a login over ssh, or the clock, starts and ends by itself.
PASSING_UNITS = re.compile(
    r"user@|user-runtime-dir@|run-user-|systemd-tmpfiles-clean|logrotate|fstrim|man-db"
    r"|dpkg-db-backup|apt-daily"
)
# Those of a login, and those that a unit has while it starts or runs.
PASSING_MOUNTS = re.compile(r"/run/(user|credentials)/")


@dataclass(frozen=True)
class Fingerprint:
    """Every file {path: what it is}, every package and every unit with its state, every mount."""

    files: dict[str, str]
    packages: frozenset[str]
    units: frozenset[str]
    mounts: frozenset[str]

    def changes(self, later: Fingerprint) -> list[str]:
        """Everything that is otherwise on the box later, one line each; empty when nothing is."""
        paths = sorted(self.files.keys() | later.files.keys())
        return [
            f"{path}: {self.files.get(path, 'absent')} -> {later.files.get(path, 'absent')}"
            for path in paths
            if self.files.get(path) != later.files.get(path)
        ] + sorted(
            (self.packages ^ later.packages)
            | (self.units ^ later.units)
            | (self.mounts ^ later.mounts)
        )

    def new_files(self, later: Fingerprint) -> set[str]:
        """What is there later and was not, with its whole path."""
        return later.files.keys() - self.files.keys()


def taken(box: Box) -> Fingerprint:
    """The fingerprint of a running box, as root sees it; takes about 0.3 s."""
    # one that has just come up still ends what belongs to its boot
    inside(box, "systemctl is-system-running --wait || :")
    told = inside(box, f"{PACKAGES}; echo; {UNITS}; echo; {MOUNTS}")
    packages, units, mounts = (part.splitlines() for part in told.split("\n\n"))
    return Fingerprint(
        files=files(box.root),
        packages=frozenset(packages),
        units=frozenset(line for line in units if not PASSING_UNITS.match(line)),
        mounts=frozenset(line for line in mounts if not PASSING_MOUNTS.match(line)),
    )


PACKAGES = "dpkg-query -W -f '${Package} ${Version} ${Status}\n'"
# Those that run or have failed; whether one is enabled is a link below /etc, among the files.
UNITS = """systemctl list-units --plain --no-legend --no-pager \
    --type service,socket,timer,path | awk '{print $1, $2, $3, $4}'"""
# As the kernel has them: systemd's own list follows some seconds later on a busy machine.
MOUNTS = "awk '{print $5, $4}' /proc/self/mountinfo"


def inside(box: Box, command: str) -> str:
    """What a command prints in the box, run without a login, which would leave traces."""
    entered = ["nsenter", "--all", f"--target={cgroup.leader(box.machine_name)}"]
    done = subprocess.run([*entered, "sh", "-ec", command], capture_output=True, check=True)
    return done.stdout.decode()


def files(root: Path) -> dict[str, str]:
    """{path: type, size, mode, owner, time and link of everything below a root}.

    A folder's own time tells of files that came and went again.
    """
    left_out = " -o ".join(f"-path {root}/{path}" for path in NOT_LOOKED_AT).split()
    # A folder's size is the file system's matter, and so is the time of the root itself.
    kinds = ["-type", "d", "-printf", f"/%P{SEPARATOR}folder %m %U:%G %T@\n", "-o"]
    kinds += ["-printf", f"/%P{SEPARATOR}%y %s %m %U:%G %T@ %l\n"]
    command = ["find", f"{root}/", "-mindepth", "1", "(", *left_out, ")", "-prune", "-o", *kinds]
    # What a running box takes away meanwhile makes find end with 1.
    done = subprocess.run(command, capture_output=True, check=False)
    rows = (line.partition(SEPARATOR) for line in os.fsdecode(done.stdout).split("\n") if line)
    return {path: what for path, _, what in rows}


SEPARATOR = " = "
