from typing import Any

import pytest

from aibox.decide.head import Head, index_of, judge_dtype, judge_head, judge_index

HEAD = Head("mtp_num_hidden_layers", 1, "mtp.", 15)
SHARD = "model-00001-of-00001.safetensors"


def index(tensors: int) -> dict[str, Any]:
    names = ["model.embed.weight", "lm_head.mtp.weight", *(f"mtp.{at}" for at in range(tensors))]
    return {"weight_map": dict.fromkeys(names, SHARD)}


@pytest.mark.parametrize(
    "config",
    [{"mtp_num_hidden_layers": 1}, {"text_config": {"mtp_num_hidden_layers": 1}}],
)
def test_a_head_in_config_and_index_is_there(config: dict[str, Any]) -> None:
    assert judge_head(config, index(15), HEAD) is None


def test_a_card_without_a_head_asks_for_none() -> None:
    assert judge_head({}, {}, None) is None


@pytest.mark.parametrize(
    ("config", "weights", "words"),
    [
        ({"mtp_num_hidden_layers": 1}, index(0), "stripped, the MTP flag would not help"),
        ({"text_config": {"mtp_num_hidden_layers": 1}}, {}, "the MTP flag would not help"),
        ({}, index(15), "config.json has no mtp_num_hidden_layers"),
        ({}, index(15), "the head is there, but vLLM would not find it"),
        ({}, index(0), "the index lists 0 tensors named mtp.*"),
        ({"mtp_num_hidden_layers": 1}, index(14), "the index lists 14 tensors"),
        ({"mtp_num_hidden_layers": 0}, index(15), '"mtp_num_hidden_layers": 0'),
        ({"mtp_num_hidden_layers": True}, index(15), '"mtp_num_hidden_layers": True'),
        ({"mtp_num_hidden_layers": "1"}, index(15), "mtp_num_hidden_layers"),
        ({"text_config": None}, {"weight_map": [1]}, "has no mtp_num_hidden_layers"),
    ],
)
def test_a_head_that_is_not_whole_is_refused(
    config: dict[str, Any], weights: dict[str, Any], words: str
) -> None:
    refusal = judge_head(config, weights, HEAD)
    assert refusal is not None
    assert words in refusal.found
    assert "15 such tensors" in refusal.expected


@pytest.mark.parametrize(
    "headers",
    [
        {"a": {"BF16": 1000}},
        {"a": {"BF16": 990, "F32": 10}},
        {"a": {"BF16": 500}, "b": {"BF16": 490, "F32": 5, "I64": 5}},
    ],
)
def test_bf16_with_few_leftovers_is_accepted(headers: dict[str, dict[str, int]]) -> None:
    assert judge_dtype(headers, "bfloat16") is None


@pytest.mark.parametrize(
    ("headers", "words"),
    [
        ({}, "no parameters"),
        ({"a": {}}, "no parameters"),
        ({"a": {"BF16": 989, "F32": 11}}, "weights of another type: BF16 98.9 %, F32 1.1 %"),
        ({"a": {"F16": 1000}}, "weights of another type: F16 100.0 %"),
        ({"a": {"F8_E4M3": 900, "BF16": 100}}, "quantised weights: F8_E4M3 90.0 %, BF16 10.0 %"),
        ({"a": {"BF16": 9999}, "b": {"F8_E4M3": 1}}, "quantised weights"),
        ({"a": {"BF16": 100, "I8": 900}}, "quantised weights: I8 90.0 %"),
        ({"a": {"BF16": 100, "U8": 900}}, "quantised weights: U8 90.0 %"),
        ({"a": {"BF16": 100, "I32": 900}}, "weights of another type: I32 90.0 %"),
    ],
)
def test_other_weights_are_refused_with_their_shares(
    headers: dict[str, dict[str, int]], words: str
) -> None:
    refusal = judge_dtype(headers, "bfloat16")
    assert refusal is not None
    assert words in refusal.found
    assert "BF16" in refusal.expected


@pytest.mark.parametrize(
    "headers",
    [
        {"a": {"F8_E4M3": 900, "BF16": 100}},
        {"a": {"U8": 1, "BF16": 9}},
        {"a": {"I32": 9, "F16": 1}},
    ],
)
def test_a_card_may_want_quantised_weights(headers: dict[str, dict[str, int]]) -> None:
    assert judge_dtype(headers, "quantised") is None


@pytest.mark.parametrize(
    ("headers", "words"),
    [({"a": {"BF16": 1000}}, "not quantised: BF16 100.0 %"), ({}, "no parameters")],
)
def test_others_are_refused_then(headers: dict[str, dict[str, int]], words: str) -> None:
    refusal = judge_dtype(headers, "quantised")
    assert refusal is not None
    assert words in refusal.found


NEXTN = Head("num_nextn_predict_layers", 1, "model.layers.61.", 3)
NEXTN_TENSORS = [
    *(f"model.layers.61.{name}" for name in ("eh_proj.weight", "enorm.weight", "hnorm.weight")),
    *("model.layers.6.mlp.weight", "lm_head.weight"),
]


def test_the_card_names_the_family_of_the_head() -> None:
    """A head that is one more layer, and a model without an index."""
    headers = {"model.safetensors": NEXTN_TENSORS}
    assert judge_head({"num_nextn_predict_layers": 1}, index_of(headers), NEXTN) is None
    refusal = judge_head({"mtp_num_hidden_layers": 1}, index_of(headers), NEXTN)
    assert refusal is not None and "config.json has no num_nextn_predict_layers" in refusal.found
    stripped = {"model.safetensors": NEXTN_TENSORS[3:]}
    refusal = judge_head({"num_nextn_predict_layers": 1}, index_of(stripped), NEXTN)
    assert refusal is not None and "the head was stripped" in refusal.found


def test_an_index_that_names_more_than_the_files_hold_is_refused() -> None:
    index = {"weight_map": {"a": "1", "b": "2", "mtp.c": "2"}}
    assert judge_index(index, {"1": ["a"], "2": ["b", "mtp.c", "d"]}) is None
    refusal = judge_index(index, {"1": ["a"], "2": ["b"]})
    assert refusal is not None
    assert refusal.found == "the index names tensors that are not in their files: mtp.c"
    refusal = judge_index(index, {"1": ["a", "b", "mtp.c"]})
    assert refusal is not None and refusal.found.endswith("b, mtp.c")
