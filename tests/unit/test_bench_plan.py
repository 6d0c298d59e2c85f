"""What a benchmark is asked for, and the servers it makes of the one that is installed."""

from __future__ import annotations

import json
from typing import Any

import pytest

from aibox.decide import bench_plan
from aibox.decide.bench_plan import Asked, Point, Variant
from aibox.decide.refusal import Refusal
from aibox.decide.unit import differences, exec_start, server_command
from tests.unit.test_card import REFERENCE_FLAGS

FLAGS: dict[str, Any] = {
    "max-num-seqs": 480,
    "enable-prefix-caching": True,
    "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
}


def good(**changes: Any) -> dict[str, Any]:
    lines = server_command("/opt/r", "/srv/w", 8000, FLAGS)
    text = f"[Unit]\n[Service]\nUser=vllm\nExecStart={exec_start(lines)}\nRestart=always\n"
    spec = {"unit": "vllm-coder.service", "release": "/opt/r", "weights": "/srv/w", "port": 8000}
    spec |= {"flags": FLAGS, "text": text, "command": [word for line in lines for word in line]}
    return {**spec, "speculative": True, "how": "deploy", **changes}


def asked(**data: object) -> Asked:
    found = bench_plan.read(data)
    assert isinstance(found, Asked), found
    return found


# --- what is asked for ---------------------------------------------------------------------------


def test_without_a_word_it_is_his_method() -> None:
    found = asked()
    assert (found.mode, found.tokens, found.kinds) == ("seed", 1500, ("code", "prose"))
    assert found.runs >= 2
    assert [point.concurrency for point in found.points] == [1, 1]
    assert not any(point.thinking for point in found.points)
    assert found.variants == [Variant(0), Variant()]  # as it is, and without MTP


def test_cross_is_everything_that_was_never_measured() -> None:
    found = asked(mode="cross", thinking="on,off")
    assert found.concurrency == (1, 4, 16, 64)
    assert found.context == (1024, 32 * 1024, 125 * 1024)
    assert [variant.drafts for variant in found.variants] == [0, 1, 2, 3]
    assert len(found.points) == 4 * 3 * 2


def test_any_subset_of_it() -> None:
    found = asked(mode="cross", concurrency="4,1", context="1k", drafts="2", tokens=64, runs=1)
    names = [point.name for point in found.points]
    assert names == ["agent, 4 streams, 1K", "agent, 1 stream, 1K"]
    assert found.variants == [Variant(2)]


def test_quality_crosses_drafts_and_the_prefix_cache() -> None:
    assert asked(mode="quality").variants == [
        Variant(0, False),
        Variant(0, True),
        Variant(None, False),
        Variant(None, True),
    ]


@pytest.mark.parametrize(
    ("data", "found", "expected"),
    [
        ({"mode": "sprint"}, "mode=sprint", "one of seed, cross, quality"),
        ({"mode": "compare"}, "mode=compare", "one of seed, cross, quality"),
        ({"runs": 0}, "runs=0", "a whole number"),
        ({"runs": "many"}, "runs=many", "a whole number"),
        ({"tokens": 10**6}, "tokens=1000000", "a whole number"),
        ({"mode": "cross", "context": "1M"}, "context=1M", "lengths of prompts"),
        ({"mode": "cross", "context": "-1"}, "context=-1", "lengths of prompts"),
        ({"mode": "cross", "concurrency": "1,,4"}, "concurrency=1,,4", "numbers of streams"),
        ({"mode": "cross", "drafts": "two"}, "drafts=two", "numbers of speculative tokens"),
        ({"thinking": "maybe"}, "thinking=maybe", "on, off or both"),
        ({"kinds": "verse"}, "kinds=verse", "some of code, prose, agent"),
        ({"concurrency": 4}, "concurrency=4 with mode=seed", "the mode's own"),
    ],
)
def test_what_is_wrong_is_refused(data: dict[str, object], found: str, expected: str) -> None:
    faults = bench_plan.read(data)
    assert isinstance(faults, list)
    assert [fault.found for fault in faults] == [found]
    assert expected in faults[0].expected
    assert "--data" in faults[0].remedy


@pytest.mark.parametrize(("mode", "near"), [("sed", "seed"), ("qualty", "quality"), ("x", "seed")])
def test_a_wrong_mode_is_answered_with_the_nearest(mode: str, near: str) -> None:
    faults = bench_plan.read({"mode": mode})
    assert isinstance(faults, list)
    assert faults[0].remedy == f"--data mode={near}"


def test_every_fault_comes_at_once() -> None:
    faults = bench_plan.read({"runs": 0, "tokens": 0, "kinds": "verse"})
    assert isinstance(faults, list)
    assert len(faults) == 3


def test_truth_values_and_numbers_are_words_too() -> None:
    """pyinfra reads `--data thinking=true` as a truth value and `runs=2` as a number."""
    found = asked(mode="cross", thinking=True, runs=2, prefix_caching=False)
    assert (found.thinking, found.runs, found.prefix_caching) == ((True,), 2, (False,))


# --- the servers ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variant", "differs"),
    [
        (Variant(0), ["without --speculative-config"]),
        (Variant(3), ["with --speculative-config"]),
        (Variant(None, False), ["--enable-prefix-caching, wanted --no-enable-prefix-caching"]),
        (Variant(0, False), ["--no-enable-prefix-caching", "--speculative-config"]),
    ],
)
def test_a_variant_is_the_installed_unit_with_other_flags(
    variant: Variant, differs: list[str]
) -> None:
    made = bench_plan.candidate(good(), variant)
    assert isinstance(made, dict)
    rows = differences(good()["command"], made["command"])
    assert len(rows) == len(differs)
    start = exec_start(server_command("/opt/r", "/srv/w", 8000, made["flags"]))
    assert made["text"].count(f"ExecStart={start}\n") == 1
    changed = set(made["text"].splitlines()) ^ set(good()["text"].splitlines())
    assert all("speculative" in line or "prefix" in line or "480" in line for line in changed)
    assert made["speculative"] is (variant.drafts != 0)
    assert made["how"] != "deploy"


def test_the_server_as_it_is_stays_the_installed_one() -> None:
    assert bench_plan.candidate(good(), Variant()) == good()
    assert bench_plan.candidate(good(), Variant(2, True)) == good()


def test_any_speculative_configuration_keeps_its_method() -> None:
    config = {"method": "eagle3", "model": "/srv/drafter", "num_speculative_tokens": 5}
    for given in (config, json.dumps(config)):
        flags = bench_plan.flags_of({"speculative-config": given}, Variant(3))
        assert flags["speculative-config"] == {**config, "num_speculative_tokens": 3}
    flags = bench_plan.flags_of({}, Variant(1))
    assert flags["speculative-config"] == {"method": "mtp", "num_speculative_tokens": 1}


def test_without_a_head_there_is_nothing_to_draft_with() -> None:
    flags = {"max-num-seqs": 480}
    start = exec_start(server_command("/opt/r", "/srv/w", 8000, flags))
    plain = good(flags=flags, text=f"[Service]\nExecStart={start}\n")
    refusal = bench_plan.candidate(plain, Variant(2))
    assert isinstance(refusal, Refusal)
    assert "drafts=2" in refusal.found
    made = bench_plan.candidate({**plain, "head": {"layers": 1}}, Variant(2))
    assert isinstance(made, dict)
    assert made["speculative"]


@pytest.mark.parametrize("spec", [good(text="[Service]\nExecStart=/bin/own\n"), good(flags={})])
def test_a_unit_that_no_deploy_wrote_is_only_measured_as_it_is(spec: dict[str, Any]) -> None:
    refusal = bench_plan.candidate(spec, Variant(1))
    assert isinstance(refusal, Refusal)
    assert "drafts=now" in refusal.remedy
    assert bench_plan.candidate(spec, Variant()) == spec


@pytest.mark.parametrize(
    ("variant", "name"),
    [
        (Variant(), "2 drafts"),
        (Variant(0), "no drafts"),
        (Variant(1), "1 draft"),
        (Variant(None, False), "2 drafts, prefix caching off"),
        (Variant(0, True), "no drafts, prefix caching on"),
    ],
)
def test_variants_in_words(variant: Variant, name: str) -> None:
    assert bench_plan.named(variant, FLAGS) == name


def test_the_reference_flags_draft_two() -> None:
    words = REFERENCE_FLAGS.split()
    assert bench_plan.drafts_of({"speculative-config": words[-1]}) == 2
    assert bench_plan.drafts_of({}) == 0


# --- room ----------------------------------------------------------------------------------------


def test_what_does_not_fit_at_once_would_measure_the_queue() -> None:
    def why(concurrency: int, context: int, cache: int | None = 747_706) -> str | None:
        return bench_plan.fits(Point("agent", concurrency, context, False), 256, cache, 262_144)

    assert why(4, 125 * 1024) is None
    assert "overfull=yes" in str(why(16, 125 * 1024))
    assert why(16, 125 * 1024, None) is None
    assert "a request takes 262,400 tokens" in str(why(1, 262_144))


def test_the_cache_is_what_the_server_says() -> None:
    told = 'vllm:cache_config_info{block_size="16",kv_cache_size_tokens="747706",x="1"} 1.0\n'
    assert bench_plan.cache_tokens(told) == 747_706
    assert bench_plan.cache_tokens("vllm:num_requests_running 0\n") is None


def test_each_run_of_several_streams_has_a_total_of_its_own() -> None:
    assert bench_plan.batches(1, 3) == [3]
    assert bench_plan.batches(4, 2) == [4, 4]


# --- gateways ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("alike", "run", "gateways", "stops", "words"),
    [
        (["a", "b"], ["a", "b"], ["g"], 1, ["a and b serve the same and would pause at the same"]),
        (["a", "b"], ["a", "b"], ["g"], 0, ["would be slow", "this one with --limit a"]),
        (["a", "b"], ["a"], ["g", "h"], 1, ["what comes to a through g and h is measured along"]),
        (["a", "b"], ["a"], ["a"], 1, ["rotation out a --why benchmark (on a)", "rotation back a"]),
        (["a"], ["a", "b"], ["g"], 1, None),  # nobody else would answer
        (["a", "b"], ["a", "b"], [], 1, None),
    ],
)
def test_what_gateways_send_meanwhile_is_said(
    alike: list[str], run: list[str], gateways: list[str], stops: int, words: list[str] | None
) -> None:
    rows = bench_plan.beside_gateways("a", alike, run, gateways, "rotation", stops=stops)
    assert bool(rows) is (words is not None)
    said = "\n".join(text for _, text in rows)
    assert all(word in said for word in words or [])
    assert ("together" in dict(rows)) is (len(run) > 1 and bool(rows))


# --- the box -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("history", "fit"),
    [
        ({"serves": True, "benchmark": False}, True),
        ({"serves": False, "benchmark": True}, True),  # lent: the same command follows or fetches
        ({"serves": False, "benchmark": False}, False),
        ({"serves": False}, False),  # of an older aibox
        ({}, False),
    ],
)
def test_a_lost_connection_does_not_keep_a_person_from_his_report(
    history: dict[str, Any], fit: bool
) -> None:
    assert (bench_plan.unfit(history) == []) is fit
