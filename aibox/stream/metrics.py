"""What the filter counts, for Prometheus."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter as Tally
from collections.abc import Iterator, Mapping
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector

from aibox.decide.acceptance import Counters
from aibox.stream.mends import Mode
from aibox.stream.mends.answer import Answer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STREAK = 200  # draft tokens without an accepted one: no chance at any healthy rate
_BUCKETS = (25e-6, 50e-6, 1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25)


class Latency(Collector):
    """A histogram for what happens thousands of times a second."""

    def __init__(self) -> None:
        self._counts = [0] * (len(_BUCKETS) + 1)
        self._sum = 0.0

    def observe(self, seconds: float) -> None:
        self._counts[bisect_left(_BUCKETS, seconds)] += 1
        self._sum += seconds

    def collect(self) -> Iterator[HistogramMetricFamily]:
        limits = [*map(str, _BUCKETS), "+Inf"]
        buckets = list(zip(limits, accumulate(self._counts), strict=True))
        words = "Time from reading a block of the server's to handing it on."
        name = "aibox_stream_added_latency_seconds"
        yield HistogramMetricFamily(name, words, buckets=buckets, sum_value=self._sum)


class Metrics:
    """The counters of one filter."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(namespace="aibox_stream", registry=self.registry)
        prefix = "aibox_stream_"

        def counter(name: str, words: str, *labels: str) -> Counter:
            return Counter(prefix + name, words, labels, registry=self.registry)

        self.requests = counter("requests", "Requests answered.", "path", "status")
        self.mends = counter(
            "mends", "Mends applied; in mode count, mends that would have been.", "mend", "mode"
        )
        self.faults = counter("faults", "Faults seen and passed on.", "kind")
        self.empty = counter(
            "empty_answers", 'Answers that ended with "stop" and hold nothing.', "tokens"
        )
        for tokens in ("one", "more", "unknown"):  # from 0 on: Prometheus sees the first one rise
            self.empty.labels(tokens)
        self.streaks = counter(
            "zero_acceptance_streaks",
            f"Times that {STREAK} draft tokens in a row were refused (seen at each scrape).",
        )
        self.active = Gauge(
            prefix + "active_streams", "Requests being answered.", registry=self.registry
        )
        self.since_accepted = Gauge(
            prefix + "draft_tokens_since_accepted",
            "Draft tokens since one was last accepted (seen at each scrape).",
            registry=self.registry,
        )
        self.added = Latency()
        self.registry.register(self.added)
        self._drafts: Counters | None = None
        self._refused = 0

    def expect(self, modes: Mapping[str, Mode]) -> None:
        """Mends that are looked for count from 0 on."""
        for name, mode in modes.items():
            if mode != "off":
                self.mends.labels(name, mode)

    def text(self) -> bytes:
        return generate_latest(self.registry)

    def count_mends(self, counts: Mapping[str, int], modes: Mapping[str, Mode]) -> None:
        for name, number in counts.items():
            self.mends.labels(name, modes[name]).inc(number)

    def count_answer(self, answer: Answer) -> None:
        """What was wrong with an answer and could not be mended."""
        faults = Tally(
            unreadable_event=answer.unreadable,
            malformed_arguments=answer.malformed,
            cut_answer=int(answer.cut),
            server_error=int(answer.outcome.broken),
        )
        for kind, number in faults.items():
            if number:
                self.faults.labels(kind).inc(number)
        if answer.outcome.empty:
            tokens = answer.outcome.tokens
            said = "unknown" if tokens is None else "one" if tokens <= 1 else "more"
            self.empty.labels(said).inc()

    def see_drafts(self, now: Counters) -> None:
        """The server's draft counters at this moment. Counters that fell are a restarted server."""
        before, self._drafts = self._drafts, now
        if before is None or now.draft_tokens < before.draft_tokens:
            return
        drafted = now.draft_tokens - before.draft_tokens
        refused = self._refused
        self._refused = 0 if now.accepted_tokens > before.accepted_tokens else refused + drafted
        if refused < STREAK <= self._refused:
            self.streaks.inc()
        self.since_accepted.set(self._refused)
