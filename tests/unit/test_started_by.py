"""How a unit that a person wrote starts its server, and where that answers."""

from __future__ import annotations

from pathlib import Path

import pytest

from aibox.box import started_by
from aibox.box.probe import replies, sockets

UNIT = "vllm-coder.service"
RUNS = ["/home/me/v/bin/python", "/home/me/v/bin/vllm", "serve", "/srv/w", "--port", "8002"]
SHELL = ["/bin/sh", "/home/me/start.sh"]


def unit(start: str) -> str:
    return f"[Service]\nUser=me\nExecStart={start}\n"


@pytest.fixture
def box(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """{port that the unit listens on: what /health answers there}."""
    ports: dict[int, int] = {}
    monkeypatch.setattr(
        sockets, "ports_of_unit", lambda unit: set(ports) if unit == UNIT else {8000}
    )
    monkeypatch.setattr(replies, "health", lambda port: ports.get(port, 200))
    return ports


@pytest.mark.parametrize(
    ("running", "start", "port"),
    [
        ([], "/v/bin/vllm serve /srv/w --port 9000", 9000),
        ([], "/v/bin/vllm serve /srv/w", 8000),
        ([], "-/v/bin/vllm serve /srv/w --port $PORT", 8123),
        (RUNS, "/v/bin/vllm serve /srv/w --port $PORT", 8002),
        ([], "/opt/other --port 9", 8123),
        (SHELL, "/home/me/start.sh", 8123),
        ([], "/bin/bash -c 'source v; vllm serve /srv/w --port 9001'", 9001),
    ],
)
def test_the_port_of_one_that_does_not_listen(
    box: dict[int, int], running: list[str], start: str, port: int
) -> None:
    assert box == {}
    assert started_by.port_of(UNIT, running, [unit(start)], 8123) == port


def test_what_listens_counts_before_what_is_said(box: dict[int, int]) -> None:
    said = [unit("/v/bin/vllm serve /srv/w --port 9000")]
    box |= {8500: 404, 8600: 200}
    assert started_by.port_of(UNIT, [], said, 8123) == 8600
    box[9000] = 200
    assert started_by.port_of(UNIT, [], said, 8123) == 9000
    box |= {8500: 503, 8600: 503, 9000: 503}  # it is starting
    assert started_by.port_of(UNIT, [], said, 8123) == 9000
    assert started_by.port_of(UNIT, SHELL, [unit("/home/me/start.sh")], 8123) == 8500


@pytest.mark.usefixtures("box")
def test_a_script_and_a_drop_in_are_read(tmp_path: Path) -> None:
    script = tmp_path / "start.sh"
    script.write_text(
        "#!/bin/sh\n# mine\ncd /srv\nexec /v/bin/vllm serve \\\n /srv/w --port 9002\n"
    )
    texts = [unit("/bin/true"), f"[Service]\nExecStart=\nExecStart={script} fast\n"]
    assert started_by.port_of(UNIT, [], texts, 8123) == 9002
    command = ["exec", "/v/bin/vllm", "serve", "/srv/w", "--port", "9002"]
    assert started_by.command_of(["/bin/sh", str(script)], texts) == command
    assert started_by.command_of(RUNS, texts) == RUNS
    script.write_bytes(b"\x7fELF vllm serve /srv/w --port 9002\n")
    assert started_by.port_of(UNIT, [], texts, 8123) == 8123
    assert started_by.command_of(SHELL, [unit("/bin/true")]) == SHELL
