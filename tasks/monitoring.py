"""What the box shows to a monitor: node exporter, GPU metrics, and what it is made of."""

from __future__ import annotations

import json
from dataclasses import asdict

from pyinfra import host
from pyinfra.api import StringCommand, deploy, operation

from aibox.decide import doors, monitoring
from aibox.decide.monitoring import (
    DRIFT,
    DROP_IN_FILE,
    FACTS,
    FACTS_CONFIG,
    FACTS_TIMER,
    FACTS_UNIT,
    GPU_EXPORTER,
    NODE_EXPORTER,
    NODE_PACKAGE,
    NODE_UNIT,
    SYSTEMD,
)
from tasks import aibox_wheel, gpu_exporter
from tasks.box import AIBOX, Box
from tasks.drift_report import is_due
from tasks.facts import Probe
from tasks.operations import Commands, gone, laid_down, packages, starts_at_boot
from tasks.package_units import files_gone, runs, stopped
from tasks.services import laid_out, withdrawn

FACTS_FILES = (FACTS_CONFIG, f"{SYSTEMD}/{FACTS_UNIT}", f"{SYSTEMD}/{FACTS_TIMER}")


@deploy("Monitoring")
def running(box: Box) -> None:
    if box.watched.node.on:
        node_exporter(box)
        own_facts(box)
    else:
        facts_withdrawn()
        stopped(name="The node exporter is not wanted", unit=NODE_UNIT, drop_in=DROP_IN_FILE)
    if box.watched.gpu.on:
        laid_out(gpu_exporter.wanted(box), box)
    else:
        withdrawn(name="The GPU exporter is not wanted", service=GPU_EXPORTER)


# --- the node exporter ---------------------------------------------------------------------------


def node_exporter(box: Box) -> None:
    """Guarded before it is there: its package starts it at once."""
    units = [box.unit, doors.STREAM.unit, doors.GATEWAY.unit, GPU_EXPORTER.unit, NODE_UNIT]
    port = box.settings.node_exporter_port
    drop_in = monitoring.node_drop_in(box.watched, port, units)
    laid_down(name="The node exporter's arguments", path=DROP_IN_FILE, content=drop_in.encode())
    packages(name="Package of the node exporter", names=[NODE_PACKAGE])
    starts_at_boot(name="The node exporter starts at boot", unit=NODE_UNIT)
    url = f"http://127.0.0.1:{port}{NODE_EXPORTER.ready}"
    runs(name="The node exporter runs with them", unit=NODE_UNIT, files=[DROP_IN_FILE], url=url)


# --- what the box is made of ---------------------------------------------------------------------


def own_facts(box: Box) -> None:
    texts = (facts_config(box), monitoring.facts_unit(AIBOX), monitoring.facts_timer())
    names = ("What is told of the box", "What tells it", "When it is told")
    for name, path, text in zip(names, FACTS_FILES, texts, strict=True):
        laid_down(name=name, path=path, content=text.encode())
    starts_at_boot(name="It is told from the boot on", unit=FACTS_TIMER)
    facts_told(name="It is told now, and each minute")


def facts_config(box: Box) -> str:
    built = {
        "vllm": box.settings.vllm_version,
        "release": box.release.release_id,
        "model": box.settings.model,
        "repository": box.settings.weights.repository,
        "commit": box.settings.weights.commit,
        "mtp": f"{box.settings.drafts} tokens" if box.speculative else "off",
        "driver": box.driver.version,
        "aibox": aibox_wheel.identity(),
    }
    return monitoring.facts_config(box.unit, asdict(box.driver), box.speculative, built)


@operation()
def facts_told() -> Commands:
    """By files that are newer than what was told, and a timer that does not run."""
    asked = {"unit": FACTS_TIMER, "paths": [*FACTS_FILES, FACTS], "url": None}
    found = host.get_fact(Probe, "running_unit", json.dumps(asked))
    written = found["changed"].pop(FACTS)
    state = found["unit"].get("ActiveState", "unknown")
    newer = [path for path, when in found["changed"].items() if when and when > (written or 0)]
    reasons = [] if state == "active" else [f"{FACTS_TIMER} is {state}"]
    reasons += [f"{FACTS} is older than {path}" for path in newer]
    if not is_due(host, reasons, "it is told each minute"):
        return
    yield "systemctl daemon-reload"
    yield StringCommand("systemctl start", FACTS_UNIT)
    yield StringCommand("systemctl restart", FACTS_TIMER)


def facts_withdrawn() -> None:
    timer = f"{SYSTEMD}/{FACTS_TIMER}"
    gone(name="What the box is made of is not told", path=timer, unit=FACTS_TIMER)
    files_gone(name="Nothing of it is left", paths=[*FACTS_FILES, FACTS, DRIFT])
