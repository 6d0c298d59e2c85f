"""The dashboard as Grafana reads it, made of the panels with Grafana's own library."""

from __future__ import annotations

import json
from collections.abc import Sequence

from grafana_foundation_sdk.builders import common, prometheus, stat, table, timeseries
from grafana_foundation_sdk.builders import dashboard as build
from grafana_foundation_sdk.cog.encoder import JSONEncoder
from grafana_foundation_sdk.models import dashboard as model
from grafana_foundation_sdk.models.common import (
    BigValueColorMode,
    BigValueGraphMode,
    LegendDisplayMode,
    LegendPlacement,
    TooltipDisplayMode,
    VisibilityMode,
)
from grafana_foundation_sdk.models.prometheus import PromQueryFormat

from aibox.monitoring.panels import ROWS, Kind, Panel, Row

UID = "aibox"
HAIR = 0.001
SOURCE = model.DataSourceRef(type_val="prometheus", uid="${source}")
COLUMNS, HEIGHT = 24, 8
OF_THE_SCRAPE = ("Time", "Value", "__name__", "job", "instance")

AnyPanel = timeseries.Panel | stat.Panel | table.Panel


def text(rows: Sequence[Row] = ROWS) -> str:
    """The dashboard's JSON."""
    return json.dumps(made(rows), cls=JSONEncoder, indent=1, sort_keys=True) + "\n"


def made(rows: Sequence[Row]) -> model.Dashboard:
    whole = (
        build.Dashboard("LLM box")
        .uid(UID)
        .tags(["aibox", "vllm"])
        .description("Does MTP help, how fast is it, and what stands in the way.")
        .timezone("browser")
        .readonly()
        .time("now-6h", "now")
        .refresh("30s")
        .tooltip(model.DashboardCursorSync.CROSSHAIR)
        .with_variable(build.DatasourceVariable("source").label("Prometheus").type("prometheus"))
        .with_variable(box_variable())
    )
    for row in rows:
        whole = whole.with_row(build.Row(row.title))
        width = COLUMNS // min(len(row.panels), 4)
        for panel in row.panels:
            whole = whole.with_panel(shown(panel).height(HEIGHT).span(width))
    return whole.build()


def box_variable() -> build.QueryVariable:
    return (
        build.QueryVariable("box")
        .label("Box")
        .datasource(SOURCE)
        .query('label_values(up{job=~"aibox-(vllm|node)"}, box)')
        .refresh(model.VariableRefresh.ON_TIME_RANGE_CHANGED)
        .multi(True)
        .include_all(True)
        .all_value(".+")
    )


def shown(panel: Panel) -> AnyPanel:
    """What all kinds have in common: words where there is no number."""
    drawn = {Kind.CURVES: curves, Kind.NUMBER: number, Kind.TABLE: labels}[panel.kind](panel)
    drawn = (
        drawn.title(panel.title)
        .description(panel.estimator)
        .datasource(SOURCE)
        .unit(panel.unit)
        .no_value(panel.nothing)
        .mappings([without_figure(panel)])
    )
    if panel.least is not None:
        drawn = drawn.min(panel.least)
    if panel.most is not None:
        drawn = drawn.max(panel.most)
    return drawn if panel.bad is None else drawn.thresholds(thresholds(panel))


def curves(panel: Panel) -> AnyPanel:
    legend = common.VizLegendOptions().show_legend(True)
    legend = legend.display_mode(LegendDisplayMode.LIST).placement(LegendPlacement.BOTTOM)
    drawn = (
        timeseries.Panel()
        .legend(legend)
        .tooltip(common.VizTooltipOptions().mode(TooltipDisplayMode.MULTI))
        .fill_opacity(8)
        .line_width(2)
        .show_points(VisibilityMode.NEVER)
        .span_nulls(False)
    )
    for number_, curve in enumerate(panel.curves):
        drawn = drawn.with_target(query(curve.expr, curve.legend, number_).range())
    return drawn


def number(panel: Panel) -> AnyPanel:
    drawn = (
        stat.Panel()
        .reduce_options(common.ReduceDataOptions().calcs(["lastNotNull"]))
        .graph_mode(BigValueGraphMode.AREA)
        .color_mode(BigValueColorMode.VALUE)
    )
    for number_, curve in enumerate(panel.curves):
        drawn = drawn.with_target(query(curve.expr, curve.legend, number_).range())
    return drawn


def labels(panel: Panel) -> AnyPanel:
    hidden = dict.fromkeys(OF_THE_SCRAPE, True)
    drawn = table.Panel().with_transformation(
        model.DataTransformerConfig(id_val="organize", options={"excludeByName": hidden})
    )
    for number_, curve in enumerate(panel.curves):
        asked = query(curve.expr, curve.legend, number_).instant()
        drawn = drawn.with_target(asked.format(PromQueryFormat.TABLE))
    return drawn


def query(expr: str, legend: str, number_: int) -> prometheus.Dataquery:
    ref = chr(ord("A") + number_)
    return prometheus.Dataquery().expr(expr).legend_format(legend).ref_id(ref).datasource(SOURCE)


def without_figure(panel: Panel) -> model.SpecialValueMap:
    shown_as = model.ValueMappingResult(text=panel.nothing)
    both = model.SpecialValueMatch.NULL_AND_NAN
    return model.SpecialValueMap(
        options=model.DashboardSpecialValueMapOptions(match=both, result=shown_as)
    )


def thresholds(panel: Panel) -> build.ThresholdsConfig:
    """Green, yellow, red; downwards where the bad value is the smaller, which then is red itself:
    Grafana paints from a bound on."""
    assert panel.warn is not None
    assert panel.bad is not None
    upwards = panel.bad > panel.warn
    colours = ("green", "yellow", "red") if upwards else ("red", "yellow", "green")
    bounds = (None, panel.warn, panel.bad) if upwards else (None, panel.bad + HAIR, panel.warn)
    steps = [model.Threshold(value=at, color=one) for at, one in zip(bounds, colours, strict=True)]
    return build.ThresholdsConfig().mode(model.ThresholdsMode.ABSOLUTE).steps(steps)
