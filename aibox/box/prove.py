"""Prove that the server serves: a real completion through the chat API, drafts accepted."""

from __future__ import annotations

import json
import re
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any, cast

from aibox.box.job import JobError, Spec, write_whole
from aibox.box.probe.files import record_in
from aibox.decide.acceptance import Counters, difference, parse_metrics
from aibox.decide.releases import served_now

LONGEST_ANSWER_S = 300


def prove(spec: Spec) -> dict[str, Any]:
    """Ask the card's probe and record what came. spec: as `ask`, and "record" (path)."""
    proof = ask(spec)
    record(spec, proof)
    return proof


def ask(spec: Spec) -> dict[str, Any]:
    """Put the card's probe to the server, and see it answered sanely, with accepted drafts.

    spec: {"port", "unit", "model", "probe": {"prompt", "expect", "max_tokens", "body"},
    "speculative": bool, "identity" (what was proven), "release_id"}. Raises JobError.
    """
    before = counters(spec)
    began = time.monotonic()
    answer = complete(spec)
    seconds = time.monotonic() - began
    try:
        text, tokens = text_of(answer), int(answer["usage"]["completion_tokens"])
    except (KeyError, IndexError, TypeError, AttributeError):
        raise unanswered(spec, f"it answered {str(answer)[:300]}") from None
    if not re.search(spec["probe"]["expect"], text, re.DOTALL):
        raise JobError(
            f"the probe was answered with {text[:200]!r}",
            f"an answer that matches {spec['probe']['expect']!r}",
            f"look at `journalctl -u {spec['unit']}`; the card says what a sane answer is",
        )
    try:
        drafts = difference(before, counters(spec))
    except ValueError as error:  # counters that fell: it was restarted in between
        raise unanswered(spec, error) from None
    if spec["speculative"] and not drafts.accepted_tokens:
        raise JobError(
            f"{drafts.draft_tokens} draft tokens, none accepted",
            "accepted draft tokens: the card turns MTP on",
            "do not trust the speed-up; take speculative-config away or look at the weights' head",
        )
    return {
        "identity": spec["identity"],
        "text": text,
        "tokens": tokens,
        "seconds": round(seconds, 3),
        "drafts": drafts.drafts,
        "draft_tokens": drafts.draft_tokens,
        "accepted": drafts.accepted_tokens,
    }


def record(spec: Spec, proof: dict[str, Any]) -> None:
    """Remember a proof, and that this release has served. Raises OSError."""
    path, name = Path(spec["record"]), spec["release_id"]
    served = served_now(record_in(path), name)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps({**proof, "release": name, "served": served}))


def counters(spec: Spec) -> Counters:
    """The server's draft counters, from its own /metrics."""
    try:
        return parse_metrics(metrics(spec["port"]))
    except (OSError, ValueError, HTTPException) as error:
        raise unanswered(spec, error) from None


def metrics(port: int) -> str:
    """The server's own /metrics. Raises OSError and ValueError."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as got:
        return str(got.read().decode())


def exposition(port: int) -> str:
    """The same, or an empty text where it does not answer."""
    try:
        return metrics(port)
    except (OSError, ValueError, HTTPException):
        return ""


def complete(spec: Spec) -> dict[str, Any]:
    probe = spec["probe"]
    body = {
        "model": spec["model"],
        "messages": [{"role": "user", "content": probe["prompt"]}],
        "max_tokens": probe["max_tokens"],
        **probe["body"],
    }
    request = urllib.request.Request(
        f"http://127.0.0.1:{spec['port']}/v1/chat/completions",
        data=json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=LONGEST_ANSWER_S) as answer:
            return cast(dict[str, Any], json.loads(answer.read()))
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")[:300]
        raise unanswered(spec, f"HTTP {error.code}: {said}") from None
    except (OSError, ValueError, HTTPException) as error:
        raise unanswered(spec, error) from None


def unanswered(spec: Spec, error: object) -> JobError:
    return JobError(
        f"the server on port {spec['port']} gave no completion: {error}",
        "an answer of /v1/chat/completions",
        f"look at `journalctl -u {spec['unit']}` on the box and run the deploy again",
    )


def text_of(answer: dict[str, Any]) -> str:
    """The words of an answer, thinking included: a probe may stop before thinking ends."""
    message = answer["choices"][0]["message"]
    thinking = message.get("reasoning") or message.get("reasoning_content") or ""
    return f"{thinking}{message.get('content') or ''}"
