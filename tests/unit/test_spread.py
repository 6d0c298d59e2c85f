"""How many cards the flags ask for, and which of those that are there serve."""

from typing import Any

import pytest

from aibox.decide.spread import Spread, chosen, pinned_by, spread_of, torn

T, P, D = "tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size"
LOCAL, CONTEXT = "data-parallel-size-local", "prefill-context-parallel-size"


@pytest.mark.parametrize(
    ("flags", "cards", "parts", "words"),
    [
        ({}, 1, 1, ""),
        ({"max-num-seqs": 480, T: 1}, 1, 1, ""),
        ({T: 2}, 2, 2, "tensor-parallel-size 2"),
        ({T: "2"}, 2, 2, "tensor-parallel-size 2"),
        ({D: 2}, 2, 1, "data-parallel-size 2"),
        ({T: 2, P: 2, D: 2}, 8, 4, f"{T} 2, {P} 2, {D} 2"),
        ({T: 2, "enable-expert-parallel": True}, 2, 2, "tensor-parallel-size 2"),
        ({T: 2, "decode-context-parallel-size": 2}, 2, 2, "tensor-parallel-size 2"),
        ({T: 2, CONTEXT: 2}, 4, 2, f"{T} 2, {CONTEXT} 2"),
        # of four replicas two on this box, one where each has a line of its own
        ({D: 4, LOCAL: 2}, 2, 1, f"{D} 4, {LOCAL} 2"),
        ({D: 4, "data-parallel-rank": 0}, 1, 1, f"{D} 4, {LOCAL} 1"),
        ({D: 4, "data-parallel-external-lb": False}, 4, 1, f"{D} 4"),
        # one model over two boxes
        ({T: 4, "nnodes": 2}, 2, 4, f"{T} 4, nnodes 2"),
        ({T: 2, P: 2, "nnodes": 2}, 2, 4, f"{T} 2, {P} 2, nnodes 2"),
        ({T: 2, D: 2, "nnodes": 2}, 2, 2, f"{T} 2, {D} 2, nnodes 2"),
    ],
)
def test_the_flags_tell_how_many_cards(
    flags: dict[str, Any], cards: int, parts: int, words: str
) -> None:
    spread = spread_of(flags)
    assert (spread.cards, spread.parts, str(spread)) == (cards, parts, words)


@pytest.mark.parametrize(
    "value", [0, -1, True, 2.0, "two", "0", "", None, [2], 10000, 10**30, 10**9 * "9"]
)
def test_what_is_no_size_is_told(value: object) -> None:
    with pytest.raises(ValueError):
        spread_of({T: value})


SHARED = "decode-context-parallel-size"


@pytest.mark.parametrize(
    ("flags", "name", "said"),
    [
        ({D: 2, LOCAL: 2}, None, ""),
        ({D: 2, LOCAL: 4}, LOCAL, "4, of data-parallel-size 2 in all"),
        ({LOCAL: 2}, LOCAL, "2, of data-parallel-size 1 in all"),
        ({T: 4, SHARED: 2}, None, ""),
        ({T: 2, SHARED: 4}, SHARED, "does not divide tensor-parallel-size 2"),
        ({SHARED: 2}, SHARED, "does not divide tensor-parallel-size 1"),
        ({T: 2, CONTEXT: 2, SHARED: 4}, None, ""),
        ({T: 4, CONTEXT: 2, SHARED: 4}, SHARED, "one of [1, 2, 8]"),
    ],
)
def test_sizes_that_do_not_go_together(flags: dict[str, Any], name: str | None, said: str) -> None:
    found = torn(flags)
    assert (found and found[0]) == name
    assert said in (found[1] if found else "")


def test_what_a_unit_is_pinned_to() -> None:
    assert pinned_by({}) == pinned_by({"gpu_uuid": None}) == ()
    assert pinned_by({"gpu_uuid": "GPU-1"}) == ("GPU-1",)  # kept by earlier versions
    assert pinned_by({"gpu_uuid": ["GPU-1", "GPU-2"]}) == ("GPU-1", "GPU-2")


def test_the_order_is_that_of_the_names() -> None:
    there = {"GPU-a": 0, "GPU-b": 1, "GPU-c": 2}
    assert chosen((), there) == [0, 1, 2]
    assert chosen(("GPU-C", "GPU-a"), there) == [2, 0]
    assert chosen(("GPU-a", "GPU-d"), there) == []


def test_without_flags_it_is_one_card() -> None:
    assert spread_of({}) == Spread()
