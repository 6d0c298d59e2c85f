"""What a door costs: latency added to a chunk, throughput, CPU a chunk; beside others and none.

    python -m tests.benchmarks.doors [--rounds 3] [--seconds 5] [--streams 64] [--rate 60]

A scripted server says vLLM's chunks at --rate a second on --streams streams, and then as fast as
it can. The server and the client have one core, the door has the other to itself; as root they all
come before what else runs here. The doors take turns in each round; a figure is the median of the
rounds, with the least and the most. Ratios are to the same round. Latency is looked at from a
stream's second second on. nginx comes from Debian, unpacked into a scratch folder, and LiteLLM from
its lock, as the deploy lays it out; what is not to be had here has no row.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import re
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop

from aibox.decide.doors import gateway_config
from aibox.decide.fleet import fleet_text
from aibox.gateway import door, rotation

PROJECT = Path(__file__).resolve().parents[2]
Asked = dict[str, float | str]
CORES = os.sched_getaffinity(0)
MANY_CHUNKS = 3000  # of each stream, flat out
CHUNKS_OF = {"litellm": 60}  # it would take minutes for so many
KEY = "sk-benchmark-of-the-doors"
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
    b"Content-Type: application/json\r\nAuthorization: Bearer %b\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)
HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n"
    b"Transfer-Encoding: chunked\r\n\r\n"
)
CHUNK = (
    b'data: {"id":"chatcmpl-8d1f0c2b7a5e4f69","object":"chat.completion.chunk",'
    b'"created":1796000000,"model":"qwen3.8-27b","choices":[{"index":0,"delta":'
    b'{"%b":" token %d"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_SENT = re.compile(rb" token (\d+)")
_ONE = b'"object":"chat.completion.chunk"'  # is in each chunk once
NGINX = """worker_processes 1; error_log stderr; pid {folder}/nginx.pid; daemon off;
events {{ worker_connections 4096; }}
http {{ access_log off; client_body_temp_path {folder}/b; proxy_temp_path {folder}/p;
  fastcgi_temp_path {folder}/f; uwsgi_temp_path {folder}/u; scgi_temp_path {folder}/s;
  server {{ listen 127.0.0.1:{port};
    location / {{ proxy_pass http://127.0.0.1:{upstream}; proxy_http_version 1.1;
      proxy_buffering off; proxy_set_header Connection ""; proxy_read_timeout 600s; }} }} }}
"""


# --- the server ---------------------------------------------------------------------------------


class Speaker(asyncio.Protocol):
    """Says chunks, with the time at which each was said in its text."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._free = asyncio.Event()
        self._free.set()
        self._asked = b""

    def pause_writing(self) -> None:
        self._free.clear()

    def resume_writing(self) -> None:
        self._free.set()

    def data_received(self, data: bytes) -> None:
        self._asked += data
        head, _, body = self._asked.partition(b"\r\n\r\n")
        length = re.search(rb"(?i)\r\ncontent-length: (\d+)", head)
        if length and len(body) == int(length.group(1)):
            asked = json.loads(json.loads(body)["messages"][0]["content"])
            self._saying = asyncio.get_running_loop().create_task(self._say(asked))

    async def _say(self, asked: Asked) -> None:
        self._transport.write(HEAD)
        name, rate = str(asked["says"]).encode(), float(asked["rate"])
        loop = asyncio.get_running_loop()
        start = loop.time() + (random.random() / rate if rate else 0)  # streams do not keep step
        for number in range(int(asked["chunks"])):
            if rate:
                await asyncio.sleep(max(0, start + number / rate - loop.time()))
            elif not number % 8:
                await asyncio.sleep(0)
            await self._free.wait()
            self._write(CHUNK % (name, time.monotonic_ns()))
        self._write(b"data: [DONE]\n\n")
        self._transport.write(b"0\r\n\r\n")
        self._transport.close()

    def _write(self, event: bytes) -> None:
        self._transport.write(b"%x\r\n%b\r\n" % (len(event), event))


async def speak(port: int) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Speaker, "127.0.0.1", port)
    await server.serve_forever()


# --- the client ---------------------------------------------------------------------------------


class Listener(asyncio.Protocol):
    """Reads one answer. late: nanoseconds from saying to hearing, where it looks at each chunk."""

    def __init__(self, request: bytes, late: list[int] | None) -> None:
        self._request = request
        self._late = late
        self._began = 0
        self._rest = b""
        self.chunks = 0
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        self._began = self._began or now
        self.chunks += (self._rest + data).count(_ONE)
        self._rest = data[1 - len(_ONE) :]
        if self._late is not None and now > self._began + 1e9:
            self._late += [now - int(sent) for sent in set(_SENT.findall(data))]

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def listen(port: int, streams: int, asked: Asked, look: bool) -> Heard:
    said = {"role": "user", "content": json.dumps(asked)}
    body = json.dumps({"model": "m", "stream": True, "messages": [said]}).encode()
    late: list[int] = []
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    request = REQUEST % (KEY.encode(), len(body), body)
    made = [
        await loop.create_connection(
            lambda: Listener(request, late if look else None), "127.0.0.1", port
        )
        for _ in range(streams)
    ]
    await asyncio.gather(*(listener.done for _, listener in made))
    return Heard(sum(one.chunks for _, one in made), time.monotonic() - began, late)


@dataclass
class Heard:
    chunks: int
    seconds: float
    late: list[int] = field(default_factory=list)
    cpu: float = 0  # seconds of the door's process

    @property
    def rate(self) -> float:
        return self.chunks / self.seconds

    @property
    def cpu_us(self) -> float:
        return 1e6 * self.cpu / self.chunks

    def late_ms(self, share: float) -> float:
        return sorted(self.late)[int(share * (len(self.late) - 1))] / 1e6


@dataclass
class Round:
    """One turn of one door: at the server's pace, and as fast as it goes."""

    paced: Heard
    flat: Heard


@dataclass
class Door:
    """pid: of its process, 0 for the way without one."""

    name: str
    port: int
    pid: int = 0


# --- the doors ----------------------------------------------------------------------------------


@contextlib.contextmanager
def process(command: list[str], core: int, **environment: str) -> Iterator[subprocess.Popen[bytes]]:
    quiet = subprocess.DEVNULL
    told = {**os.environ, **environment}
    with subprocess.Popen(command, cwd=PROJECT, stdout=quiet, stderr=quiet, env=told) as running:
        os.sched_setaffinity(running.pid, {core_numbered(core)})
        try:
            yield running
        finally:
            running.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                running.wait(10)
            running.kill()


def core_numbered(number: int) -> int:
    cores = sorted(CORES)
    return cores[number % len(cores)]


def filter_command(folder: Path, port: int, upstream: int) -> list[str]:
    config = folder / "stream.json"
    told = {"address": "127.0.0.1", "port": port, "upstream": f"http://127.0.0.1:{upstream}"}
    config.write_text(json.dumps(told))
    return [sys.executable, "-m", "aibox.stream", "--config", str(config)]


def nginx_command(folder: Path, port: int, upstream: int) -> list[str] | None:
    binary = shutil.which("nginx") or unpacked_nginx(folder)
    if binary is None:
        return None
    config = folder / "nginx.conf"
    config.write_text(NGINX.format(folder=folder, port=port, upstream=upstream))
    return [binary, "-p", str(folder), "-c", str(config)]


def unpacked_nginx(folder: Path) -> str | None:
    """Debian's nginx without installing it."""
    for command in (["apt-get", "download", "nginx"], ["dpkg-deb", "-x"]):
        found = sorted(str(path) for path in folder.glob("nginx_*.deb"))
        whole = [*command, *found, str(folder)] if found else command
        done = subprocess.run(whole, cwd=folder, capture_output=True, check=False)
        if done.returncode != 0:
            return None
    return str(folder / "usr/sbin/nginx")


def litellm_command(folder: Path, port: int, upstream: int) -> list[str] | None:
    """LiteLLM as the deploy lays it out: from its lock, behind our door.py."""
    venv = folder / "litellm"
    uv, python = [sys.executable, "-m", "uv"], str(venv / "bin/python")
    lock = str(PROJECT / "group_data/locks/litellm.txt")
    for command in (
        [*uv, "venv", "--python", sys.executable, str(venv)],
        [*uv, "pip", "install", "--python", python, "--require-hashes", "-r", lock],
    ):
        if subprocess.run(command, capture_output=True, check=False).returncode != 0:
            return None
    for path in (Path(door.__file__), Path(rotation.__file__)):
        (folder / path.name).write_text(path.read_text())
    (folder / rotation.FLEET).write_text(fleet_text("", ()))
    (folder / "litellm.yaml").write_text(
        gateway_config(["m"], f"http://127.0.0.1:{upstream}", 4096)
    )
    (folder / "master-key").write_text(KEY)
    where = ["--host", "127.0.0.1", "--port", str(port)]
    return [python, "-m", "uvicorn", "--app-dir", str(folder), "--factory", "door:made", *where]


def litellm_environment(folder: Path) -> dict[str, str]:
    return {
        "HOME": str(folder),
        "CREDENTIALS_DIRECTORY": str(folder),
        "CONFIG_FILE_PATH": str(folder / "litellm.yaml"),
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    }


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process and its children."""
    own = [pid, *(int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    tasks = [task for one in own for task in Path(f"/proc/{one}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def ready(port: int) -> None:
    end = time.monotonic() + 180  # LiteLLM took 92 on a busy machine
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def measured(given: argparse.Namespace, door: Door, says: str) -> Round:
    """Paced, and flat out."""
    paced: Asked = {"says": says, "rate": given.rate, "chunks": int(given.rate * given.seconds)}
    flat: Asked = {"says": says, "rate": 0.0, "chunks": CHUNKS_OF.get(door.name, MANY_CHUNKS)}
    heard = []
    for asked, look in ((paced, True), (flat, False)):
        before = cpu_of(door.pid) if door.pid else 0
        one = uvloop.run(listen(door.port, given.streams, asked, look))
        one.cpu = cpu_of(door.pid) - before if door.pid else 0
        heard.append(one)
    return Round(*heard)


COLUMNS = (
    "p50 added",
    "p99 added",
    "CPU a chunk",
    "of nginx's",
    "of direct",
    "flat out",
    "CPU a chunk",
)


def table(rounds: dict[tuple[str, str], list[Round]]) -> None:
    """Markdown: the first five columns at the pace, the others flat out, as a share of direct."""
    print(f"| | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
    for (says, name), own in rounds.items():
        beside = zip(own, rounds[says, "direct"], rounds.get((says, "nginx"), own), strict=True)
        figures = list(
            zip(*(row_of(one, direct, nginx) for one, direct, nginx in beside), strict=True)
        )
        units = ("{:.2f} ms", "{:.2f} ms", "{:.0f} µs", "{:.1f}", "{:.2f}", "{:.2f}", "{:.1f} µs")
        shown = [spread(numbers, unit) for numbers, unit in zip(figures, units, strict=True)]
        print(f"| {name}, {says} | {' | '.join(shown)} |")
    for says in dict.fromkeys(says for says, _ in rounds):
        direct = rounds[says, "direct"]
        late = [
            spread([one.paced.late_ms(share) for one in direct], "{:.2f} ms")
            for share in (0.5, 0.99)
        ]
        fastest = spread([one.flat.rate for one in direct], "{:.0f}")
        print(f"{says}, direct: p50 {late[0]}, p99 {late[1]}; flat out {fastest} chunks a second")


def row_of(one: Round, direct: Round, nginx: Round) -> tuple[float, ...]:
    return (
        one.paced.late_ms(0.5) - direct.paced.late_ms(0.5),
        one.paced.late_ms(0.99) - direct.paced.late_ms(0.99),
        one.paced.cpu_us,
        one.paced.cpu_us / (nginx.paced.cpu_us or 1),
        one.paced.rate / direct.paced.rate,
        one.flat.rate / direct.flat.rate,
        one.flat.cpu_us,
    )


def spread(numbers: Sequence[float], unit: str) -> str:
    """The median, with the least and the most."""
    low, high = unit.format(min(numbers)).split()[0], unit.format(max(numbers)).split()[0]
    return f"{unit.format(statistics.median(numbers))} ({low} to {high})"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.doors", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of the paced run")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=60, help="chunks a second of each stream")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    if given.serve:
        uvloop.run(speak(given.serve))
        return 0
    print(f"load at the start: {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        doors = started(folder, stack)
        uvloop.run(listen(doors[-1].port, 1, {"says": "content", "rate": 0.0, "chunks": 9}, False))
        rounds: dict[tuple[str, str], list[Round]] = {}
        for _ in range(given.rounds):
            for says in ("content", "reasoning"):
                for door_ in doors:
                    one = measured(given, door_, says)
                    rounds.setdefault((says, door_.name), []).append(one)
        table(rounds)
    return 0


def started(folder: Path, stack: contextlib.ExitStack) -> list[Door]:
    """The server, and every door that is to be had, each listening."""
    upstream = free_port()
    litellm_port = free_port()
    litellm = litellm_command(folder, litellm_port, upstream)  # with all cores
    os.sched_setaffinity(0, {core_numbered(0)})
    with contextlib.suppress(PermissionError):
        # Before what else runs here; the processes started from here take it over.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    server = [sys.executable, "-m", "tests.benchmarks.doors", "--serve", str(upstream)]
    stack.enter_context(process(server, 0))
    ready(upstream)
    found = [Door("direct", upstream)]
    ports = {"nginx": free_port(), "filter": free_port(), "litellm": litellm_port}
    commands = {
        "nginx": nginx_command(folder, ports["nginx"], upstream),
        "filter": filter_command(folder, ports["filter"], upstream),
        "litellm": litellm,
    }
    environment = litellm_environment(folder)
    for name, command in commands.items():
        if command is None:
            print(f"{name} is not to be had here")
            continue
        told = environment if name == "litellm" else {}
        running = stack.enter_context(process(command, 1, **told))
        ready(ports[name])
        found.append(Door(name, ports[name], running.pid))
    return found


if __name__ == "__main__":
    sys.exit(main())
