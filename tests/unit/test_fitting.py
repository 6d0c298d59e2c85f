"""Whether weights fit their cards, with the reference box as the one that must never be refused."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibox.decide.figures import GIB, MIB
from aibox.decide.fitting import (
    MEMORY_OF,
    cache_of_a_request,
    has_experts,
    is_halved,
    load_of,
    refusal,
    share_of,
    sizes_that_cut,
    uncut,
)
from aibox.decide.spread import Spread

CARD = 97_887 * MIB
# The reference: 55.6 GB of BF16 on one card of 96 GB, at 0.87, with a context of 262,144 tokens.
REFERENCE = 55_600_000_000
FLAGS: dict[str, Any] = {"gpu-memory-utilization": 0.87, "kv-cache-dtype": "fp8"}
CONFIG: dict[str, Any] = {
    "text_config": {
        "num_hidden_layers": 64,
        "full_attention_interval": 4,
        "num_attention_heads": 24,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "linear_num_value_heads": 48,
        "dtype": "bfloat16",
    }
}
SHARES = [
    ({}, 0.92),
    ({"gpu-memory-utilization": "0.87"}, 0.87),
    ({"gpu-memory-utilization": None}, 0.92),
    ({"device-memory-utilization": 0.5}, 0.5),
    ({"gpu-memory-utilization": 0.87, "device-memory-utilization": 0.5}, 0.87),
]
TENSOR, REPLICAS = {"tensor-parallel-size": 2}, {"data-parallel-size": 2}


@pytest.mark.parametrize(("flags", "share"), SHARES)
def test_the_share_of_a_card_has_two_names(flags: dict[str, Any], share: float) -> None:
    assert share_of(flags) == share


@pytest.mark.parametrize(
    ("flags", "weights", "cards", "words"),
    [
        ({}, REFERENCE, [CARD], None),
        ({"gpu-memory-utilization": None}, REFERENCE, [CARD], None),  # vLLM's own 0.92
        ({}, 2 * REFERENCE, [CARD], "111.2 GB of weights over 1 card: 111.2 GB a card; a card"),
        ({}, 2 * REFERENCE, [CARD], "gives the server 102.0 GB × 0.87 = 88.7 GB"),
        (TENSOR, 2 * REFERENCE, [CARD, CARD], None),
        ({"pipeline-parallel-size": 2}, 2 * REFERENCE, [CARD, CARD], None),
        (TENSOR, 4 * REFERENCE, [CARD, CARD], "222.4 GB of weights over 2 cards: 111.2 GB a card"),
        ({"tensor-parallel-size": 4, "nnodes": 2}, 4 * REFERENCE, [CARD, CARD], None),
        (TENSOR, 3 * REFERENCE, [CARD, CARD // 2], "102.0 GB"),  # replaced below: the smallest
        ({"gpu-memory-utilization": 0.5}, REFERENCE, [CARD], "0.5 = 51.0 GB"),
        # a draft head and an image tower that stay unloaded are a few per cent
        ({}, 91_000_000_000, [CARD], None),
        ({}, 94_000_000_000, [CARD], "94.0 GB"),
        # experts of one replica may lie on the cards of the others
        (REPLICAS, 2 * REFERENCE, [CARD, CARD], None),
        (REPLICAS, 4 * REFERENCE, [CARD, CARD], "222.4 GB of weights"),
        # nothing is known
        ({}, 0, [CARD], None),
        ({}, 2 * REFERENCE, [], None),
        ({"cpu-offload-gb": 40}, 2 * REFERENCE, [CARD], None),
        ({"cpu-offload-gb": 0}, 2 * REFERENCE, [CARD], "111.2 GB"),
        ({"quantization": "fp8"}, 2 * REFERENCE, [CARD], None),
        # the utilisation bounds nothing
        ({"gpu-memory-utilization": 0.5, "kv-cache-memory-bytes": 10**9}, REFERENCE, [CARD], None),
    ],
)
def test_weights_are_held_against_each_card(
    flags: dict[str, Any], weights: int, cards: list[int], words: str | None
) -> None:
    merged = {key: value for key, value in {**FLAGS, **flags}.items() if value is not None}
    found = refusal(load_of(merged, weights), cards)
    if words is None:
        assert found is None
        return
    assert found is not None
    smallest = f"{(min(cards) - 638 * MIB) / 1e9:.1f} GB × "
    assert smallest in found.found
    assert words.replace("102.0 GB", smallest[:-3]) in found.found


@pytest.mark.parametrize(
    ("flags", "weights", "ways"),
    [
        ({}, 2 * REFERENCE, ["set tensor-parallel-size 2, on a box with 2 such cards"]),
        (TENSOR, 4 * REFERENCE, ["set tensor-parallel-size 4, on a box with 4 such cards"]),
        (REPLICAS, 4 * REFERENCE, ["tensor-parallel-size 2, on a box with 4 such cards"]),
        ({"gpu-memory-utilization": 0.5}, REFERENCE, ["gpu-memory-utilization 0.56 or more, or"]),
    ],
)
def test_the_remedy_is_what_would_fit(flags: dict[str, Any], weights: int, ways: list[str]) -> None:
    found = refusal(load_of({**FLAGS, **flags}, weights), [CARD])
    assert found is not None
    assert all(way in found.remedy for way in ways), found.remedy
    assert ("gpu-memory-utilization" in found.remedy) == ("gpu-memory-utilization" in flags)


def test_no_size_is_named_that_would_not_do_either() -> None:
    found = refusal(load_of(FLAGS, 200 * REFERENCE), [CARD])
    assert found is not None
    assert found.remedy == "take smaller weights: no number of such cards holds these"


def test_it_is_known_that_a_dense_replica_holds_everything() -> None:
    flags = {**FLAGS, **REPLICAS}
    assert refusal(load_of(flags, 2 * REFERENCE), [CARD, CARD]) is None
    found = refusal(load_of(flags, 2 * REFERENCE, dense=True), [CARD, CARD])
    assert found is not None
    assert "over 1 card" in found.found


def test_the_cache_of_one_request_is_counted_where_it_is_known() -> None:
    flags = {**FLAGS, "gpu-memory-utilization": 0.6}
    load = replace(load_of(flags, REFERENCE), cache=9 * 10**9, context=262_144)
    assert refusal(replace(load, cache=0), [CARD]) is None
    found = refusal(load, [CARD])
    assert found is not None
    assert "and 9.0 GB of KV cache for one request of 262,144 tokens" in found.found
    assert "a smaller max-model-len" in found.remedy


@given(st.sampled_from([1, 2, 4, 8]), st.floats(0.3, 0.97), st.integers(1, 10**12))
def test_more_cards_never_turn_a_fit_into_a_refusal(size: int, share: float, weights: int) -> None:
    one, more = (
        refusal(
            load_of({"gpu-memory-utilization": share, "tensor-parallel-size": n}, weights), [CARD]
        )
        for n in (size, 2 * size)
    )
    assert not (one is None and more is not None)


@pytest.mark.parametrize(
    ("changed", "flags", "spread", "gib"),
    [
        # vLLM says 8.1 GiB of this very request (with its draft layer and states)
        ({}, FLAGS, Spread(), 8.0),
        ({}, FLAGS, Spread(tensor=2), 4.0),
        ({}, FLAGS, Spread(tensor=8), 2.0),  # a head can't be cut: the four are held twice
        ({}, FLAGS, Spread(pipeline=2), 4.0),
        ({}, {"kv-cache-dtype": "auto"}, Spread(), 16.0),
        ({}, {}, Spread(), 16.0),
        (
            {"layer_types": ["linear_attention"] * 48 + ["full_attention"] * 16},
            FLAGS,
            Spread(),
            8.0,
        ),
        ({}, {"kv-cache-dtype": "nvfp4"}, Spread(), 0),
        ({}, {**FLAGS, "decode-context-parallel-size": 2}, Spread(tensor=2), 0),
        ({"kv_lora_rank": 512}, FLAGS, Spread(), 0),
        ({"full_attention_interval": None}, FLAGS, Spread(), 0),  # what all layers do is not known
        ({"head_dim": None}, FLAGS, Spread(), 0),
    ],
)
def test_the_cache_of_a_request_by_config(
    changed: dict[str, Any], flags: dict[str, Any], spread: Spread, gib: float
) -> None:
    config = {"text_config": {**CONFIG["text_config"], **changed}}
    assert cache_of_a_request(config, flags, spread, 262_144) == gib * GIB


def test_a_quantised_checkpoint_may_have_another_cache() -> None:
    assert cache_of_a_request({**CONFIG, "quantization_config": {}}, {}, Spread(), 1) == 0


@pytest.mark.parametrize(
    ("spread", "whole"),
    [
        (Spread(), []),
        (Spread(tensor=2), []),
        (Spread(tensor=8), []),  # 4 key-value heads, each held by two
        (Spread(tensor=3), ["4 key-value heads"]),
        (
            Spread(tensor=5),
            ["24 attention heads", "48 value heads of linear attention", "4 key-value heads"],
        ),
        (Spread(pipeline=64), []),
        (Spread(pipeline=65), ["64 layers into 65 stages"]),
    ],
)
def test_heads_and_layers_are_not_cut_through(spread: Spread, whole: list[str]) -> None:
    assert uncut(CONFIG, spread) == whole
    assert uncut(CONFIG["text_config"], spread) == whole  # a model of text alone
    assert uncut({}, spread) == []


def test_what_would_do_is_listed() -> None:
    assert sizes_that_cut(CONFIG) == [1, 2, 4, 8, 12]


def test_config_tells_experts_and_types() -> None:
    assert not has_experts(CONFIG)
    assert has_experts({"text_config": {"num_experts": 128}})
    assert is_halved({"torch_dtype": "float32"}) and not is_halved(CONFIG)


def test_the_cards_of_this_project_are_known_by_their_id() -> None:
    assert set(MEMORY_OF) == {"10de:2bb1", "10de:2bb4", "10de:2bb5"}
