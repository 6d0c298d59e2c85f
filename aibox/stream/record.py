"""What the log says of a request: one line, without content and without a key."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass, field


@dataclass
class Record:
    """One request. api: which of the server's, or "other"."""

    api: str
    path: str  # as it is shown: of a fixed list
    method: str
    remote: str | None
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    key: str = "-"  # its name
    streamed: bool = False
    first_s: float | None = None  # seconds until the first of the answer came
    sent: int = 0  # bytes
    counts: Counter[str] = field(default_factory=Counter)  # mends
    ending: str = "whole"

    def see_first(self) -> None:
        if self.first_s is None:
            self.first_s = time.monotonic() - self.began

    def line(self) -> str:
        method = self.method if self.method in ("GET", "POST") else "OTHER"
        first = "-" if self.first_s is None else f"{self.first_s:.3f}s"
        mends = ",".join(f"{name}:{number}" for name, number in sorted(self.counts.items()))
        return (
            f"{method} {self.path} {self.status} {'stream' if self.streamed else 'body'} "
            f"key={self.key} from={self.remote} first={first} "
            f"total={time.monotonic() - self.began:.3f}s bytes={self.sent} "
            f"mends={mends or '-'} end={self.ending.replace(' ', '_')}"
        )
