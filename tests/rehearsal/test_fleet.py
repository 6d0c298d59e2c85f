"""Two boxes behind the gateway of one, with the stand-in release: what only real boxes can show.

How LiteLLM goes from box to box is tests/stream/test_fleet.py's matter. In order: each test goes on
from where the one before left the boxes.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aibox.decide.doors import ROTATION
from tasks.box import AIBOX
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import script, scripted
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.jobs import until
from tests.rehearsal.provision import HostData, deploy, download_caches, standin
from tests.rehearsal.refusal import the_one_refusal
from tests.rehearsal.test_doors import MODEL, ask, bearer, say_keys
from tests.rehearsal.test_literal_command import copy_of_the_project

pytestmark = pytest.mark.long

AL = ("al: al-of-the-filter", "al: sk-al-of-litellm")
KEY = "sk-al-of-litellm"
OTHER = "another-name"  # that the second box alone answers to
CHAT = "/v1/chat/completions"
SHORT_S, SLOW_S = 0.002, 1.0  # a step of the engine


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With keys for both doors."""
    copy = copy_of_the_project(tmp_path_factory.mktemp("fleet") / "project")
    (copy / "secrets").mkdir(mode=0o700)
    say_keys(copy, AL)
    return copy


@pytest.fixture(scope="module")
def boxes(layers: Callable[[str], str | None]) -> Iterator[list[Box]]:
    layer, caches = layers("serving"), download_caches()
    made = [Box.up(name, layer=layer, binds=caches, owned=True) for name in ("near", "far")]
    yield made
    for box in made:
        box.down()


@pytest.fixture
def data(boxes: list[Box], hub: Hub) -> dict[Box, HostData]:
    """The far box is behind our firewall, and answers to a second name."""
    usual = {**standin(hub.url), "stream": True}
    near, far = boxes
    return {
        near: {**scripted(usual), "gateway": True, "_gateway": True},
        far: {**scripted(usual, served_model_name=[MODEL, OTHER]), "firewall": True},
    }


def rotation(box: Box, *words: str) -> dict[str, Any]:
    told = json.loads(box.run([AIBOX, "rotation", *words, "--json"]).stdout)
    found: dict[str, Any] = told["boxes"]
    return found


def asked(box: Box, model: str = MODEL, tokens: int = 8) -> tuple[int, Any]:
    body = {"model": model, "max_tokens": tokens, "messages": [{"role": "user", "content": "Hi"}]}
    return ask(box, 4001, CHAT, body, bearer(KEY))


def is_back(box: Box) -> bool:
    try:
        return asked(box)[0] == 200
    except OSError:
        return False


def many(box: Box, times: int = 8, **more: Any) -> list[int]:
    """The statuses of so many requests at once."""
    found: list[int] = []
    threads = [
        threading.Thread(target=lambda: found.append(asked(box, **more)[0])) for _ in range(times)
    ]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return found


def answered(box: Box) -> int:
    """Completions that this box's filter has answered."""
    said = box.run(
        "journalctl -u vllm-stream -o cat --no-pager | grep -c 'chat/completions' || true"
    )
    return int(said.stdout)


def healthy(box: Box, *names: str) -> None:
    def are() -> bool:
        return {name for name, of in rotation(box).items() if of["healthy"]} == {*names}

    until(are, f"{names} are healthy", 30)


def test_the_gateway_spreads_over_both_and_is_silent_after(
    boxes: list[Box], data: dict[Box, HostData], project: Path
) -> None:
    near, far = boxes
    for box in boxes:
        script(box, step_s=SHORT_S)
    ended = deploy(data, "-y", project=project, timeout_s=1500)
    assert ended.code == 0, ended.said
    assert deploy(data, "--dry", "--json", project=project).planned == []
    healthy(near, "near", "far")
    before = [answered(box) for box in boxes]
    assert many(near) == [200] * 8
    assert [answered(box) - was for box, was in zip(boxes, before, strict=True)] == [4, 4]
    assert many(near, 2, model=OTHER) == [200] * 2
    assert answered(far) - before[1] == 6
    said = near.run([AIBOX, "clients", "--address", "near"]).stdout
    assert said.splitlines()[0].startswith(f"# near serves {MODEL}, {OTHER}")
    assert said.splitlines()[1].startswith("# gateway")


def test_a_box_that_is_out_gets_nothing_also_after_a_reboot_of_the_gateway(
    boxes: list[Box],
) -> None:
    near, far = boxes
    assert rotation(near, "out", "far", "--why", "a loud fan")["far"]["out"]["why"] == "a loud fan"
    before = answered(far)
    assert many(near) == [200] * 8
    assert answered(far) == before
    near.reboot()
    until(lambda: is_back(near), "the gateway is back", 180)
    assert many(near) == [200] * 8
    assert answered(far) == before
    assert asked(near, OTHER)[0] == 503
    assert near.run(f"stat -c '%U %a' {ROTATION}").stdout == "root 644\n"
    rotation(near, "back", "far")
    assert many(near) == [200] * 8
    assert answered(far) > before


def test_a_server_that_stops_costs_no_request(boxes: list[Box]) -> None:
    near, far = boxes
    far.run("systemctl stop vllm-coder")
    assert many(near, 16) == [200] * 16
    healthy(near, "near")
    assert many(near) == [200] * 8
    assert "answers 503" in near.run([AIBOX, "rotation"]).stdout
    far.run("systemctl start vllm-coder")
    healthy(near, "near", "far")


def test_what_a_box_without_power_was_answering_another_one_answers(boxes: list[Box]) -> None:
    near, far = boxes
    rotation(near, "out", "near", "--why", "so that the other one is asked")
    script(far, step_s=SLOW_S)
    found: list[tuple[int, float]] = []
    began = time.monotonic()

    def told() -> None:
        found.append((asked(near, tokens=100)[0], time.monotonic() - began))

    thread = threading.Thread(target=told)
    thread.start()
    until(lambda: rotation(near)["far"]["requests"] == 1, "it is at the far box", 30)
    rotation(near, "back", "near")
    far.power_cut()
    thread.join(90)
    assert [status for status, _ in found] == [200]
    assert found[0][1] < 60
    assert many(near) == [200] * 8
    far.start()
    script(far, step_s=SHORT_S)
    healthy(near, "near", "far")


def test_a_gateway_that_is_no_gateway_is_refused(
    boxes: list[Box], data: dict[Box, HostData], project: Path
) -> None:
    near = boxes[0]
    off = {near: {**data[near], "gateway": False}}
    refusal = the_one_refusal(deploy(off, "-y", project=project))
    assert "its gateway is turned off" in refusal.found
    near.run("systemctl is-active litellm")
