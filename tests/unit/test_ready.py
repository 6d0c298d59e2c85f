"""Waiting for a server's own process, over real sockets of this machine."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from aibox.box import probe, ready


class Answers(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/health" else 404)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """A test's output is the test's."""


class Fails(Answers):
    status = 503


@pytest.fixture
def serve() -> Iterator[object]:
    servers: list[HTTPServer] = []

    def started(handler: type[Answers] = Answers) -> int:
        server = HTTPServer(("127.0.0.1", 0), handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        return int(server.server_address[1])

    yield started
    for server in servers:
        server.shutdown()
        server.server_close()


def test_a_process_that_answers_is_ready(serve: type) -> None:
    assert ready.wait(os.getpid(), serve(), seconds=5) == 0


def test_a_process_that_has_ended_is_not_waited_for(capfd: pytest.CaptureFixture[str]) -> None:
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    began = time.monotonic()
    assert ready.wait(gone.pid, 1, seconds=60) == 1
    assert time.monotonic() - began < 5
    assert "ended before it answered" in capfd.readouterr().err


def test_another_processs_answer_does_not_count(
    serve: type, capfd: pytest.CaptureFixture[str]
) -> None:
    port = serve()
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(30)"]) as other:
        assert ready.wait(other.pid, port, seconds=0.2) == 1
        other.kill()
    assert f"did not answer on port {port} within 0 s" in capfd.readouterr().err


def test_an_unhealthy_server_is_not_ready(serve: type) -> None:
    assert ready.wait(os.getpid(), serve(Fails), seconds=0.2) == 1


def test_health_is_the_status_or_nothing(serve: type) -> None:
    assert probe.health(serve()) == 200
    assert probe.health(serve(Fails)) == 503
    assert probe.health(1) is None


def test_the_owner_of_a_port_is_found(serve: type) -> None:
    found = probe.owner_of(serve())
    assert found is not None
    assert found["pid"] == os.getpid()
    assert found["name"] == probe.name_of(os.getpid())
    assert probe.owner_of(1) is None
