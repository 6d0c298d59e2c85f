"""What a box's own Prometheus answers, and its curves as a picture."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import promql_parser as promql

from aibox.monitoring.alerts import ALERTS
from aibox.monitoring.panels import ROWS, WINDOW, Kind, Panel
from tests.rehearsal.box import Box

RATE = "2m"  # for $__rate_interval: eight scrapes
URL = "http://127.0.0.1:9090"
# Runs in the box: each path of the API on standard input, each answer on standard output.
ASK = """
import json, sys, urllib.request
answers = []
for path in json.load(sys.stdin):
    try:
        answers.append(json.load(urllib.request.urlopen("URL" + path, timeout=60)))
    except urllib.error.HTTPError as error:
        answers.append(json.load(error))
print(json.dumps(answers))
""".replace("URL", URL)


def asked(box: Box, paths: Sequence[str]) -> list[Any]:
    """The data of each answer. Fails with Prometheus' own words."""
    said = box.run(["python3", "-c", ASK], text=json.dumps(list(paths))).stdout
    answers = json.loads(said)
    assert all(one["status"] == "success" for one in answers), said
    return [one["data"] for one in answers]


def expressions() -> dict[str, str]:
    """Of every curve, by its panel and legend."""
    return {
        f"{panel.title}: {curve.legend}": as_asked(curve.expr)
        for row in ROWS
        for panel in row.panels
        for curve in panel.curves
    }


def as_asked(expr: str) -> str:
    """Grafana's variables stand for a range and a pattern."""
    return expr.replace(WINDOW, RATE).replace("$box", ".+")


def series_of_alerts() -> dict[str, list[str]]:
    """What each alert looks at: an alert itself answers nothing while all is well."""
    return {alert.name: sorted(set(selectors(promql.parse(alert.expr)))) for alert in ALERTS}


def selectors(node: Any) -> list[str]:
    """Every series that an expression names, without ranges and offsets."""
    if isinstance(node, promql.VectorSelector):
        told = [f'{one.name}{sign(one)}"{one.value}"' for one in node.matchers.matchers]
        return [f"{node.name}{{{','.join(told)}}}"]
    if isinstance(node, promql.MatrixSelector):
        return selectors(node.vector_selector)
    if isinstance(node, promql.BinaryExpr):
        return [*selectors(node.lhs), *selectors(node.rhs)]
    if isinstance(node, promql.Call):
        return [one for part in node.args for one in selectors(part)]
    inner = getattr(node, "expr", None)
    return selectors(inner) if inner is not None else []


def sign(matcher: Any) -> str:
    signs = {"Equal": "=", "NotEqual": "!=", "Re": "=~", "NotRe": "!~"}
    return signs[str(matcher.op).rpartition(".")[2]]


# --- the picture ---------------------------------------------------------------------------------

SHOWN = (
    *("Acceptance over time", "Mean acceptance length", "Acceptance at each position"),
    *("Tokens per second", "Time per output token (TPOT)", "Time to the first token (TTFT)"),
    *("KV cache", "Requests", "VRAM", "Power", "Temperature", "Drift"),
)

# Grafana's names of units, as a person writes them.
UNITS = {"percentunit": "%", "short": "", "watt": "W", "celsius": "°C"}


def draw(box: Box, file: Path, *, seconds: int) -> None:
    """The curves of the last so many seconds, as this Prometheus has them."""
    import matplotlib  # noqa: PLC0415  slow, and only the picture needs it

    matplotlib.use("Agg")
    from matplotlib import pyplot  # noqa: PLC0415

    panels = [one for row in ROWS for one in row.panels if one.title in SHOWN]
    panels = [one for one in panels if one.kind is not Kind.TABLE]
    [now] = asked(box, ["/api/v1/query?query=time()"])
    end = float(now["result"][1])
    figure, places = pyplot.subplots(3, 4, figsize=(16, 9), layout="constrained")
    for panel, place in zip(panels, places.flat, strict=True):
        drawn(box, panel, place, (end - seconds, end))
    figure.suptitle(f"LLM box: the last {seconds // 60} minutes of {box.name}")
    file.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(file, dpi=70)
    pyplot.close(figure)


def drawn(box: Box, panel: Panel, place: Any, between: tuple[float, float]) -> None:
    place.set_title(panel.title, fontsize=10)
    for curve in panel.curves:
        for found in ranged(box, as_asked(curve.expr), between):
            when = [(at - between[1]) / 60 for at, _ in found["values"]]
            figures = [float(value) for _, value in found["values"]]
            place.plot(when, figures, label=legend(curve.legend, found["metric"]))
    if place.lines:
        place.legend(fontsize=7)
        top = panel.most or place.get_ylim()[1]
        place.set_ylim(-0.02 * top, top)  # a curve at 0 is seen
    else:
        place.text(0.5, 0.5, "no traffic", ha="center", transform=place.transAxes)
    place.set_xlabel("minutes", fontsize=8)
    place.set_ylabel(UNITS.get(panel.unit, panel.unit), fontsize=8)
    if panel.unit == "percentunit":
        place.yaxis.set_major_formatter(lambda value, _at: f"{100 * value:.3g}")


def ranged(box: Box, expr: str, between: tuple[float, float]) -> list[Any]:
    words = {"query": expr, "start": between[0], "end": between[1], "step": 15}
    [data] = asked(box, [f"/api/v1/query_range?{urlencode(words)}"])
    return list(data["result"])


def legend(text: str, labels: dict[str, str]) -> str:
    for name, value in labels.items():
        text = text.replace(f"{{{{{name}}}}}", value)
    return text
