"""A gateway in a LiteLLM's place, which takes a minute to build: it leaves out what is out.

Runs in the test's own process and reaches each box's server through ssh. On the box whose gateway
it plays, `aibox rotation` changes what it asks, and is answered by it.
"""

from __future__ import annotations

import http.client
import itertools
import json
import socket
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from aibox.decide.doors import FLEET, ROTATION
from aibox.gateway.rotation import out_in
from tests.rehearsal.box import Box
from tests.rehearsal.jobs import until
from tests.rehearsal.load import Gateway

PIECE = 65536
Server = type[BaseHTTPRequestHandler]


@contextmanager
def spreading(gateway: Box, boxes: Sequence[Box], model: str, address: str) -> Iterator[Gateway]:
    """address: where it listens, of this machine on the boxes' bridge."""
    with ExitStack() as open_:
        ports = {box.name: open_.enter_context(tunnel(box)) for box in boxes}
        server = ThreadingHTTPServer((address, 0), handler(Boxes(gateway, ports, model)))
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        open_.callback(server.shutdown)
        url = f"http://{address}:{server.server_port}"
        told = {"url": url, "out": ROTATION, "boxes": {name: {"models": [model]} for name in ports}}
        gateway.run(f"mkdir -p $(dirname {FLEET}) && cat > {FLEET}", text=json.dumps(told))
        yield Gateway(f"{url}/v1/chat/completions", "any")


@contextmanager
def tunnel(box: Box) -> Iterator[int]:
    """A port of this machine that is the box's server."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = int(free.getsockname()[1])
    words = [*box.ssh("root"), "-N", "-L", f"127.0.0.1:{port}:127.0.0.1:8000"]
    with subprocess.Popen(words, stdin=subprocess.DEVNULL) as child:
        try:
            until(lambda: is_healthy(port), f"a way to {box.name}", 30)
            yield port
        finally:
            child.terminate()


def is_healthy(port: int) -> bool:
    try:
        asking = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        asking.request("GET", "/health")
        return asking.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False


class Boxes:
    """Those that the gateway spreads over, and how many requests it waits for at each."""

    def __init__(self, gateway: Box, ports: Mapping[str, int], model: str) -> None:
        self.ports, self.model = ports, model
        self.file = gateway.root / ROTATION.lstrip("/")
        self.turns = itertools.cycle(ports)
        self.busy = dict.fromkeys(ports, 0)
        self.counting = threading.Lock()

    def out(self) -> dict[str, Any]:
        return out_in(self.file.read_text()) if self.file.exists() else {}

    def told(self) -> dict[str, Any]:
        """As aibox/gateway/rotation.py tells it."""
        left_out = self.out()
        return {
            box: {
                "models": [self.model],
                "out": left_out.get(box),
                "healthy": is_healthy(port),
                "found": None,
                "requests": self.busy[box],
            }
            for box, port in self.ports.items()
        }

    @contextmanager
    def asked(self) -> Iterator[int]:
        """The next box's port, counted until the last byte; one at a time, as in LiteLLM's loop."""
        with self.counting:
            left_out = self.out()
            box = next(box for box in self.turns if box not in left_out)
            self.busy[box] += 1
        try:
            yield self.ports[box]
        finally:
            with self.counting:
                self.busy[box] -= 1


def handler(boxes: Boxes) -> Server:
    class Spreading(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._answer(200, [json.dumps({"boxes": boxes.told()}).encode()])

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            with boxes.asked() as port:
                asking = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
                headers = {"Content-Type": "application/json"}
                asking.request("POST", self.path, body, headers)
                answer = asking.getresponse()
                self._answer(answer.status, iter(lambda: answer.read1(PIECE), b""))

        def _answer(self, status: int, pieces: Any) -> None:
            """The end of the connection is that of the answer."""
            self.send_response(status)
            self.end_headers()
            for piece in pieces:
                self.wfile.write(piece)

        def log_message(self, format: str, *args: Any) -> None:
            """Nothing is logged."""

    return Spreading
