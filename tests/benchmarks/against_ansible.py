"""An unchanged run of 100 resources: pyinfra with fact pipelining, and what it is measured against.

    python -m tests.benchmarks.against_ansible [--rounds 3] [--minutes 6] [--write TABLE.md]

In one run on one machine, on rehearsal boxes deployed with the stand-in release. The resources are
those that the box's manifest names, filled up to a hundred with files below /etc/benchmark.d. A
list of packages counts as one, for pyinfra and for Ansible.

Ansible gets what helps it: ssh pipelining, its shared ssh connection, no facts gathered, its
interpreter named, lists where a module takes one, loops elsewhere. It runs with Mitogen too where
that works. Each contestant converges first and must then find nothing to change.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

from aibox.decide import manifest
from aibox.decide.manifest import ABSENT, Manifest
from tasks.box import AIBOX
from tests.benchmarks.unchanged_run import PLAIN, Contestant, counts, void
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import layer_of
from tests.rehearsal.emulation.hub import Hub, usual_port
from tests.rehearsal.machine import CHECKOUT, RehearsalError, cache_folder
from tests.rehearsal.provision import Deploy, command_line, environment, files_folder
from tests.rehearsal.registry import network_held

HERE = Path(__file__).resolve().parent
STEPS = 100  # operations of pyinfra, tasks and loop items of Ansible
FOLDERS = 10  # of those that fill up
BOXES = 4
ANSIBLE, MITOGEN = "2.19.14", "0.3.54"  # the newest that run on Python 3.11
RECAP = re.compile(r"ok=(\d+) +changed=(\d+) +unreachable=(\d+) +failed=(\d+)")


class BenchmarkError(Exception):
    """A contestant that cannot be measured; the text is for a person."""


# --- what is asked -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Placed:
    """A file, or a folder (content: None). mode: octal, "644"."""

    path: str
    owner: str
    group: str
    mode: str
    content: str | None = None


@dataclass(frozen=True)
class User:
    name: str
    home: str
    shell: str


@dataclass(frozen=True)
class Resources:
    """What both tools are asked for, each field a list of its own in a playbook."""

    packages: list[str]
    users: list[User]
    folders: list[Placed]
    files: list[Placed]
    units: list[str]

    @property
    def steps(self) -> int:
        return 1 + len(self.users) + len(self.folders) + len(self.files) + len(self.units)


def resources_of(box: Box) -> Resources:
    """What the box's manifest names, and as much beside it as makes `STEPS`."""
    found = manifest.parse(box.run([AIBOX, "status", "--manifest"]).stdout)
    bit = found["bit"]
    placed = list(in_manifest(box, found))
    users = [User(name, **there) for name, there in bit["users"].items() if there != ABSENT]
    named = Resources(
        packages=sorted(found["version"]["packages"]),
        users=users,
        folders=[one for one in placed if one.content is None],
        files=[one for one in placed if one.content is not None],
        units=[name for name, unit in bit["units"].items() if unit["state"] == "active"],
    )
    folders, files = filling(STEPS - named.steps)
    named.folders.extend(folders)
    named.files.extend(files)
    return named


def in_manifest(box: Box, found: Manifest) -> Iterator[Placed]:
    """Files and folders that can be asked for again: no secrets, and what no template would take
    for its own."""
    for path, row in found["bit"]["files"].items():
        if row == ABSENT or row["kind"] not in ("file", "folder") or row.get("sha256") == "secret":
            continue
        owner, group = row["owner"].split(":")
        if row["kind"] == "folder":
            yield Placed(path, owner, group, row["mode"])
            continue
        content = box.run(["cat", "--", path]).stdout
        if not re.search(r"{[{%#]", content):
            yield Placed(path, owner, group, row["mode"], content)


def filling(number: int) -> tuple[list[Placed], list[Placed]]:
    """Folders and files below /etc/benchmark.d, `number` of them together."""
    folders = [
        Placed(f"/etc/benchmark.d/part-{part}", "root", "root", "755") for part in range(FOLDERS)
    ]
    files = [
        Placed(
            f"{folders[n % FOLDERS].path}/setting-{n:02}.conf",
            "root",
            "root",
            "640" if n % 3 else "644",
            f"# Setting {n} of the benchmark.\n" + f"value_{n} = {n * n}\n" * (1 + n % 20),
        )
        for n in range(number - FOLDERS)
    ]
    return folders, files


# --- the contestants ---------------------------------------------------------------------------


class Pyinfra:
    """Runs of the stock deploy against boxes, with the product's config.py."""

    def __init__(self, boxes: Sequence[Box], asked: Resources, folder: Path) -> None:
        folder.mkdir()
        data = {"resources": asdict(asked)}
        self.environment = environment(dict.fromkeys(boxes, data), folder)
        self.environment["XDG_CACHE_HOME"] = str(folder / "cache")
        self.deploy = str(HERE / "hundred_resources.py")
        self.empty = str(folder / "empty.py")
        Path(self.empty).write_text("")

    def run(self, *words: str, deploy: str | None = None) -> Deploy:
        done = subprocess.run(
            [*command_line(*words)[:-1], deploy or self.deploy],
            cwd=CHECKOUT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            raise BenchmarkError(done.stderr + done.stdout)
        return Deploy(done.returncode, done.stderr, done.stdout)

    def converge(self) -> None:
        """From here on nothing is to be changed, and what is asked has been learned."""
        self.run("-y")
        self.run("-y")
        self.unchanged()

    def unchanged(self) -> None:
        planned = self.run("--dry", "--json").planned
        if planned:
            raise BenchmarkError(f"pyinfra would change {', '.join(planned)}")

    def contestant(self, name: str, *words: str) -> Contestant:
        counted = counts(self.run("--debug", *words).log)
        return Contestant(name, lambda: void(self.run(*words)), counted["commands"])

    def nothing(self) -> Contestant:
        return Contestant(
            "an empty pyinfra run", lambda: void(self.run("-y", deploy=self.empty)), 0
        )


class Ansible:
    """Runs of the same resources as a playbook. strategy: None for Ansible's own."""

    def __init__(
        self, box: Box, asked: Resources, folder: Path, strategy: str | None = None
    ) -> None:
        venv = ansible_venv()
        inventory = folder / "inventory"
        (inventory / "group_vars").mkdir(parents=True)
        (inventory / "group_vars/all.json").write_text(json.dumps(asdict(asked)))
        (inventory / "hosts").write_text(f"{box.name} {as_words(connection(box))}\n")
        self.words = [
            str(venv / "bin/ansible-playbook"),
            *("--inventory", str(inventory / "hosts")),
            str(HERE / "hundred_resources.yml"),
        ]
        self.environment = {
            **os.environ,
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_HOME": str(folder),
            "ANSIBLE_PIPELINING": "True",
            "ANSIBLE_NOCOLOR": "1",
        }
        if strategy:
            plugins = "lib/python*/site-packages/ansible_mitogen/plugins/strategy"
            self.environment["ANSIBLE_STRATEGY_PLUGINS"] = str(next(venv.glob(plugins)))
            self.environment["ANSIBLE_STRATEGY"] = strategy

    def run(self) -> tuple[int, int]:
        """How many tasks were fine, and how many of them changed something."""
        done = subprocess.run(
            self.words,
            cwd=HERE,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        recap = RECAP.search(done.stdout)
        if done.returncode or not recap:
            raise BenchmarkError((done.stderr + done.stdout)[-2000:])
        return int(recap[1]), int(recap[2])

    def run_unchanged(self) -> None:
        fine, changed = self.run()
        if changed or not fine:
            raise BenchmarkError(f"Ansible changed {changed} of {fine} tasks")


def connection(box: Box) -> dict[str, str]:
    return {
        "ansible_user": "admin",
        "ansible_ssh_common_args": f"-F {box.ssh_config}",
        "ansible_python_interpreter": "/usr/bin/python3",
    }


def as_words(variables: Mapping[str, str]) -> str:
    return " ".join(f"{name}={shlex.quote(value)}" for name, value in variables.items())


def ansible_venv() -> Path:
    """A venv with Ansible and Mitogen in the cache, made when it is not there."""
    venv = cache_folder() / f"ansible-{ANSIBLE}-mitogen-{MITOGEN}"
    complete = venv / "complete"
    if not complete.exists():
        install = [str(venv / "bin/python"), "-m", "pip", "install", "--quiet"]
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(venv)], check=True)
        subprocess.run([*install, f"ansible-core=={ANSIBLE}", f"mitogen=={MITOGEN}"], check=True)
        complete.touch()
    return venv


class ByHand:
    """One ssh command that reads the state of every resource, which must stay as it was."""

    def __init__(self, box: Box, asked: Resources) -> None:
        files = shlex.join(one.path for one in asked.files)
        folders = shlex.join(one.path for one in asked.folders)
        self.words = [*box.ssh(), "sudo", "sh", "-e"]
        self.script = (
            f"dpkg-query -W -f '${{Package}} ${{Status}}\\n' {shlex.join(asked.packages)}\n"
            f"getent passwd {shlex.join(one.name for one in asked.users)}\n"
            f"stat -c '%n %F %a %U:%G' {folders} {files}\n"
            f"sha256sum {files}\n"
            f"systemctl show -p Id -p ActiveState -p UnitFileState {shlex.join(asked.units)}\n"
        )
        self.found = self.read()

    def read(self) -> str:
        done = subprocess.run(
            self.words, input=self.script, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise BenchmarkError(done.stderr)
        return done.stdout

    def run_unchanged(self) -> None:
        if self.read() != self.found:
            raise BenchmarkError("the state of the box changed during the benchmark")


# --- the competition ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Field:
    """The contestants, the first of which is what the others are measured by, and what to say of
    those that are missing."""

    contestants: list[Contestant]
    remarks: list[str]
    check: Callable[[], None]  # raises BenchmarkError when a box is not as it was


def field_of(boxes: Sequence[Box], asked: Resources, folder: Path) -> Field:
    """Let each converge once, and see that nothing is left to change."""
    one = Pyinfra(boxes[:1], asked, folder / "one")
    four = Pyinfra(boxes, asked, folder / "four")
    four.converge()  # the one box is among them
    one.converge()
    contestants = [
        one.contestant("pyinfra, pipelined, `-y`", "-y"),
        one.contestant("pyinfra, pipelined, `--dry`", "--dry"),
        one.contestant("pyinfra, plain, `-y`", "-y", *PLAIN),
        one.nothing(),
        Contestant("one ssh command by hand", ByHand(boxes[0], asked).run_unchanged, 1),
        four.contestant(f"pyinfra, pipelined, `-y`, {len(boxes)} boxes", "-y"),
    ]
    remarks = []
    for name, strategy in ((f"Ansible {ANSIBLE}, pipelining", None), MITOGEN_LINEAR):
        playbook = Ansible(boxes[0], asked, folder / (strategy or "ansible"), strategy)
        try:
            changed = playbook.run()[1]
            print(f"{name} converged, {changed} tasks changed", file=sys.stderr, flush=True)
            if changed:  # none is expected: pyinfra has laid down the same
                playbook.run_unchanged()
        except BenchmarkError as error:
            remarks.append(f"{name}: does not work here. {str(error).strip()}")
        else:
            contestants.append(Contestant(name, playbook.run_unchanged))
    return Field(contestants, remarks, four.unchanged)


MITOGEN_LINEAR = (f"Ansible {ANSIBLE}, Mitogen {MITOGEN}", "mitogen_linear")


def compete(field: Field, rounds: int, until: float) -> None:
    """Rounds in which everyone runs once; a round that would end after `until` is left out.

    The first round always runs. Each wall is told as it is measured, and Ctrl-C keeps them.
    """
    longest = 0.0
    for _ in range(rounds):
        began = time.monotonic()
        if longest and began + longest > until:
            return
        try:
            for one in field.contestants:
                one.measure()
                print(f"{one.name}: {one.walls[-1]:.2f} s", file=sys.stderr, flush=True)
        except KeyboardInterrupt:
            return  # what was measured is shown
        longest = max(longest, time.monotonic() - began)


def table(field: Field) -> str:
    """Markdown: median and best wall, the median as a multiple of the first's, remote commands."""
    measured = [one for one in field.contestants if one.walls]
    if not measured:
        return "Nothing was measured."
    base = statistics.median(measured[0].walls)
    rows = [
        "| | wall, median | best | to pipelined `-y` | remote commands |",
        "|---|---|---|---|---|",
    ]
    for one in measured:
        wall = statistics.median(one.walls)
        commands = "" if one.commands is None else one.commands
        rows.append(
            f"| {one.name} | {wall:.2f} s | {min(one.walls):.2f} s | {wall / base:.1f} |"
            f" {commands} |"
        )
    missing = [f"{one.name}: not measured." for one in field.contestants if not one.walls]
    return "\n".join([*rows, *(f"\n{one}" for one in [*field.remarks, *missing])])


def conditions(asked: Resources, field: Field, before: Sequence[float]) -> str:
    rounds = len(field.contestants[0].walls)
    load = " and ".join(f"{one:.1f}" for one in (before[0], os.getloadavg()[0]))
    return (
        f"{asked.steps} steps: {len(asked.packages)} packages in one, {len(asked.users)} users,"
        f" {len(asked.folders)} folders, {len(asked.files)} files, {len(asked.units)} units."
        f" Rounds: {rounds}. Cores: {os.cpu_count()}; load before and after: {load}."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="An unchanged run, and Ansible's.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=6, help="no round that would end later")
    parser.add_argument("--write", type=Path, help="a file for the table")
    chosen = parser.parse_args()
    until = time.monotonic() + chosen.minutes * 60
    load = os.getloadavg()
    ansible_venv()
    with ExitStack() as stack:
        address = stack.enter_context(network_held())
        hub = stack.enter_context(
            Hub(files=files_folder(), address=address, port=usual_port(address, "tests"))
        )
        layer = layer_of("serving", hub)
        names = [f"against-ansible-{number}" for number in range(BOXES)]
        boxes = [stack.enter_context(Box.up(one, layer=layer, owned=True)) for one in names]
        boxes[0].run("systemctl start vllm-coder")  # the others' are started as they converge
        asked = resources_of(boxes[0])
        try:
            field = field_of(boxes, asked, Path(stack.enter_context(tempfile.TemporaryDirectory())))
            compete(field, chosen.rounds, until)
            field.check()
        except (BenchmarkError, RehearsalError) as error:
            raise SystemExit(str(error)) from None
    text = f"{table(field)}\n\n{conditions(asked, field, load)}\n"
    print(text)
    if chosen.write:
        chosen.write.write_text(text)


if __name__ == "__main__":
    main()
