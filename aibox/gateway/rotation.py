"""Which boxes LiteLLM asks: healthy ones that nobody has taken out.

This file is laid beside door.py, and needs nothing of ours.
"""

from __future__ import annotations

import json
import math
from typing import Any


def out_in(text: str) -> dict[str, dict[str, Any]]:
    """{box: {"why": text, "since": seconds since 1970}} of a rotation.json. Raises ValueError."""
    whole = json.loads(text)
    out = whole.get("out") if isinstance(whole, dict) else None
    if not isinstance(out, dict):
        raise ValueError("it has no mapping `out`")
    for box, one in out.items():
        since = one.get("since") if isinstance(one, dict) else None
        is_number = isinstance(since, int | float) and not isinstance(since, bool)
        if not is_number or not math.isfinite(since) or not isinstance(one.get("why"), str):
            raise ValueError(f"{box} has no `why` and `since`")
    return out
