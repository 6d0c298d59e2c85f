"""What a run costs that changes nothing, with and without fact pipelining, as figures and ratios.

    python -m tests.benchmarks.unchanged_run [--rounds 5] [--round-trip-ms 50]

On one rehearsal box, deployed with the stand-in release. Every contestant runs once in each round,
one after the other, so that what else the machine does falls on all of them; the median counts.
A contestant is a name and a function that does one run: others (Ansible) join in `compete`.
"""

from __future__ import annotations

import argparse
import json
import re
import resource
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from tests.rehearsal import cgroup
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import layer_of
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT, command
from tests.rehearsal.provision import (
    command_line,
    deploy,
    environment,
    files_folder,
    standin,
)
from tests.rehearsal.registry import network_held
from tests.rehearsal.terminal import Terminal

PLAIN = ("--data", "pipelining=False")


@dataclass
class Contestant:
    """walls, cpus: seconds of each run on control; cpus of this process's children."""

    name: str
    run: Callable[[], None]
    commands: int | None = None  # that went to the box, by pyinfra's connectors
    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    def measure(self) -> None:
        began, cpu = time.monotonic(), children()
        self.run()
        self.walls.append(time.monotonic() - began)
        self.cpus.append(children() - cpu)


def children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


class Pyinfra:
    """Runs of pyinfra against one box."""

    def __init__(self, box: Box, hub: str, folder: Path) -> None:
        self.environment = environment({box: standin(hub)}, folder)
        self.environment["XDG_CACHE_HOME"] = str(folder / "cache")
        self.empty = folder / "empty.py"
        self.empty.write_text("")

    def run(self, *words: str, deploy: str = "deploy.py") -> str:
        done = subprocess.run(
            [*command_line(*words)[:-1], deploy],
            cwd=CHECKOUT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stderr

    def interactive(self, *words: str) -> str:
        """On a terminal, with Enter pressed as soon as the plan is there."""
        with Terminal(command_line(*words), CHECKOUT, self.environment) as terminal:
            terminal.wait_for("Press enter", 300)
            terminal.type("\n")
            if terminal.ended() != 0:
                raise SystemExit(terminal.said)
            return terminal.said

    def contestants(self) -> Iterator[Contestant]:
        yield Contestant("an empty pyinfra run", self.once(self.run, "--dry", empty=True))
        for kind, run, words in (
            ("--dry", self.run, ("--dry",)),
            ("-y", self.run, ("-y",)),
            ("interactive", self.interactive, ()),
        ):
            for name, more in ((kind, ()), (f"{kind}, plain", PLAIN)):
                counted = counts(run("--debug", *words, *more))  # and what is asked is learned
                counted = counts(run("--debug", *words, *more))
                yield Contestant(name, self.once(run, *words, *more), counted["commands"])

    def once(self, run: Callable[..., str], *words: str, empty: bool = False) -> Callable[[], None]:
        named = {"deploy": str(self.empty)} if empty else {}
        return lambda: void(run(*words, **named))


def void(_: object) -> None:
    """For a run whose output nobody wants."""


def counts(said: str) -> dict[str, int]:
    found: dict[str, int] = json.loads(re.findall(r"Fact pipelining: (\{.*?\})", said)[-1])
    return found


@contextmanager
def round_trip(box: Box, milliseconds: int) -> Iterator[None]:
    """A longer way to the box: what leaves it is held back for so long."""
    inside = ("nsenter", "-t", str(cgroup.leader(box.machine_name)), "-n", "tc", "qdisc")
    if milliseconds:
        command(*inside, "add", "dev", "eth0", "root", "netem", "delay", f"{milliseconds}ms")
    try:
        yield
    finally:
        if milliseconds:
            command(*inside, "del", "dev", "eth0", "root")


def table(contestants: list[Contestant]) -> str:
    """Median and best wall, CPU on control, commands; and each as a multiple of the first."""
    base = statistics.median(contestants[0].walls)
    rows = [f"{'':<24}{'median':>9}{'best':>9}{'ratio':>8}{'CPU':>9}{'commands':>10}"]
    for one in contestants:
        wall = statistics.median(one.walls)
        rows.append(
            f"{one.name:<24}{wall:>7.2f} s{min(one.walls):>7.2f} s{wall / base:>8.1f}"
            f"{statistics.median(one.cpus):>7.2f} s"
            f"{'' if one.commands is None else one.commands:>10}"
        )
    return "\n".join(rows)


def compete(box: Box, hub: str, rounds: int) -> list[Contestant]:
    with tempfile.TemporaryDirectory() as folder:
        contestants = list(Pyinfra(box, hub, Path(folder)).contestants())
        for _ in range(rounds):
            for one in contestants:
                one.measure()
    return contestants


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run costs that changes nothing.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-trip-ms", type=int, nargs="*", default=[0, 50])
    chosen = parser.parse_args()
    with network_held() as address, Hub(files=files_folder(), address=address) as hub:
        layer = layer_of("serving", hub)
        with Box.up("benchmark", layer=layer, owned=True) as box:
            box.run("systemctl start vllm-coder")
            ended = deploy({box: standin(hub.url)}, "-y")
            if ended.code:
                raise SystemExit(ended.said)
            for milliseconds in chosen.round_trip_ms:
                print(f"\nround trip {milliseconds} ms longer, {chosen.rounds} rounds", flush=True)
                with round_trip(box, milliseconds):
                    print(table(compete(box, hub.url, chosen.rounds)), flush=True)


if __name__ == "__main__":
    main()
