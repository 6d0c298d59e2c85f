"""Waiting for a server's own process, over real sockets of this machine."""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from aibox.box import __main__, ready
from aibox.box.probe import port_owners, processes, replies
from aibox.decide import start_limits


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


def test_a_process_that_ends_meanwhile_is_noticed_at_once() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(0.5)"]) as dying:
        began = time.monotonic()
        assert ready.wait(dying.pid, 1, seconds=60) == 1
        assert time.monotonic() - began < 5


def test_a_server_that_ended_before_it_was_asked_for_is_one_that_ended() -> None:
    """systemd gives no pid then."""
    asked = __main__.parser().parse_args(["ready", "--pid=", "--port", "1", "--seconds", "60"])
    assert __main__.answered(asked) == 1


def test_a_measured_start_of_this_command_line_is_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(start_limits, "LEAST_S", 0.2)
    history = tmp_path / "history.json"
    program = "import time; time.sleep(30)"  # what is left of the line without its interpreter
    history.write_text(json.dumps([{"command": [program], "seconds_start": 0.01}]))
    with subprocess.Popen([sys.executable, "-c", program]) as hanging:
        assert ready.wait(hanging.pid, 1, seconds=60, history=history) == 1
        hanging.kill()
    assert "within 0 s" in capfd.readouterr().err


def test_a_broken_history_is_none(tmp_path: Path) -> None:
    broken = tmp_path / "history.json"
    assert ready.measured(broken) is None
    for content in (b"[", b"\xff", b"[" * 100_000):
        broken.write_bytes(content)
        assert ready.measured(broken) is None


def test_an_unhealthy_server_is_not_ready(serve: type) -> None:
    assert ready.wait(os.getpid(), serve(Fails), seconds=0.2) == 1


def test_health_is_the_status_or_nothing(serve: type) -> None:
    assert replies.health(serve()) == 200
    assert replies.health(serve(Fails)) == 503
    assert replies.health(1) is None


def test_the_owner_of_a_port_is_found(serve: type) -> None:
    found = port_owners.owner_of(serve())
    assert found is not None
    assert found["pid"] == os.getpid()
    assert found["name"] == processes.name_of(os.getpid())
    assert port_owners.owner_of(1) is None
