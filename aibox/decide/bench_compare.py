"""Two benchmarks side by side; a verdict only where the spread allows one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aibox.decide import bench_quality
from aibox.decide.bench_page import table
from aibox.decide.bench_plan import MODES
from aibox.decide.bench_report import Report, Row, described, limits, qualities, rows
from aibox.decide.bench_statistics import FASTER, SLOWER, Share, compared, differ
from aibox.decide.refusal import Refusal

FORMAT = 1
MAKE = "make it with pyinfra inventory tasks/bench.py"


def read(name: str, text: str) -> Report | Refusal:
    """A report from its file's text; why it is none. name: of the file."""
    expected = "a report of a benchmark (reports/*.json)"
    try:
        found = json.loads(text)
        sound = found["format"] == FORMAT and found["mode"] in MODES and bool(found["servers"])
        rows(found), qualities(found)  # what the page reads
    except (ValueError, LookupError, TypeError, AttributeError):
        sound = False
    return found if sound else Refusal(f"{name} is no whole report", expected, MAKE)


def page(first: Report, second: Report) -> str | Refusal:
    """Both as Markdown, the first being what the second is held against."""
    if first["mode"] != second["mode"]:
        return Refusal(
            f"one is of mode {first['mode']}, the other of mode {second['mode']}",
            "two reports of one mode",
            MAKE + f" --data mode={first['mode']}",
        )
    names = labels(first, second)
    head = [f"# {names[0]} and {names[1]}", "", *differences(first, second), ""]
    body = worth(first, second, names) if first["mode"] == "quality" else pace(first, second, names)
    return "\n".join([*head, *body]) + "\n"


def labels(first: Report, second: Report) -> tuple[str, str]:
    """By the models; A and B where they are the same."""
    one, other = (str(report["card"] or report["model"]) for report in (first, second))
    return (one, other) if one != other else (f"A ({one})", f"B ({other})")


def differences(first: Report, second: Report) -> list[str]:
    """What else differs between the two: a figure may come from there."""
    found = []
    for name in ("model", "commit", "release", "gpu", "driver", "flags", "asked"):
        one, other = first[name], second[name]
        if one != other and isinstance(one, Mapping) and isinstance(other, Mapping):
            keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
            found += [f"- {name} {key}: {one.get(key)} and {other.get(key)}" for key in keys]
        elif one != other:
            found.append(f"- {name}: {one} and {other}")
    return ["What differs between them:", "", *found] if found else ["Nothing else differs."]


# --- speed ---------------------------------------------------------------------------------------


def pace(first: Report, second: Report, names: tuple[str, str]) -> list[str]:
    others = {row.key: row for row in rows(second)}
    pairs = [(row, others[row.key]) for row in rows(first) if row.key in others]
    titles = ["Measured", "Server", *(f"{name}, tokens/s" for name in names), "ratio", "verdict"]
    lines = [list(pace_line(*pair, names)) for pair in pairs]
    waits = [
        [described(one), one.server, one.ttft.text(3), other.ttft.text(3)] for one, other in pairs
    ]
    return [
        *(table(titles, lines) if lines else ["Nothing was measured in both."]),
        *("", "## First token, s", ""),
        *table(["Measured", "Server", *names], waits),
        *("", "## How close to what the memory allows", ""),
        *(f"- {names[0]}, {line}" for line in limits(first)),
        *(f"- {names[1]}, {line}" for line in limits(second)),
    ]


def pace_line(one: Row, other: Row, names: tuple[str, str]) -> Iterator[str]:
    found = compared(one.speed, other.speed)
    words = {FASTER: f"{names[1]} is faster", SLOWER: f"{names[0]} is faster"}
    yield described(one)
    yield one.server
    yield one.speed.text()
    yield other.speed.text()
    yield found.text()
    yield words.get(found.verdict, f"no verdict: {found.verdict}")


# --- quality -------------------------------------------------------------------------------------


def worth(first: Report, second: Report, names: tuple[str, str]) -> list[str]:
    """Each measure of each kind of server, and how far both models agree at all."""
    others = {kind_of(server): (server, one) for server, one in qualities(second)}
    titles = ["Server", "Measured", *names, "verdict"]
    lines: list[Sequence[str]] = []
    for server, one in qualities(first):
        if kind_of(server) not in others:
            continue
        twin, other = others[kind_of(server)]
        for label in ("repeated", "empty", "called", "malformed"):
            shares: tuple[Share, Share] = (getattr(one, label), getattr(other, label))
            lines.append([server["name"], LABELS[label], *share_line(shares)])
        answers = (one["quality"]["answers"] for one in (server, twin))
        alike = bench_quality.agreed(bench_quality.pairs_across(*answers)).text()
        lines.append([server["name"], "alike with each other", alike, "", ""])
    return table(titles, lines) if lines else ["No kind of server was asked in both."]


LABELS = {
    "repeated": "alike from run to run",
    "empty": "empty answers",
    "called": "calls made where one was asked for",
    "malformed": "calls that can't be carried out",
}


def kind_of(server: Mapping[str, Any]) -> tuple[Any, Any]:
    return server["drafts"], server["prefix_caching"]


def share_line(shares: tuple[Share, Share]) -> list[str]:
    verdict = "they differ" if differ(*shares) else "no verdict: the spread covers the difference"
    return [shares[0].text(), shares[1].text(), verdict]
