"""The Prometheus text of 0.31.0: a real exposition as the template, its values kept here."""

from __future__ import annotations

import re
import threading
from importlib import resources
from typing import Any

from .answers import Draft

_LINE = re.compile(r"^(?P<name>[\w:]+)\{(?P<labels>.*)\} (?P<value>\S+)$")
_BOUND = re.compile(r'le="([^"]+)"')


class Metrics:
    """Values by series, under one lock; `speculative` is the draft length or 0."""

    def __init__(self, model: str, speculative: int, cache: dict[str, str]) -> None:
        self._lock = threading.Lock()
        self._rows: list[str] = []
        self._values: dict[str, float] = {}
        self._histograms: dict[str, list[tuple[str, float]]] = {}
        self._found: dict[tuple[str, str], list[str]] = {}
        text = resources.files("vllm").joinpath("metrics.txt").read_text()
        for line in text.splitlines():
            name = line.split()[2] if line.startswith("# ") else line.split("{")[0]
            if "spec_decode" in name and not speculative:
                continue
            if "per_pos_total{" in line:
                if 'position="0"' in line:
                    for at in range(speculative):
                        self._add(line.replace('position="0"', f'position="{at}"'), model, cache)
                continue
            self._add(line, model, cache)

    def _add(self, line: str, model: str, cache: dict[str, str]) -> None:
        if line.startswith("# "):
            self._rows.append(line)
            return
        found = _LINE.match(line)
        assert found, line
        labels = found["labels"].replace('"MODEL"', f'"{model}"')
        if found["name"] == "vllm:cache_config_info":
            for key, value in cache.items():
                labels = re.sub(rf'\b{key}="[^"]*"', f'{key}="{value}"', labels)
        series = f"{found['name']}{{{labels}}}"
        self._rows.append(series)
        self._values[series] = float(found["value"])
        if bound := _BOUND.search(labels):
            family = found["name"].removesuffix("_bucket")
            self._histograms.setdefault(family, []).append((series, float(bound[1])))

    def _find(self, name: str, label: str = "") -> list[str]:
        key = (name, label)
        if key not in self._found:
            start = f"vllm:{name}{{"
            self._found[key] = [s for s in self._values if s.startswith(start) and label in s]
        return self._found[key]

    def add(self, name: str, amount: float, label: str = "") -> None:
        """Count; `label` ('reason="stop"') picks one series of several."""
        with self._lock:
            for series in self._find(name, label):
                self._values[series] += amount

    def set(self, name: str, value: float, label: str = "") -> None:
        with self._lock:
            for series in self._find(name, label):
                self._values[series] = value

    def observe(self, name: str, value: float) -> None:
        """Put a value into a histogram."""
        with self._lock:
            for series, bound in self._histograms.get(f"vllm:{name}", []):
                self._values[series] += value <= bound
            for series in self._find(f"{name}_count"):
                self._values[series] += 1
            for series in self._find(f"{name}_sum"):
                self._values[series] += value

    def drafted(self, draft: Draft) -> None:
        self.add("spec_decode_num_drafts_total", 1)
        self.add("spec_decode_num_draft_tokens_total", draft.drafted)
        self.add("spec_decode_num_accepted_tokens_total", draft.accepted)
        for at in range(draft.accepted):
            self.add("spec_decode_num_accepted_tokens_per_pos_total", 1, f'position="{at}"')

    def text(self) -> str:
        with self._lock:
            return "".join(
                f"{row}\n" if row.startswith("#") else f"{row} {self._values[row]}\n"
                for row in self._rows
            )

    def request(self, times: dict[str, Any], prompt: int, generated: int, reason: str) -> None:
        """Everything that is counted once a request is over; `times` by histogram name."""
        self.add("request_success_total", 1, f'finished_reason="{reason}"')
        for name, seconds in times.items():
            self.observe(name, seconds)
        self.observe("request_prompt_tokens", prompt)
        self.observe("request_generation_tokens", generated)
        self.observe("request_prefill_kv_computed_tokens", prompt)
