"""Whether answers stay the same: what counts as alike, as empty, as a broken call."""

from __future__ import annotations

from typing import Any

import pytest

from aibox.decide import bench_quality
from aibox.decide.bench_quality import ALIKE, OTHER, SAME, UNTESTED
from aibox.decide.bench_statistics import Share

TOOLS = {"read_file": ["path"], "search": ["pattern"]}


def answer(prompt: str = "p", run: int = 0, text: str = "yes", **more: Any) -> dict[str, Any]:
    usual = {"calls": [], "finish": "stop", "tokens": 8, "tools": False}
    return {"prompt": prompt, "run": run, "text": text, **usual, **more}


def call(name: str = "read_file", arguments: str = '{"path": "a.py"}') -> dict[str, Any]:
    return answer(text="", calls=[{"name": name, "arguments": arguments}], tools=True)


@pytest.mark.parametrize(
    ("made", "malformed"),
    [
        (call(), False),
        (call(arguments='{"path": "a.py", "first_line": 3}'), False),
        (call(arguments='{"path": "a.'), True),
        (call(arguments="[]"), True),
        (call(arguments="{}"), True),
        (call(name="raed_file"), True),
        (answer(text="<tool_call>\n<function=read_file>"), True),
        (answer(text="I would call read_file"), False),
    ],
)
def test_a_call_that_nobody_could_carry_out(made: dict[str, Any], malformed: bool) -> None:
    assert bench_quality.is_malformed(made, TOOLS) is malformed


def test_one_server() -> None:
    answers = [
        answer("a", 0),
        answer("a", 1),
        answer("b", 0, "one"),
        answer("b", 1, "two"),
        answer("c", 0, " \n", tokens=1),
        {**call(), "prompt": "d"},
        answer("d", 1, "<function=x>", tools=True),
    ]
    found = bench_quality.judged(answers, TOOLS, hits=12)
    assert found.repeated == Share(1, 3)  # c was asked once only
    assert found.empty == Share(1, 4)
    assert found.one_token == 1
    assert found.called == Share(0, 1)  # in one of its two runs only
    assert found.malformed == Share(1, 1)
    assert found.hits == 12


def server(*texts: str, again: int = 0) -> list[dict[str, Any]]:
    """Two runs of each prompt; the last `again` prompts are answered otherwise the second time."""
    first = [answer(f"p{at}", 0, text) for at, text in enumerate(texts)]
    other = len(texts) - again
    second = [answer(f"p{at}", 1, t if at < other else f"{t}!") for at, t in enumerate(texts)]
    return first + second


MANY = [f"text {number}" for number in range(18)]


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (server(*MANY), server(*MANY), ALIKE),
        (server(*MANY), server(*MANY[:16], "x", "y"), SAME),  # within the spread of 18 prompts
        (server(*MANY), server(*MANY[:12], *"uvwxyz"), SAME),  # a third: still no verdict, no claim
        (server(*MANY), server(*["other"] * 18), OTHER),
        (server(*MANY, again=18), server(*["other"] * 18), SAME),  # it does not agree with itself
        (server(*MANY)[:18], server(*MANY), ALIKE),
        (server(*MANY)[:18], server(*MANY[:16], "x", "y"), UNTESTED),
        ([], [], UNTESTED),
    ],
)
def test_two_servers_are_held_against_how_one_agrees_with_itself(
    first: list[Any], second: list[Any], verdict: str
) -> None:
    assert bench_quality.verdict(first, second) == verdict


def test_a_spread_that_covers_a_difference_is_no_claim_that_there_is_none() -> None:
    assert SAME.startswith("no verdict")


def test_the_last_run_counts_whose_prefixes_are_in_the_cache() -> None:
    first, second = server("a", "b"), server("a", "b", again=1)
    assert bench_quality.agreed(bench_quality.pairs_across(first, second)) == Share(1, 2)


def test_how_far_two_texts_go_together() -> None:
    pairs = [(answer(text="abcd"), answer(text="abxy")), (answer(text=""), answer(text=""))]
    assert bench_quality.common(iter(pairs)) == 0.75
    assert bench_quality.common(iter([])) is None


def test_other_calls_are_another_answer() -> None:
    one, other = call(), call(arguments='{"path": "b.py"}')
    assert bench_quality.agreed(iter([(one, other)])) == Share(0, 1)
