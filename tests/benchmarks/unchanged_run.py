"""What a run costs that changes nothing, with and without fact pipelining, as figures and ratios.

    python -m tests.benchmarks.unchanged_run [--rounds 5] [--round-trip-ms 50]

On one rehearsal box, deployed with the stand-in release. Every contestant runs once in each round,
one after the other, so that what else the machine does falls on all of them; the median counts.
A contestant is a name and a function that does one run: others (Ansible) join in `compete`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import re
import resource
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.rehearsal.box import Box
from tests.rehearsal.conftest import layer_of
from tests.rehearsal.emulation.hub import Hub, usual_port
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import (
    HostData,
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

    def __init__(self, box: Box, hub: str, way: HostData, folder: Path) -> None:
        self.environment = environment({box: {**standin(hub), **way}}, folder)
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
def far_away(box: Box, milliseconds: int, folder: Path) -> Iterator[HostData]:
    """Host data for a longer way to the box: a relay that holds back what it passes on.

    Not every kernel has netem. Here TCP's own handshake and slow start stay as quick as they were.
    """
    if not milliseconds:
        yield {}
        return
    loop = asyncio.new_event_loop()
    relay = asyncio.start_server(partial(relayed, box.address, milliseconds / 2000), "127.0.0.1", 0)
    server = loop.run_until_complete(relay)
    threading.Thread(target=loop.run_forever, daemon=True).start()
    yield {
        "ssh_hostname": "127.0.0.1",
        "ssh_port": server.sockets[0].getsockname()[1],
        "ssh_known_hosts_file": str(folder / "known_hosts"),
        "ssh_strict_host_key_checking": "accept-new",
    }
    loop.call_soon_threadsafe(loop.stop)


async def relayed(
    address: str, delay_s: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    far_reader, far_writer = await asyncio.open_connection(address, 22)
    await asyncio.gather(
        late(reader, far_writer, delay_s), late(far_reader, writer, delay_s), return_exceptions=True
    )


async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay_s: float) -> None:
    loop = asyncio.get_running_loop()
    while piece := await reader.read(65536):
        loop.call_later(delay_s, writer.write, piece)
    loop.call_later(delay_s, writer.close)


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


def compete(box: Box, hub: str, milliseconds: int, rounds: int) -> list[Contestant]:
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        with far_away(box, milliseconds, folder) as way:
            contestants = list(Pyinfra(box, hub, way, folder).contestants())
            for _ in range(rounds):
                for one in contestants:
                    one.measure()
    return contestants


def main() -> None:
    parser = argparse.ArgumentParser(description="What a run costs that changes nothing.")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--round-trip-ms", type=int, nargs="*", default=[0, 50])
    chosen = parser.parse_args()
    with (
        network_held() as address,
        Hub(files=files_folder(), address=address, port=usual_port(address, "tests")) as hub,
    ):
        layer = layer_of("serving", hub)
        with Box.up("benchmark", layer=layer, owned=True) as box:
            box.run("systemctl start vllm-coder")
            ended = deploy({box: standin(hub.url)}, "-y")
            if ended.code:
                raise SystemExit(ended.said)
            for milliseconds in chosen.round_trip_ms:
                print(f"\nround trip {milliseconds} ms longer, {chosen.rounds} rounds", flush=True)
                done = compete(box, hub.url, milliseconds, chosen.rounds)
                print(table(done), flush=True)


if __name__ == "__main__":
    main()
