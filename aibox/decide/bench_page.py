"""A benchmark's report as a Markdown page. A figure never stands without its spread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from aibox.decide import bench_quality
from aibox.decide.acceptance import percent
from aibox.decide.bench_plan import shown_context
from aibox.decide.bench_quality import Quality
from aibox.decide.bench_report import (
    CROSS_REFERENCE,
    REFERENCE_MODEL,
    SEED_REFERENCE,
    Report,
    Row,
    described,
    is_empty,
    is_whole,
    limits,
    named,
    qualities,
    rows,
)
from aibox.decide.bench_statistics import Figure, compared


def page(report: Report) -> str:
    """The whole report as Markdown."""
    head = [
        f"# {report['mode']} benchmark of {report['model']}",
        "",
        f"{made_at(report)}, {report.get('box', 'a box')}: {report['gpu'] or 'no card'}, driver "
        f"{report['driver'] or 'none'}, vLLM {report['release']}, weights "
        f"{report['commit'][:12] or 'unknown'}. Asked for: {asked_for(report['asked'])}.",
        "",
    ]
    if is_empty(report):
        head += ["**Nothing was measured.**", ""]
    elif not is_whole(report):
        head += ["**It did not come to its end**: what is missing here was not measured.", ""]
    body = {"seed": seed, "cross": cross, "quality": quality}[report["mode"]](report)
    notes = [f"- {note}" for server in report["servers"] for note in server["notes"]]
    left = ["", "## Left out or disturbed", "", *notes] if notes else []
    return "\n".join([*head, *body, *left]) + "\n"


def made_at(report: Report) -> str:
    return datetime.fromtimestamp(report["when"], UTC).strftime("%Y-%m-%d %H:%M UTC")


def asked_for(asked: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in asked.items()) or "nothing special"


def table(titles: Sequence[str], lines: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(titles)} |",
        f"|{'---|' * len(titles)}",
        *(f"| {' | '.join(line)} |" for line in lines),
    ]


def seed(report: Report) -> list[str]:
    """The table of the reference box, and how the drafts fared."""
    found = rows(report)
    several = len({row.prefix_caching for row in found}) > 1
    plain = {(row.kind, row.thinking, row.prefix_caching): row for row in found if not row.drafts}
    lines = []
    for row in (row for row in found if row.drafts):
        base = plain.get((row.kind, row.thinking, row.prefix_caching))
        ratio = compared(base.speed, row.speed).text() if base else "not measured"
        none = runs(base.speed) if base else "not measured"
        label = prompt(row, several=several)
        lines.append([label, none, f"n={row.drafts}: {runs(row.speed)}", ratio])
    lines += [
        [prompt(row, several=several), runs(row.speed), "not measured", ""]
        for row in plain.values()
        if not any(other.drafts for other in found)
    ]
    shown = table(["Prompt", "no MTP, tokens/s", "MTP, tokens/s", "ratio"], lines)
    beside = [*seed_reference(report), *failures(found)]
    return [*shown, "", *beside, *accepted(found), *speeds(found), *bounds(report)]


def failures(found: Sequence[Row]) -> list[str]:
    """Requests without an answer; in no figure."""
    lines = [
        f"- {row.failed} requests failed: {row.server}, {described(row)}"
        for row in found
        if row.failed
    ]
    return [*lines, ""] if lines else []


def prompt(row: Row, *, several: bool) -> str:
    """several: whether servers with and without a prefix cache were measured."""
    words = {True: "on", False: "off", None: "not set"}
    cache = f", prefix caching {words[row.prefix_caching]}" if several else ""
    return f"{named(row)}{cache}"


def seed_reference(report: Report) -> list[str]:
    if report["model"] != REFERENCE_MODEL:
        return []
    lines = []
    for kind in ("code", "prose"):
        first, second = (Figure(SEED_REFERENCE[kind, drafts]) for drafts in (0, 2))
        ratio = compared(first, second).text()
        lines.append([kind, runs(first), f"n=2: {runs(second)}", ratio])
    shown = table(["Reference box", "no MTP, tokens/s", "MTP, tokens/s", "ratio"], lines)
    return [*shown, ""]


def seed_bars(report: Report) -> list[tuple[str, list[tuple[str, Figure]]]]:
    """What the chart shows: for each prompt (server, its figure), the reference box's last."""
    found: dict[str, list[tuple[str, Figure]]] = {}
    for row in sorted(rows(report), key=lambda row: row.drafts):
        found.setdefault(named(row), []).append((row.server, row.speed))
    for kind, drafts in SEED_REFERENCE if report["model"] == REFERENCE_MODEL else ():
        if kind in found:
            name = f"reference box, {f'{drafts} drafts' if drafts else 'no drafts'}"
            found[kind].append((name, Figure(SEED_REFERENCE[kind, drafts])))
    return list(found.items())


def runs(found: Figure) -> str:
    """Every run, and between which they lie."""
    if len(found.values) < 3:
        each = " / ".join(f"{value:.1f}" for value in found.values)
        return each if len(found.values) == 2 else f"{each} (one run)"
    return f"{found.text()}: {' / '.join(f'{value:.1f}' for value in found.values)}"


def accepted(found: Sequence[Row]) -> list[str]:
    """What the server's own counters say of the drafts; nothing without drafts."""
    lines = [
        [
            row.server,
            described(row),
            percent(one.rate),
            f"{one.mean_length:.2f} of {row.drafts + 1}",
            ", ".join(percent(share) for share in one.at),
        ]
        for row in found
        if (one := row.accepted) is not None
    ]
    titles = ["Server", "Measured", "drafts accepted", "tokens a step", "by position"]
    return ["## Drafts", "", *table(titles, lines), ""] if lines else []


def speeds(found: Sequence[Row]) -> list[str]:
    """Time to first token apart, and what decoding alone does."""
    titles = ["Server", "Measured", "prompt tokens", "TTFT, s", "prefill, tokens/s", "TPOT, ms"]
    lines = [
        [
            row.server,
            described(row),
            f"{row.length:,.0f}",
            row.ttft.text(3),
            row.prefill.text(0) if row.prefill else "",
            row.tpot.text(2),
        ]
        for row in found
    ]
    return ["## First token and pace", "", *table(titles, lines), ""]


def cross(report: Report) -> list[str]:
    found = rows(report)
    ours = report["model"] == REFERENCE_MODEL
    titles = ["Streams", "Prompt", "Thinking", "Server", "tokens/s, all streams", "of one stream"]
    lines = []
    for row in sorted(found, key=lambda row: (row.context, row.concurrency, row.thinking)):
        known = CROSS_REFERENCE.get((row.concurrency, row.context)) if ours else None
        which = "all streams" if row.concurrency > 1 else "of one stream"
        line = [f"{row.concurrency}", shown_context(row.context), "on" if row.thinking else "off"]
        line += [row.server, row.speed.text(), row.decode.text()]
        lines.append([*line, f"{known:g} {which} (one run, no MTP)" if known else ""])
    shown = table([*titles, "reference box"], lines)
    return [*shown, "", *failures(found), *speeds(found), *accepted(found), *bounds(report)]


def bounds(report: Report) -> list[str]:
    lines = [f"- {line}" for line in limits(report)]
    return ["## How close to what the memory allows", "", *lines, ""] if lines else []


# --- quality -------------------------------------------------------------------------------------

# Said where there was nothing to count.
ONE_RUN, NONE_MADE = "one run", "none made"
MEANING = """\
What this says: whether a server without drafts or without the prefix cache answers otherwise,
beside how often the first server answers otherwise from run to run. What it does not say: vLLM
promises no equal bits, and where two tokens are about equally likely another order of sums picks
the other one; from there on the texts part. So a text that differs is no fault. Empty answers,
calls that can't be carried out, and an agreement far below the first server's own are signs of
one."""


def quality(report: Report) -> list[str]:
    found = qualities(report)
    titles = ["Server", "alike from run to run", "empty", "one-token stops", "calls made"]
    titles += ["malformed calls", "cached prompt tokens"]
    lines = [
        [
            server["name"],
            one.repeated.text(ONE_RUN),
            one.empty.text(),
            f"{one.one_token}",
            one.called.text(),
            one.malformed.text(NONE_MADE),
            f"{one.hits:,}",
        ]
        for server, one in found
    ]
    return [*table(titles, lines), "", *agreement(found), *untested(found), MEANING, ""]


def agreement(found: Sequence[tuple[Report, Quality]]) -> list[str]:
    if len(found) < 2:
        return []
    base = found[0][0]
    titles = ["Server", f"alike with {base['name']}", "common beginning", "verdict"]
    lines = [list(agreement_line(base, server)) for server, _ in found[1:]]
    return ["## Agreement", "", *table(titles, lines), ""]


def agreement_line(base: Report, server: Report) -> Iterator[str]:
    first, second = (one["quality"]["answers"] for one in (base, server))
    together = bench_quality.common(bench_quality.pairs_across(first, second))
    yield server["name"]
    yield bench_quality.agreed(bench_quality.pairs_across(first, second)).text()
    yield "" if together is None else percent(together)
    yield bench_quality.verdict(first, second)


def untested(found: Sequence[tuple[Report, Quality]]) -> list[str]:
    """A prefix cache that was never hit was not tested, and drafts that were never made."""
    rows = [
        f"- {server['name']}: the prefix cache was never hit, so it was not tested"
        for server, one in found
        if server["prefix_caching"] and not one.hits
    ]
    rows += [
        f"- {server['name']}: nothing was drafted, so MTP was not tested"
        for server, _ in found
        if server["drafts"] and not server["quality"]["drafts"]
    ]
    return [*rows, ""] if rows else []
