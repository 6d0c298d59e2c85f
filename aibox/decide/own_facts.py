"""What a box tells of itself, as metrics: what it was built of, its last gate, its next reboot."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from aibox.decide import textfile
from aibox.decide.textfile import Family

XID = re.compile(r"NVRM: Xid \(.*?\): (\d+),")
USUAL_XIDS = ("13", "31", "48", "63", "79", "119")  # told as 0, so that a first one is seen to rise


@dataclass(frozen=True)
class OwnFacts:
    """built: labels of what the last deploy laid down, by name. speculative: whether drafts are
    made. passed, failed: when a unit last passed its gate, and last did not, seconds since the
    epoch; None for never. gated: whether what is installed is what passed last. reboot_reasons:
    why the next reboot would lose the card; None where that can't be judged. kernel_log: its lines
    since the boot. when: now, seconds since the epoch. lent: whether a benchmark is at work on the
    server, as it is or with other flags for a while."""

    built: Mapping[str, str]
    speculative: bool
    passed: float | None
    failed: float | None
    gated: bool
    reboot_reasons: tuple[str, ...] | None
    kernel_log: tuple[str, ...]
    when: float
    lent: bool = False


def xids(kernel_log: Iterable[str]) -> Counter[str]:
    """How often the driver named each Xid."""
    found = (XID.search(line) for line in kernel_log)
    return Counter(match[1] for match in found if match)


def exposition(facts: OwnFacts) -> str:
    """For the textfile collector. What is not known is left out, never told as 0."""
    return textfile.text([family for family in families(facts) if family.samples])


def families(facts: OwnFacts) -> list[Family]:
    seen = xids(facts.kernel_log)
    survives = None if facts.reboot_reasons is None else float(not facts.reboot_reasons)
    return [
        Family("aibox_info", "What the last deploy laid down.", [(facts.built, 1)]),
        one("aibox_mtp_enabled", "Whether the server makes drafts.", float(facts.speculative)),
        one("aibox_gate_passed_timestamp_seconds", "When a unit last passed.", facts.passed),
        one("aibox_gate_failed_timestamp_seconds", "When a unit last did not.", facts.failed),
        one("aibox_gated", "Whether what is installed has passed.", float(facts.gated)),
        one("aibox_server_lent", "Whether a benchmark has the server.", float(facts.lent)),
        one("aibox_next_reboot_keeps_card", "Whether the next reboot keeps the card.", survives),
        Family(
            "aibox_xid_errors_total",
            "Faults of the card that the driver has told since the boot, by Xid.",
            [({"xid": xid}, seen[xid]) for xid in sorted({*USUAL_XIDS, *seen}, key=int)],
        ),
        one("aibox_facts_timestamp_seconds", "When these were read.", round(facts.when)),
    ]


def one(name: str, words: str, value: float | None) -> Family:
    return Family(name, words, [] if value is None else [({}, value)])
