"""Greedy answers to a fixed set of prompts, one after the other, as a server gives them now.

Own code and not `vllm bench serve`, which neither offers tools nor keeps calls.
"""

from __future__ import annotations

import re
from typing import Any

from aibox.box import bench_prompts, prove
from aibox.box.job import JobError, Progress, Spec
from aibox.decide.bench_plan import Asked

HITS = re.compile(r"^vllm:prefix_cache_hits_total(?:\{[^}]*\})? (\S+)$", re.MULTILINE)


def answers(asked: Asked, candidate: Spec, name: str, progress: Progress) -> dict[str, Any]:
    """Ask everything, so often. name: of the server, for the progress. Raises JobError.

    Answers {"answers": see decide/bench_quality.py, "hits": tokens out of the prefix cache,
    "drafts" and "accepted": what the server counted, "source_characters": of the shared prefix}.
    """
    questions = bench_prompts.questions()
    before, hits = prove.counters(candidate), hits_of(candidate)
    shared = source(asked, candidate)
    found = []
    every = [(run, one) for run in range(asked.runs) for one in questions["prompts"]]
    progress.step(f"{name}: asking")
    for at, (run, one) in enumerate(every):
        progress.say(at, len(every), "answers")
        answer = prove.complete(question(asked, candidate, one, shared, questions["tools"]))
        found.append({"prompt": one["id"], "run": run, "tools": one["tools"], **taken(answer, one)})
    after = prove.counters(candidate)
    counted = after.drafts - before.drafts, after.accepted_tokens - before.accepted_tokens
    return {
        "answers": found,
        "hits": hits_of(candidate) - hits,
        "drafts": counted[0],
        "accepted": counted[1],
        "source_characters": len(shared),
    }


def source(asked: Asked, candidate: Spec) -> str:
    """The text that stands in front of several prompts: alike to the letter, without a nonce."""
    characters = bench_prompts.characters_of_a_token(candidate)
    return bench_prompts.source()[: round(max(asked.context) * characters)]


def question(
    asked: Asked, candidate: Spec, one: dict[str, Any], shared: str, tools: list[Any]
) -> Spec:
    prompt = f"{shared}\n\n{one['text']}" if one["source"] else one["text"]
    body: dict[str, Any] = {"temperature": 0}
    body["chat_template_kwargs"] = {"enable_thinking": asked.thinking[0]}
    if one["tools"]:
        body |= {"tools": tools, "tool_choice": "auto"}
    return {**candidate, "probe": {"prompt": prompt, "max_tokens": asked.tokens, "body": body}}


def taken(answer: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """What is kept of an answer. asked: the prompt. Raises JobError for what is no answer."""
    try:
        choice = answer["choices"][0]
        calls = choice["message"].get("tool_calls") or []
        functions = [call["function"] for call in calls]
        return {
            "text": prove.text_of(answer),
            "calls": [{"name": one["name"], "arguments": one["arguments"]} for one in functions],
            "finish": choice["finish_reason"],
            "tokens": int(answer["usage"]["completion_tokens"]),
        }
    except (LookupError, TypeError, ValueError, AttributeError):
        raise JobError(
            f"the prompt {asked['id']} was answered with {str(answer)[:300]}",
            "an answer as the chat API gives it",
            "look at the server's journal on the box; then measure again",
        ) from None


def hits_of(candidate: Spec) -> int:
    found = HITS.findall(prove.exposition(candidate["port"]))
    return round(sum(float(value) for value in found))
