import pytest
from hypothesis import given
from hypothesis import strategies as st

from aibox.decide.acceptance import (
    Counters,
    acceptance,
    difference,
    in_words,
    parse_metrics,
)

# As vLLM 0.31.0 writes it, with the user's smoke test: 70 drafts, 140 tokens, 90 accepted.
LABELS = 'engine="0",model_name="qwen3.8-27b"'
METRICS = f"""\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{{{LABELS}}} 70.0
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{{{LABELS}}} 1.7959642874733274e+09
vllm:spec_decode_num_draft_tokens_total{{{LABELS}}} 140.0
vllm:spec_decode_num_accepted_tokens_total{{{LABELS}}} 90.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="0"}} 55.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{{{LABELS},position="1"}} 35.0
vllm:generation_tokens_total{{{LABELS}}} 160.0
vllm:cache_config_info{{block_size="1600",x="a}}b\\"c"}} 1.0
"""
SMOKE = Counters(70, 140, 90, (55, 35), 160)


def test_the_counters_are_read() -> None:
    assert parse_metrics(METRICS) == SMOKE
    assert parse_metrics(METRICS, "qwen3.8-27b") == SMOKE
    assert parse_metrics(METRICS, "another") == Counters()


def test_engines_add_up() -> None:
    both = METRICS + METRICS.replace('engine="0"', 'engine="1"')
    assert parse_metrics(both) == Counters(140, 280, 180, (110, 70), 320)


def test_the_users_smoke_test_reads_as_he_measured_it() -> None:
    found = acceptance(SMOKE)
    assert found is not None
    assert f"{100 * found.rate:.1f}" == "64.3"
    assert f"{found.mean_length:.3f}" == "2.286"
    assert found.at == (55 / 70, 35 / 70)
    assert in_words(SMOKE) == (
        "64.3 % of the drafted tokens accepted, 2.29 tokens a step; of each step's drafted tokens "
        "the first 78.6 %, the second 50.0 %"
    )


def test_without_drafts_there_is_no_traffic() -> None:
    assert acceptance(Counters(generation_tokens=5)) is None
    assert in_words(Counters()) == "no traffic"
    assert in_words(difference(SMOKE, SMOKE)) == "no traffic"


def test_two_readings_give_what_happened_between() -> None:
    later = Counters(100, 230, 120, (70, 45, 5), 240)
    assert difference(SMOKE, later) == Counters(30, 90, 30, (15, 10, 5), 80)
    assert difference(Counters(), SMOKE) == SMOKE


def test_a_restart_between_the_readings_is_told() -> None:
    with pytest.raises(ValueError, match="the server restarted"):
        difference(SMOKE, Counters(1, 2, 1, (1, 0), 3))


@pytest.mark.parametrize(
    "line",
    [
        "vllm:generation_tokens_total",
        "vllm:generation_tokens_total{",
        "vllm:generation_tokens_total NaN",
        "vllm:generation_tokens_total -1",
        "vllm:generation_tokens_total +Inf",
        "vllm:generation_tokens_total many",
        'vllm:generation_tokens_total{engine="0} 1',
        "vllm:generation_tokens_total{engine=0} 1",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total 1",
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="-1"} 1',
        'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="99999"} 1',
    ],
)
def test_a_counter_that_cannot_be_read_is_a_value_error(line: str) -> None:
    with pytest.raises(ValueError, match=r"expected|cannot read"):
        parse_metrics(line)


def test_a_timestamp_and_escaped_labels_are_read() -> None:
    line = 'vllm:generation_tokens_total{model_name="a\\"b\\\\c,}",engine="0",} 5 1700000000000'
    assert parse_metrics(line, 'a"b\\c,}') == Counters(generation_tokens=5)


@given(st.text() | st.text().map(lambda text: f"vllm:generation_tokens_total{text}"))
def test_any_text_is_read_or_a_value_error(text: str) -> None:
    try:
        counters = parse_metrics(text)
    except ValueError:
        return
    assert counters.generation_tokens >= 0
