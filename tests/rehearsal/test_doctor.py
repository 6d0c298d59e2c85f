"""`aibox doctor` on a box whose server serves, fails in a known way, and finds its port taken."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator

import pytest

from aibox.decide.memory_account import DISAGREE
from tests.rehearsal.box import Box
from tests.rehearsal.jobs import until

AIBOX = "/opt/aibox/current/bin/aibox"
SCRIPT = "/opt/doctor-script.json"
DROP_IN = "/etc/systemd/system/vllm-coder.service.d/doctor.conf"
TOKEN = "hf_DoctorsVerySecretToken123"
LISTENER = "python3 -m http.server 8000 --bind 127.0.0.1"


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("doctor", layer=layers("serving"), owned=True) as box:
        lines = [
            "[Service]",
            f"Environment=VLLM_STANDIN_SCRIPT={SCRIPT} HF_TOKEN={TOKEN}",
            "RestartSec=60",
        ]
        box.run(f"mkdir -p $(dirname {DROP_IN}) && cat > {DROP_IN}", text="\n".join([*lines, ""]))
        box.run("systemctl daemon-reload")
        yield box


@pytest.fixture
def script(box: Box) -> Callable[..., None]:
    """The server starts anew with this script, and has come up or failed."""

    def run(**wanted: object) -> None:
        box.run(f"cat > {SCRIPT}", text=json.dumps(wanted))
        box.run("systemctl stop vllm-coder; systemctl reset-failed vllm-coder", check=False)
        box.run("systemctl start vllm-coder", check=False)

    return run


def test_a_server_that_serves_is_well_and_shows_its_memory(
    box: Box, script: Callable[..., None]
) -> None:
    script()
    told = box.run(f"{AIBOX} doctor", check=False)
    assert told.returncode == 0, told.stdout + told.stderr
    assert "vllm-coder.service serves on port 8000" in told.stdout
    assert "KV cache" in told.stdout
    assert DISAGREE in told.stdout  # the stand-in's figures, on the rehearsal's small share
    assert "cause" not in told.stdout


def test_too_many_sequences_are_told_with_the_number_to_write(
    box: Box, script: Callable[..., None]
) -> None:
    script(mamba_blocks=1)
    told = box.run(f"{AIBOX} doctor", check=False)
    assert told.returncode == 1
    assert "exceeds available Mamba cache blocks (1)" in flat(told.stdout)
    assert "set max-num-seqs to 1" in flat(told.stdout)


def test_an_unknown_fault_is_told_with_its_last_error(
    box: Box, script: Callable[..., None]
) -> None:
    script(fail={"lines": ["AttributeError: 'NoneType' object has no attribute 'shape'"]})
    told = box.run(f"{AIBOX} doctor", check=False)
    assert told.returncode == 1
    assert "unknown" in told.stdout
    assert "AttributeError: 'NoneType' object has no attribute 'shape'" in told.stdout


def test_who_has_the_port_is_named(box: Box, script: Callable[..., None]) -> None:
    box.run("systemctl stop vllm-coder")
    box.run(f"systemd-run --quiet --unit=squatter {LISTENER}")
    try:
        until(lambda: "8000" in box.run("ss -ltn").stdout, "nobody took the port")
        script()
        told = box.run(f"{AIBOX} doctor", check=False)
    finally:
        box.run("systemctl stop squatter")
    assert told.returncode == 1
    assert "[Errno 98] Address already in use" in flat(told.stdout)
    assert "python3 (pid" in told.stdout


def test_a_server_that_is_up_again_is_well_and_told_what_was(
    box: Box, script: Callable[..., None]
) -> None:
    script(fail={"lines": ["OSError: [Errno 28] No space left on device"]})
    script()
    told = box.run(f"{AIBOX} doctor", check=False)
    assert told.returncode == 0, told.stdout
    assert "the disk is full (no longer; it serves again)" in flat(told.stdout)


def test_a_report_is_for_root_alone_and_holds_no_secret(box: Box) -> None:
    box.run("useradd --create-home marianne")
    told = box.run(f"{AIBOX} doctor --report")
    path = told.stdout.split()[1]
    assert box.run(f"stat -c '%a %U' {path}").stdout.strip() == "600 root"
    names = box.run(f"tar -tzf {path}").stdout
    for name in ("journal.txt", "unit.txt", "doctor.txt", "driver.json", "redacted.txt"):
        assert f"/{name}" in names
    content = box.run(f"tar -xzOf {path}").stdout
    assert "vLLM API server version" in content
    assert TOKEN not in content
    assert box.address not in content
    assert "HF_TOKEN=(hidden: token)" in content
    assert "× token" in box.run(f"tar -xzOf {path} --wildcards '*/redacted.txt'").stdout


def test_another_user_is_refused(box: Box) -> None:
    told = box.run(f"runuser -u marianne -- {AIBOX} doctor", check=False)
    assert told.returncode == 1
    assert "do        put sudo before it" in told.stderr


def flat(text: str) -> str:
    return " ".join(text.split())
