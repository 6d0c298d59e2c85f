"""Which graphics cards a server over several takes, where the settings name none."""

from __future__ import annotations

import json

from pyinfra import host

from aibox.decide.preflight import gpu_from
from aibox.decide.refusal import Refusal
from aibox.decide.spread import Choice
from aibox.decide.vram import judge
from tasks.facts import Probe


def pinned(wanted: Choice) -> tuple[str, ...]:
    """Those that a unit is pinned to: named, or taken for a server over several."""
    return wanted.uuids if wanted.uuids or wanted.count == 1 else there(wanted)


def there(wanted: Choice) -> tuple[str, ...]:
    """Their UUIDs, in the order of the bus; none while the box can't tell, or they do not do."""
    gpu = gpu_from(json.dumps(host.get_fact(Probe, "cards")))
    found = judge(gpu.cards, gpu.error, wanted)
    return () if isinstance(found, Refusal) else tuple(card.uuid for card in found)
