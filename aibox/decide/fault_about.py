"""What is known of a server beside its journal, and how a remedy names the setting to change."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT_UTILIZATION = 0.92  # vLLM 0.31.0's, where the flag is absent
SITE = "group_data/site.py"


@dataclass(frozen=True)
class Holder:
    """A process that holds a port or the card. mib: of the card's memory; None where unknown."""

    pid: int
    name: str
    mib: int | None = None

    def __str__(self) -> str:
        memory = "" if self.mib is None else f", {self.mib} MiB"
        return f"{self.name} (pid {self.pid}{memory})"


@dataclass(frozen=True)
class About:
    """What is known beside the journal; every part may be missing.

    flags: {flag without dashes: value} as in the card, merged. sources: {flag: the file or setting
    that won}. user, weights, release, port: as in the unit. port_owner: who has the port now, our
    server apart. holders: who has the card's memory now, our server apart. card_bytes: of that
    memory. driver_loaded, driver_installed: full versions. serves: whether the server answers
    again now.
    """

    flags: Mapping[str, Any] = field(default_factory=dict)
    sources: Mapping[str, str] = field(default_factory=dict)
    card_file: str | None = None
    unit: str = "vllm-coder.service"
    user: str | None = None
    weights: str | None = None
    release: str | None = None
    port: int | None = None
    port_owner: Holder | None = None
    holders: Sequence[Holder] = ()
    card_bytes: int | None = None
    driver_loaded: str | None = None
    driver_installed: str | None = None
    serves: bool = False

    @classmethod
    def of(cls, spec: Mapping[str, Any], **now: Any) -> About:
        """From the spec of judge, switch and gate; now: what was looked at (port_owner, …)."""
        known = ("flags", "sources", "card_file", "unit", "user", "weights", "release", "port")
        return cls(**{name: spec[name] for name in known if spec.get(name) is not None}, **now)

    @property
    def utilization(self) -> float:
        try:
            return float(self.flags.get("gpu-memory-utilization", DEFAULT_UTILIZATION))
        except (TypeError, ValueError):
            return DEFAULT_UTILIZATION

    def file_of(self, flag: str) -> str:
        """The file that decides a flag; the person's own settings where nobody has yet."""
        source = self.sources.get(flag)
        if source is None:
            source = self.card_file if flag in self.flags and self.card_file else SITE
        source = str(source)
        if source in (SITE, "the setting `serve`"):
            return f"{SITE} (the setting `serve`)"
        return source

    def setting(self, flag: str, value: object) -> str:
        """ "set max-num-seqs to 480 in group_data/models/x.yml"."""
        return f"set {flag} to {value} in {self.file_of(flag)}"

    @property
    def card(self) -> str:
        return self.card_file or "the model card (group_data/models/<model>.yml)"
