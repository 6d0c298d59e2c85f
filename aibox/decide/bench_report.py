"""A benchmark's report as rows of figures, from the JSON that a box gives."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide import bench_quality, roofline
from aibox.decide.acceptance import Acceptance, Counters, acceptance
from aibox.decide.bench_plan import shown_context
from aibox.decide.bench_quality import Quality
from aibox.decide.bench_statistics import Figure, figure
from aibox.decide.refusal import Refusal
from aibox.decide.roofline import Step

Report = Mapping[str, Any]
# What the owner of the reference box measured (Qwen3.8-27B, BF16, RTX PRO 6000 Blackwell, vLLM
# 0.31.0): tokens/s, by the prompt's kind, or by streams and the prompt's tokens; no drafts.
REFERENCE_MODEL = "qwen3.8-27b"
SEED_REFERENCE: dict[tuple[str, int], tuple[float, ...]] = {
    ("code", 0): (28.5,),
    ("prose", 0): (28.5,),
    ("code", 2): (67.5, 66.3),
    ("prose", 2): (57.2, 55.9),
}
CROSS_REFERENCE = {(4, 1024): 105.0, (1, 32 * 1024): 28.0, (1, 125 * 1024): 27.0}


@dataclass(frozen=True)
class Row:
    """One thing that was measured on one server.

    speed: tokens/s of all streams together, time to first token included. decode: of one stream,
    after its first token. ttft: seconds. prefill: prompt tokens/s of one stream. tpot: ms for each
    token after the first, the mean of a run. length: tokens of the prompts. prefix_caching: as the
    server's flags say, None where they don't.
    """

    server: str
    drafts: int
    kind: str
    concurrency: int
    context: int
    thinking: bool
    prefix_caching: bool | None
    speed: Figure
    decode: Figure
    ttft: Figure
    prefill: Figure | None
    tpot: Figure
    accepted: Acceptance | None
    failed: int
    length: float

    @property
    def key(self) -> tuple[Any, ...]:
        """The same in two reports: what was measured, on which kind of server."""
        server = self.drafts, self.prefix_caching
        return *server, self.kind, self.concurrency, self.context, self.thinking


def left_by(look: Mapping[str, Any], asked: Mapping[str, str], unit: str | None) -> Report | None:
    """The report that a job on the box has left, whole or as far as it came.

    look: what `aibox job look bench` answers. asked: what is asked for now. unit: the sum of the
    installed unit. None where it was asked something else, of another unit, or is at work still.
    A report of an older aibox names no unit.
    """
    result = look["result"] or {}
    report: Report | None = result.get("report") if result.get("ok") else look.get("kept")
    if report is None or report["asked"] != asked or report.get("unit", unit) != unit:
        return None
    return report


def disturbed(point: Report) -> str | None:
    """Whether the server wrote for others while a point was measured, in words; the doors stay open
    meanwhile. None where it wrote what was measured, and nothing else."""
    written = point["counted"]["generation_tokens"]
    ours = sum(one["tokens"] for batch in point["batches"] for one in batch["requests"])
    if written == ours:
        return None
    failed = sum(batch["failed"] for batch in point["batches"])
    why = f"{failed} requests failed, or somebody else asked" if failed else "somebody else asked"
    return (
        f"the server wrote {written:,} tokens, of them {ours:,} of the measured answers: {why}, so "
        "these figures are not of the benchmark alone"
    )


def is_whole(report: Report) -> bool:
    """Whether its benchmark came to its end, and measured something."""
    return bool(report.get("whole", True)) and not is_empty(report)


def is_empty(report: Report) -> bool:
    """Whether nothing was measured."""
    return not (rows(report) or qualities(report))


def shortfall(report: Report, paths: str) -> Refusal | None:
    """Why a benchmark has failed, whose report was brought; None for a whole one.

    paths: of what was written.
    """
    if is_whole(report):
        return None
    again = "run the same command again: it measures everything anew"
    if not is_empty(report):
        found = f"the benchmark did not come to its end; what it had measured is in {paths}"
        return Refusal(found, "a benchmark that does", again)
    failed = [server["failed"] for server in report["servers"] if server.get("failed")]
    causes = [one["found"] for one in failed]
    causes += [
        note for server in report["servers"] if "failed" not in server for note in server["notes"]
    ]
    why = f": {'; '.join(dict.fromkeys(causes))}" if causes else ""
    remedy = failed[0]["remedy"] if failed else again
    return Refusal(f"nothing was measured{why}", "figures of at least one server", remedy)


def rows(report: Report) -> list[Row]:
    return [
        row_of(server, point)
        for server in report["servers"]
        for point in server["points"]
        if any(batch["requests"] for batch in point["batches"])
    ]


def row_of(server: Report, point: Report) -> Row:
    single = point["concurrency"] == 1
    batches = [batch for batch in point["batches"] if batch["requests"]]
    requests = [one for batch in batches for one in batch["requests"]]
    several = [[one] for one in requests] if single else [batch["requests"] for batch in batches]
    totals = [sum(one["tokens"] for one in batch["requests"]) for batch in batches]
    speeds = (
        [one["tokens"] / one["seconds"] for one in requests]
        if single
        else [total / batch["seconds"] for total, batch in zip(totals, batches, strict=True)]
    )
    paces = [mean([pace(one) for one in each]) for each in several]
    waits = [mean([one["ttft"] for one in each]) for each in several]
    return Row(
        server=server["name"],
        drafts=server["drafts"],
        kind=point["kind"],
        concurrency=point["concurrency"],
        context=point["context"],
        thinking=point["thinking"],
        prefix_caching=server["prefix_caching"],
        speed=Figure(tuple(speeds)),
        decode=Figure(tuple(1 / pace for pace in paces)),
        ttft=Figure(tuple(waits)),
        prefill=figure([one["prompt"] / one["ttft"] for one in requests]) if single else None,
        tpot=Figure(tuple(1000 * pace for pace in paces)),
        accepted=acceptance(counters(point["counted"])),
        failed=sum(batch["failed"] for batch in point["batches"]),
        length=mean([one["prompt"] for one in requests]),
    )


def pace(request: Report) -> float:
    """Seconds a token, after the first. An answer of one token has its whole time."""
    later = request["tokens"] - 1
    return float((request["seconds"] - request["ttft"]) / later if later else request["seconds"])


def mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def counters(counted: Report) -> Counters:
    return Counters(**{**counted, "accepted_at": tuple(counted["accepted_at"])})


def named(row: Row) -> str:
    return f"{row.kind}, thinking" if row.thinking else row.kind


def described(row: Row) -> str:
    streams = "1 stream" if row.concurrency == 1 else f"{row.concurrency} streams"
    parts = [named(row), streams, *([shown_context(row.context)] if row.context else [])]
    return ", ".join(parts)


def limits(report: Report) -> list[str]:
    """One line of roofline for each server, by its shortest prompts in one stream."""
    lines = []
    for server in report["servers"]:
        found = [row for row in rows({"servers": [server]}) if row.concurrency == 1]
        if not found or report["step"] is None:
            continue
        row = min(found, key=lambda row: row.context)
        length = row.accepted.mean_length if row.accepted else 1.0
        step = Step(**report["step"])
        tensor = report.get("tensor", 1)  # older reports are of one card
        text = roofline.line(step, report["pci"], row.decode.mean, row.drafts, length, tensor)
        spread = f"{row.decode.text()} tokens/s, {length:.2f} tokens a step"
        lines.append(f"{server['name']}: {text} ({described(row)}: {spread})")
    return lines


def qualities(report: Report) -> list[tuple[Report, Quality]]:
    """Each server with what its answers are worth; those that gave none are left out."""
    return [
        (server, bench_quality.judged(found["answers"], report["tools"], found["hits"]))
        for server in report["servers"]
        if (found := server.get("quality"))
    ]
