"""The alerts: what is wrong, since when, and the first thing to do about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from aibox.decide.manifest import AIBOX
from aibox.monitoring.panels import ANSWERED

OURS = 'box!=""'  # only series of our scrape files have a box
DRAFTS = "vllm:spec_decode_num_drafts_total"
DRAFTED = "vllm:spec_decode_num_draft_tokens_total"
ACCEPTED = "vllm:spec_decode_num_accepted_tokens_total"
WRITTEN = "vllm:generation_tokens_total"
# "more" is left out: the model thought and then stopped
EMPTY, HELD_NOTHING = "aibox_stream_empty_answers_total", 'tokens=~"one|unknown"'
ENDED = "aibox_stream_requests_total"
DAY_S = 86_400
DOCTOR, STATUS, ROTATION = (f"sudo {AIBOX} {one}" for one in ("doctor", "status", "rotation"))


@dataclass(frozen=True)
class Alert:
    """lasting: how long it must be so, in Prometheus' words. found, do: for the person, with
    Prometheus' {{ }} in them."""

    name: str
    expr: str
    lasting: str
    severity: str
    found: str
    do: str

    def rule(self) -> dict[str, Any]:
        return {
            "alert": self.name,
            "expr": self.expr,
            "for": self.lasting,
            "labels": {"severity": self.severity},
            "annotations": {"summary": self.found, "description": self.do},
        }


def of_ours(metric: str, where: str = "") -> str:
    """A metric of our boxes alone: other machines' may lie in the same Prometheus."""
    return f"{metric}{{{','.join(filter(None, (OURS, where)))}}}"


def grown(counter: str, window: str, *, ago: str = "", where: str = "") -> str:
    """How much a counter grew on each box. ago: the window's end, before now."""
    offset = f" offset {ago}" if ago else ""
    return f"sum by (box) (increase({of_ours(counter, where)}[{window}]{offset}))"


def acceptance(window: str, least: int, *, ago: str = "") -> str:
    """Accepted of all draft tokens, where at least so many were drafted."""
    drafted = grown(DRAFTED, window, ago=ago)
    return f"({grown(ACCEPTED, window, ago=ago)} / ({drafted} > {least}))"


def up(jobs: str) -> str:
    return of_ours("up", f'job=~"{jobs}"')


def silent(jobs: str) -> str:
    """Jobs that answer no more; one that is turned off, or was left out, never did."""
    return f"{up(jobs)} == 0 and max_over_time({up(jobs)}[7d]) == 1"


def unmeasured(expr: str, window: str) -> str:
    """Not while a benchmark was at work in this window: it asks for as much as the card can give,
    and of servers without drafts."""
    lent = f"max_over_time({of_ours('aibox_server_lent')}[{window}])"
    return f"({expr}) unless on (box) (max by (box) ({lent}) == 1)"


HEALTHY = of_ours("aibox_gateway_box_healthy")
IN_ROTATION = of_ours("aibox_gateway_box_in_rotation")
XIDS = of_ours("aibox_xid_errors_total")
ON_DISK = 'fstype!~"tmpfs|ramfs"'
ALERTS = (
    Alert(
        "MtpAcceptsNothing",
        f"({grown(DRAFTED, '15m')} > 500) unless ({grown(ACCEPTED, '15m')} > 0)",
        "0m",
        "critical",
        "{{ $labels.box }}: no draft token was accepted in 15 minutes, of {{ $value | humanize }}",
        f"MTP costs speed now and gives none. On the box: {DOCTOR}. A start of the server "
        "mends it for a while; prefix caching with MTP is the usual cause.",
    ),
    Alert(
        "MtpDraftsNothing",
        unmeasured(
            f"({grown(WRITTEN, '15m')} > 500) "
            f"and (max by (box) ({of_ours('aibox_mtp_enabled')}) == 1) "
            f"unless ({grown(DRAFTS, '15m')} > 0)",
            "15m",
        ),
        "0m",
        "critical",
        "{{ $labels.box }}: {{ $value | humanize }} tokens in 15 minutes, and not one draft",
        f"MTP is on in the model's card, and the server makes no use of it. On the box: {DOCTOR}; "
        "a deploy shows whether another server runs than the one that was laid down.",
    ),
    Alert(
        "MtpAcceptanceFell",
        unmeasured(f"{acceptance('1h', 2000)} < 0.7 * {acceptance('7d', 20000, ago='1h')}", "1h"),
        "15m",
        "warning",
        "{{ $labels.box }}: acceptance is {{ $value | humanizePercentage }} in the last hour, less "
        "than 0.7 of its own last week",
        "Another kind of prompt explains it, or something broke: look at empty answers and Xid "
        "errors, and compare with `pyinfra inventory tasks/bench.py`.",
    ),
    Alert(
        "EmptyAnswers",
        f"({grown(EMPTY, '30m', where=HELD_NOTHING)} > 3) > "
        f"0.02 * {grown(ENDED, '30m', where=ANSWERED)}",
        "0m",
        "critical",
        "{{ $labels.box }}: {{ $value | humanize }} answers of 30 minutes held nothing",
        "A token and a stop is what a broken prefix cache with MTP looks like: set "
        "prefix_cache_with_mtp: off in the model's card and deploy.",
    ),
    Alert(
        "ServerDown",
        f"{up('aibox-vllm')} == 0",
        "5m",
        "critical",
        "{{ $labels.box }}: the server gives no metrics for five minutes",
        f"On the box: {DOCTOR}. A start takes two minutes.",
    ),
    Alert(
        "DoorDown",
        silent("aibox-(stream|gateway|gpu)"),
        "5m",
        "critical",
        "{{ $labels.box }}: {{ $labels.job }} gives no metrics for five minutes",
        f"The filter, LiteLLM or the GPU exporter. On the box: {STATUS}, and what the "
        "unit's journal says.",
    ),
    Alert(
        "BoxNotAsked",
        f"min by (box, of) ({HEALTHY}) == 0 unless min by (box, of) ({IN_ROTATION}) == 0",
        "5m",
        "critical",
        "{{ $labels.of }} does not answer the gateway on {{ $labels.box }} for five minutes",
        "Other boxes answer meanwhile, where they serve the same model. On the gateway: "
        f"{ROTATION} says what is met; on the box: {STATUS}.",
    ),
    Alert(
        "BoxTakenOut",
        f"min by (box, of) ({IN_ROTATION}) == 0",
        "1h",
        "warning",
        "{{ $labels.of }} is out of rotation at the gateway on {{ $labels.box }} for an hour",
        f"{ROTATION} there says why and since when; after a roll that stopped, the next "
        f"one puts it back; by hand: {ROTATION} back "
        "{{ $labels.of }}.",
    ),
    Alert(
        "BoxSilent",
        f"{up('aibox-node')} == 0",
        "5m",
        "critical",
        "{{ $labels.box }}: the box itself does not answer for five minutes",
        "Is it on, and does this monitor reach it?",
    ),
    Alert(
        "RestartLoop",
        f"increase({of_ours('node_systemd_service_restart_total')}[30m]) > 2",
        "0m",
        "critical",
        "{{ $labels.box }}: {{ $labels.name }} was started again {{ $value | humanize }} times "
        "in 30 minutes",
        f"On the box: {DOCTOR}; pyinfra inventory tasks/rollback.py brings back what "
        "served before.",
    ),
    Alert(
        "KvCacheFull",
        unmeasured(f"max by (box) ({of_ours('vllm:kv_cache_usage_perc')}) > 0.9", "5m"),
        "10m",
        "warning",
        "{{ $labels.box }}: {{ $value | humanizePercentage }} of the KV cache is in use, for ten "
        "minutes",
        "Requests will be put off: fewer at once, shorter contexts, or a smaller max-num-seqs.",
    ),
    Alert(
        "RequestsWait",
        unmeasured(f"sum by (box) ({of_ours('vllm:num_requests_waiting')}) > 0", "5m"),
        "10m",
        "warning",
        "{{ $labels.box }}: requests have been waiting for ten minutes, {{ $value }} now",
        "More is asked than the box can give.",
    ),
    Alert(
        "Preemptions",
        unmeasured(f"{grown('vllm:num_preemptions_total', '15m')} > 5", "15m"),
        "0m",
        "warning",
        "{{ $labels.box }}: {{ $value | humanize }} requests lost their place in 15 minutes",
        "The KV cache is too small for what is asked at once: a smaller max-num-seqs helps.",
    ),
    Alert(
        "GpuHot",
        f"max by (box, index) ({of_ours('gpu_temperature_C')}) > 85",
        "5m",
        "critical",
        "{{ $labels.box }}: card {{ $labels.index }} has {{ $value }} °C for five minutes",
        "Look at fans and dust; power_limit_w lowers what it draws.",
    ),
    Alert(
        "GpuWarm",
        f"max by (box, index) ({of_ours('gpu_temperature_C')}) > 80",
        "15m",
        "warning",
        "{{ $labels.box }}: card {{ $labels.index }} has {{ $value }} °C for 15 minutes",
        "Look at fans and dust; power_limit_w lowers what it draws.",
    ),
    Alert(
        "Xid",
        # not increase(): that misses a counter's first appearance
        f"sum by (box, xid) ({XIDS} - ({XIDS} offset 15m or {XIDS} * 0)) > 0",
        "0m",
        "critical",
        "{{ $labels.box }}: the driver reports Xid {{ $labels.xid }}",
        f"On the box: {DOCTOR}. Xid 79 takes a cold start; 13 and 31 are a kernel's fault.",
    ),
    Alert(
        "DiskFull",
        f"min by (box, mountpoint) ({of_ours('node_filesystem_avail_bytes', ON_DISK)} / "
        f"{of_ours('node_filesystem_size_bytes', ON_DISK)}) < 0.05",
        "15m",
        "warning",
        "{{ $labels.box }}: {{ $value | humanizePercentage }} of {{ $labels.mountpoint }} is free",
        "Older releases and weights are the largest: docs/releases.md.",
    ),
    Alert(
        "MemoryShort",
        f"min by (box) ({of_ours('node_memory_MemAvailable_bytes')} / "
        f"{of_ours('node_memory_MemTotal_bytes')}) < 0.05",
        "10m",
        "warning",
        "{{ $labels.box }}: {{ $value | humanizePercentage }} of the RAM is available",
        "Find who holds it before the kernel ends the server.",
    ),
    Alert(
        "Drift",
        f"max by (box) ({of_ours('aibox_drift_operations')} + "
        f"{of_ours('aibox_drift_foreign')}) > 0",
        "1d",
        "warning",
        "{{ $labels.box }}: {{ $value }} differences from what a deploy lays down, for a day",
        "python -m tasks.drift shows them; a deploy mends them, the setting accepted lists them.",
    ),
    Alert(
        "DriftNotChecked",
        f"max by (box) (time() - {of_ours('aibox_drift_check_timestamp_seconds')}) > {2 * DAY_S}",
        "0m",
        "warning",
        "{{ $labels.box }}: the last check for drift was {{ $value | humanizeDuration }} ago",
        "On control: python -m tasks.drift --install-timer.",
    ),
    Alert(
        "DriftNeverChecked",
        f"max by (box) ({of_ours('aibox_info')}) unless on (box) "
        f"{of_ours('aibox_drift_check_timestamp_seconds')}",
        "2d",
        "warning",
        "{{ $labels.box }}: for two days now, no check for drift was ever made",
        "On control: python -m tasks.drift --install-timer.",
    ),
    Alert(
        "RebootLosesTheCard",
        f"min by (box) ({of_ours('aibox_next_reboot_keeps_card')}) == 0",
        "10m",
        "critical",
        "{{ $labels.box }}: the next reboot would lose the card",
        "Deploy before it reboots: pyinfra inventory deploy.py.",
    ),
    Alert(
        "FactsOld",
        f"max by (box) (time() - {of_ours('aibox_facts_timestamp_seconds')}) > 900",
        "0m",
        "warning",
        "{{ $labels.box }}: its own facts are {{ $value | humanizeDuration }} old",
        "On the box: systemctl status aibox-facts.timer.",
    ),
)


def rules() -> dict[str, Any]:
    """A rule file of Prometheus."""
    return {"groups": [{"name": "aibox", "rules": [alert.rule() for alert in ALERTS]}]}
