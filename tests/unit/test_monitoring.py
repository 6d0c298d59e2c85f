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
from prometheus_client import CollectorRegistry, generate_latest

from aibox.decide import drift, own_facts
from aibox.decide.drift import Audit
from aibox.decide.own_facts import OwnFacts
from aibox.gateway import rotation
from aibox.monitoring import panels
from aibox.monitoring.__main__ import FOLDER, files
from aibox.monitoring.alerts import ALERTS, Alert
from aibox.monitoring.panels import ROWS, Panel
from aibox.stream.metrics import Metrics
from aibox.stream.server import _ANSWERS, PATHS
from tests.rehearsal import watched

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


def from_the_rotation() -> str:
    """Of a gateway that asks one other box."""
    registry = CollectorRegistry()
    there = rotation.Rotation([rotation.Box("b", ["m"], "", "", "")], rotation.Out(""))
    registry.register(rotation.Gauges(there))
    return generate_latest(registry).decode()


@pytest.fixture(scope="module")
def exposed() -> Mapping[str, set[str]]:
    """Every metric that our exporters give, with its labels."""
    audit = Audit(box="ai-box", mends=(), foreign=(), accepted=(), gone=())
    own = [
        from_the_filter(),
        from_the_rotation(),
        own_facts.exposition(FACTS),
        drift.metrics([audit], None, 1.0),
    ]
    found: dict[str, set[str]] = {"up": set(), "ALERTS": {"alertname", "alertstate", "severity"}}
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
def test_every_label_in_a_legend_is_kept_by_its_curve(
    panel: Panel, exposed: Mapping[str, set[str]]
) -> None:
    for curve in panel.curves:
        kept = set(re.findall(r"{{(\w+)}}", curve.legend))
        text = curve.expr
        grouped = {one for part in re.findall(r"by \(([^)]*)\)", text) for one in part.split(", ")}
        names = [one.partition("{")[0] for one in watched.selectors(parsed(text))]
        assert names, panel.title
        whole = set.union(*(exposed[one] for one in names)) | OF_THE_SCRAPE
        assert kept <= (grouped or whole), (panel.title, kept - (grouped or whole))


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
        expected = "no alert fires" if one["title"] == "What is wrong now" else "no traffic"
        assert defaults["noValue"] == expected
        assert defaults["mappings"][0]["options"]["result"]["text"] == expected


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


JUDGED = [one for one in PANELS if one.bad is not None]


@pytest.mark.parametrize("panel", JUDGED, ids=lambda panel: panel.title)
def test_the_bad_value_itself_is_red_whichever_way_is_bad(panel: Panel) -> None:
    assert panel.bad is not None
    assert panel.warn is not None
    shown = json.loads(FOLDER.joinpath("dashboard.json").read_text())["panels"]
    [drawn] = [one for one in shown if one["title"] == panel.title]
    steps = drawn["fieldConfig"]["defaults"]["thresholds"]["steps"]
    better = panel.warn - 0.01 if panel.bad > panel.warn else panel.warn
    values = (panel.bad, (panel.bad + panel.warn) / 2, better)
    assert [colour_at(steps, value) for value in values] == ["red", "yellow", "green"]


def colour_at(steps: list[dict[str, Any]], value: float) -> str:
    """Of the last step that begins at or below it, as Grafana paints."""
    bounds = [step["value"] for step in steps[1:]]
    assert steps[0]["value"] is None
    assert bounds == sorted(bounds)
    begun = [step["color"] for step in steps if step["value"] is None or step["value"] <= value]
    return str(begun[-1])


def test_a_card_that_the_next_reboot_loses_is_among_the_judged() -> None:
    assert "The next reboot keeps the card" in [panel.title for panel in JUDGED]


def test_the_picture_names_every_unit_as_a_person_does() -> None:
    units = {one.unit for one in PANELS if one.title in watched.SHOWN}
    assert len(units) > 3
    assert {watched.UNITS.get(one, one) for one in units} <= {"%", "", "W", "°C", "s"}


@pytest.mark.parametrize("alert", ALERTS, ids=lambda alert: alert.name)
def test_an_alert_looks_at_our_boxes_alone(alert: Alert) -> None:
    found = watched.selectors(promql.parse(alert.expr))
    assert found, alert.name
    assert [one for one in found if 'box!=""' not in one] == []


def test_answers_are_counted_at_the_paths_that_the_filter_answers() -> None:
    asked = re.search(r'path=~"([^"]+)"', panels.ANSWERED)
    assert asked is not None
    answering = [path for path in PATHS if re.fullmatch(asked[1], path)]
    assert sorted(PATHS[path] for path in answering) == sorted(_ANSWERS)


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
