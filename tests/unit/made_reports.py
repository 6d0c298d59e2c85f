"""Reports of benchmarks as a box gives them, with figures of one's choice."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Report = dict[str, Any]
TTFT = 0.1


def request(speed: float, tokens: int = 1500, prompt: int = 60) -> dict[str, Any]:
    """speed: tokens/s, time to first token included."""
    return {"prompt": prompt, "tokens": tokens, "ttft": TTFT, "seconds": tokens / speed}


def point(speeds: Sequence[float], **more: Any) -> Report:
    """One that was measured so often; accepted: (drafts, tokens drafted, accepted, by position).

    With several streams each speed is the total of one batch.
    """
    usual: dict[str, Any] = {"kind": "code", "concurrency": 1, "context": 0, "thinking": False}
    usual |= {"accepted": (0, 0, 0, ()), "failed": 0, **more}
    names = ("drafts", "draft_tokens", "accepted_tokens", "accepted_at")
    counted: dict[str, Any] = dict(zip(names, usual.pop("accepted"), strict=True))
    streams, failed = usual["concurrency"], usual.pop("failed")
    each = [request(speed / streams) for speed in speeds]
    batches = [each] if streams == 1 else [[one] * streams for one in each]
    return {
        **usual,
        "name": usual["kind"],
        "counted": {**counted, "generation_tokens": 1500 * len(speeds)},
        "batches": [
            {"requests": batch, "failed": failed, "seconds": batch[0]["seconds"]}
            for batch in batches
        ],
    }


def server(drafts: int, *points: Report, **more: Any) -> Report:
    name = f"{drafts} drafts" if drafts else "no drafts"
    return {
        **{"name": name, "drafts": drafts, "prefix_caching": True, "is_installed": drafts == 2},
        **{"points": list(points), "notes": [], "kv_tokens": 747_706, **more},
    }


def report(mode: str, *servers: Report, **more: Any) -> Report:
    return {
        **{"format": 1, "mode": mode, "asked": {"mode": mode}, "when": 1_790_000_000.0},
        **{"whole": True, "unit": "b" * 64},
        **{"box": "ai-box", "model": "qwen3.8-27b", "card": "qwen3.8-27b", "commit": "a" * 40},
        **{"release": "0.31.0-cae5c1e2", "flags": {"max-num-seqs": 480}, "driver": "580.178.04"},
        **{"gpu": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "pci": "10de:2bb1"},
        "step": {"model": 55e9, "head": 0.0, "experts": 0.0, "share": 1.0},
        **{"tools": {"read_file": ["path"]}, "servers": list(servers), **more},
    }


def answers(*texts: str) -> Report:
    """What a server said to prompts p0, p1, …, twice alike."""
    rows: list[dict[str, Any]] = [
        {"prompt": f"p{at}", "run": run, "text": text, "calls": [], "finish": "stop"}
        | {"tokens": 9, "tools": False}
        for run in (0, 1)
        for at, text in enumerate(texts)
    ]
    return {"answers": rows, "hits": 4000, "drafts": 70, "accepted": 90}


def his() -> Report:
    """What the owner of the reference box measured."""
    smoke = (70, 140, 90, (55, 35))
    return report(
        "seed",
        server(
            2,
            point([67.5, 66.3], accepted=smoke),
            point([57.2, 55.9], kind="prose", accepted=smoke),
        ),
        server(0, point([28.5]), point([28.5], kind="prose")),
    )
