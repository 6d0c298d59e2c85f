"""Known issues: which versions and settings have them, and how the plan tells them."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from aibox.card import load_card
from aibox.decide.known_issues import KNOWN, coming_with, has, known_issues, rows
from tests.rehearsal.machine import CHECKOUT

CARD = load_card(CHECKOUT / "group_data/models", "qwen3.8-27b")
OFF = CARD.model_copy(update={"prefix_cache_with_mtp": "off"})
DENSE = CARD.model_copy(
    update={
        "repository": "zai-org/GLM-4.5",
        "head": CARD.head
        and CARD.head.model_copy(update={"config_key": "num_nextn_predict_layers"}),
    }
)
NO_HEAD = CARD.model_copy(update={"head": None})
GONE: Any = object()
ALL_THREE = ["prefix_cache_with_mtp", "flashinfer_fp8_kv", "hybrid_prefix_hits"]

# version, card, what is changed of the reference flags -> the issues
CASES: list[tuple[str, Any, dict[str, Any], list[str]]] = [
    ("0.31.0", CARD, {}, ALL_THREE),
    ("0.31.0+standin", CARD, {}, ALL_THREE),
    ("0.31.0rc1", CARD, {}, ALL_THREE),
    ("0.32.0", CARD, {}, []),
    ("nightly", CARD, {}, []),
    ("0.31.0", CARD, {"enable-prefix-caching": GONE}, ALL_THREE),  # on by default
    ("0.31.0", CARD, {"enable-prefix-caching": False}, ["flashinfer_fp8_kv"]),
    ("0.31.0", OFF, {"enable-prefix-caching": False}, ["flashinfer_fp8_kv"]),
    (
        *("0.31.0", CARD, {"speculative-config": GONE}),
        ["gdn_prefix_cache", "flashinfer_fp8_kv", "hybrid_prefix_hits"],
    ),
    (
        *("0.31.0", NO_HEAD, {"speculative-config": GONE, "attention-backend": "TRITON_ATTN"}),
        ["gdn_prefix_cache", "hybrid_prefix_hits"],
    ),
    ("0.31.0", DENSE, {}, ["flashinfer_fp8_kv"]),
    ("0.31.0", CARD, {"attention-backend": "TRITON_ATTN"}, [ALL_THREE[0], ALL_THREE[2]]),
    ("0.31.0", CARD, {"kv-cache-dtype": "auto"}, [ALL_THREE[0], ALL_THREE[2]]),
    ("0.31.0", CARD, {"kv-cache-dtype": "fp8_e4m3"}, ALL_THREE),
    (
        *("0.31.0", CARD, {"tensor-parallel-size": 2}),
        [*ALL_THREE, "cards_hang", "mtp_over_cards"],
    ),
    (
        *("0.31.0", CARD, {"tensor-parallel-size": "4", "speculative-config": GONE}),
        ["gdn_prefix_cache", *ALL_THREE[1:], "cards_hang", "no_own_all_reduce"],
    ),
    ("0.31.0", CARD, {"pipeline-parallel-size": 2}, [*ALL_THREE, "cards_hang"]),
    ("0.31.0", CARD, {"data-parallel-size": 4}, ALL_THREE),  # each card has all it needs
    ("0.31.0", CARD, {"tensor-parallel-size": "two"}, ALL_THREE),
    ("0.31.0", CARD, {"speculative-config": {"method": "qwen3_5_mtp"}}, ALL_THREE),
    (
        "0.31.0",
        CARD,
        {"speculative-config": "{}", "attention-backend": 3},
        ["gdn_prefix_cache", "hybrid_prefix_hits"],
    ),
]


@pytest.mark.parametrize(("version", "card", "changed", "keys"), CASES)
def test_the_settings_that_have_an_issue_are_told_of_it(
    version: str, card: Any, changed: dict[str, Any], keys: list[str]
) -> None:
    flags = {name: value for name, value in (CARD.serve | changed).items() if value is not GONE}
    assert [issue.key for issue in known_issues(version, flags, card)] == keys


def test_what_a_flag_would_bring_is_told_alone() -> None:
    flags = {**CARD.serve, "enable-prefix-caching": False}
    coming = coming_with("enable-prefix-caching", True, "0.31.0", flags, CARD)
    assert [one.key for one in coming] == ["prefix_cache_with_mtp", "hybrid_prefix_hits"]
    assert coming_with("enable-prefix-caching", True, "0.31.0", CARD.serve, CARD) == []


SPECIFIERS = [
    ("<0.32", "0.31.9", True),
    ("<0.32", "0.32", False),
    ("<0.32", "0.32.0rc1", False),
    (">=0.31,<0.31.2", "0.31.1+mine", True),
    (">=0.31,<0.31.2", "0.31.2", False),
    ("==0.31.0", "0.31", True),
    ("<=0.31.0", "0.31.0.post1", True),
    (">0.31.0", "0.9.5", False),
]


@pytest.mark.parametrize(("specifier", "version", "expected"), SPECIFIERS)
def test_versions_are_compared_by_their_numbers(
    specifier: str, version: str, expected: bool
) -> None:
    assert has(replace(KNOWN[0], vllm=specifier), version) is expected


def test_more_tokens_than_layers_is_no_issue() -> None:
    one = CARD.serve | {"speculative-config": {"method": "mtp", "num_speculative_tokens": 1}}
    assert known_issues("0.31.0", one, CARD) == known_issues("0.31.0", CARD.serve, CARD)


def test_every_issue_has_a_way_out_a_reference_and_versions() -> None:
    for issue in KNOWN:
        assert issue.ways_out
        assert re.search(r"issues? \d{4,}", issue.reference)
        assert has(issue, "0.31.0")
        assert issue.warning.endswith(".")


def test_the_plan_names_setting_file_and_reference() -> None:
    issue = known_issues("0.31.0", CARD.serve, CARD)[0]
    told = rows(issue, "group_data/models/qwen3.8-27b.yml")
    assert told[0].startswith("known issue: prefix caching together with MTP")
    assert "prefix_cache_with_mtp: off" in told[1]
    assert "group_data/models/qwen3.8-27b.yml" in told[-1]
    assert "53912" in told[-1]
