"""Starts of the real vLLM 0.31.0 that fail, explained from its own journal and undone.

The judge would refuse most of them before anything stops, so they are put to the switch itself:
what is tried here is the diagnosis of real lines, and the way back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import (
    UNIT,
    Spec,
    assert_serves,
    candidate,
    history_of,
    process_of,
    switch,
)
from tests.rehearsal.checkpoints import INDEX, SHARD
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import HostData, deploy, download_caches, production

pytestmark = pytest.mark.long

LISTENER = """
import socket, time
listener = socket.socket()
listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
listener.bind(("127.0.0.1", 8000))
listener.listen()
time.sleep(600)
"""
STRIP = """
import json, sys
from pathlib import Path
folder, shard, index = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
data = (folder / shard).read_bytes()
size = 8 + int.from_bytes(data[:8], "little")
header = json.loads(data[8:size])
kept = {name: entry for name, entry in header.items() if not name.startswith("mtp.")}
text = json.dumps(kept).encode().ljust(size - 8)
(folder / shard).write_bytes(data[:8] + text + data[size:])
listing = json.loads((folder / index).read_text())
listing["weight_map"] = {k: v for k, v in listing["weight_map"].items() if not k.startswith("mtp.")}
(folder / index).write_text(json.dumps(listing))
"""


@pytest.fixture(scope="module")
def data(hub: Hub) -> HostData:
    return production(hub.url)


@pytest.fixture(scope="module")
def good(data: HostData) -> Spec:
    return candidate(data)


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None], data: HostData) -> Iterator[Box]:
    layer = layers("driven")
    with Box.up("real-faults", layer=layer, binds=download_caches(), owned=True) as made:
        ended = deploy({made: data}, "-y", timeout_s=1200)
        assert ended.code == 0, ended.said
        yield made


def with_flags(data: HostData, **flags: object) -> Spec:
    named = {name.replace("_", "-"): value for name, value in flags.items()}
    return candidate({**data, "serve": named})


@contextmanager
def other_weights(box: Box, good: Spec, spoil: str) -> Iterator[Spec]:
    """A candidate with a spoilt copy of the weights. spoil: a shell's line, run in the copy."""
    folder = f"{good['weights']}-spoilt"
    box.run(f"cp -a {good['weights']} {folder} && cd {folder} && {spoil}")
    try:
        yield moved(good, folder)
    finally:
        box.run(f"rm -r {folder}")


def moved(good: Spec, folder: str) -> Spec:
    old = good["weights"]
    command = [folder if word == old else word for word in good["command"]]
    text = good["text"].replace(old, folder)
    return {**good, "weights": folder, "command": command, "text": text}


def taken_back(box: Box, good: Spec, spec: Spec) -> jobs.Answer:
    """The refusal of a candidate that failed; the good one serves again."""
    assert jobs.start(box, "switch", spec)["ok"]
    result = jobs.finish(box, "switch", timeout_s=400)
    assert result["ok"] is False, result
    refusal: jobs.Answer = result["refusal"]
    assert "it has passed its gate again and serves" in refusal["found"], refusal
    assert "no known cause" not in refusal["remedy"], refusal
    assert_serves(box, good)
    return refusal


def test_an_unknown_flag(box: Box, good: Spec, data: HostData) -> None:
    refusal = taken_back(box, good, with_flags(data, max_num_seqz=4))
    assert "max-num-seqz" in refusal["found"]


def test_the_name_of_no_tool_parser(box: Box, good: Spec, data: HostData) -> None:
    refusal = taken_back(box, good, with_flags(data, tool_call_parser="qwen3_codr"))
    assert "qwen3_codr" in refusal["found"]
    assert "tool-call-parser" in refusal["remedy"]


def test_a_context_that_is_longer_than_the_models(box: Box, good: Spec) -> None:
    words = [
        "300000" if before == "--max-model-len" else word
        for before, word in zip(["", *good["command"]], good["command"], strict=False)
    ]
    text = good["text"].replace("--max-model-len 32768", "--max-model-len 300000")
    refusal = taken_back(box, good, {**good, "command": words, "text": text})
    assert "300000" in refusal["found"]
    assert "max-model-len" in refusal["remedy"]


def test_no_memory_for_the_cache(box: Box, good: Spec, data: HostData) -> None:
    refusal = taken_back(box, good, with_flags(data, gpu_memory_utilization=0.0001))
    assert "gpu-memory-utilization" in refusal["remedy"]


def test_a_checkpoint_without_its_head(box: Box, good: Spec) -> None:
    strip = f"python3 - . {SHARD} {INDEX} <<'END'\n{STRIP}\nEND\n"
    with other_weights(box, good, strip) as spec:
        refusal = taken_back(box, good, spec)
    assert "head" in refusal["found"]


def test_a_missing_shard(box: Box, good: Spec) -> None:
    with other_weights(box, good, f"rm {SHARD}") as spec:
        refusal = taken_back(box, good, spec)
    assert "weights" in refusal["found"]


def test_a_truncated_shard(box: Box, good: Spec) -> None:
    with other_weights(box, good, f"truncate -s -1000 {SHARD}") as spec:
        refusal = taken_back(box, good, spec)
    assert "weights" in refusal["found"]


def test_weights_that_the_service_user_may_not_read(box: Box, good: Spec) -> None:
    with other_weights(box, good, f"chmod 600 {SHARD}") as spec:
        refusal = taken_back(box, good, spec)
    assert "read" in refusal["found"]


def test_a_cache_that_the_service_user_may_not_write(box: Box, good: Spec, data: HostData) -> None:
    environment = {**good["environment"], "VLLM_CACHE_ROOT": "/var/cache/nobodys/vllm"}
    given = {name: environment[name] for name in ("VLLM_TARGET_DEVICE", "CUDA_VISIBLE_DEVICES")}
    spoilt = {**given, "VLLM_CACHE_ROOT": environment["VLLM_CACHE_ROOT"]}
    box.run("install -d -m 0700 /var/cache/nobodys")
    spec = candidate({**data, "server_environment": spoilt, "serve": {"enforce-eager": False}})
    refusal = taken_back(box, good, spec)
    assert "/var/cache/nobodys" in refusal["found"]


def test_a_port_that_somebody_else_has(box: Box, good: Spec, data: HostData) -> None:
    """Taken between the stop of the old server and the start of the new one."""
    box.run(["sh", "-c", "cat > /opt/squatter.py"], text=LISTENER)
    box.run(f"systemctl stop {UNIT} && systemd-run -q --unit=squatter python3 /opt/squatter.py")
    try:
        jobs.until(lambda: ":8000" in box.run("ss -ltn").stdout, "nobody took the port", 20)
        result = switch(box, with_flags(data, seed=3))
    finally:
        box.run("systemctl stop squatter")
    assert result["ok"] is False
    assert "8000" in result["refusal"]["found"]
    assert "python3" in f"{result['refusal']['found']} {result['refusal']['remedy']}"
    assert "the last good unit failed too" in result["refusal"]["found"]  # the port is taken still
    assert process_of(box) == "0"
    assert switch(box, good)["ok"]
    assert_serves(box, good)


def test_an_engine_that_is_killed_while_it_serves_is_told_by_the_doctor(
    box: Box, good: Spec
) -> None:
    before = history_of(box)
    box.run("pkill -9 -f VLLM::EngineCore")
    active = f"systemctl is-active -q {UNIT}"
    box.run(f"timeout 30 sh -c 'while {active}; do sleep 0.2; done'")
    box.run(f"timeout 240 sh -c 'until {active}; do sleep 0.5; done'")
    told = box.run("/opt/aibox/current/bin/aibox doctor", check=False)
    assert told.returncode == 0, told.stdout  # it came back by itself
    assert "engine" in told.stdout.lower()
    assert history_of(box) == before
    assert_serves(box, good)


def test_after_a_reboot_it_serves_by_itself(box: Box, good: Spec) -> None:
    box.reboot()
    box.run(f"timeout 240 sh -c 'until systemctl is-active -q {UNIT}; do sleep 0.5; done'")
    assert_serves(box, good)
