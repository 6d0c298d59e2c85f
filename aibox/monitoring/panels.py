"""The panels of the dashboard, from top to bottom, with the estimator behind every curve.

Every curve is of one box (label `box`, which the scrape configuration gives). Where a quotient has
no traffic in its denominator, the comparison `> 0` leaves no point: the panel says "no traffic".
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

WINDOW = "$__rate_interval"  # Grafana's: at least four scrapes
BOX = 'box=~"$box"'  # the dashboard's variable
# Of the filter's requests those that are answers, and were given.
ANSWERED = 'path=~"/v1/(chat/completions|completions|messages|responses)",status="200"'
BY_TOKENS = "Weighted by tokens: a long answer counts for more than a short one."


class Kind(StrEnum):
    CURVES = "curves"
    NUMBER = "number"  # the newest value, with a small curve behind it
    TABLE = "table"  # the newest labels


@dataclass(frozen=True)
class Curve:
    """legend: as Grafana writes it, {{label}} for a label's value."""

    legend: str
    expr: str


@dataclass(frozen=True)
class Panel:
    """unit: one of Grafana's. estimator: what the figure is, in words. warn, bad: where it turns
    yellow and red, upwards, or downwards where bad is the smaller. nothing: what it says without
    a figure."""

    title: str
    unit: str
    estimator: str
    curves: tuple[Curve, ...]
    kind: Kind = Kind.CURVES
    least: float | None = None
    most: float | None = None
    warn: float | None = None
    bad: float | None = None
    nothing: str = "no traffic"


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


def total(metric: str, *by: str, where: str = "") -> str:
    """The rate a second of a counter, summed over all but the named labels."""
    matched = ",".join(filter(None, (BOX, where)))
    return f"sum by ({', '.join(('box', *by))}) (rate({metric}{{{matched}}}[{WINDOW}]))"


def now(metric: str, how: str = "max", *by: str, where: str = "") -> str:
    """A gauge as it stands."""
    matched = ",".join(filter(None, (BOX, where)))
    return f"{how} by ({', '.join(('box', *by))}) ({metric}{{{matched}}})"


def share(part: str, whole: str) -> str:
    return f"{part} / ({whole} > 0)"


def quantile(which: float, histogram: str) -> str:
    return f"histogram_quantile({which}, {total(f'{histogram}_bucket', 'le')}) >= 0"


DRAFTS = total("vllm:spec_decode_num_drafts_total")
DRAFTED = total("vllm:spec_decode_num_draft_tokens_total")
ACCEPTED = total("vllm:spec_decode_num_accepted_tokens_total")
AT_EACH = total("vllm:spec_decode_num_accepted_tokens_per_pos_total", "position")
WRITTEN = total("vllm:generation_tokens_total")
TPOT = "vllm:request_time_per_output_token_seconds"
TTFT = "vllm:time_to_first_token_seconds"
MENDS = total("aibox_stream_mends_total", "mend", "mode")
GIVEN = total("aibox_stream_requests_total", where=ANSWERED)
MEASURED = "Median and 95th percentile, read out of a histogram's buckets: exact only to a bucket."

WRONG = Row(
    "Alerts",
    (
        Panel(
            "What is wrong now",
            "short",
            "The alerts that fire, as Prometheus has them. It tells nobody by itself.",
            (Curve("{{box}}", f'ALERTS{{{BOX},alertstate="firing"}}'),),
            kind=Kind.TABLE,
            nothing="no alert fires",
        ),
    ),
)
MTP = Row(
    "Does MTP help?",
    (
        Panel(
            "Acceptance",
            "percentunit",
            f"Accepted of all draft tokens. {BY_TOKENS}",
            (Curve("{{box}}", share(ACCEPTED, DRAFTED)),),
            kind=Kind.NUMBER,
            least=0,
            most=1,
            warn=0.5,
            bad=0.3,
        ),
        Panel(
            "Mean acceptance length",
            "short",
            "Tokens that one pass of the model yields: 1 + accepted tokens / drafts. 1 is the "
            f"speed without MTP. {BY_TOKENS}",
            (Curve("{{box}}", f"1 + {share(ACCEPTED, DRAFTS)}"),),
            kind=Kind.NUMBER,
            least=1,
            warn=1.8,
            bad=1.3,
        ),
        Panel(
            "Acceptance over time",
            "percentunit",
            f"Accepted of all draft tokens. {BY_TOKENS}",
            (Curve("{{box}}", share(ACCEPTED, DRAFTED)),),
            least=0,
            most=1,
        ),
        Panel(
            "Acceptance at each position",
            "percentunit",
            "Drafts whose token at this position was accepted, of all drafts; position 0 is the "
            "first drafted token. A later one counts only where all before it were accepted.",
            (
                Curve(
                    "{{box}} position {{position}}",
                    f"{AT_EACH} / on (box) group_left () ({DRAFTS} > 0)",
                ),
            ),
            least=0,
            most=1,
        ),
    ),
)
SPEED = Row(
    "Speed",
    (
        Panel(
            "Tokens per second",
            "short",
            "Tokens that the server has written, over all requests; thinking counts.",
            (Curve("{{box}}", WRITTEN),),
            least=0,
        ),
        Panel(
            "Tokens per second of one request",
            "short",
            "1 / mean time per output token of the requests that ended in the window; each request "
            "counts the same. The first token is not in it.",
            (Curve("{{box}}", share(total(f"{TPOT}_count"), total(f"{TPOT}_sum"))),),
            least=0,
        ),
        Panel(
            "Time to the first token (TTFT)",
            "s",
            f"From a request's arrival to its first token, waiting included. {MEASURED}",
            (
                Curve("{{box}} median", quantile(0.5, TTFT)),
                Curve("{{box}} 95 %", quantile(0.95, TTFT)),
            ),
            least=0,
        ),
        Panel(
            "Time per output token (TPOT)",
            "s",
            "Of a whole request, its first token left out. With MTP this is the honest figure: "
            f"vLLM's inter-token latency counts chunks, which hold several tokens. {MEASURED}",
            (
                Curve("{{box}} median", quantile(0.5, TPOT)),
                Curve("{{box}} 95 %", quantile(0.95, TPOT)),
            ),
            least=0,
        ),
    ),
)
LOAD = Row(
    "Load",
    (
        Panel(
            "Requests",
            "short",
            "Being answered, and waiting for their turn, at the scrape.",
            (
                Curve("{{box}} running", now("vllm:num_requests_running", "sum")),
                Curve("{{box}} waiting", now("vllm:num_requests_waiting", "sum")),
            ),
            least=0,
        ),
        Panel(
            "KV cache",
            "percentunit",
            "Blocks in use at the scrape, of all; a block kept for its prefix alone is free.",
            (Curve("{{box}}", now("vllm:kv_cache_usage_perc")),),
            least=0,
            most=1,
            warn=0.8,
            bad=0.9,
        ),
        Panel(
            "Prefix hits",
            "percentunit",
            "Prompt tokens found in the prefix cache, of those looked for. A shared prefix hits "
            f"only in whole blocks, which are long on hybrid models. {BY_TOKENS}",
            (
                Curve(
                    "{{box}}",
                    share(
                        total("vllm:prefix_cache_hits_total"),
                        total("vllm:prefix_cache_queries_total"),
                    ),
                ),
            ),
            least=0,
            most=1,
        ),
        Panel(
            "Preemptions",
            "short",
            "Requests a second that lost their place for want of KV cache and start over.",
            (Curve("{{box}}", total("vllm:num_preemptions_total")),),
            least=0,
        ),
    ),
)
ANSWERS = Row(
    "Answers",
    (
        Panel(
            "Empty answers",
            "percentunit",
            'Answers that ended with "stop" and hold nothing, of all answers that were passed on. '
            "One token and a stop is what a broken draft or prefix cache looks like.",
            (
                Curve(
                    "{{box}} {{tokens}} tokens",
                    f"{total('aibox_stream_empty_answers_total', 'tokens')} / on (box) "
                    f"group_left () ({GIVEN} > 0)",
                ),
            ),
            least=0,
        ),
        Panel(
            "Requests by status",
            "reqps",
            "Ended requests a second at the filter, by the status that the client saw.",
            (
                Curve(
                    "{{box}} {{status}}",
                    total("aibox_stream_requests_total", "status"),
                ),
            ),
            least=0,
        ),
        Panel(
            "What the filter adds",
            "s",
            "From reading a piece of the server's to handing it on. The 99th percentile, read out "
            "of a histogram's buckets.",
            (Curve("{{box}}", quantile(0.99, "aibox_stream_added_latency_seconds")),),
            least=0,
        ),
        Panel(
            "Mends",
            "short",
            'Mends a second by name; mode "count" counts what would have been mended.',
            (
                Curve(
                    "{{box}} {{mend}} ({{mode}})", total("aibox_stream_mends_total", "mend", "mode")
                ),
            ),
            least=0,
        ),
        Panel(
            "Requests at the gateway",
            "reqps",
            "Requests a second that LiteLLM was asked, failed ones included.",
            (Curve("{{box}}", total("litellm_proxy_total_requests_metric_total")),),
            least=0,
        ),
        Panel(
            "Where a gateway's requests are",
            "short",
            "Requests of a gateway that each of its boxes answers at this moment, where a gateway "
            "asks several.",
            (
                Curve(
                    "{{box}}: {{of}}",
                    now("aibox_gateway_box_requests", "max", "of"),
                ),
            ),
            least=0,
        ),
    ),
)
CARD = Row(
    "The card",
    (
        Panel(
            "VRAM",
            "percentunit",
            "Memory in use, of all the card has, by whatever process.",
            (
                Curve(
                    "{{box}} card {{index}}",
                    f"{now('gpu_memory_used_MiB', 'max', 'index')} / "
                    f"{now('gpu_memory_total_MiB', 'max', 'index')}",
                ),
            ),
            least=0,
            most=1,
        ),
        Panel(
            "Power",
            "watt",
            "What the card draws, and its limit, as NVML tells them.",
            (
                Curve("{{box}} card {{index}}", now("gpu_power_usage_W", "max", "index")),
                Curve("{{box}} card {{index}} limit", now("gpu_power_limit_W", "max", "index")),
            ),
            least=0,
        ),
        Panel(
            "Temperature",
            "celsius",
            "Of the GPU itself, as NVML tells it.",
            (Curve("{{box}} card {{index}}", now("gpu_temperature_C", "max", "index")),),
            warn=80,
            bad=85,
        ),
        Panel(
            "Xid errors",
            "short",
            "Lines of the driver about a fault of the card, by Xid, in the last hour.",
            (
                Curve(
                    "{{box}} Xid {{xid}}",
                    f"sum by (box, xid) (increase(aibox_xid_errors_total{{{BOX}}}[1h]))",
                ),
            ),
            least=0,
        ),
    ),
)
BOXES = Row(
    "The box",
    (
        Panel(
            "Drift",
            "short",
            "Operations that a deploy would do, and foreign things, as the last check found them.",
            (
                Curve("{{box}} to mend", now("aibox_drift_operations")),
                Curve("{{box}} foreign", now("aibox_drift_foreign")),
            ),
            least=0,
        ),
        Panel(
            "Age of the last check for drift",
            "s",
            "Since `python -m tasks.drift` last ended for this box.",
            (Curve("{{box}}", f"time() - {now('aibox_drift_check_timestamp_seconds')}"),),
            kind=Kind.NUMBER,
            warn=86_400,
            bad=172_800,
        ),
        Panel(
            "Since the last gate",
            "s",
            "Since what is served has passed its gate.",
            (Curve("{{box}}", f"time() - {now('aibox_gate_passed_timestamp_seconds')}"),),
            kind=Kind.NUMBER,
        ),
        Panel(
            "The next reboot keeps the card",
            "bool_yes_no",
            "Whether the newest kernel has modules of the driver, and nothing at boot takes the "
            "card away.",
            (Curve("{{box}}", now("aibox_next_reboot_keeps_card", "min")),),
            kind=Kind.NUMBER,
            warn=1,
            bad=0,
        ),
        Panel(
            "What is served",
            "short",
            "As the last deploy wrote it down.",
            (Curve("{{box}}", f"aibox_info{{{BOX}}}"),),
            kind=Kind.TABLE,
        ),
        Panel(
            "Disk",
            "percentunit",
            "Room in use on each file system, of all that is not root's own reserve.",
            (
                Curve(
                    "{{box}} {{mountpoint}}",
                    f'1 - node_filesystem_avail_bytes{{{BOX},fstype!~"tmpfs|ramfs"}} / '
                    f'node_filesystem_size_bytes{{{BOX},fstype!~"tmpfs|ramfs"}}',
                ),
            ),
            least=0,
            most=1,
        ),
        Panel(
            "Memory",
            "percentunit",
            "RAM that is not available, of all.",
            (
                Curve(
                    "{{box}}",
                    f"1 - {now('node_memory_MemAvailable_bytes')} / "
                    f"{now('node_memory_MemTotal_bytes')}",
                ),
            ),
            least=0,
            most=1,
        ),
    ),
)
ROWS = (WRONG, MTP, SPEED, LOAD, ANSWERS, CARD, BOXES)
