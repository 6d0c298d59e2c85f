"""Charts of a benchmark, as PNG and SVG. Every figure in them stands in its tables too."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")  # draws without a screen
from matplotlib import pyplot as plt
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Drawing
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from aibox.decide.bench_page import seed_bars
from aibox.decide.bench_plan import shown_context
from aibox.decide.bench_report import Report, Row, qualities, rows
from aibox.decide.bench_statistics import Figure, Share

# Told apart by people who see red and green alike, and on paper.
COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#937860", "#8172b3", "#8c8c8c")
GREY = "#b0b0b0"
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "svg.hashsalt": "bench",  # the same figures, the same file
}


def draw(report: Report, stem: Path) -> list[Path]:
    """Write <stem>.png and <stem>.svg; nothing where nothing was measured. Raises OSError."""
    with mpl.rc_context(STYLE):
        drawing = {"seed": seed, "cross": cross, "quality": quality}[report["mode"]](report)
        if drawing is None:
            return []
        paths = [stem.with_name(f"{stem.name}.{kind}") for kind in ("png", "svg")]
        for path in paths:
            drawing.savefig(path, dpi=150, metadata={"Date": None} if path.suffix == ".svg" else {})
        plt.close(drawing)
    return paths


def headed(drawing: Drawing, report: Report, what: str) -> None:
    drawing.suptitle(f"{report['model']}: {what}", x=0.02, ha="left", fontsize=12, weight="bold")
    where = f"{report['gpu'] or 'no card'}, vLLM {report['release']}"
    drawing.text(0.02, 0.01, where, fontsize=8, color="#666666")


# --- seed ----------------------------------------------------------------------------------------


def seed(report: Report) -> Drawing | None:
    """His bars: each prompt without and with drafts, and what the reference box did, in grey."""
    groups = seed_bars(report)
    if not groups:
        return None
    every = list(dict.fromkeys(name for _, bars in groups for name, _ in bars))
    drawing, axes = plt.subplots(figsize=(max(6.0, 1.0 + 2.6 * len(groups)), 4.4))
    width = 0.8 / len(every)
    for place, (_, bars) in enumerate(groups):
        for name, figure in bars:
            at = place + (every.index(name) - (len(every) - 1) / 2) * width
            one_bar(axes, at, width, figure, colour_of(name, every))
    axes.set_xticks(range(len(groups)), [name for name, _ in groups])
    axes.set_ylabel("tokens/s, one stream,\nfirst token included")
    keys = [Rectangle((0, 0), 1, 1, color=colour_of(name, every)) for name in every]
    beside(axes, keys, every)
    headed(drawing, report, "without and with drafts")
    drawing.tight_layout(rect=(0, 0.04, 1, 0.98))
    return drawing


def colour_of(name: str, every: Sequence[str]) -> str:
    if name.startswith("reference"):
        return GREY if name.endswith("no drafts") else "#7f7f7f"
    ours = [one for one in every if not one.startswith("reference")]
    return COLOURS[ours.index(name) % len(COLOURS)]


def one_bar(axes: Axes, at: float, width: float, figure: Figure, colour: str) -> None:
    """A bar as high as the mean; a line from the slowest run to the fastest."""
    below, above = figure.mean - figure.low, figure.high - figure.mean
    axes.bar(at, figure.mean, width * 0.92, color=colour)
    if figure.high > figure.low:
        axes.errorbar(at, figure.mean, [[below], [above]], color="#333333", capsize=3, lw=1)
    axes.annotate(
        f"{figure.mean:.1f}",
        (at, figure.high),
        textcoords="offset points",
        xytext=(0, 4),
        ha="center",
        fontsize=9,
    )


def beside(axes: Axes, keys: Sequence[Artist], names: Sequence[str]) -> None:
    """The legend right of the drawing, where it covers nothing."""
    axes.legend(keys, names, frameon=False, fontsize=9, loc="upper left", bbox_to_anchor=(1.01, 1))


# --- cross ---------------------------------------------------------------------------------------


def cross(report: Report) -> Drawing | None:
    """Tokens/s against streams: of all together, and of one. A column for each length of prompt."""
    found = rows(report)
    columns = sorted({(row.context, row.thinking) for row in found})
    if not found:
        return None
    servers = list(dict.fromkeys(row.server for row in sorted(found, key=drafted)))
    size = (2.2 + 3.4 * len(columns), 6.6)
    drawing, every = plt.subplots(2, len(columns), figsize=size, squeeze=False)
    for at, (context, thinking) in enumerate(columns):
        of_column = [row for row in found if (row.context, row.thinking) == (context, thinking)]
        for server in servers:
            for kind in dict.fromkeys(row.kind for row in of_column):
                lines = [row for row in of_column if (row.server, row.kind) == (server, kind)]
                one_line(every[0][at], lines, [row.speed for row in lines], servers)
                one_line(every[1][at], lines, [row.decode for row in lines], servers)
        panels((every[0][at], every[1][at]), of_column, context, thinking=thinking)
    for axes in every[1][1:]:
        axes.sharey(every[1][0])
    every[0][0].set_ylabel("tokens/s, all streams,\nfirst token included")
    every[1][0].set_ylabel("tokens/s of one stream,\nafter its first token")
    keys = [Line2D([0], [0], color=line_colour(one, servers), marker="o") for one in servers]
    beside(every[0][-1], keys, servers)
    headed(drawing, report, "streams, prompts and drafts")
    drawing.tight_layout(rect=(0, 0.03, 1, 0.98))
    return drawing


def drafted(row: Row) -> int:
    return row.drafts


def line_colour(server: str, servers: Sequence[str]) -> str:
    return COLOURS[servers.index(server) % len(COLOURS)]


def one_line(
    axes: Axes, lines: Sequence[Row], figures: Sequence[Figure], servers: Sequence[str]
) -> None:
    """One server's figures over the number of streams, with the spread of each."""
    if not lines:
        return
    ordered = sorted(zip(lines, figures, strict=True), key=lambda pair: pair[0].concurrency)
    axes.errorbar(
        [row.concurrency for row, _ in ordered],
        [one.mean for _, one in ordered],
        [[one.mean - one.low for _, one in ordered], [one.high - one.mean for _, one in ordered]],
        color=line_colour(lines[0].server, servers),
        linestyle={"code": "--", "prose": ":"}.get(lines[0].kind, "-"),
        marker="o",
        markersize=4,
        capsize=3,
        lw=1.5,
    )


def panels(column: Sequence[Axes], found: Sequence[Row], context: int, *, thinking: bool) -> None:
    streams = sorted({row.concurrency for row in found})
    prompt = f"{shown_context(context)} tokens of prompt" if context else "the short prompt alone"
    column[0].set_title(f"{prompt}{', thinking' if thinking else ''}", fontsize=10, loc="left")
    for axes in column:
        axes.set_xscale("log", base=2)
        axes.set_xticks(streams, [f"{one}" for one in streams])
        axes.set_xlim(streams[0] / 1.5, streams[-1] * 1.5)
        axes.minorticks_off()
        axes.set_ylim(bottom=0)
    column[-1].set_xlabel("streams")


# --- quality -------------------------------------------------------------------------------------


def quality(report: Report) -> Drawing | None:
    """Shares of answers with their 95 % intervals, a row for each server."""
    found = qualities(report)
    if not found:
        return None
    titles = ("alike from run to run", "empty", "malformed calls")
    drawing, every = plt.subplots(
        1, 3, figsize=(10.5, 1.6 + 0.5 * len(found)), sharey=True, squeeze=False
    )
    for axes, title in zip(every[0], titles, strict=True):
        for place, (_, one) in enumerate(found):
            share = {"alike": one.repeated, "empty": one.empty}.get(title.split()[0], one.malformed)
            one_share(axes, place, share, COLOURS[place % len(COLOURS)])
        axes.set_xlim(-3, 103)
        axes.grid(visible=True, axis="x")
        axes.grid(visible=False, axis="y")
        axes.set_title(title, fontsize=10, loc="left")
        axes.set_xlabel("%")
    every[0][0].set_yticks(range(len(found)), [server["name"] for server, _ in found])
    every[0][0].set_ylim(len(found) - 0.5, -0.5)
    headed(drawing, report, "answers")
    drawing.tight_layout(rect=(0, 0.05, 1, 0.97))
    return drawing


def one_share(axes: Axes, place: int, share: Share, colour: str) -> None:
    if not share.of:
        axes.annotate("none", (50, place), ha="center", va="center", color="#666666", fontsize=9)
        return
    rate, low, high = (100 * one for one in (share.rate, share.low, share.high))
    spread = [[max(0.0, rate - low)], [max(0.0, high - rate)]]
    axes.errorbar(rate, place, xerr=spread, color=colour, marker="o", capsize=3, lw=1.5)
