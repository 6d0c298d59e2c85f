"""When each alert fires and when it does not, for `promtool test rules`, and what panels show.

Series are in promtool's own short form: "0+10x30" is 0, then 10 more each minute, 30 times.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aibox.monitoring.panels import BOX, MTP, WINDOW

RULES = "rules.yml"
DRAFTS = 'vllm:spec_decode_num_drafts_total{box="a"}'
DRAFTED = 'vllm:spec_decode_num_draft_tokens_total{box="a"}'
ACCEPTED = 'vllm:spec_decode_num_accepted_tokens_total{box="a"}'
EMPTY = 'aibox_stream_empty_answers_total{box="a",tokens="one"}'
UNKNOWN = 'aibox_stream_empty_answers_total{box="a",tokens="unknown"}'
ANSWERED = 'aibox_stream_requests_total{box="a",path="/v1/messages",status="200"}'
LISTED = 'aibox_stream_requests_total{box="a",path="/v1/models",status="200"}'
REFUSED = 'aibox_stream_requests_total{box="a",path="/v1/messages",status="401"}'
WRITTEN, MTP_ON = 'vllm:generation_tokens_total{box="a"}', 'aibox_mtp_enabled{box="a"}'
LENT = 'aibox_server_lent{box="a"}'
STREAM_UP = 'up{box="a",job="aibox-stream"}'
GPU_UP = 'up{box="a",job="aibox-gpu"}'
HEALTHY = 'aibox_gateway_box_healthy{box="a",of="b"}'
TURN = 'aibox_gateway_box_in_rotation{box="a",of="b"}'
RESTARTS = 'node_systemd_service_restart_total{box="a",name="vllm-coder.service"}'
HEAT = 'gpu_temperature_C{box="a",index="0"}'
XID = 'aibox_xid_errors_total{box="a",xid="79"}'
ROOM = 'node_filesystem_avail_bytes{box="a",fstype="ext4",mountpoint="/"}'
DISK = 'node_filesystem_size_bytes{box="a",fstype="ext4",mountpoint="/"}'
FREE, RAM = 'node_memory_MemAvailable_bytes{box="a"}', 'node_memory_MemTotal_bytes{box="a"}'
OPERATIONS, FOREIGN = 'aibox_drift_operations{box="a"}', 'aibox_drift_foreign{box="a"}'
BUILT, CHECKED = 'aibox_info{box="a"}', 'aibox_drift_check_timestamp_seconds{box="a"}'


def not_ours(series: str) -> str:
    """The same of a machine that another scrape file names."""
    return series.replace('box="a",', "").replace('box="a"', "")


@dataclass(frozen=True)
class Case:
    """after: when it is asked. labels: of the alert that fires, beside its box; None: none does.
    step: between two samples."""

    alert: str
    series: Mapping[str, str]
    after: str
    labels: Mapping[str, str] | None = field(default_factory=dict)
    step: str = "1m"


CASES = (
    Case("MtpAcceptsNothing", {DRAFTED: "0+100x30", ACCEPTED: "0x30"}, "20m"),
    Case("MtpAcceptsNothing", {DRAFTED: "0+100x30"}, "20m"),
    Case("MtpAcceptsNothing", {DRAFTED: "0+100x30", ACCEPTED: "0+1x30"}, "20m", None),
    Case("MtpAcceptsNothing", {DRAFTED: "0+10x30", ACCEPTED: "0x30"}, "20m", None),
    Case("MtpDraftsNothing", {WRITTEN: "0+100x30", DRAFTS: "7x30", MTP_ON: "1x30"}, "20m"),
    Case("MtpDraftsNothing", {WRITTEN: "0+100x30", MTP_ON: "1x30"}, "20m"),
    Case("MtpDraftsNothing", {WRITTEN: "0+100x30", DRAFTS: "0+9x30", MTP_ON: "1x30"}, "20m", None),
    Case("MtpDraftsNothing", {WRITTEN: "0+100x30", MTP_ON: "0x30"}, "20m", None),
    Case("MtpDraftsNothing", {WRITTEN: "0+10x30", DRAFTS: "7x30", MTP_ON: "1x30"}, "20m", None),
    Case("MtpDraftsNothing", {WRITTEN: "0+100x30", MTP_ON: "1x30", LENT: "1x30"}, "20m", None),
    Case(
        "MtpAcceptanceFell",
        {DRAFTED: "0+1000x1300", ACCEPTED: "0+600x1150 690000+200x50"},
        "200h",
        step="10m",
    ),
    Case(
        "MtpAcceptanceFell",
        {DRAFTED: "0+1000x1300", ACCEPTED: "0+600x1150 690000+500x50"},
        "200h",
        None,
        step="10m",
    ),
    Case(
        "MtpAcceptanceFell",
        {DRAFTED: "0+1000x1300", ACCEPTED: "0+600x1150 690000+200x50", LENT: "1x1300"},
        "200h",
        None,
        step="10m",
    ),
    Case("EmptyAnswers", {EMPTY: "0+1x60", ANSWERED: "0+10x60"}, "40m"),
    Case("EmptyAnswers", {UNKNOWN: "0+1x60", ANSWERED: "0+10x60"}, "40m"),
    Case("EmptyAnswers", {EMPTY: "0+1x60", ANSWERED: "0+10x60", LISTED: "0+900x60"}, "40m"),
    Case("EmptyAnswers", {EMPTY: "0+1x60", ANSWERED: "0+10x60", REFUSED: "0+900x60"}, "40m"),
    Case("EmptyAnswers", {EMPTY: "0+1x60", ANSWERED: "0+100x60"}, "40m", None),
    Case("ServerDown", {'up{box="a",job="aibox-vllm"}': "1x5 0x10"}, "12m", {"job": "aibox-vllm"}),
    Case("ServerDown", {'up{box="a",job="aibox-vllm"}': "1x5 0x10"}, "9m", None),
    Case("ServerDown", {'up{box="a",job="aibox-vllm"}': "1x15"}, "12m", None),
    Case("DoorDown", {STREAM_UP: "1x5 0x10"}, "12m", {"job": "aibox-stream"}),
    Case("DoorDown", {STREAM_UP: "0x15"}, "12m", None),
    Case("DoorDown", {GPU_UP: "1x5 0x10"}, "12m", {"job": "aibox-gpu"}),
    Case("DoorDown", {GPU_UP: "1x15"}, "12m", None),
    Case("BoxNotAsked", {HEALTHY: "1x5 0x10", TURN: "1x15"}, "12m", {"of": "b"}),
    Case("BoxNotAsked", {HEALTHY: "1x5 0x10", TURN: "1x15"}, "9m", None),
    Case("BoxNotAsked", {HEALTHY: "0x15", TURN: "0x15"}, "12m", None),
    Case("BoxNotAsked", {HEALTHY: "1x15", TURN: "1x15"}, "12m", None),
    Case("BoxTakenOut", {TURN: "0x90"}, "61m", {"of": "b"}),
    Case("BoxTakenOut", {TURN: "0x90"}, "59m", None),
    Case("BoxTakenOut", {TURN: "1x90"}, "61m", None),
    Case("BoxSilent", {'up{box="a",job="aibox-node"}': "0x10"}, "6m", {"job": "aibox-node"}),
    Case("BoxSilent", {'up{box="a",job="aibox-node"}': "1x10"}, "6m", None),
    Case("BoxSilent", {'up{job="aibox-node"}': "0x10", 'up{job="node"}': "0x10"}, "6m", None),
    Case("RestartLoop", {RESTARTS: "0+1x40"}, "35m", {"name": "vllm-coder.service"}),
    Case("RestartLoop", {RESTARTS: "0x20 1x20"}, "35m", None),
    Case("KvCacheFull", {'vllm:kv_cache_usage_perc{box="a"}': "0.95x15"}, "12m"),
    Case("KvCacheFull", {'vllm:kv_cache_usage_perc{box="a"}': "0.5x15"}, "12m", None),
    Case(
        "KvCacheFull", {'vllm:kv_cache_usage_perc{box="a"}': "0.95x15", LENT: "1x15"}, "12m", None
    ),
    Case("RequestsWait", {'vllm:num_requests_waiting{box="a"}': "3x15"}, "12m"),
    Case("RequestsWait", {'vllm:num_requests_waiting{box="a"}': "3x5 0x10"}, "12m", None),
    Case("RequestsWait", {'vllm:num_requests_waiting{box="a"}': "3x15", LENT: "1x15"}, "12m", None),
    Case("RequestsWait", {'vllm:num_requests_waiting{box="a"}': "3x15", LENT: "0x15"}, "12m"),
    Case("Preemptions", {'vllm:num_preemptions_total{box="a"}': "0+1x20"}, "16m"),
    Case("Preemptions", {'vllm:num_preemptions_total{box="a"}': "0x20"}, "16m", None),
    Case(
        "Preemptions",
        {'vllm:num_preemptions_total{box="a"}': "0+1x20", LENT: "1x10 0x10"},
        "16m",
        None,
    ),
    Case("GpuHot", {HEAT: "90x10"}, "6m", {"index": "0"}),
    Case("GpuHot", {HEAT: "84x10"}, "6m", None),
    Case("GpuWarm", {HEAT: "82x20"}, "16m", {"index": "0"}),
    Case("GpuWarm", {HEAT: "75x20"}, "16m", None),
    Case("Xid", {XID: "0x10 1x10"}, "12m", {"xid": "79"}),
    Case("Xid", {XID: "_x10 1x10"}, "12m", {"xid": "79"}),
    Case("Xid", {XID: "0x10 1x40"}, "40m", None),
    Case("DiskFull", {ROOM: "4x20", DISK: "100x20"}, "16m", {"mountpoint": "/"}),
    Case("DiskFull", {ROOM: "50x20", DISK: "100x20"}, "16m", None),
    Case("DiskFull", {not_ours(ROOM): "4x20", not_ours(DISK): "100x20"}, "16m", None),
    Case("MemoryShort", {FREE: "4x20", RAM: "100x20"}, "12m"),
    Case("MemoryShort", {FREE: "40x20", RAM: "100x20"}, "12m", None),
    Case("MemoryShort", {not_ours(FREE): "4x20", not_ours(RAM): "100x20"}, "12m", None),
    Case("Drift", {OPERATIONS: "0x200", FOREIGN: "1x200"}, "25h", step="10m"),
    Case("Drift", {OPERATIONS: "1x200", FOREIGN: "0x200"}, "20h", None, step="10m"),
    Case("Drift", {OPERATIONS: "0x200", FOREIGN: "0x200"}, "25h", None, step="10m"),
    Case(
        "DriftNotChecked",
        {CHECKED: "0x300"},
        "49h",
        step="10m",
    ),
    Case(
        "DriftNotChecked",
        {CHECKED: "0x300"},
        "40h",
        None,
        step="10m",
    ),
    Case("DriftNeverChecked", {BUILT: "1x300"}, "49h", step="10m"),
    Case("DriftNeverChecked", {BUILT: "1x300"}, "47h", None, step="10m"),
    Case("DriftNeverChecked", {BUILT: "1x300", CHECKED: "0x300"}, "49h", None, step="10m"),
    Case("RebootLosesTheCard", {'aibox_next_reboot_keeps_card{box="a"}': "0x15"}, "11m"),
    Case("RebootLosesTheCard", {'aibox_next_reboot_keeps_card{box="a"}': "1x15"}, "11m", None),
    Case("FactsOld", {'aibox_facts_timestamp_seconds{box="a"}': "0x20"}, "16m"),
    Case("FactsOld", {'aibox_facts_timestamp_seconds{box="a"}': "0x20"}, "10m", None),
)


def documents(severity: Mapping[str, str]) -> list[dict[str, Any]]:
    """For `promtool test rules`: one for each step, as a week by the minute takes a minute.

    severity: of each alert, by its name.
    """
    steps = list(dict.fromkeys(case.step for case in CASES))
    tests = {
        step: [as_test(case, severity[case.alert]) for case in CASES if case.step == step]
        for step in steps
    }
    tests["1m"] += of_panels()
    return [
        {"rule_files": [RULES], "evaluation_interval": step, "tests": tests[step]} for step in steps
    ]


def as_test(case: Case, severity: str) -> dict[str, Any]:
    fires = f'ALERTS{{alertname="{case.alert}",alertstate="firing"}}'
    labels = {"alertname": case.alert, "alertstate": "firing", "severity": severity, "box": "a"}
    samples = [] if case.labels is None else [sample("ALERTS", {**labels, **case.labels}, 1)]
    return one_test(case.series, case.step, fires, case.after, samples)


def of_panels() -> list[dict[str, Any]]:
    """70 drafts with 140 tokens, 90 of them accepted, each minute; and nobody who asks."""
    acceptance, length = (panel.curves[0].expr for panel in MTP.panels[:2])
    busy = {DRAFTS: "0+70x10", DRAFTED: "0+140x10", ACCEPTED: "0+90x10"}
    idle = {DRAFTS: "70x10", DRAFTED: "140x10", ACCEPTED: "90x10"}
    figures = ((acceptance, 643), (length, 2286))
    shown = [
        one_test(busy, "1m", thousandths(expr), "8m", [sample("", {"box": "a"}, figure)])
        for expr, figure in figures
    ]
    return shown + [one_test(idle, "1m", thousandths(expr), "8m", []) for expr, _ in figures]


def thousandths(expr: str) -> str:
    """promtool compares to the last bit."""
    return f"round(1000 * ({expr.replace(WINDOW, '5m').replace(BOX, '')}))"


def one_test(
    series: Mapping[str, str], step: str, expr: str, after: str, samples: list[dict[str, Any]]
) -> dict[str, Any]:
    given = [{"series": name, "values": values} for name, values in series.items()]
    asked = {"expr": expr, "eval_time": after, "exp_samples": samples}
    return {"interval": step, "input_series": given, "promql_expr_test": [asked]}


def sample(name: str, labels: Mapping[str, str], value: float) -> dict[str, Any]:
    told = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return {"labels": f"{name}{{{told}}}", "value": value}
