"""The serving state: queue, generation, counters, and the line every ten seconds."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from os.path import commonprefix
from typing import Any

from . import answers, journal, script
from .answers import Step
from .memory import BLOCKS
from .metrics import Metrics
from .options import KV_CACHE_TOKENS, Options

BLOCK = 1600  # tokens, as cache_config_info says


class HungUpError(Exception):
    """The client is gone; the request is aborted."""


class Service:
    """What the request handlers share."""

    def __init__(self, options: Options, context: int, blocks: int | None = None) -> None:
        self.options = options
        self.context = options.max_model_len or context
        self.started = int(time.time())
        self.dead = threading.Event()
        self.engine = 0  # the engine's process
        self.metrics = Metrics(
            options.names[0],
            options.draft_length,
            _cache_labels(options, self.context, blocks or BLOCKS),
        )
        self._places = threading.Semaphore(options.max_num_seqs)
        self._lock = threading.Lock()
        self._held = {"running": 0, "waiting": 0, "tokens": 0}
        self._since = _Counts()
        self._prompts: list[str] = []  # the newest, for the prefix cache

    def healthy(self) -> bool:
        return not self.dead.is_set() and script.read().health == 200

    def generate(
        self, body: dict[str, Any], wanted: int, hung_up: Callable[[], bool]
    ) -> Iterator[Step]:
        """Steps of one answer at the engine's pace. Raises HungUpError when its client is gone."""
        prompt = answers.count_prompt(body)
        arrived = time.monotonic()
        self._hold("waiting", 1)
        with self._places:
            self._hold("waiting", -1)
            self._hold("running", 1)
            self._hold("tokens", prompt)
            cached = self._cached(answers.prompt_text(body))
            progress = _Progress(arrived, prompt, cached)
            try:
                yield from self._steps(wanted, hung_up, progress)
                progress.reason = "length"
            finally:
                self._hold("running", -1)
                self._hold("tokens", -prompt)
                self.metrics.request(progress.times(), prompt, progress.tokens, progress.reason)

    def _steps(
        self, wanted: int, hung_up: Callable[[], bool], progress: _Progress
    ) -> Iterator[Step]:
        now = script.read()
        self._prefilled(progress.prompt, progress.cached)
        length, text = self.options.draft_length, now.text
        if now.empty:
            wanted, text = 1, ""
        if now.die_at_request and self.engine:
            os.kill(self.engine, signal.SIGKILL)
            time.sleep(5)  # longer than the server itself lives then
        for step in answers.steps(wanted, text, length, now.accepted):
            time.sleep(now.step_s)
            if hung_up():
                raise HungUpError
            self._stepped(step, progress.step(len(step.tokens)))
            yield step

    def _cached(self, prompt: str) -> int:
        """Tokens of a prompt that an earlier one began with, in whole blocks of a hybrid model:
        below two of them nothing is found."""
        if not self.options.prefix_caching:
            return 0
        with self._lock:
            every = (commonprefix([prompt, one]) for one in self._prompts)  # noqa: RUF071
            shared = max(map(len, every), default=0)
            self._prompts = [*self._prompts[-99:], prompt]
        return shared // BLOCK * BLOCK if shared >= 2 * BLOCK else 0

    def _prefilled(self, prompt: int, cached: int) -> None:
        self.metrics.add("prompt_tokens_total", prompt)
        self.metrics.add("prompt_tokens_by_source_total", prompt, 'source="local_compute"')
        if self.options.prefix_caching:
            self.metrics.add("prefix_cache_queries_total", prompt)
            self.metrics.add("prefix_cache_hits_total", cached)
        with self._lock:
            self._since.prompt += prompt

    def _stepped(self, step: Step, latency: float | None) -> None:
        self.metrics.add("generation_tokens_total", len(step.tokens))
        self.metrics.observe("iteration_tokens_total", len(step.tokens))
        if latency is not None:
            self.metrics.observe("inter_token_latency_seconds", latency)
        with self._lock:
            self._since.generated += len(step.tokens)
        if step.draft.drafted:
            self.metrics.drafted(step.draft)
            with self._lock:
                self._since.drafted(step.draft)

    def _hold(self, what: str, change: int) -> None:
        with self._lock:
            self._held[what] += change
            held = dict(self._held)
        self.metrics.set("num_requests_running", held["running"])
        self.metrics.set("num_requests_waiting", held["waiting"])
        self.metrics.set("num_requests_waiting_by_reason", held["waiting"], 'reason="capacity"')
        self.metrics.set("kv_cache_usage_perc", min(1.0, held["tokens"] / KV_CACHE_TOKENS))

    def log_forever(self) -> None:
        """The two lines of the interval, while there is traffic."""
        interval = float(os.environ.get("VLLM_LOG_STATS_INTERVAL", "10"))
        while True:
            time.sleep(interval)
            with self._lock:
                counts, self._since, held = self._since, _Counts(), dict(self._held)
            if counts.generated or counts.prompt or held["running"]:
                self._log(counts, held, interval)

    def _log(self, counts: _Counts, held: dict[str, int], interval: float) -> None:
        line = (
            f"Engine 000: Avg prompt throughput: {counts.prompt / interval:.1f} tokens/s, "
            f"Avg generation throughput: {counts.generated / interval:.1f} tokens/s, "
            f"Running: {held['running']} reqs, Waiting: {held['waiting']} reqs, "
            f"GPU KV cache usage: {100 * held['tokens'] / KV_CACHE_TOKENS:.1f}%"
        )
        if self.options.prefix_caching:
            line += ", Prefix cache hit rate: 0.0%"
        journal.log(line, "loggers.py:320")
        if counts.drafts:
            journal.log(counts.speculation(interval, self.options.draft_length), "metrics.py:116")


class _Progress:
    """Times of one request."""

    def __init__(self, arrived: float, prompt: int, cached: int) -> None:
        self.prompt, self.cached = prompt, cached
        self.tokens = 0
        self.reason = "abort"
        self._arrived = arrived
        self._scheduled = self._last = time.monotonic()
        self._first: float | None = None

    def step(self, tokens: int) -> float | None:
        """Count a step; the seconds since the one before, None for the first."""
        now = time.monotonic()
        latency = None if self._first is None else now - self._last
        self._first = self._first or now
        self._last = now
        self.tokens += tokens
        return latency

    def times(self) -> dict[str, float]:
        """Seconds by the names of the histograms."""
        first = self._first or self._last
        decode = self._last - first
        return {
            "time_to_first_token_seconds": first - self._arrived,
            "e2e_request_latency_seconds": self._last - self._arrived,
            "request_queue_time_seconds": self._scheduled - self._arrived,
            "request_prefill_time_seconds": first - self._scheduled,
            "request_decode_time_seconds": decode,
            "request_inference_time_seconds": self._last - self._scheduled,
            "request_time_per_output_token_seconds": decode / max(1, self.tokens - 1),
        }


class _Counts:
    """What happened since the last line of the log."""

    def __init__(self) -> None:
        self.prompt = self.generated = 0
        self.drafts = self.draft_tokens = self.accepted = 0
        self.positions: dict[int, int] = {}

    def drafted(self, draft: answers.Draft) -> None:
        self.drafts += 1
        self.draft_tokens += draft.drafted
        self.accepted += draft.accepted
        for at in range(draft.accepted):
            self.positions[at] = self.positions.get(at, 0) + 1

    def speculation(self, interval: float, length: int) -> str:
        rates = ", ".join(f"{self.positions.get(i, 0) / self.drafts:.3f}" for i in range(length))
        rate = 100 * self.accepted / self.draft_tokens if self.draft_tokens else math.nan
        return (
            f"SpecDecoding metrics: Mean acceptance length: {1 + self.accepted / self.drafts:.2f}, "
            f"Accepted throughput: {self.accepted / interval:.2f} tokens/s, "
            f"Drafted throughput: {self.draft_tokens / interval:.2f} tokens/s, "
            f"Accepted: {self.accepted} tokens, Drafted: {self.draft_tokens} tokens, "
            f"Per-position acceptance rate: {rates}, Avg Draft acceptance rate: {rate:.1f}%"
        )


def _cache_labels(options: Options, context: int, blocks: int) -> dict[str, str]:
    return {
        "cache_dtype": str(options.given.get("kv_cache_dtype", "auto")),
        "enable_prefix_caching": str(options.prefix_caching),
        "gpu_memory_utilization": str(options.utilization),
        "kv_cache_size_tokens": str(KV_CACHE_TOKENS),
        "mamba_block_size": "1600",
        "num_gpu_blocks": str(blocks),
        "kv_cache_max_concurrency": f"{KV_CACHE_TOKENS / context:.2f}",
    }
