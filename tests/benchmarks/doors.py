"""What a door costs: latency added to a chunk, throughput, CPU a chunk; beside nginx and none.

    python -m tests.benchmarks.doors [--seconds 5] [--streams 64] [--rate 60]

A scripted server says vLLM's chunks at --rate a second on --streams streams, and then as fast as
it can. The server and the client have one core, the door has the other to itself; as root they all
come before what else runs here. All figures of a run were taken one after the other on one machine;
ratios are to the way without a door. nginx comes from Debian, unpacked into a scratch folder; where
that fails its rows are missing.
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
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import uvloop

PROJECT = Path(__file__).resolve().parents[2]
CORES = os.sched_getaffinity(0)
FLAT_OUT_CHUNKS = 3000  # of each stream
REQUEST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
CHUNK = (
    b'data: {"id":"chatcmpl-8d1f0c2b7a5e4f69","object":"chat.completion.chunk",'
    b'"created":1796000000,"model":"qwen3.8-27b","choices":[{"index":0,"delta":'
    b'{"%b":" token %d"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_SENT = re.compile(rb" token (\d+)")
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

    def pause_writing(self) -> None:
        self._free.clear()

    def resume_writing(self) -> None:
        self._free.set()

    def data_received(self, data: bytes) -> None:
        if b"\r\n\r\n" in data and data.startswith(b"POST"):
            asked = json.loads(data.partition(b"\r\n\r\n")[2] or b"{}")
            self._saying = asyncio.get_running_loop().create_task(self._say(asked))

    async def _say(self, asked: dict[str, float | str]) -> None:
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
        self.chunks = 0
        self._rest = b""
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        cast(asyncio.Transport, transport).write(self._request)

    def data_received(self, data: bytes) -> None:
        now = time.monotonic_ns()
        self.chunks += data.count(b'"finish_reason":null')
        if self._late is not None:
            self._late += [now - int(sent) for sent in set(_SENT.findall(data))]

    def connection_lost(self, _exc: Exception | None) -> None:
        if not self.done.done():
            self.done.set_result(None)


async def listen(port: int, streams: int, asked: dict[str, float | str], look: bool) -> Heard:
    body = json.dumps({"stream": True, "messages": [], **asked}).encode()
    late: list[int] = []
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    request = REQUEST.replace(b"Host: x", b"Host: x\r\nConnection: close") % (len(body), body)
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


# --- the doors ----------------------------------------------------------------------------------


@contextlib.contextmanager
def process(command: list[str], core: int) -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.DEVNULL) as running:
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


def cpu_of(pid: int) -> float:
    """Seconds of CPU of a process and its children."""
    own = [pid, *(int(p) for p in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    tasks = [task for one in own for task in Path(f"/proc/{one}/task").iterdir()]
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1e9


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])


def ready(port: int) -> None:
    end = time.monotonic() + 20
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        time.sleep(0.05)
    raise SystemExit(f"nothing listens on port {port}")


def measured(given: argparse.Namespace, port: int, pid: int | None, says: str) -> list[Heard]:
    """Paced, and flat out."""
    paced: dict[str, float | str] = {
        "says": says,
        "rate": given.rate,
        "chunks": int(given.rate * given.seconds),
    }
    flat: dict[str, float | str] = {"says": says, "rate": 0.0, "chunks": FLAT_OUT_CHUNKS}
    heard = []
    for asked, look in ((paced, True), (flat, False)):
        before = cpu_of(pid) if pid else 0
        one = uvloop.run(listen(port, given.streams, asked, look))
        one.cpu = cpu_of(pid) - before if pid else 0
        heard.append(one)
    return heard


def table(rows: dict[tuple[str, str], list[Heard]]) -> None:
    print(f"{'':<24} {'p50 added':>10} {'p99 added':>10} {'CPU/chunk':>10} ", end="")
    print(f"{'of direct':>10} {'flat out':>12} {'of direct':>10} {'CPU/chunk':>10}")
    for (says, name), (paced, flat) in rows.items():
        direct_paced, direct_flat = rows[says, "direct"]
        added = [paced.late_ms(share) - direct_paced.late_ms(share) for share in (0.5, 0.99)]
        print(
            f"{says + ', ' + name:<24} {added[0]:>7.3f} ms {added[1]:>7.3f} ms "
            f"{paced.cpu_us:>7.1f} µs {paced.rate / direct_paced.rate:>10.2f} "
            f"{flat.rate:>10.0f}/s {flat.rate / direct_flat.rate:>10.2f} {flat.cpu_us:>7.1f} µs"
        )
    for says in dict.fromkeys(says for says, _ in rows):
        direct = rows[says, "direct"][0]
        print(
            f"{says}, direct: {direct.late_ms(0.5):.3f} ms p50, {direct.late_ms(0.99):.3f} ms p99, "
            f"{direct.rate:.0f} chunks/s asked for"
        )


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.doors", description=__doc__)
    parser.add_argument("--seconds", type=float, default=5, help="of the paced run")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--rate", type=float, default=60, help="chunks a second of each stream")
    parser.add_argument("--serve", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        uvloop.run(speak(given.serve))
        return 0
    os.sched_setaffinity(0, {core_numbered(0)})
    with contextlib.suppress(PermissionError):
        # Before what else runs here; the processes started from here take it over.
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        upstream = free_port()
        server = [sys.executable, "-m", "tests.benchmarks.doors", "--serve", str(upstream)]
        stack.enter_context(process(server, 0))
        ready(upstream)
        doors: dict[str, tuple[int, int | None]] = {"direct": (upstream, None)}
        for name_, command_of in (("nginx", nginx_command), ("filter", filter_command)):
            port = free_port()
            command = command_of(folder, port, upstream)
            if command is None:
                print(f"{name_} is not to be had here")
                continue
            running = stack.enter_context(process(command, 1))
            ready(port)
            doors[name_] = (port, running.pid)
        rows = {
            (says, door): measured(given, port, pid, says)
            for says in ("content", "reasoning")
            for door, (port, pid) in doors.items()
        }
        table(rows)
    return 0


if __name__ == "__main__":
    print(f"load at the start: {os.getloadavg()[0]:.1f}")
    sys.exit(main())
