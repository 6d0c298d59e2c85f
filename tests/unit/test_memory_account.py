"""Where the card's memory goes, from the lines of a start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibox.decide import memory_account
from aibox.decide.memory_account import Account, account, estimate, of_record, rows, with_metrics

JOURNALS = Path(__file__).parent / "journals"
CARD_BYTES = 102_641_958_912
HEALTHY = (JOURNALS / "healthy/gpu-start.log").read_text().splitlines()
REFERENCE = Account(
    weights=52.31,
    consumed=52.9,
    activations=3.7,
    graphs=0.9,
    kv_cache=26.02,
    kv_tokens=747_706,
    context=262_144,
    requests=2.85,
    utilization=0.87,
    card=94.97,
    free=94.36,
)
METRICS = (
    '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{{block_size="1600",engine="0",'
    'mamba_block_size="{block}",num_gpu_blocks="{blocks}",num_gpu_blocks_override="None"}} 1.0\n'
)


def test_the_lines_of_a_good_start_are_an_account() -> None:
    assert account(HEALTHY) == REFERENCE


@pytest.mark.parametrize(
    "head", ["Nov 29 10:00:00 ai-box vllm[812]: ", "2026-11-29T10:00:00+0000 ai-box vllm[812]: "]
)
def test_the_journals_own_heads_change_nothing(head: str) -> None:
    assert account([head + line for line in HEALTHY]) == REFERENCE


def test_lines_may_be_wrapped() -> None:
    wrapped = [line[at : at + 100] for line in HEALTHY for at in range(0, len(line), 100)]
    assert account(wrapped) == REFERENCE


def test_of_several_starts_the_last_counts() -> None:
    failed = (JOURNALS / "failing/mamba-blocks.log").read_text().splitlines()
    assert account([*failed, *HEALTHY]).mamba_blocks is None
    assert account([*HEALTHY, *failed]).mamba_blocks == 501
    assert account([*HEALTHY, *failed]).graphs is None


def test_blocks_that_a_start_tells_count_for_a_hybrid_model_only() -> None:
    line = (
        "(APIServer pid=1) INFO 11-29 10:00:00 [loggers.py:406] 1 Engines: vllm cache_config_info "
        "with initialization after num_gpu_blocks is: 501"
    )
    assert account([*HEALTHY, line]).mamba_blocks == 501
    assert account([line]).mamba_blocks is None


def test_blocks_of_a_running_server_come_from_its_metrics() -> None:
    told = METRICS.format(block="1600", blocks="501")
    assert with_metrics(REFERENCE, told).mamba_blocks == 501
    assert with_metrics(REFERENCE, METRICS.format(block="None", blocks="501")).mamba_blocks is None
    assert with_metrics(REFERENCE, "") == REFERENCE


def test_nothing_is_known_of_nothing() -> None:
    assert account([]) == Account()
    assert rows(Account(), None, {}, serves=False) == []
    assert estimate(Account(), CARD_BYTES, 0.9) is None


def test_the_rows_say_it_in_words() -> None:
    found = with_metrics(REFERENCE, METRICS.format(block="1600", blocks="501"))
    told = dict(rows(found, CARD_BYTES, {"max-num-seqs": 480}, serves=True))
    assert told["sequences"] == "480 sequences fit 501 blocks"
    assert told["requests"] == "2.85 at full context (262,144 tokens)"
    assert told["KV cache"] == "26.02 GiB, 747,706 tokens"
    assert "52.90 GiB" in told["weights"]
    assert told["estimate"].startswith("with gpu-memory-utilization 0.89 instead: about 27.9 GiB")
    assert told["estimate"].endswith("(an estimate)")
    many = {"max-num-seqs": 512}
    assert dict(rows(found, CARD_BYTES, many, serves=False))["sequences"] == (
        "512 sequences do not fit 501 blocks"
    )


def test_unknown_blocks_are_no_row() -> None:
    assert "sequences" not in dict(rows(REFERENCE, CARD_BYTES, {"max-num-seqs": 480}, serves=True))


def test_an_estimate_is_linear_in_what_is_left_for_the_cache() -> None:
    guess = estimate(REFERENCE, CARD_BYTES, 0.92)
    assert guess is not None
    assert guess.kv_cache == pytest.approx(26.02 + 0.05 * 94.97, abs=0.01)
    assert guess.kv_tokens == int(747_706 * (26.02 + 0.05 * 94.97) / 26.02)
    assert "an estimate" in str(guess)


def test_an_estimate_of_the_same_is_the_same() -> None:
    guess = estimate(REFERENCE, CARD_BYTES, 0.87)
    assert guess is not None
    assert (guess.kv_cache, guess.kv_tokens, guess.requests) == (26.02, 747_706, 2.85)


def test_where_nothing_would_be_left_there_is_no_estimate() -> None:
    assert estimate(REFERENCE, CARD_BYTES, 0.5) is None


@given(st.floats(min_value=0.6, max_value=0.99), st.floats(min_value=0.6, max_value=0.99))
def test_more_utilisation_never_gives_less(one: float, other: float) -> None:
    low, high = sorted((one, other))
    less, more = (estimate(REFERENCE, CARD_BYTES, value) for value in (low, high))
    assert more is not None
    assert less is None or less.kv_cache <= more.kv_cache


@pytest.mark.parametrize(
    ("grows", "told"), [(1.0, 0.87), (512 / 501, 0.88), (1.2, 0.93), (2, None)]
)
def test_the_utilisation_for_more_cache(grows: float, told: float | None) -> None:
    assert memory_account.utilization_for(REFERENCE, grows, 0.92) == told


def test_an_account_survives_its_record() -> None:
    assert of_record(REFERENCE.record()) == REFERENCE
    assert of_record(None) == Account()
    assert of_record({"of": "another version", "graphs": "much", "kv_tokens": True}) == Account()


def test_a_negative_room_is_told_in_words() -> None:
    shown = dict(rows(Account(kv_cache=-3.2), None, {}, serves=False))
    assert shown["KV cache"].startswith("none: the server needs 3.20 GiB more than its share")
    assert "gpu-memory-utilization" in shown["KV cache"]
    assert "-3.2" not in shown["KV cache"]


@pytest.mark.parametrize(
    ("found", "label", "words"),
    [
        (Account(kv_cache=-42.35), "KV cache", "-42.35 GiB: these figures do not agree with a"),
        (
            replace(REFERENCE, mamba_blocks=501),
            "sequences",
            "512 sequences, 501 blocks: these figures do not agree with a server that serves",
        ),
    ],
)
def test_figures_with_which_nothing_could_serve_are_no_facts_of_one_that_does(
    found: Account, label: str, words: str
) -> None:
    told = dict(rows(found, CARD_BYTES, {"max-num-seqs": 512}, serves=True))
    assert told[label].startswith(words)
