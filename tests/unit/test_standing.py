"""`aibox status`: how a server stands, in words and for a program."""

import json
from dataclasses import replace
from typing import Any

from aibox.decide import standing
from aibox.decide.acceptance import Counters, mean_of
from aibox.decide.standing import Facts
from tests.unit.passed import passed

DEPLOYED: dict[str, Any] = {
    "release": {"id": "0.31.0-11111111"},
    "weights": {"repository": "a/b", "commit": "c" * 40},
    "server": {"unit": "vllm-coder.service", "port": 8000, "model": "qwen", "speculative": True},
}
PROOF = {"identity": "me", "tokens": 60, "seconds": 2.0, "draft_tokens": 50, "accepted": 35}
SERVING = Facts(
    deployed=DEPLOYED,
    gate=passed("a", when=86400.0, seconds_start=120.4, model="qwen", commit="d" * 40),
    state="active",
    since=0.0,
    driver=standing.driver({"version": "580.178.04", "open": True}),
    counters=Counters(70, 140, 90, (55, 35), 160),
    requests=12,
    seconds_per_token=0.016,
    card_bytes=96 * 2**30,
    used_bytes=84 * 2**30,
    own_bytes=83 * 2**30,
    proof=PROOF,
    proven=3600.0,
)


def test_a_server_that_serves() -> None:
    assert dict(standing.rows(SERVING)) == {
        "serves": "qwen on http://localhost:8000/v1",
        "since": "1970-01-01 00:00:00 UTC",
        "model": "a/b at dddddddddddd",
        "release": "vLLM 0.31.0-aaaaaaaa",
        "driver": "580.178.04, open modules",
        "MTP": "on: 64.3 % of the drafted tokens accepted, 2.29 tokens a step; of each step's "
        "drafted tokens the first 78.6 %, the second 50.0 % (70 drafts since the start)",
        "speed": "62.5 tokens/s a request, the mean of 12 since the start",
        "memory": "84.0 of 96.0 GiB used, 83.0 by the server",
        "gate": "passed 1970-01-02 00:00:00 UTC by a deploy; the start took 120 s",
        "proof": "1970-01-01 01:00:00 UTC: 30.0 tokens/s (60 tokens, prefill included); MTP on: "
        "35 of 50 draft tokens accepted (70.0 %)",
    }


def test_a_server_that_does_not() -> None:
    rows = dict(standing.rows(Facts(DEPLOYED, state="failed")))
    assert rows["serves"] == "nothing on http://localhost:8000/v1"
    assert rows["since"] == "it is failed, see `systemctl status vllm-coder.service`"
    assert rows["MTP"] == "on; the server does not tell its counters"
    assert rows["speed"] == "no requests since the start"
    assert rows["memory"] == "the card does not tell"
    assert rows["gate"] == "nothing has passed it yet"
    assert rows["proof"] == "none yet"
    assert rows["driver"] == "none is loaded"


def test_what_passed_last_counts_for_mtp_and_model() -> None:
    gate = passed("b", speculative=False, model="other")
    rows = dict(standing.rows(replace(SERVING, gate=gate)))
    assert rows["MTP"] == "off"
    assert rows["serves"].startswith("other on ")


def test_a_server_that_a_benchmark_has() -> None:
    lent = replace(SERVING, lent=True, measured=True, counters=Counters())
    rows = dict(standing.rows(lent))
    assert rows["lent"].startswith("to a benchmark: other flags for a while")
    assert rows["MTP"] == "as the benchmark has it now: no traffic"
    assert rows["gate"].startswith(
        "what is lent is in no history; the last that passed: 1970-01-02"
    )
    assert "measured" not in rows
    rows = dict(standing.rows(replace(SERVING, measured=True)))
    assert rows["measured"] == "a benchmark is at work on it"
    assert rows["gate"].startswith("passed 1970-01-02")
    assert standing.as_json(lent)["lent"] is True


def test_for_a_program() -> None:
    found = json.loads(json.dumps(standing.as_json(SERVING)))
    assert found["serves"] is True
    assert found["tokens_per_second"] == 62.5
    assert found["acceptance"]["rate"] == 90 / 140
    assert found["gate"]["sha256"] == "a" * 64
    several = {**dict(standing.rows(replace(SERVING, cards=2)))}
    assert several["memory"] == "84.0 of 96.0 GiB used on 2 cards, 83.0 by the server"
    used = {"total": 96 * 2**30, "used": 84 * 2**30, "own": 83 * 2**30, "cards": 1}
    assert found["memory"] == used
    nothing = standing.as_json(Facts(DEPLOYED))
    assert (nothing["serves"], nothing["acceptance"], nothing["gate"]) == (False, None, None)


def test_the_history_says_what_changed_and_what_is_gone() -> None:
    newer = passed("b", when=90000.0, flags=["--max-num-seqs", "480"], seconds_down=31.0)
    older = passed("a", when=0.0, flags=["--max-num-seqs", "512"], how="found")
    lines = standing.history_rows([newer, older], {newer.release, newer.weights, newer.sha256})
    assert lines == [
        f" 1  {'b' * 12}  1970-01-02 01:00:00 UTC  by a deploy: qwen, vLLM 0.31.0-aaaaaaaa"
        ", 31 s without service",
        "      --max-num-seqs 512 -> --max-num-seqs 480",
        f" 2  {'a' * 12}  1970-01-01 00:00:00 UTC  by nobody: it was found serving: qwen, "
        "vLLM 0.31.0-aaaaaaaa",
        "      can't come back: its unit is gone",
    ]


def test_the_history_names_each_unit_of_his_own_that_is_kept() -> None:
    edited, first = passed("d", when=90000.0, how="found"), passed("c", when=0.0, how="found")
    assert standing.history_rows([], (), [edited, first]) == [
        f" -  {'d' * 12}  kept for ever; to your own unit: "
        "pyinfra inventory tasks/rollback.py --data to=found",
        f" -  {'c' * 12}  kept for ever; of 1970-01-01 00:00:00 UTC, older: "
        f"pyinfra inventory tasks/rollback.py --data to={'c' * 12} "
        f"(/var/lib/aibox/server/units/{'c' * 64}.service)",
    ]


def test_the_mean_of_a_histogram() -> None:
    text = (
        '# TYPE x histogram\nx_bucket{le="1"} 5\nx_sum{engine="0"} 3.0\nx_count{engine="0"} 4.0\n'
        'x_sum{engine="1"} 1\nx_count{engine="1"} 4\nxx_sum 9\nxx_count 1\n'
    )
    assert mean_of(text, "x") == (8, 0.5)
    assert mean_of(text, "y") is None
    assert mean_of("x_sum 0\nx_count 0\n", "x") is None
