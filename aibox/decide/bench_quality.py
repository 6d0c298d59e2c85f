"""Do answers stay the same with MTP or the prefix cache? Greedy answers, compared by the word.

What is compared is what one server says twice against what two servers say: vLLM promises no equal
bits from run to run, so an answer that differs proves nothing by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from aibox.decide.bench_statistics import Share, differ

MARKUP = ("<tool_call>", "</tool_call>", "<function=", "<parameter=")
Answer = Mapping[str, Any]


@dataclass(frozen=True)
class Quality:
    """What one server answered, counted by prompts: the runs of one prompt hang together.

    repeated: answered alike, run against run. empty: without a word and without a call in any run.
    called: with a call in every run, of those that ask for one. malformed: with a call in any run
    that nobody can carry out, of those with a call or with its markup as text. one_token: empty
    answers that ended by themselves after a token, the sign of a broken prefix cache. hits: prompt
    tokens that came out of the prefix cache.
    """

    repeated: Share
    empty: Share
    called: Share
    malformed: Share
    one_token: int
    hits: int


def judged(answers: Sequence[Answer], tools: Mapping[str, Any], hits: int) -> Quality:
    """answers: {"prompt": id, "run", "text", "calls": [{"name", "arguments"}], "finish", "tokens",
    "tools": whether a call was asked for}. tools: name -> the names of its required parameters.
    """
    prompts = by_prompt(answers).values()
    asked = [runs for runs in prompts if runs[0]["tools"]]
    calling = [runs for runs in prompts if any(one["calls"] or has_markup(one) for one in runs)]
    stops = [one for one in answers if is_empty(one) and one["finish"] == "stop"]
    return Quality(
        repeated=agreed(pairs_within(answers)),
        empty=Share(sum(any(map(is_empty, runs)) for runs in prompts), len(prompts)),
        called=Share(sum(all(one["calls"] for one in runs) for runs in asked), len(asked)),
        malformed=Share(
            sum(any(is_malformed(one, tools) for one in runs) for runs in calling), len(calling)
        ),
        one_token=sum(one["tokens"] <= 1 for one in stops),
        hits=hits,
    )


def is_empty(answer: Answer) -> bool:
    return not answer["text"].strip() and not answer["calls"]


def has_markup(answer: Answer) -> bool:
    return any(mark in answer["text"] for mark in MARKUP)


def is_malformed(answer: Answer, tools: Mapping[str, Any]) -> bool:
    """A call that no client could carry out. One cut off at the last token counts as well."""
    return has_markup(answer) or any(not is_sound(call, tools) for call in answer["calls"])


def is_sound(call: Mapping[str, Any], tools: Mapping[str, Any]) -> bool:
    """A known tool, with an object that holds every parameter that the tool requires."""
    try:
        given = json.loads(call["arguments"])
    except (ValueError, TypeError):
        return False
    wanted = tools.get(call["name"])
    return wanted is not None and isinstance(given, dict) and set(wanted) <= given.keys()


# --- agreement -----------------------------------------------------------------------------------

Pair = tuple[Answer, Answer]


def by_prompt(answers: Sequence[Answer]) -> dict[str, list[Answer]]:
    found: dict[str, list[Answer]] = {}
    for one in answers:
        found.setdefault(one["prompt"], []).append(one)
    return found


def pairs_within(answers: Sequence[Answer]) -> Iterator[Pair]:
    """Each prompt's first run on one server and its last: one pair each, as across servers."""
    for runs in by_prompt(answers).values():
        if len(runs) > 1:
            yield runs[0], runs[-1]


def pairs_across(first: Sequence[Answer], second: Sequence[Answer]) -> Iterator[Pair]:
    """The first run on one server and the last on the other, when its prefixes are in the cache."""
    others = by_prompt(second)
    for prompt, runs in by_prompt(first).items():
        if prompt in others:
            yield runs[0], others[prompt][-1]


def agreed(pairs: Iterator[Pair]) -> Share:
    """How many prompts were answered alike."""
    alike = [said(one) == said(other) for one, other in pairs]
    return Share(sum(alike), len(alike))


def said(answer: Answer) -> tuple[str, list[Any]]:
    return answer["text"], [dict(call) for call in answer["calls"]]


def common(pairs: Iterator[Pair]) -> float | None:
    """How far answers go together before they part: the mean share of the longer, 0 to 1."""
    shares = [together(one["text"], other["text"]) for one, other in pairs]
    return sum(shares) / len(shares) if shares else None


def together(one: str, other: str) -> float:
    longest = max(len(one), len(other))
    same = takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    return sum(1 for _ in same) / longest if longest else 1.0


ALIKE = "alike"
SAME = "no verdict: the spread covers the difference"
OTHER = "these two differ more than the first does from run to run"
UNTESTED = "one run of the first: what it differs from itself is not known"


def verdict(first: Sequence[Answer], second: Sequence[Answer]) -> str:
    """What the agreement of two servers means, next to how far the first agrees with itself."""
    within, across = agreed(pairs_within(first)), agreed(pairs_across(first, second))
    if across.of and across.count == across.of:
        return ALIKE
    if not within.of:
        return UNTESTED
    return OTHER if across.rate < within.rate and differ(within, across) else SAME
