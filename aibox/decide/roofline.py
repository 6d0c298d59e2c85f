"""How close decoding is to what the card's memory allows: bytes per step against its bandwidth."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

# Bytes a second, by PCI id. Source: NVIDIA's data sheets of the RTX PRO 6000 Blackwell
# (Workstation and Max-Q 1,792 GB/s, Server 1,597 GB/s: 512 bits of GDDR7).
BANDWIDTH = {
    "10de:2bb1": 1792e9,  # Workstation Edition
    "10de:2bb4": 1792e9,  # Max-Q Workstation Edition
    "10de:2bb5": 1597e9,  # Server Edition
}
EXPERT = re.compile(r"\.experts?\.")
OUTPUT = re.compile(r"(^|\.)(lm_head|shared_head\.head)\.")  # makes a token of the last layer
# Not read for each token: the image tower, and the table of which a step takes a few rows.
NOT_READ = re.compile(r"(^|\.)(visual|vision_tower|vision_model)\.|embed_tokens\.")


@dataclass(frozen=True)
class Step:
    """Bytes of weights that one step reads: by the model, by each run of its head (the output
    layer included), and by all experts together, of which a token takes `share` (1 without)."""

    model: float
    head: float = 0.0
    experts: float = 0.0
    share: float = 1.0

    def bytes(self, drafts: int) -> float:
        """With so many drafted tokens. Each token of a step may take other experts."""
        experts = self.experts * min(1.0, self.share * (1 + drafts))
        return self.model + experts + self.head * drafts


def step_of(sizes: Mapping[str, int], config: Mapping[str, Any], head: str | None) -> Step:
    """sizes: bytes by the tensor's name. config: config.json. head: how its tensors begin.

    The KV cache is left out: at short contexts it is below a percent of the weights. A head without
    an output layer of its own makes its tokens by the model's.
    """
    read = {name: size for name, size in sizes.items() if not NOT_READ.search(name)}
    of_head = {name for name in read if head and name.startswith(head)}
    of_experts = {name for name in read.keys() - of_head if EXPERT.search(name)}
    rest = read.keys() - of_head - of_experts
    own = any(OUTPUT.search(name) for name in of_head)
    shared = {name for name in rest if OUTPUT.search(name)} if of_head and not own else set()
    return Step(
        model=sum(read[name] for name in rest),
        head=sum(read[name] for name in of_head | shared),
        experts=sum(read[name] for name in of_experts),
        share=expert_share(config),
    )


def expert_share(config: Mapping[str, Any]) -> float:
    inner = config.get("text_config")
    parts = [config, inner if isinstance(inner, Mapping) else {}]
    found = {
        name: part[name]
        for part in parts
        for name in ("num_experts", "n_routed_experts", "num_experts_per_tok")
        if isinstance(part.get(name), int)
    }
    every = found.get("num_experts") or found.get("n_routed_experts")
    taken = found.get("num_experts_per_tok")
    return taken / every if taken and every else 1.0


def line(
    step: Step,
    card: str | None,
    tokens_per_second: float,
    drafts: int,
    mean_length: float,
    tensor: int = 1,
) -> str:
    """One line: what a step reads, how fast the card's memory is, and how close the run is.

    card: its PCI id. tokens_per_second: of one stream, decoding. mean_length: tokens a step
    yields, 1 without drafts. tensor: cards that read a step together, each its part; pipeline
    stages read one after the other, and another replica reads for other streams.
    """
    read = step.bytes(drafts)
    if card not in BANDWIDTH:
        which = card or "that is not there"
        return f"{gigabytes(read)} a step; nobody wrote down the bandwidth of a card {which}"
    most = tensor * BANDWIDTH[card] / read
    steps = tokens_per_second / mean_length
    times = f"{tensor} × " if tensor > 1 else ""
    return (
        f"{gigabytes(read)} a step at {times}{BANDWIDTH[card] / 1e9:,.0f} GB/s allow "
        f"{most:,.1f} steps/s; the run makes {steps:.1f}, {100 * steps / most:.0f} % of that"
    )


def gigabytes(size: float) -> str:
    return f"{size / 1e9:.1f} GB" if size >= 1e8 else f"{size / 1e6:.2f} MB"
