"""The switch: tried from /run, gated, installed, or taken back; each way in which it can go wrong.

All on the stand-in release; test_main_job.py and test_real_faults.py do it with real vLLM.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aibox.box.good_units import sum_of
from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import (
    INSTALLED,
    TRIED,
    UNIT,
    Spec,
    answers,
    assert_nothing_is_left,
    assert_serves,
    candidate,
    failures_of,
    history_of,
    process_of,
    script,
    scripted,
    seed_of,
    switch,
    until_it_answers,
    wait_for_step,
)
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import HostData, standin

MAMBA = (
    "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (501). Each decode "
    "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower "
    "max_num_seqs to at most 501 or increase gpu_memory_utilization."
)

GOOD, OTHER = "--seed 1", "--seed 2"  # in the command of the one and of the other unit


@pytest.fixture(scope="module")
def made(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("switch", layer=layers("serving"), owned=True) as box:
        box.run(f"systemctl start {UNIT}")  # waits until it answers
        yield box


@pytest.fixture(scope="module")
def data(hub: Hub) -> HostData:
    return standin(hub.url)


@pytest.fixture(scope="module")
def good(data: HostData) -> Spec:
    """What serves when a test begins."""
    return candidate(scripted(data, seed=1))


@pytest.fixture
def box(made: Box, good: Spec) -> Box:
    """A box that serves the good unit, whose next start goes well."""
    script(made)
    made.run("rm -f /var/lib/aibox/server/failed.json")
    if (
        not answers(made)
        or seed_of(made) != "1"
        or history_of(made)[0]["command"] != good["command"]
    ):
        result = switch(made, good)
        assert result["ok"], result
    return made


@pytest.fixture
def other(data: HostData) -> Spec:
    """A candidate: one flag is another."""
    return candidate(scripted(data, seed=2))


def found_in(result: jobs.Answer) -> str:
    assert result["ok"] is False, result
    return str(result["refusal"]["found"])


def test_a_candidate_that_passes_is_installed_and_is_the_last_good_one(
    box: Box, good: Spec, other: Spec
) -> None:
    before = process_of(box)
    result = switch(box, other)
    assert result["ok"], result
    assert_serves(box, other)
    assert process_of(box) != before
    newest, older = history_of(box)[:2]
    assert (newest["how"], older["sha256"]) == ("deploy", sum_of(good["text"]))
    assert newest["account"]["kv_tokens"] == 747706
    assert box.run("systemctl show vllm-coder -p NRestarts --value").stdout.strip() == "0"


def test_the_downtime_is_the_servers_own_start_and_little_more(box: Box, other: Spec) -> None:
    began = time.monotonic()
    box.run(f"systemctl restart {UNIT}")  # waits until it answers: what this machine needs for that
    restart_s = time.monotonic() - began
    script(box, ready_after_s=4)
    result = switch(box, other)
    assert result["ok"], result
    assert result["seconds_start"] > 4
    assert 0 <= result["seconds_down"] - result["seconds_start"] <= 1 + restart_s, result
    assert any("without service" in note for note in result["notes"])


@pytest.mark.long
def test_while_it_is_tried_the_old_unit_stays_installed(box: Box, good: Spec, other: Spec) -> None:
    script(box, hold=True)
    assert jobs.start(box, "switch", other)["ok"]
    wait_for_step(box, "loading weights")
    assert box.run(f"cat {INSTALLED}").stdout == good["text"]
    assert box.run(f"cat {TRIED}").stdout == other["text"]
    script(box)
    assert jobs.finish(box, "switch")["ok"]
    assert_serves(box, other)


@pytest.mark.long
@pytest.mark.parametrize("power", ["cut", "reboot"])
def test_a_box_that_goes_down_in_the_middle_boots_the_last_good_unit(
    box: Box, other: Spec, power: str
) -> None:
    script(box, ready_after_s=20)
    assert jobs.start(box, "switch", other)["ok"]
    wait_for_step(box, "loading weights")
    script(box)
    if power == "cut":
        box.power_cut()
        box.start()
    else:
        box.reboot()
    until_it_answers(box)
    assert seed_of(box) == "1"
    assert failures_of(box) == {}  # nobody's fault: the next deploy tries it again
    assert switch(box, other)["ok"]
    assert_serves(box, other)


@pytest.mark.long
def test_a_switch_whose_job_was_killed_goes_on_where_it_was(box: Box, other: Spec) -> None:
    script(box, hold=True)
    assert jobs.start(box, "switch", other)["ok"]
    wait_for_step(box, "loading weights")
    box.run("systemctl kill -s KILL aibox-switch")
    script(box)
    until_it_answers(box)
    tried = process_of(box)
    result = switch(box, {**other, "restart": False})
    assert result["ok"], result
    assert process_of(box) == tried  # it was not started once more
    assert_serves(box, other)


# --- what fails and is taken back --------------------------------------------------------------

FAILS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "a crash at start": (
        {"fail": {"lines": [MAMBA]}},
        ["512 sequences do not fit 501 state blocks", MAMBA],
    ),
    "too little of the card is free": (
        {
            "fail": {
                "lines": [
                    "ValueError: Free memory on device cuda:0 (8.88/94.97 GiB) on startup is less "
                    "than desired GPU memory utilization (0.87, 82.62 GiB). Decrease GPU memory "
                    "utilization or reduce GPU memory used by other processes."
                ]
            }
        },
        ["8.88", "82.62"],
    ),
    "a driver that was replaced": (
        {"fail": {"lines": ["Failed to initialize NVML: Driver/library version mismatch"]}},
        ["version mismatch"],
    ),
    "no nvcc": (
        {
            "fail": {
                "lines": [
                    "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' "
                    "doesn't exist"
                ]
            }
        },
        ["nvcc"],
    ),
    "an unknown fault": (
        {"fail": {"lines": ["ZeroDivisionError: what nobody knows"]}},
        ["ended before it served", "ZeroDivisionError: what nobody knows"],
    ),
    "a death right after it was ready": ({"die_after_s": 0.1}, ["ended"]),
    "an engine that dies at the first request": ({"die_at_request": True}, ["no completion"]),
    "an empty answer": ({"empty": True}, ["was answered with ''"]),
    "a missing shard": (
        {
            "fail": {
                "lines": [
                    "FileNotFoundError: Weight files referenced in index but missing: "
                    "{'model-00007-of-00012.safetensors'}"
                ]
            }
        },
        ["model-00007-of-00012.safetensors"],
    ),
    "a cache that can't be written": (
        {"fail": {"lines": ["PermissionError: [Errno 13] Permission denied: '/.cache'"]}},
        ["/.cache"],
    ),
    "no accepted drafts": ({"accepted": 0}, ["none accepted"]),
    "answers without sense": ({"text": " "}, ["was answered with"]),
    "requests that fail": ({"fail_requests": 500}, ["HTTP 500"]),
}


SHORT = ("a crash at start", "an engine that dies at the first request", "no accepted drafts")


@pytest.mark.parametrize(
    "what",
    [what if what in SHORT else pytest.param(what, marks=pytest.mark.long) for what in FAILS],
)
def test_a_candidate_that_fails_is_taken_back(box: Box, good: Spec, other: Spec, what: str) -> None:
    wanted, words = FAILS[what]
    script(box, only=OTHER, **wanted)
    told = found_in(switch(box, other))
    for word in [*words, "back to the last good unit", "s without service"]:
        assert word in told, told
    assert_serves(box, good)
    failure = failures_of(box)[sum_of(other["text"])]
    assert (failure["command"], failure["when"] > 0) == (other["command"], True)


@pytest.mark.long
def test_a_server_of_another_name_is_taken_back(box: Box, good: Spec, other: Spec) -> None:
    told = found_in(switch(box, {**other, "model": "another-model"}))
    assert "serves 'tiny-qwen3.5-mtp'" in told
    assert_serves(box, good)


@pytest.mark.long
def test_health_that_never_comes_ends_in_time(box: Box, good: Spec, other: Spec) -> None:
    script(box, only=OTHER, health=503)
    began = time.monotonic()
    told = found_in(switch(box, {**other, "timeout": 6}))
    assert "did not answer within 6 s" in told
    assert time.monotonic() - began < 40
    assert_serves(box, good)


@pytest.mark.long
def test_a_main_process_that_dies_while_its_health_is_awaited(
    box: Box, good: Spec, other: Spec
) -> None:
    script(box, only=OTHER, ready_after_s=30)
    assert jobs.start(box, "switch", other)["ok"]
    wait_for_step(box, "loading weights")
    script(box)
    began = time.monotonic()
    box.run(f"kill -KILL {process_of(box)}")
    told = found_in(jobs.finish(box, "switch"))
    assert "ended before it served" in told
    assert time.monotonic() - began < 25
    assert_serves(box, good)


def test_where_the_last_good_unit_fails_too_it_is_stopped(box: Box, other: Spec) -> None:
    script(box, fail={"lines": ["RuntimeError: the card is gone"]})
    told = found_in(switch(box, other))
    assert "the last good unit failed too" in told
    assert "is stopped" in told
    state = box.run(f"systemctl show {UNIT} -p ActiveState -p SubState --value").stdout.split()
    assert state == ["inactive", "dead"]
    counted = f"journalctl --sync; journalctl -u {UNIT} -o cat _PID=1 | grep -c '^Starting '"
    starts = box.run(counted).stdout
    time.sleep(8)  # longer than RestartSec: nothing comes again by itself
    assert box.run(counted).stdout == starts
    assert_nothing_is_left(box)


@pytest.mark.long
def test_the_last_good_unit_itself_is_not_held_to_have_failed(box: Box, good: Spec) -> None:
    script(box, fail={"lines": ["RuntimeError: the card is gone"]})
    assert "it is itself the last good unit" in found_in(switch(box, good))
    assert failures_of(box) == {}
    script(box)
    assert switch(box, good)["ok"]
    assert_serves(box, good)


@pytest.mark.long
def test_a_disk_that_is_full_stops_nothing(box: Box, good: Spec, other: Spec) -> None:
    before, units = process_of(box), "/var/lib/aibox/server/units"
    box.run(f"mount -t tmpfs -o size=16k none {units}; cat /dev/zero > {units}/full", check=False)
    try:
        told = found_in(switch(box, other))
    finally:
        box.run(f"umount {units}")
    assert "no space left on the disk" in told
    assert process_of(box) == before
    assert_serves(box, good)


# --- a first install -----------------------------------------------------------------------------


@pytest.fixture
def empty(box: Box) -> Iterator[Box]:
    """A box that has never served."""
    box.run(f"systemctl disable --now -q {UNIT}; rm -f {INSTALLED}; systemctl daemon-reload")
    box.run("rm -rf /var/lib/aibox/server /var/lib/aibox/proof.json")
    yield box
    box.run(f"systemctl enable -q {UNIT}", check=False)


def test_a_first_unit_that_fails_is_not_installed(empty: Box, other: Spec) -> None:
    script(empty, fail={"lines": [MAMBA]})
    told = found_in(switch(empty, other))
    assert "nothing served before" in told
    assert empty.run(f"ls {INSTALLED} {TRIED}", check=False).stdout == ""
    script(empty)
    assert switch(empty, other)["ok"]
    assert_serves(empty, other)


@pytest.mark.long
def test_a_unit_that_serves_and_was_never_gated_is_gone_back_to(
    box: Box, good: Spec, other: Spec
) -> None:
    box.run("rm -rf /var/lib/aibox/server")
    script(box, only=OTHER, fail={"lines": [MAMBA]})
    assert "back to the last good unit" in found_in(switch(box, other))
    assert_serves(box, good)
    assert history_of(box)[0]["how"] == "found"


HIS_UNIT = """[Unit]
Description=my own

[Service]
Type=simple
User=vllm
Environment=HOME=/tmp VLLM_STANDIN_SCRIPT=/opt/standin-script.json
ExecStart={command}
"""


@pytest.mark.long
def test_a_hand_written_unit_that_is_active_at_once_is_awaited_on_the_way_back(
    box: Box, good: Spec, other: Spec
) -> None:
    """systemd calls it active long before it answers."""
    command = " ".join(word for word in good["command"] if "{" not in word and "[" not in word)
    command = command.replace("--speculative-config", "").replace("--allowed-origins", "")
    box.run(f"systemctl stop {UNIT}; rm -rf /var/lib/aibox/server")
    box.run(["sh", "-c", f"cat > {INSTALLED}"], text=HIS_UNIT.format(command=command))
    box.run(f"systemctl daemon-reload; systemctl start {UNIT}")
    until_it_answers(box)
    script(box, ready_after_s=3)
    told = found_in(switch(box, {**other, "model": "of another name"}))
    assert "back to the last good unit" in told, told
    assert answers(box)
    assert box.run(f"cat {INSTALLED}").stdout.startswith("[Unit]\nDescription=my own")
    assert_nothing_is_left(box)


# --- two at once, and a port that is gone --------------------------------------------------------


def test_a_second_run_follows_the_switch_of_the_first(box: Box, other: Spec) -> None:
    script(box, hold=True)
    assert jobs.start(box, "switch", other)["how"] == "started"
    wait_for_step(box, "loading weights")
    seen_later = {**other, "restart": False}  # what a run decides that finds the new process
    assert jobs.start(box, "switch", seen_later)["how"] == "attached"
    different = jobs.start(box, "switch", {**other, "text": "[Unit]\n"})
    assert "at work on another task" in different["refusal"]["found"]
    script(box)
    assert jobs.finish(box, "switch")["ok"]
    assert_serves(box, other)


LISTENER = (
    "import http.server as h\n"
    "class Well(h.BaseHTTPRequestHandler):\n"
    "    def do_GET(self):\n"
    "        self.send_response(200); self.end_headers()\n"
    "h.HTTPServer(('127.0.0.1', 8000), Well).serve_forever()\n"
)


@pytest.mark.long
def test_a_stranger_who_answers_on_the_port_is_no_server_of_ours(
    box: Box, good: Spec, other: Spec
) -> None:
    """Healthy, on the right port, and another process: taken between stop and start."""
    box.run(f"systemctl stop {UNIT}")
    box.run(["sh", "-c", "cat > /opt/stranger.py"], text=LISTENER)
    box.run("systemd-run --quiet --unit=stranger python3 /opt/stranger.py")
    try:
        until_it_answers(box)
        told = found_in(switch(box, other))
    finally:
        box.run("systemctl stop stranger")
    assert "8000" in told
    assert "python3" in told, told
    assert "the last good unit failed too" in told
    assert switch(box, good)["ok"]
    assert_serves(box, good)


def test_a_gate_that_is_not_passed_leaves_alone_what_it_did_not_start(box: Box, good: Spec) -> None:
    before = process_of(box)
    script(box, text=" ")
    commented = {**good, "text": f"{good['text']}# one line more\n", "restart": False}
    assert "was left as it is" in found_in(switch(box, commented))
    assert process_of(box) == before
    script(box)
    assert_serves(box, good)


# --- by hand -------------------------------------------------------------------------------------


@pytest.mark.long
def test_a_unit_edited_by_hand_and_never_started_is_put_back_without_a_restart(
    box: Box, good: Spec
) -> None:
    before = process_of(box)
    time.sleep(1)
    box.run(f"sed -i 's/^UMask=.*/UMask=0022/' {INSTALLED}; systemctl daemon-reload")
    result = switch(box, {**good, "restart": False})
    assert result["ok"], result
    assert process_of(box) == before
    assert_serves(box, good)


@pytest.mark.long
def test_what_a_drop_in_overrides_does_not_pass(box: Box, good: Spec, other: Spec) -> None:
    """And what served with the drop-in before does so again."""
    folder, text = f"{INSTALLED}.d", good["text"]
    begin = text.index("ExecStart=")
    start = text[begin : text.index("\nExecStartPost=")].split("\n#")[0]
    assert "--max-num-seqs 4" in start
    drop_in = f"[Service]\nExecStart=\n{start.replace('--max-num-seqs 4', '--max-num-seqs 3')}\n"
    box.run(f"mkdir -p {folder}")
    box.run(["sh", "-c", f"cat > {folder}/90-mine.conf"], text=drop_in)
    try:
        told = found_in(switch(box, other))
        assert "still it runs with --max-num-seqs 3" in told
        assert "back to the last good unit" in told
        assert answers(box)
    finally:
        box.run(f"rm -r {folder}; systemctl daemon-reload; systemctl restart {UNIT}")
    assert_serves(box, good)


# --- and back by request -------------------------------------------------------------------------


def test_a_rollback_goes_through_the_same_gate(box: Box, good: Spec, other: Spec) -> None:
    assert switch(box, other)["ok"]
    assert jobs.start(box, "switch", {"verb": "back", "sha256": sum_of(good["text"])})["ok"]
    assert jobs.finish(box, "switch")["ok"]
    assert_serves(box, good)
    assert history_of(box)[0]["how"] == "rollback"


@pytest.mark.long
def test_a_rollback_that_fails_leaves_what_served(box: Box, good: Spec, other: Spec) -> None:
    assert switch(box, other)["ok"]
    script(box, only=GOOD, fail={"lines": [MAMBA]})
    assert jobs.start(box, "switch", {"verb": "back", "sha256": sum_of(good["text"])})["ok"]
    assert "back to the last good unit" in found_in(jobs.finish(box, "switch"))
    assert_serves(box, other)


# --- again and again -----------------------------------------------------------------------------


@pytest.mark.long
def test_fifty_switches_in_a_row_without_a_false_rollback(box: Box, data: HostData) -> None:
    downs = []
    for seed in range(100, 150):
        spec = candidate(scripted(data, seed=seed))
        result = switch(box, spec)
        assert result["ok"], (seed, result)
        assert seed_of(box) == str(seed)
        downs.append(result["seconds_down"] - result["seconds_start"])
    assert_serves(box, spec)
    assert failures_of(box) == {}
    assert len(history_of(box)) == 10
    assert max(downs) <= 2, downs
    kept = box.run("ls /var/lib/aibox/server/units | wc -l").stdout.strip()
    assert kept == "20"
