"""What a Prometheus asks of the boxes: one job a kind of metric, one target a box."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

HERE = "127.0.0.1"
EVERY = "15s"


@dataclass(frozen=True)
class Seen:
    """A box as its monitor sees it. address: of the box, HERE where it is the monitor itself.
    ports: by what answers there, "server", "stream", "gateway", "node" and "gpu", without those
    that are turned off. doubt: why the address may be nothing that the monitor knows, in words."""

    box: str
    address: str
    ports: Mapping[str, int]
    doubt: str | None = None


def config(boxes: Sequence[Seen], rules: str) -> dict[str, Any]:
    """A whole configuration. rules: the path of the file with the alerts."""
    every = {"scrape_interval": EVERY, "evaluation_interval": EVERY}
    return {"global": every, "rule_files": [rules], "scrape_configs": jobs(boxes)}


def jobs(boxes: Sequence[Seen]) -> list[dict[str, Any]]:
    """scrape_configs; a job that no box has is left out."""
    found = [job(name, [target(name, one) for one in boxes]) for name in PLACES]
    return [one for one in found if one["static_configs"]]


def job(name: str, targets: Sequence[dict[str, Any] | None]) -> dict[str, Any]:
    told = {"job_name": name, "static_configs": [one for one in targets if one]}
    # a drift check's figures name their box themselves
    return {**told, "honor_labels": True} if name == "aibox-node" else told


# job: what answers it, and where; the server's own port answers on its own machine only. A
# person's Prometheus has jobs of its own, and takes no name twice.
PLACES: dict[str, tuple[tuple[str, str], ...]] = {
    "aibox-vllm": (("server", "/metrics"), ("stream", "/metrics/vllm")),
    "aibox-stream": (("stream", "/metrics"),),
    "aibox-gateway": (("gateway", "/metrics/"),),
    "aibox-node": (("node", "/metrics"),),
    "aibox-gpu": (("gpu", "/metrics"),),
}


def target(name: str, seen: Seen) -> dict[str, Any] | None:
    """A target of a job, with its box; None where the box has none."""
    for part, path in PLACES[name]:
        if part in seen.ports and (part != "server" or seen.address == HERE):
            address = f"[{seen.address}]" if ":" in seen.address else seen.address
            labels = {"box": seen.box, "__metrics_path__": path}
            return {"targets": [f"{address}:{seen.ports[part]}"], "labels": labels}
    return None


def asked_at(seen: Seen) -> str:
    """Where a monitor asks a box, in words."""
    if seen.address == HERE:
        return f"{seen.box} is asked here"
    return f"{seen.box} is asked at {seen.address}{f'; {seen.doubt}' if seen.doubt else ''}"


def blind(seen: Seen) -> str | None:
    """What of a box its monitor can't see, in words."""
    if target("aibox-vllm", seen) is not None:
        return None
    return (
        f"{seen.box}: without the stream filter the server's own metrics stay on the box "
        "(stream = None or True hands them on, or make the box a monitor of its own)"
    )


def text(first_line: str, document: Mapping[str, Any]) -> str:
    """JSON, which is YAML too."""
    return f"{first_line}{json.dumps(document, indent=1)}\n"
