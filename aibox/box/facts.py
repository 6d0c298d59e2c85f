"""What this box is made of, as metrics: read each minute, written for the node exporter.

What is wanted of the box comes from the deploy's own file; everything else is read now.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from aibox.box import good_units, lent
from aibox.box.job import write_whole
from aibox.box.probe import driver
from aibox.box.probe.files import SERVER_STATE, record_in
from aibox.box.probe.server import file_stamp, last_good
from aibox.decide import monitoring, own_facts
from aibox.decide.driver import DriverWanted, next_boot_reasons
from aibox.decide.driver_evidence import Evidence
from aibox.decide.driver_sources import KEY
from aibox.decide.own_facts import OwnFacts
from aibox.decide.refusal import Refusal

CONFIG = Path(monitoring.FACTS_CONFIG)
WRITTEN = Path(monitoring.FACTS)


def facts() -> int:
    """Write them. 0; 1 where the deploy's file is not whole, or nothing can be written."""
    try:
        write_whole(WRITTEN, own_facts.exposition(read(json.loads(CONFIG.read_text()))))
    except (OSError, ValueError, LookupError, TypeError) as error:
        expected = f"{CONFIG} as a deploy lays it down, and {WRITTEN.parent} that can be written"
        print(
            Refusal(f"{type(error).__name__}: {error}", expected, "deploy again"), file=sys.stderr
        )
        return 1
    return 0


def read(told: dict[str, Any]) -> OwnFacts:
    """told: see decide.monitoring.facts_config."""
    gate = next(iter(good_units.passed(told["unit"])), None)
    failed = record_in(SERVER_STATE / "failed.json") or {}
    installed = file_stamp(f"{monitoring.SYSTEMD}/{told['unit']}")
    return OwnFacts(
        built=told["built"],
        speculative=told["speculative"],
        passed=gate.when if gate else None,
        failed=max((one["when"] for one in failed.values()), default=None),
        gated=installed is None or installed["sha256"] == last_good("sha256"),
        reboot_reasons=next_boot(told["driver"]),
        kernel_log=tuple(driver.kernel_lines("NVRM: Xid")),
        when=time.time(),
        lent=lent.is_at_work(),
    )


def next_boot(told: dict[str, Any]) -> tuple[str, ...] | None:
    """Why the next reboot would lose the card; None where the box's own report can't be judged."""
    wanted = DriverWanted(**{**told, "pci_ids": tuple(told["pci_ids"])})
    asked = {"key_file": KEY, "cuda": None}
    try:
        evidence = Evidence.parse(json.dumps(driver.driver(asked)))
    except ValueError:
        return None
    return tuple(next_boot_reasons(evidence, wanted))
