"""What is known to be wrong upstream with what a card asks for, told before a person runs into it.

Data: versions of vLLM x settings of the card -> warning, ways out, reference. Read on control, for
the plan; an issue never stops a deploy.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from aibox.decide.spread import Spread, spread_of

Flags = Mapping[str, Any]
WIDTH = 4  # of the indent of what belongs to a warning


class CardLike(Protocol):
    """What is asked of a model card."""

    @property
    def repository(self) -> str: ...
    @property
    def prefix_cache_with_mtp(self) -> str: ...
    @property
    def head(self) -> Any: ...


@dataclass(frozen=True)
class Asked:
    """What a card and its settings ask of vLLM. hybrid: Gated DeltaNet layers beside attention.

    tensor: cards that read each layer together. parts: cards that hold one copy of the model.
    """

    hybrid: bool
    mtp: bool
    prefix_cache: bool
    trusted: bool
    backend: str
    kv_cache: str
    tensor: int = 1
    parts: int = 1


@dataclass(frozen=True)
class KnownIssue:
    """warning: a sentence or two. ways_out: each an exact setting or what to watch.

    vllm: the versions that have it, as far as is known. reference: where it is discussed.
    """

    key: str
    vllm: str
    applies: Callable[[Asked], bool]
    warning: str
    ways_out: tuple[str, ...]
    reference: str


# The reference facts of vLLM 0.31.0, row 3 and the list of sm_120. A newer version is looked at
# when its lock is made: until then it has none of these.
KNOWN = (
    KnownIssue(
        key="prefix_cache_with_mtp",
        vllm="<0.32",
        applies=lambda asked: asked.hybrid and asked.mtp and asked.prefix_cache and asked.trusted,
        warning=(
            "prefix caching together with MTP on this hybrid model is an open class of bugs: "
            "answers may come out empty or worse, acceptance may fall, and the engine may end "
            "with an illegal memory access (it comes back by itself)."
        ),
        ways_out=(
            "prefix_cache_with_mtp: off in the model card keeps MTP and gives the prefix cache up "
            "(time to first token: 7.4 times as long measured at 26.7K tokens)",
            "take speculative-config away to keep the prefix cache",
            "leave it, and watch for one-token answers and for acceptance falling to 0",
        ),
        reference="vLLM issues 53912, 47194, 43559, 54173; open fixes 48375, 57128, 50021",
    ),
    KnownIssue(
        key="gdn_prefix_cache",
        vllm="<0.32",
        applies=lambda asked: asked.hybrid and not asked.mtp and asked.prefix_cache,
        warning=(
            "prefix caching on a hybrid model has ended the engine with an illegal memory access "
            "on this kind of card (sm_120), without MTP too."
        ),
        ways_out=(
            "enable-prefix-caching: false, if Xid 13 or 31 is seen in the kernel's log",
            "leave it: the server comes back by itself",
        ),
        reference="vLLM issue 54173",
    ),
    KnownIssue(
        key="flashinfer_fp8_kv",
        vllm="<0.32",
        applies=lambda asked: asked.backend == "FLASHINFER" and asked.kv_cache.startswith("fp8"),
        warning=(
            "FLASHINFER with an fp8 KV cache has ended in a memory fault on this kind of card "
            "(sm_120) under load."
        ),
        ways_out=(
            "attention-backend: TRITON_ATTN is not affected",
            "leave it: the server comes back by itself",
        ),
        reference="vLLM issue 54225",
    ),
    KnownIssue(
        key="hybrid_prefix_hits",
        vllm="<0.32",
        applies=lambda asked: asked.hybrid and asked.prefix_cache,
        warning=(
            "the prefix cache of a hybrid model hits whole blocks only: a shared beginning under "
            "two blocks (3,200 tokens for the 27B family) is computed anew each time."
        ),
        ways_out=("nothing to set: do not take a low hit rate of short prompts for a fault",),
        reference="vLLM issues 51250, 45238",
    ),
    KnownIssue(
        key="cards_hang",
        vllm="<0.32",
        applies=lambda asked: asked.parts > 1,
        warning=(
            "two of these cards have hung at their first exchange where an IOMMU or PCIe's access "
            "control (ACS) stands between them: the server starts and never answers."
        ),
        ways_out=(
            "IOMMU off on the kernel's command line (amd_iommu=off, intel_iommu=off), ACS off in "
            "the firmware",
            "disable-custom-all-reduce: true in the model card, and NCCL_P2P_DISABLE = 1 in "
            "server_environment: slower, by way of the main memory",
            "leave it: a start that hangs fails its gate, and what served before serves again",
        ),
        reference="vLLM issues 33041, 51513; NCCL issue 1999",
    ),
    KnownIssue(
        key="no_own_all_reduce",
        vllm="<0.32",
        applies=lambda asked: asked.tensor > 2,
        warning=(
            "vLLM's own all-reduce is off over more than two cards without NVLink, and NCCL's "
            "takes its place: each further card brings less."
        ),
        ways_out=("nothing to set; a bench tells whether fewer cards serve as fast",),
        reference="vLLM issue 56128",
    ),
    KnownIssue(
        key="mtp_over_cards",
        vllm="<0.32",
        applies=lambda asked: asked.hybrid and asked.mtp and asked.tensor > 1,
        warning=(
            "MTP on a hybrid model over several cards has ended with an illegal memory access "
            "under load, reported of vLLM up to 0.20 with 5 drafts; nobody has said it is mended."
        ),
        ways_out=(
            "few drafts: num_speculative_tokens 1 or 2",
            "leave it: the server comes back by itself",
        ),
        reference="vLLM issues 37035, 40756",
    ),
)

# Families with Gated DeltaNet layers. The first is told by the key of their head in config.json,
# the others, and models whose head was taken away, by their repository's name.
HYBRID_HEAD = "mtp_num_hidden_layers"
HYBRID_NAME = re.compile(r"qwen3\.[5-9]|qwen3[_-]?(?:5|next)", re.IGNORECASE)


def known_issues(version: str, flags: Flags, card: CardLike) -> list[KnownIssue]:
    """The issues of KNOWN that a server has. flags: merged, as in the card.

    version: of vLLM, as the setting vllm_version; one that is no version has none.
    """
    asked = asked_of(flags, card)
    return [issue for issue in KNOWN if has(issue, version) and issue.applies(asked)]


def coming_with(
    flag: str, value: object, version: str, flags: Flags, card: CardLike
) -> list[KnownIssue]:
    """The issues that a server does not have yet, and would with this flag."""
    there = known_issues(version, flags, card)
    return [one for one in known_issues(version, {**flags, flag: value}, card) if one not in there]


# Longer signs first: "<=" begins with "<".
SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<=": operator.le,
    ">=": operator.ge,
    "==": operator.eq,
    "<": operator.lt,
    ">": operator.gt,
}


def has(issue: KnownIssue, version: str) -> bool:
    found = numbers(version)
    return found is not None and all(holds(found, part) for part in issue.vllm.split(","))


def holds(version: tuple[int, ...], condition: str) -> bool:
    """condition: one part of a specifier, "<0.32". A build of one's own counts as its version."""
    sign = next(sign for sign in SIGNS if condition.startswith(sign))
    return SIGNS[sign](version, numbers(condition.removeprefix(sign)))


def numbers(version: str) -> tuple[int, ...] | None:
    """(0, 31) of "0.31.0rc1" or "0.31.0+mine"; None for what is no version."""
    found = re.match(r"\d{1,6}(?:\.\d{1,6})*", version, re.ASCII)
    if found is None:
        return None
    parts = [int(part) for part in found[0].split(".")]
    while parts and parts[-1] == 0:
        parts.pop()
    return tuple(parts)


def asked_of(flags: Flags, card: CardLike) -> Asked:
    speculative = flags.get("speculative-config")
    method = speculative.get("method") if isinstance(speculative, Mapping) else None
    try:
        spread = spread_of(flags)
    except ValueError:  # the settings' own check tells it
        spread = Spread()
    return Asked(
        hybrid=is_hybrid(card),
        mtp=method is not None and (str(method) == "mtp" or str(method).endswith("_mtp")),
        prefix_cache=flags.get("enable-prefix-caching") is not False,  # vLLM's default is on
        trusted=card.prefix_cache_with_mtp == "trust",
        backend=str(flags.get("attention-backend", "")).upper(),
        kv_cache=str(flags.get("kv-cache-dtype", "")),
        tensor=spread.tensor,
        parts=spread.parts,
    )


def is_hybrid(card: CardLike) -> bool:
    head = getattr(card.head, "config_key", None)
    return head == HYBRID_HEAD or HYBRID_NAME.search(card.repository) is not None


def rows(issue: KnownIssue, file: str) -> list[str]:
    """An issue as the plan shows it. file: of the model card, where its ways out are set."""
    indent = " " * WIDTH
    ways = [f"{indent}way out: {way}" for way in issue.ways_out]
    return [f"known issue: {issue.warning}", *ways, f"{indent}({file}; {issue.reference})"]
