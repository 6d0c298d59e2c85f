"""Which of FlashInfer's kernels a server will want, so that they are compiled before it starts.

The shapes are those that vLLM 0.31.0 asks of FlashInfer 0.7.0 on compute capability 12.0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Kernel = dict[str, Any]

ARCHITECTURE = "12.0f"  # what FlashInfer itself chooses for this card with CUDA 12.9 and newer
KV_TYPES = {"auto": "bfloat16", "bfloat16": "bfloat16", "fp8": "float8_e4m3fn"}
KV_TYPES["fp8_e4m3"] = KV_TYPES["fp8"]


def wanted(
    locked: Mapping[str, str],
    flags: Mapping[str, Any],
    attention: Mapping[str, int] | None,
    drafts: int,
) -> list[Kernel]:
    """The kernels for one server; empty where the lock has no FlashInfer.

    attention: {"head_dim", "group": query heads for each key-value head, "page": tokens} of the
    model, or None when the card does not say. drafts: speculative tokens, 0 without; a step may
    verify fewer of them, and each number is a kernel of its own.
    """
    if "flashinfer-python" not in locked:
        return []
    kernels: list[Kernel] = [{"kind": "sampling"}]
    kv = KV_TYPES.get(str(flags.get("kv-cache-dtype", "auto")))
    backend = str(flags.get("attention-backend", "")).upper()
    if attention is None or kv is None or backend != "FLASHINFER":
        return kernels
    shape = {"query": "bfloat16", "kv": kv, "head_dim": attention["head_dim"]}
    kernels.append({"kind": "prefill", **shape})
    group = {"group": attention["group"], "page": attention["page"]}
    kernels += [
        {"kind": "xqa", **shape, **group, "tokens": tokens} for tokens in range(1, 2 + drafts)
    ]
    return kernels


def missing(wanted: Sequence[Kernel], found: Mapping[str, Any] | None) -> list[Kernel]:
    """Those that a release does not hold. found: its record, {"built": [{"kernel", …}]}."""
    built = [entry["kernel"] for entry in (found or {}).get("built", [])]
    return [kernel for kernel in wanted if kernel not in built]


def described(kernel: Kernel) -> str:
    """ "xqa head_dim 256, group 6, tokens 3": what a person sees of it."""
    rest = {name: value for name, value in kernel.items() if name != "kind"}
    words = ", ".join(f"{name} {value}" for name, value in rest.items())
    return f"{kernel['kind']} {words}".strip()
