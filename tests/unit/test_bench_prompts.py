"""The texts of a benchmark, and what is taken of a result of `vllm bench serve`."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from aibox.box import bench_prompts, bench_serve
from aibox.box.job import JobError
from aibox.decide.bench_plan import KINDS
from tasks import aibox_wheel


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_word_stands_first(kind: str) -> None:
    one, other = (bench_prompts.prompt(kind, 0, 4.0) for _ in range(2))
    assert one != other
    assert one.split("\n\n", 1)[1] == other.split("\n\n", 1)[1] == bench_prompts.task(kind)


def test_long_prompts_are_as_long_as_asked_and_end_with_the_task() -> None:
    made = bench_prompts.prompt("agent", 125 * 1024, 4.0)
    assert len(made) / 4.0 == pytest.approx(125 * 1024, rel=0.001)
    assert made.endswith(bench_prompts.task("agent"))


def test_there_is_enough_source_for_the_longest() -> None:
    """At five characters a token, more than a tokenizer makes of code."""
    assert len(bench_prompts.source()) > 125 * 1024 * 5


def test_shared_prefixes_and_calls_are_both_asked_for() -> None:
    asked = bench_prompts.questions()["prompts"]
    assert len({one["id"] for one in asked}) == len(asked) >= 18
    assert {(one["source"], one["tools"]) for one in asked} == {
        (source, tools) for source in (False, True) for tools in (False, True)
    }
    assert sum(one["source"] for one in asked) >= 6
    assert bench_prompts.required()["edit_file"] == ["path", "old", "new"]


def test_the_texts_count_into_the_name_of_the_installed_aibox() -> None:
    names = {path.name for path in aibox_wheel.sources()}
    assert {"code.txt", "prose.txt", "agent.txt", "quality.json", "bench.py"} <= names


# --- results -------------------------------------------------------------------------------------


def result(**more: Any) -> dict[str, Any]:
    """As `vllm bench serve --save-detailed` of 0.31.0 writes it, the columns that count."""
    return {
        **{"duration": 3.2, "completed": 2, "failed": 1, "errors": ["", "", "refused"]},
        **{"input_lens": [60, 61, 60], "output_lens": [48, 48, 0], "ttfts": [0.1, 0.2, 0.0]},
        **{"latencies": [1.5, 1.6, 0.0], "itls": [[0.1], [0.1], []], "max_output_tokens_per_s": 9},
        **{"spec_decode_num_drafts": 70, "spec_decode_draft_tokens": 140, **more},
    }


def test_what_is_kept_of_a_result() -> None:
    kept = bench_serve.summary(result(), "")
    assert kept == {
        "seconds": 3.2,
        "failed": 1,
        "requests": [
            {"prompt": 60, "tokens": 48, "ttft": 0.1, "seconds": 1.5},
            {"prompt": 61, "tokens": 48, "ttft": 0.2, "seconds": 1.6},
        ],
        "speculative": {"num_drafts": 70, "draft_tokens": 140},
    }  # no inter-token latency and no peak: with drafts they count chunks


def test_no_answer_is_no_measurement_and_no_traceback_either() -> None:
    error = "Traceback (most recent call last):\n  File x\nOSError: Cannot connect to host\n"
    with pytest.raises(JobError) as caught:
        bench_serve.summary(result(completed=0, errors=[error, error]), "")
    found = caught.value.refusal.found
    assert found == "`vllm bench serve` ended with no answer: OSError: Cannot connect to host"
    assert "refused" in bench_serve.failed("a\nrefused\n\n", "exit code 1").refusal.found


def test_one_stream_of_his_method() -> None:
    good = {"release": "/opt/r", "port": 8000, "weights": "/srv/w", "model": "m", "user": "vllm"}
    words = bench_serve.command(good, Path("/run/x"), 3, 1, 1500, False)
    assert words[:3] == ["/opt/r/bin/vllm", "bench", "serve"]
    told = dict(pairwise(words))
    assert (told["--max-concurrency"], told["--num-prompts"]) == ("1", "3")
    assert (told["--output-len"], told["--base-url"]) == ("1500", "http://127.0.0.1:8000")
    assert "--ignore-eos" in words
    body = json.loads(told["--extra-body"])
    assert body == {"temperature": 0, "chat_template_kwargs": {"enable_thinking": False}}


def test_its_environment_is_the_servers_without_its_caches() -> None:
    good = {"environment": {"VLLM_TARGET_DEVICE": "cpu", "HOME": "/var/lib/vllm-coder"}}
    found = bench_serve.environment(good, Path("/run/x"))
    assert found["VLLM_TARGET_DEVICE"] == "cpu"
    assert found["HOME"] == found["VLLM_CACHE_ROOT"] == "/run/x"
    assert found["NO_PROXY"] == "*"
