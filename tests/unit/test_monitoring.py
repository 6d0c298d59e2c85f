"""The dashboard and the alerts: every metric and label in them is one that an exporter gives."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import promql_parser as promql
import pytest
import yaml

from aibox.decide import drift, own_facts
from aibox.decide.drift import Audit
from aibox.decide.own_facts import OwnFacts
from aibox.monitoring import panels
from aibox.monitoring.__main__ import FOLDER, files
from aibox.monitoring.alerts import ALERTS
from aibox.monitoring.dashboard import NO_TRAFFIC
from aibox.monitoring.panels import ROWS, Kind, Panel
from aibox.stream.metrics import Metrics

EXPOSED = Path(__file__).parent / "exposed"  # {name}{labels} of real exporters, a line each
OF_THE_SCRAPE = {"box", "job", "instance"}
FACTS = OwnFacts(
    built={"vllm": "0.31.0", "model": "qwen3.8-27b"},
    speculative=True,
    passed=1.0,
    failed=None,
    gated=True,
    reboot_reasons=(),
    kernel_log=("NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.",),
    when=2.0,
)
PANELS = [panel for row in ROWS for panel in row.panels]
EXPRESSIONS = {
    **{f"{panel.title}: {curve.legend}": curve.expr for panel in PANELS for curve in panel.curves},
    **{alert.name: alert.expr for alert in ALERTS},
}


def series_in(exposition: str) -> Iterator[tuple[str, set[str]]]:
    for line in exposition.splitlines():
        match = re.match(r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?", line)
        if match and match[1]:
            yield match[1], set(re.findall(r'(\w+)="', match[2] or ""))
        typed = re.match(r"# TYPE (\S+) (counter|gauge)", line)
        if typed:
            yield typed[1], set()


def captured(path: Path) -> Iterator[tuple[str, set[str]]]:
    for line in path.read_text().splitlines():
        name, _, rest = line.partition("{")
        yield name, set(filter(None, rest.rstrip("}").split(",")))


def from_the_filter() -> str:
    """Its exposition with a sample of each labelled counter."""
    metrics = Metrics()
    metrics.requests.labels("/v1/models", "200").inc()
    metrics.mends.labels("think_tag", "count").inc()
    metrics.faults.labels("cut_answer").inc()
    metrics.empty.labels("one").inc()
    return metrics.text().decode()


@pytest.fixture(scope="module")
def exposed() -> Mapping[str, set[str]]:
    """Every metric that our exporters give, with its labels."""
    audit = Audit(box="ai-box", mends=(), foreign=(), accepted=(), gone=())
    own = [
        from_the_filter(),
        own_facts.exposition(FACTS),
        drift.metrics([audit], None, 1.0),
    ]
    found: dict[str, set[str]] = {"up": set()}
    rows = [row for text in own for row in series_in(text)]
    rows += [row for path in sorted(EXPOSED.iterdir()) for row in captured(path)]
    for name, labels in rows:
        found.setdefault(name, set()).update(labels)
    return found


def parsed(expr: str) -> Any:
    """Grafana's variables stand for a range and a pattern."""
    return promql.parse(expr.replace(panels.WINDOW, "1m").replace("$box", ".+"))


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_metric_and_label_is_one_that_is_exposed(
    name: str, exposed: Mapping[str, set[str]]
) -> None:
    text = str(parsed(EXPRESSIONS[name]))
    names = re.findall(r"[a-zA-Z_:][\w:]*(?=\{)", text)
    assert names, text
    known = set.union(*({*exposed[one]} for one in names)) | OF_THE_SCRAPE | {"le"}
    used = set(re.findall(r"(\w+)(?==~?\"|!~?\")", text))
    for grouped in re.findall(r"(?:by|on|group_left) \(([^)]*)\)", text):
        used |= set(filter(None, grouped.split(", ")))
    assert used <= known, (name, used - known)


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel.title)
def test_every_label_in_a_legend_is_kept_by_its_curve(panel: Panel) -> None:
    for curve in panel.curves:
        kept = set(re.findall(r"{{(\w+)}}", curve.legend))
        text = curve.expr
        grouped = {one for part in re.findall(r"by \(([^)]*)\)", text) for one in part.split(", ")}
        assert kept <= (grouped or kept), (panel.title, kept - grouped)


def test_the_committed_files_are_the_ones_that_these_make() -> None:
    for name, text in files().items():
        assert FOLDER.joinpath(name).read_text() == text, f"python -m aibox.monitoring ({name})"


def test_every_panel_says_its_estimator_and_no_traffic() -> None:
    shown = json.loads(FOLDER.joinpath("dashboard.json").read_text())["panels"]
    drawn = {one["title"]: one for one in shown if one["type"] != "row"}
    assert list(drawn) == [panel.title for panel in PANELS]
    for one in drawn.values():
        assert len(one["description"]) > 20, one["title"]
        defaults = one["fieldConfig"]["defaults"]
        assert defaults["noValue"] == NO_TRAFFIC
        assert defaults["mappings"][0]["options"]["result"]["text"] == NO_TRAFFIC


def test_panels_stand_beside_and_below_each_other() -> None:
    shown = json.loads(FOLDER.joinpath("dashboard.json").read_text())["panels"]
    taken: set[tuple[int, int]] = set()
    for one in shown:
        at = one["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert not cells & taken, one["title"]
        assert max(x for x, _ in cells) < 24
        taken |= cells


@pytest.mark.parametrize("panel", [one for one in PANELS if one.kind is Kind.NUMBER and one.bad])
def test_thresholds_rise_whichever_way_is_bad(panel: Panel) -> None:
    shown = json.loads(FOLDER.joinpath("dashboard.json").read_text())["panels"]
    [drawn] = [one for one in shown if one["title"] == panel.title]
    steps = drawn["fieldConfig"]["defaults"]["thresholds"]["steps"]
    values = [step["value"] for step in steps]
    assert values[0] is None
    assert values[1:] == sorted(values[1:])
    assert panel.warn is not None
    assert panel.bad is not None
    worst = steps[-1] if panel.bad > panel.warn else steps[0]
    assert worst["color"] == "red"


def test_an_alert_says_what_was_found_and_what_to_do() -> None:
    rules = yaml.safe_load(FOLDER.joinpath("rules.yml").read_text())["groups"][0]["rules"]
    assert [rule["alert"] for rule in rules] == [alert.name for alert in ALERTS]
    for rule in rules:
        told = rule["annotations"]
        assert "{{ $labels.box }}" in told["summary"]
        assert len(told["description"]) > 20
        assert rule["labels"]["severity"] in ("warning", "critical")


# --- what a box tells of itself ------------------------------------------------------------------


def test_xids_are_counted_and_the_usual_ones_stand_at_nothing() -> None:
    text = own_facts.exposition(FACTS)
    assert 'aibox_xid_errors_total{xid="79"} 1' in text
    assert 'aibox_xid_errors_total{xid="13"} 0' in text
    assert "# TYPE aibox_xid_errors_total counter" in text


@pytest.mark.parametrize(
    ("reasons", "row"),
    [
        ((), "aibox_next_reboot_keeps_card 1"),
        (("kernel 6.8 has no nvidia module",), "aibox_next_reboot_keeps_card 0"),
    ],
)
def test_the_next_reboot_is_judged(reasons: tuple[str, ...], row: str) -> None:
    facts = OwnFacts(**{**vars(FACTS), "reboot_reasons": reasons})
    assert row in own_facts.exposition(facts).splitlines()


def test_what_is_not_known_is_not_told() -> None:
    facts = OwnFacts(**{**vars(FACTS), "reboot_reasons": None, "passed": None})
    text = own_facts.exposition(facts)
    assert "next_reboot" not in text
    assert "gate_passed" not in text
    assert "gate_failed" not in text
