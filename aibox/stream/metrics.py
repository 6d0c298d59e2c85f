"""What the filter counts, for Prometheus."""

from __future__ import annotations

from collections import Counter as Tally
from collections.abc import Mapping

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

from aibox.decide.acceptance import Counters
from aibox.stream.mends import Mode
from aibox.stream.mends.answer import Answer

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
STREAK = 200  # draft tokens without an accepted one: no chance at any healthy rate
_BUCKETS = (25e-6, 50e-6, 1e-4, 2e-4, 3e-4, 5e-4, 1e-3, 2.5e-3, 5e-3, 1e-2, 5e-2, 0.25)


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
        self.added = Histogram(
            prefix + "added_latency_seconds",
            "Time from reading a block of the server's to handing it on.",
            buckets=_BUCKETS,
            registry=self.registry,
        )
        self._drafts: Counters | None = None
        self._refused = 0

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
