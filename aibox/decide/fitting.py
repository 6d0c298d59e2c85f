"""Do the weights fit the cards: arithmetic that needs no start, and never refuses what starts.

Everything here is a lower bound. What vLLM takes beside it (activations, graphs, states of a
hybrid model) is not counted, and what can't be told from flags and config.json is not judged.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.figures import MIB, counted, gigabytes
from aibox.decide.refusal import Refusal
from aibox.decide.spread import TENSOR, Spread, spread_of
from aibox.decide.start_limits import UTILIZATION

# NVML's total holds what the driver keeps for itself and CUDA does not show: 638 MiB of 97,887.
DRIVERS_OWN_BYTES = 638 * MIB
# By PCI id, where there is no driver yet that tells: the RTX PRO 6000 Blackwell in its editions.
MEMORY_OF = dict.fromkeys(("10de:2bb1", "10de:2bb4", "10de:2bb5"), 97_887 * MIB)
# An image tower and a draft head may stay unloaded: a few per cent of the files.
SURELY_LOADED = 0.95
# With these the files' size says little about what comes to lie on a card.
UNTELLING = (
    *("cpu-offload-gb", "offload-group-size", "offload-backend"),
    *("quantization", "load-format", "hf-overrides"),
)
MOST = 0.97  # of a card's memory that a server can be given
# Bytes of one number in the KV cache; another type is not judged.
CACHE_BYTES = {"bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}

Flags = Mapping[str, Any]


@dataclass(frozen=True)
class Load:
    """What a server puts on its cards. weights: bytes of the files; 0: not known. share: of a
    card's memory that it may take, 0 to 1. cache: bytes of KV cache on each card that one request
    of full length takes; 0: not known."""

    weights: int
    spread: Spread
    share: float
    parts: int
    cache: float = 0
    context: int = 0  # tokens of that request

    @property
    def on_a_card(self) -> float:
        return self.weights / self.parts


def load_of(flags: Flags, weights: int, *, dense: bool = False) -> Load:
    """flags: merged. weights: bytes of the files that are loaded. dense: whether it is known that
    there are no experts: those of a replica's weights may lie on the cards of all replicas."""
    spread = spread_of(flags)
    told = not any(flags.get(name) not in (None, False, "auto", 0) for name in UNTELLING)
    by_hand = "kv-cache-memory-bytes" in flags  # the utilisation bounds nothing then
    share = 1.0 if by_hand else share_of(flags)
    parts = spread.parts * (1 if dense else spread.replicas)
    return Load(weights if told else 0, spread, share, parts)


def share_of(flags: Flags) -> float:
    """Of a card's memory that the flags give to a server, 0 to 1."""
    return float(str(given_share(flags)))


def given_share(flags: Flags) -> object:
    """The same as it is written there, under either name."""
    given = flags.get("gpu-memory-utilization", flags.get("device-memory-utilization"))
    return UTILIZATION if given is None else given


def refusal(load: Load, memory: Sequence[int]) -> Refusal | None:
    """Whether weights, and the cache of one request, fit the smallest of the cards.

    memory: bytes of each card, as NVML tells. None where they may fit, or nothing is known.
    """
    if not all(memory) or not memory or load.weights == 0:
        return None
    smallest = min(memory) - DRIVERS_OWN_BYTES
    room = smallest * load.share
    if load.on_a_card * SURELY_LOADED + load.cache < room:
        return None
    over = f"over {counted(load.parts, 'card')}: {gigabytes(round(load.on_a_card))} a card"
    cache = (
        f", and {gigabytes(round(load.cache))} of KV cache for one request" if load.cache else ""
    )
    tokens = f" of {load.context:,} tokens" if load.cache else ""
    of_it = f"{gigabytes(smallest)} × {load.share:g} = {gigabytes(round(room))}"
    return Refusal(
        f"{gigabytes(load.weights)} of weights {over}{cache}{tokens}; a card gives the server "
        f"{of_it}",
        "weights that leave room for the KV cache on each card (an estimate: they are cut evenly)",
        _remedy(load, smallest),
    )


def _remedy(load: Load, smallest: int) -> str:
    """The smallest tensor size that is a power of two and would do, or a higher share."""
    ways = []
    needed = load.on_a_card + load.cache
    share = math.ceil(100 * needed / smallest + 1) / 100
    if load.share < share <= MOST:
        ways.append(f"gpu-memory-utilization {share:.2f} or more")
    wanted, room = 2 * load.spread.tensor, smallest * load.share
    while needed * load.spread.tensor / wanted >= room and wanted < 64:
        wanted *= 2
    cards = load.spread.cards * wanted // load.spread.tensor
    if needed * load.spread.tensor / wanted < room:
        ways.append(f"{TENSOR} {wanted}, on a box with {cards} such cards")
    if load.cache:
        ways.append("a smaller max-model-len")
    if not ways:
        return "take smaller weights: no number of such cards holds these"
    return f"set {', or '.join(ways)} (in the card, or with `serve`), or take smaller weights"


# --- what config.json tells ----------------------------------------------------------------------


def text_of(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, Mapping) else config


def is_halved(config: Mapping[str, Any]) -> bool:
    """Whether vLLM loads the weights in half the size of their files."""
    text = text_of(config)
    return "float32" in str(text.get("dtype") or text.get("torch_dtype"))


def has_experts(config: Mapping[str, Any]) -> bool:
    names = ("num_experts", "n_routed_experts", "num_local_experts")
    return any(text_of(config).get(name) for name in names)


def cache_of_a_request(
    config: Mapping[str, Any], flags: Flags, spread: Spread, tokens: float
) -> float:
    """Bytes on each card for one request of so many tokens: its full attention layers alone.

    0 where config.json does not tell them: another way of attending has another cache.
    """
    text = text_of(config)
    layers = attending(text)
    heads, size = (text.get(name) for name in ("num_key_value_heads", "head_dim"))
    kind = str(flags.get("kv-cache-dtype", "auto"))
    kind = str(text.get("dtype") or text.get("torch_dtype")) if kind == "auto" else kind
    each = CACHE_BYTES.get(kind)
    odd = ("kv_lora_rank", "num_kv_shared_layers")
    if layers is None or each is None or any(text.get(name) for name in odd):
        return 0
    if "decode-context-parallel-size" in flags or "quantization_config" in config:
        return 0
    if not isinstance(heads, int) or not isinstance(size, int):
        return 0
    on_a_card = max(1, heads / spread.tensor)
    return 2 * layers / spread.pipeline * on_a_card * size * each * tokens / spread.context


def attending(text: Mapping[str, Any]) -> int | None:
    """How many layers keep every token; None where config.json does not say."""
    kinds = text.get("layer_types")
    if isinstance(kinds, list):
        return sum(1 for kind in kinds if kind == "full_attention")
    layers, every = text.get("num_hidden_layers"), text.get("full_attention_interval")
    if isinstance(layers, int) and isinstance(every, int) and every > 0:
        return layers // every
    return None


# Of config.json: what tensor parallelism cuts, each head whole. vLLM asserts these at its start.
CUT = {
    "num_attention_heads": "attention heads",
    "linear_num_value_heads": "value heads of linear attention",
}


def uncut(config: Mapping[str, Any], spread: Spread) -> list[str]:
    """What can't be cut into so many parts, in words; empty where all can."""
    text, tensor = text_of(config), spread.tensor
    found = [
        f"{text[name]} {words}"
        for name, words in CUT.items()
        if isinstance(text.get(name), int) and text[name] % tensor
    ]
    pairs = text.get("num_key_value_heads")
    if isinstance(pairs, int) and pairs > 0 and max(pairs, tensor) % min(pairs, tensor):
        found.append(f"{pairs} key-value heads")
    layers = text.get("num_hidden_layers")
    if isinstance(layers, int) and layers < spread.pipeline:
        found.append(f"{layers} layers into {spread.pipeline} stages")
    return found


def sizes_that_cut(config: Mapping[str, Any]) -> list[int]:
    """The tensor sizes up to 16 that would do."""
    return [size for size in range(1, 17) if not uncut(config, Spread(tensor=size))]
