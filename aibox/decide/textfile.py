"""Text for the textfile collector of Prometheus' node exporter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Family:
    """A metric with its samples: (labels, value). A counter's name ends with _total."""

    name: str
    help: str
    samples: Sequence[tuple[Mapping[str, str], float]]

    @property
    def type(self) -> str:
        return "counter" if self.name.endswith("_total") else "gauge"


def text(families: Sequence[Family]) -> str:
    lines = []
    for family in families:
        lines += [f"# HELP {family.name} {family.help}", f"# TYPE {family.name} {family.type}"]
        lines += [f"{family.name}{labels(pairs)} {value:.15g}" for pairs, value in family.samples]
    return "\n".join(lines) + "\n"


def labels(pairs: Mapping[str, str]) -> str:
    if not pairs:
        return ""
    return "{" + ",".join(f'{name}="{escaped(value)}"' for name, value in pairs.items()) + "}"


def escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
