"""What a release's own parser says of a command line; here the stand-in's, with its flags."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from aibox.box import argv, judge
from tests.rehearsal.standin import build

Answer = dict[str, Any]
Ask = Callable[..., Answer]

REFERENCE = (
    *("--host", "localhost", "--port", "8000", "--allowed-origins", "[]", "--dtype", "auto"),
    *("--kv-cache-dtype", "fp8", "--gpu-memory-utilization", "0.87", "--max-model-len", "262144"),
    *("--attention-backend", "FLASHINFER", "--enable-prefix-caching", "--enable-auto-tool-choice"),
    *("--tool-call-parser", "qwen3_coder", "--reasoning-parser", "qwen3", "--max-num-seqs", "480"),
    *("--served-model-name", "qwen3.8-27b", "--speculative-config"),
    '{"method":"mtp","num_speculative_tokens":2}',
)


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Ask:
    """Judge words with the stand-in on the path, in a process of its own as on a box."""
    site = tmp_path_factory.mktemp("site")
    metadata = site / f"vllm-{build.VERSION}.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {build.VERSION}\n")
    path = f"{build.HERE / 'src'}:{site}"

    def asked(*words: str, model: str = str(site), **environment: str) -> Answer:
        done = subprocess.run(
            [sys.executable, *judge.WORDS, argv.__file__],
            input=json.dumps({"words": ["serve", model, *words]}),
            env={**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", **environment},
            capture_output=True,
            text=True,
            check=True,
        )
        answer: Answer = json.loads(done.stdout)
        return answer

    return asked


def test_the_reference_flags_are_taken(ask: Ask) -> None:
    answer = ask(*REFERENCE)
    assert answer["faults"] == answer["warnings"] == []
    assert answer["version"] == build.VERSION
    resolved = answer["resolved"]
    assert (resolved["max_num_seqs"], resolved["max_model_len"]) == (480, 262144)


# words of one wrong flag -> (the flag that is named, found, in expected)
WRONG: list[tuple[list[str], str, str, str]] = [
    (["--max-num-seqss", "4"], "max-num-seqss", "no flag is called max-num-seqss", "max-num-seqs"),
    (["--frobnicate"], "frobnicate", "no flag is called frobnicate", "a flag it knows"),
    (["--enable-log"], "enable-log", "beginning of several flags", "enable-log-requests"),
    (["--no-max-num-seqs"], "max-num-seqs", "no-max-num-seqs", "wants a value"),
    (["--no-headless"], "headless", "no-headless", "take it away"),
    (["--max-num-seqs"], "max-num-seqs", "has no value", "expected one argument"),
    (["--max-num-seqs", "many"], "max-num-seqs", "is 'many'", "invalid"),
    (["--max-num-seqs=many"], "max-num-seqs", "is 'many'", "invalid"),
    (["--max-model-len", "256Z"], "max-model-len", "is '256Z'", "256Z"),
    (["--enable-prefix-caching", "true"], "enable-prefix-caching", "'true'", "no value"),
    (["--kv-cache-dtype", "fp9"], "kv-cache-dtype", "is 'fp9'", "the nearest is fp8"),
    (["--dtype", "bf16"], "dtype", "is 'bf16'", "the nearest is bfloat16"),
    (["--speculative-config", "{"], "speculative-config", "is '{'", "cannot be converted"),
    (["--attention-backend", "FLASHINFR"], "attention-backend", "FLASHINFR", "FLASHINFER"),
    (["--tool-call-parser", "qwen3_codr"], "tool-call-parser", "qwen3_codr", "qwen3_coder"),
    (["--reasoning-parser", "qwen33"], "reasoning-parser", "qwen33", "the nearest is qwen3"),
    (["--enable-auto-tool-choice"], "enable-auto-tool-choice", "requires", "takes"),
    (
        ["--speculative-config", '{"method":"mtp","num_speculativ_tokens":2}'],
        *("speculative-config", "'num_speculativ_tokens'", "nearest is num_speculative_tokens"),
    ),
    (
        ["--speculative-config", '{"method":"mpt","num_speculative_tokens":2}'],
        *("speculative-config", "method is 'mpt'", "the nearest is mtp"),
    ),
    (
        ["--speculative-config", '{"method":"mtp","num_speculative_tokens":0}'],
        *("speculative-config", "num_speculative_tokens is 0", "a whole number from 1"),
    ),
    (
        ["--speculative-config", '{"num_speculative_tokens":2}'],
        *("speculative-config", "names no method", "such as mtp"),
    ),
]


@pytest.mark.parametrize(("words", "flag", "found", "expected"), WRONG, ids=str)
def test_a_wrong_flag_is_named_with_what_the_parser_knows(
    ask: Ask, words: list[str], flag: str, found: str, expected: str
) -> None:
    (fault,) = ask(*words)["faults"]
    assert fault["flag"] == flag
    assert found in fault["found"]
    assert expected in fault["expected"]


def test_every_wrong_flag_of_a_line_is_found_at_once(ask: Ask) -> None:
    words = [word for wrong, *_ in WRONG[:3] + WRONG[10:12] + WRONG[13:16] for word in wrong]
    named = {fault["flag"] for fault in ask(*REFERENCE[:8], *words)["faults"]}
    assert named == {
        *("max-num-seqss", "frobnicate", "enable-log", "kv-cache-dtype", "dtype"),
        *("attention-backend", "tool-call-parser", "reasoning-parser"),
    }


def test_a_deprecated_method_is_a_warning(ask: Ask) -> None:
    config = '{"method":"qwen3_5_mtp","num_speculative_tokens":2}'
    answer = ask("--speculative-config", config)
    assert answer["faults"] == []
    assert {(row["flag"], row["text"]) for row in answer["warnings"]} == {
        ("speculative-config", "method qwen3_5_mtp is deprecated; write mtp"),
    }


def test_a_shortened_name_is_refused_although_vllm_would_take_it(ask: Ask) -> None:
    """Beside the card's own flag only their order would say which one counts."""
    (fault,) = ask("--max-num-seqs", "8", "--max-num-seq", "4")["faults"]
    assert fault["found"] == "max-num-seq is only the beginning of max-num-seqs"
    assert fault["expected"] == "the whole name"


def test_underscores_equal_signs_and_dotted_names_are_read_as_vllm_does(ask: Ask) -> None:
    answer = ask(
        *("--max_num_seqs=4", "--speculative-config.method", "mtp"),
        *("--speculative-config.num_speculative_tokens", "2"),
    )
    assert answer["faults"] == []
    assert answer["resolved"]["speculative_config"]["num_speculative_tokens"] == 2


def test_weights_that_are_not_there_belong_to_no_flag(ask: Ask, tmp_path: Path) -> None:
    (fault,) = ask(model=str(tmp_path / "nothing"))["faults"]
    assert fault["flag"] is None
    assert str(tmp_path / "nothing") in fault["found"]


def test_a_release_without_vllm_is_an_error_and_no_fault_of_a_flag(ask: Ask) -> None:
    answer = ask(PYTHONPATH="")
    assert "No module named 'vllm'" in answer["error"]
    assert "faults" not in answer
