"""Two benchmarks side by side; a verdict only where the spread allows one."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from aibox.decide import bench_quality
from aibox.decide.bench_page import NONE_MADE, ONE_RUN, made_at, table
from aibox.decide.bench_plan import DEFAULTS, MODES
from aibox.decide.bench_report import Report, Row, described, limits, qualities, rows
from aibox.decide.bench_statistics import FASTER, SLOWER, Share, compared, differ
from aibox.decide.refusal import Refusal

FORMAT = 1
BESIDE = ("md", "png", "svg")  # what lies beside a report's file
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


def not_found(name: str, mode: str, cards: Sequence[str], near: str) -> Refusal:
    """Why a name means no report. cards: that are known. near: the nearest of them, in words."""
    expected = f"a report's file (reports/*.json), or a card: {', '.join(cards)}"
    stem, dot, ending = name.rpartition(".")
    if dot and ending in BESIDE:
        return Refusal(f"{name} is made of a report, and is none", expected, f"name {stem}.json")
    if name not in cards:
        return Refusal(f"no model card named {name}{near}", expected, "name one of these")
    return Refusal(
        f"no report of mode {mode} of the card {name} that measured something",
        "a card that was measured",
        f"pyinfra inventory tasks/bench.py --data mode={mode}, with that model deployed",
    )


def page(first: Report, second: Report, files: tuple[str, str] = ("", "")) -> str | Refusal:
    """Both as Markdown, the first being what the second is held against. files: their names."""
    if all(files) and files[0] == files[1]:
        return Refusal(
            f"both are one report: {files[0]}",
            "two reports",
            "name two files of reports/*.json, or another card",
        )
    if first["mode"] != second["mode"]:
        return Refusal(
            f"one is of mode {first['mode']}, the other of mode {second['mode']}",
            "two reports of one mode",
            MAKE + f" --data mode={first['mode']}",
        )
    names = labels(first, second)
    both = zip(names, (first, second), files, strict=True)
    head = [f"# {names[0]} and {names[1]}", "", *(origin(*one) for one in both), ""]
    body = worth(first, second, names) if first["mode"] == "quality" else pace(first, second, names)
    if not body:
        return Refusal(
            "nothing was measured in both" + (f" ({files[0]}, {files[1]})" if all(files) else ""),
            "two reports that have measured the same on the same kind of server",
            f"measure both alike: pyinfra inventory tasks/bench.py --data mode={first['mode']}",
        )
    return "\n".join([*head, *differences(first, second), "", *body]) + "\n"


def origin(name: str, report: Report, file: str) -> str:
    """Which one it is."""
    parts = [made_at(report), report.get("box", "a box"), *([file] if file else [])]
    return f"- {name}: {', '.join(parts)}"


def labels(first: Report, second: Report) -> tuple[str, str]:
    """By the models; A and B where they are the same."""
    one, other = (str(report["card"] or report["model"]) for report in (first, second))
    return (one, other) if one != other else (f"A ({one})", f"B ({other})")


def differences(first: Report, second: Report) -> list[str]:
    """What else differs between the two: a figure may come from there."""
    found = []
    for name in ("box", "model", "commit", "release", "gpu", "driver", "flags", "asked"):
        one, other = (said_of(report, name) for report in (first, second))
        if one != other and isinstance(one, Mapping) and isinstance(other, Mapping):
            keys = [key for key in {**one, **other} if one.get(key) != other.get(key)]
            found += [
                f"- {name} {key}: {word(one.get(key))} and {word(other.get(key))}" for key in keys
            ]
        elif one != other:
            found.append(f"- {name}: {word(one)} and {word(other)}")
    return ["What differs between them:", "", *found] if found else ["Nothing else differs."]


def said_of(report: Report, name: str) -> Any:
    """What was not asked for is what the mode does by itself."""
    found = report.get(name)
    return {**DEFAULTS[report["mode"]], **found} if name == "asked" and found is not None else found


def word(value: Any) -> str:
    return "not set" if value is None else str(value)


# --- speed ---------------------------------------------------------------------------------------


def pace(first: Report, second: Report, names: tuple[str, str]) -> list[str]:
    """Nothing where no row is of both."""
    others = {row.key: row for row in rows(second)}
    pairs = [(row, others[row.key]) for row in rows(first) if row.key in others]
    titles = ["Measured", "Server", *(f"{name}, tokens/s" for name in names), "ratio", "verdict"]
    lines = [list(pace_line(*pair, names)) for pair in pairs]
    waits = [
        [described(one), one.server, one.ttft.text(3), other.ttft.text(3)] for one, other in pairs
    ]
    if not lines:
        return []
    return [
        *table(titles, lines),
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
    """Each measure of each kind of server, and how far both models agree at all; nothing where no
    kind was asked in both."""
    others = {kind_of(server): (server, one) for server, one in qualities(second)}
    titles = ["Server", "Measured", *names, "verdict"]
    lines: list[Sequence[str]] = []
    for server, one in qualities(first):
        if kind_of(server) not in others:
            continue
        twin, other = others[kind_of(server)]
        for label, (words, none) in LABELS.items():
            shares: tuple[Share, Share] = (getattr(one, label), getattr(other, label))
            lines.append([server["name"], words, *share_line(shares, none)])
        answers = (one["quality"]["answers"] for one in (server, twin))
        alike = bench_quality.agreed(bench_quality.pairs_across(*answers)).text()
        lines.append([server["name"], "alike with each other", alike, "", ""])
    return table(titles, lines) if lines else []


# What is counted, and what is said where there was nothing to count.
LABELS = {
    "repeated": ("alike from run to run", ONE_RUN),
    "empty": ("empty answers", "none asked"),
    "called": ("calls made where one was asked for", "none asked for"),
    "malformed": ("calls that can't be carried out", NONE_MADE),
}


def kind_of(server: Mapping[str, Any]) -> tuple[Any, Any]:
    return server["drafts"], server["prefix_caching"]


def share_line(shares: tuple[Share, Share], none: str) -> list[str]:
    return [*(one.text(none) for one in shares), share_verdict(*shares)]


def share_verdict(first: Share, second: Share) -> str:
    if not (first.of and second.of):
        return "no verdict: there is nothing to compare"
    if first == second:
        return bench_quality.ALIKE
    return "they differ" if differ(first, second) else bench_quality.SAME
