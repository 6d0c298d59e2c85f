"""How long a start may take, how often it may fail, and when the card is free: by tables."""

from dataclasses import replace
from typing import Any

import pytest

from aibox.decide.start_limits import (
    Blocked,
    GpuState,
    Memory,
    Room,
    blocked,
    start_limit,
    unit_limits,
)
from aibox.decide.vram import Holder

COMMAND = ["/opt/r/bin/vllm", "serve", "/srv/w", "--max-num-seqs", "480"]
RUNNING = ["/opt/r/bin/python", *COMMAND]
MIB = 2**20
# As NVML shows the idle card: reference figures of the 96 GB Workstation edition.
IDLE = Memory(97887 * MIB, 638 * MIB, 97250 * MIB)
CARD = "GPU-1"
FREE = GpuState(library=True, uuids=(CARD,), rooms=(Room(CARD, IDLE),))


def entry(seconds: Any, command: list[str] | None = None) -> dict[str, Any]:
    return {"command": COMMAND if command is None else command, "seconds_start": seconds}


@pytest.mark.parametrize("start_timeout", [1, 60, 900, 86400])
def test_five_of_the_slowest_failures_end_the_unit(start_timeout: int) -> None:
    limits = unit_limits(start_timeout)
    assert limits.start >= limits.gpu_wait + start_timeout
    assert limits.interval >= limits.tries * (limits.start + limits.stop + limits.restart)


def test_a_server_that_dies_less_often_than_the_limit_comes_back_always() -> None:
    limits = unit_limits(900)
    assert limits.interval < 2 * 3600
    assert limits.tries == 5


@pytest.mark.parametrize(
    ("history", "limit"),
    [
        ([entry(160.0)], 640),
        ([entry(100.0), entry(150.5), entry(30)], 602),
        ([entry(4.0)], 600),  # never less: a cold disk
        ([entry(300.0)], 900),  # never more than start_timeout_s
        ([entry(160.0), entry(200.0, ["/opt/other/bin/vllm", *COMMAND[1:]])], 640),
        ([entry(10.0, [*COMMAND, "--enforce-eager"])], 900),  # other flags may compile anew
        ([entry(None)], 900),
        ([entry(None), entry(160)], 640),
    ],
)
def test_the_limit_follows_the_measured_starts_of_the_same_command(
    history: object, limit: float
) -> None:
    assert start_limit(history, RUNNING, 900) == limit


@pytest.mark.parametrize(
    "history",
    [
        None,
        [],
        {},
        "history",
        [None, 3, [], {}],
        [{"command": COMMAND}],
        [entry("100"), entry(True), entry(-1), entry(float("nan")), entry(float("inf"))],
        [{"command": "vllm serve", "seconds_start": 1}, {"command": [1], "seconds_start": 1}],
        [entry(1.0, [])],
    ],
)
def test_a_history_that_says_nothing_leaves_the_whole_time(history: object) -> None:
    assert start_limit(history, RUNNING, 900) == 900


def test_a_process_without_a_command_line_has_no_measured_start() -> None:
    assert start_limit([entry(1.0)], [], 900) == 900


# --- the card ------------------------------------------------------------------------------------


def holding(memory: Memory | None, *holders: Holder) -> GpuState:
    return replace(FREE, rooms=(Room(CARD, memory, holders),))


def stopped(state: GpuState, *uuids: str, utilization: float = 0.87) -> Blocked:
    found = blocked(state, uuids or (CARD,), utilization)
    assert found is not None
    return found


@pytest.mark.parametrize("utilization", [0.15, 0.87, 0.92, 0.99, 1.0])
def test_an_idle_card_is_free_for_any_share(utilization: float) -> None:
    assert blocked(FREE, [CARD], utilization) is None
    assert blocked(FREE, [], utilization) is None


def test_a_card_that_does_not_say_its_memory_is_left_to_vllm() -> None:
    assert blocked(holding(None), [CARD], 0.87) is None


def test_memory_counts_as_cuda_sees_it() -> None:
    """vLLM asks for its share of 94.97 GiB, not of NVML's 95.59."""
    needed = 84607  # MiB, 0.87 of (97887 - 638), rounded up
    enough = holding(replace(IDLE, free=needed * MIB))
    assert blocked(enough, [CARD], 0.87) is None
    assert stopped(holding(replace(IDLE, free=(needed - 1) * MIB))).passing


def test_who_holds_the_card_is_named() -> None:
    holders = (Holder(812, "python3", 70000 * MIB), Holder(900, "?", None))
    memory = replace(IDLE, free=9000 * MIB)
    found = stopped(holding(memory, *holders))
    assert found.refusal.found == (
        "8.79 GiB of the card are free; held by pid 812 python3 70000 MiB; pid 900 ? ? MiB"
    )
    assert found.refusal.expected == "82.62 GiB free, for gpu-memory-utilization 0.87"
    assert found.passing
    less = replace(memory, free=8000 * MIB)
    assert stopped(holding(less, *holders)).about == found.about  # not a line for every MiB
    assert stopped(holding(less, *holders[:1])).about != found.about


def test_memory_that_nobody_holds_by_name_is_said_to_be_so() -> None:
    found = stopped(holding(replace(IDLE, free=0)))
    assert "held by no process that NVML names" in found.refusal.found


@pytest.mark.parametrize(
    ("state", "words", "passing"),
    [
        (GpuState(library=False, error="NVML Shared Library Not Found"), "there is no NVML", False),
        (GpuState(library=True, error="Driver Not Loaded"), "not answer: Driver Not Loaded", True),
        (
            GpuState(library=True, error="Driver/library version mismatch", mismatch=True),
            "version mismatch",
            False,
        ),
        (GpuState(library=True), "the driver shows no card", True),
        (replace(FREE, uuids=("GPU-2", "GPU-3")), "the driver shows GPU-2, GPU-3", True),
        (replace(FREE, missing=("/dev/nvidia-uvm",)), "there is no /dev/nvidia-uvm", False),
        (replace(FREE, closed=("/dev/nvidiactl",)), "may not open /dev/nvidiactl", False),
        # what may not be opened explains why the driver does not answer
        (
            GpuState(library=True, error="Driver Not Loaded", closed=("/dev/nvidiactl",)),
            "may not open /dev/nvidiactl",
            False,
        ),
    ],
)
def test_what_is_missing_is_told_and_waited_for_only_where_that_can_help(
    state: GpuState, words: str, passing: bool
) -> None:
    found = stopped(state)
    assert words in found.refusal.found
    assert found.passing == passing
    assert found.refusal.expected and found.refusal.remedy


def test_each_of_several_cards_must_be_there_and_free() -> None:
    both = replace(FREE, uuids=("GPU-1", "GPU-2"), rooms=(Room("GPU-1", IDLE), Room("GPU-2", IDLE)))
    assert blocked(both, ["GPU-1", "gpu-2"], 0.87) is None
    gone = stopped(FREE, "GPU-1", "GPU-2")
    assert (gone.refusal.found, gone.refusal.expected) == (
        "the driver shows GPU-1",
        "the card GPU-2",
    )
    full = Room("GPU-2", replace(IDLE, free=0), (Holder(7, "train", None),))
    held = stopped(replace(both, rooms=(both.rooms[0], full)), "GPU-1", "GPU-2")
    assert held.refusal.found.startswith("0.00 GiB of card GPU-2 are free; held by pid 7")
    assert held.passing
