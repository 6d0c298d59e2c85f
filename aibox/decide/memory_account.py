"""Where the card's memory goes, from the journal of a start.

vLLM 0.31.0 gives the KV cache what the utilisation leaves after everything else:
utilisation * card - (weights and what else stays) - activations (graphs counted in).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from aibox.decide.fault_lines import Line, Stream, read

GIB = 1 << 30
MOST = 0.97  # of the card: what a driver and a context of its own leave, where nothing was said
DISAGREE = "these figures do not agree with a server that serves"
API_SERVER = re.compile(r"vLLM API server version ")


@dataclass(frozen=True)
class Account:
    """GiB unless said otherwise; None where the journal does not say.

    weights: what loading the model took. consumed: weights and what stays beside torch.
    activations: the peak, with vLLM's own guess for the graphs. graphs: what capturing took.
    kv_cache: room for it. card, free: of the card as vLLM saw it at start. utilization: 0 to 1.
    context: tokens that a request may have. kv_tokens: of all requests together. requests: that
    fit at full context. mamba_blocks: of a hybrid model, each sequence takes one.
    """

    weights: float | None = None
    consumed: float | None = None
    activations: float | None = None
    graphs: float | None = None
    kv_cache: float | None = None
    kv_tokens: int | None = None
    context: int | None = None
    requests: float | None = None
    mamba_blocks: int | None = None
    utilization: float | None = None
    card: float | None = None
    free: float | None = None

    def record(self) -> dict[str, Any]:
        """For history.json."""
        return asdict(self)


@dataclass(frozen=True)
class Estimate:
    """What another utilisation would probably give; None where it can't be told."""

    utilization: float
    kv_cache: float
    kv_tokens: int | None
    requests: float | None
    mamba_blocks: int | None

    def __str__(self) -> str:
        parts = [f"{self.kv_cache:.1f} GiB of KV cache"]
        if self.kv_tokens is not None:
            parts.append(f"{self.kv_tokens:,} tokens")
        if self.requests is not None:
            parts.append(f"{self.requests:.2f} requests at full context")
        if self.mamba_blocks is not None:
            parts.append(f"{self.mamba_blocks} blocks")
        other = f"with gpu-memory-utilization {self.utilization:g} instead"
        return f"{other}: about {', '.join(parts)} (an estimate)"


# As vLLM 0.31.0 prints them (v1/worker/gpu_worker.py, gpu/model_runner.py, kv_cache_utils.py,
# metrics/loggers.py), with spaces left out.
_PATTERNS = tuple(
    re.compile(pattern.replace(" ", ""))
    for pattern in (
        r"Model loading took (?P<weights>[\d.]+) GiB memory and",
        r"Available KV cache memory: (?P<kv_cache>-?[\d.]+) GiB",
        r"\w+ KV cache size: (?P<kv_tokens>[\d,]+) tokens, Maximum concurrency for "
        r"(?P<context>[\d,]+) tokens per request: (?P<requests>[\d.]+)x",
        r"Graph capturing finished in \d+ secs, took (?P<graphs>[\d.]+) GiB",
        r"Free memory on device \((?P<free>[\d.]+)/(?P<card>[\d.]+) GiB\) on startup\. "
        r"Desired GPU memory utilization is \((?P<utilization>[\d.]+), [\d.]+ GiB\)\. "
        r"Actual usage is (?P<consumed>[\d.]+) GiB for consumed memory \(weights \+ non-torch\), "
        r"(?P<activations>[\d.]+) GiB for peak activation, "
        r"and (?P<graphs>[\d.]+) GiB for CUDAGraph memory",
        r"(?:Engine \d+|\d+ Engines): vllm cache_config_info with initialization after "
        r"num_gpu_blocks is: (?P<mamba_blocks>\d+)",
        r"(?:ValueError:)?max_num_seqs \(\d+\) exceeds available Mamba cache blocks "
        r"\((?P<mamba_blocks>\d+)\)",
        r"(?:ValueError:)?Free memory on device [\w:]+ \((?P<free>[\d.]+)/(?P<card>[\d.]+) GiB\) "
        r"on startup is less than desired GPU memory utilization \((?P<utilization>[\d.]+),",
    )
)
_WHOLE = ("kv_tokens", "context", "mamba_blocks")


def account(lines: Sequence[str]) -> Account:
    """What the lines of a start say; of several starts, the last."""
    log = [line for line in read(lines) if line.whose in ("server", "perhaps")]
    begins = [at for at, line in enumerate(log) if API_SERVER.match(line.text.strip())]
    stream = Stream(log[begins[-1] :] if begins else log)
    found: dict[str, float | int] = {}
    for pattern in _PATTERNS:
        for hit in stream.hits(pattern):
            found |= {name: _number(name, text) for name, text in hit.groups.items()}
    if "mamba_blocks" in found and not _is_hybrid(log):
        del found["mamba_blocks"]
    return of_record(found)


def _number(name: str, text: str) -> float | int:
    plain = text.replace(",", "").rstrip(".")
    return int(plain) if name in _WHOLE else float(plain)


def _is_hybrid(log: Sequence[Line]) -> bool:
    """Whether the model keeps a state for each sequence: only then a block is one sequence's."""
    telling = re.compile(r"mamba page size|Mamba cache (?:block|mode)")
    return any(telling.search(line.text) for line in log)


def with_metrics(found: Account, exposition: str) -> Account:
    """With the blocks that a running server tells in /metrics, which its journal leaves out."""
    row = re.search(r"^vllm:cache_config_info\{(.*)\}", exposition, re.MULTILINE)
    labels = dict(re.findall(r'(\w+)="([^"]*)"', row[1])) if row else {}
    blocks = labels.get("num_gpu_blocks", "")
    hybrid = labels.get("mamba_block_size", "None") not in ("None", "")
    if not hybrid or not blocks.isdigit():
        return found
    return replace(found, mamba_blocks=int(blocks))


def of_record(record: Mapping[str, Any] | None) -> Account:
    """The account out of history.json; what this version does not know is left out."""
    known = {one.name for one in fields(Account)}
    numbers: dict[str, Any] = {
        name: value
        for name, value in (record or {}).items()
        if name in known and isinstance(value, int | float) and not isinstance(value, bool)
    }
    return Account(**numbers)


def rows(
    found: Account, card_bytes: int | None, flags: Mapping[str, Any], *, serves: bool
) -> list[tuple[str, str]]:
    """(name, words) of what is known, for a screen; empty where nothing is. serves: whether this
    start came to serve: what can't be then is not told as a fact."""
    card = found.card or (card_bytes / GIB if card_bytes else None)
    used = found.utilization or _float(flags.get("gpu-memory-utilization"))
    shown: list[tuple[str, str | None]] = [
        ("card", None if card is None else f"{card:.2f} GiB{_share(used, card)}"),
        ("weights", _weights(found)),
        ("activations", _gib(found.activations, " at the peak")),
        ("graphs", _gib(found.graphs)),
        ("KV cache", _kv_cache(found, serves=serves)),
        ("requests", _requests(found)),
        ("sequences", _sequences(found, flags, serves=serves)),
        ("estimate", _another(found, card_bytes, used)),
    ]
    return [(name, words) for name, words in shown if words is not None]


def _float(value: object) -> float | None:
    try:
        return float(value)  # type: ignore[arg-type]  # what is no number is caught below
    except (TypeError, ValueError):
        return None


def _share(used: float | None, card: float) -> str:
    return "" if used is None else f", {used:g} of it for the server: {used * card:.2f} GiB"


def _gib(value: float | None, more: str = "") -> str | None:
    return None if value is None else f"{value:.2f} GiB{more}"


def _weights(found: Account) -> str | None:
    if found.consumed is None:
        return _gib(found.weights)
    of_it = "" if found.weights is None else f", the model {found.weights:.2f} GiB of it"
    return f"{found.consumed:.2f} GiB with what stays beside them{of_it}"


def _kv_cache(found: Account, *, serves: bool) -> str | None:
    if found.kv_cache is not None and found.kv_cache <= 0:
        if serves:
            return f"{found.kv_cache:.2f} GiB: {DISAGREE}"
        return (
            f"none: the server needs {-found.kv_cache:.2f} GiB more than its share of the card "
            "before it; it takes a higher gpu-memory-utilization, or a model that is smaller"
        )
    parts = [_gib(found.kv_cache), found.kv_tokens and f"{found.kv_tokens:,} tokens"]
    return ", ".join(str(part) for part in parts if part) or None


def _requests(found: Account) -> str | None:
    if found.requests is None or found.context is None:
        return None
    return f"{found.requests:.2f} at full context ({found.context:,} tokens)"


def _sequences(found: Account, flags: Mapping[str, Any], *, serves: bool) -> str | None:
    wanted = flags.get("max-num-seqs")
    if found.mamba_blocks is None or not isinstance(wanted, int):
        return None
    if serves and wanted > found.mamba_blocks:
        return f"{wanted} sequences, {found.mamba_blocks} blocks: {DISAGREE}"
    fit = "fit" if wanted <= found.mamba_blocks else "do not fit"
    return f"{wanted} sequences {fit} {found.mamba_blocks} blocks"


def _another(found: Account, card_bytes: int | None, used: float | None) -> str | None:
    if used is None:
        return None
    other = round(used + 0.02 if used <= 0.93 else used - 0.02, 2)
    guess = estimate(replace(found, utilization=used), card_bytes, other)
    return None if guess is None else str(guess)


def estimate(found: Account, card_bytes: int | None, utilization: float) -> Estimate | None:
    """What `utilization` would give, linear in the memory that is left for the KV cache.

    An estimate: activations and graphs are taken as they were. None where the account does not
    tell enough, and where nothing would be left.
    """
    card = found.card or (card_bytes / GIB if card_bytes else None)
    now = found.utilization if found.utilization is not None else None
    if card is None or now is None or not found.kv_cache or found.kv_cache <= 0:
        return None
    room = found.kv_cache + (utilization - now) * card
    if room <= 0:
        return None
    grows = room / found.kv_cache
    return Estimate(
        utilization,
        round(room, 2),
        None if found.kv_tokens is None else int(found.kv_tokens * grows),
        None if found.requests is None else round(found.requests * grows, 2),
        None if found.mamba_blocks is None else int(found.mamba_blocks * grows),
    )


def utilization_for(
    found: Account, grows: float, used: float, card_bytes: int | None = None
) -> float | None:
    """The utilisation, up to whole hundredths, that would give `grows` times the KV cache.

    used: what it is now, where the account does not say. None where it can't be told, or would
    be more than the card has free.
    """
    now = found.utilization if found.utilization is not None else used
    card = found.card or (card_bytes / GIB if card_bytes else None)
    if card is None or not found.kv_cache or found.kv_cache <= 0:
        return None
    exact = now + found.kv_cache * (grows - 1) / card
    wanted = math.ceil(round(exact * 100, 6)) / 100
    most = MOST if found.free is None else math.floor(found.free / card * 100) / 100
    return wanted if wanted <= most else None
