"""Over how many cards a server spreads, by its flags, as vLLM 0.31.0 counts them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

TENSOR, PIPELINE = "tensor-parallel-size", "pipeline-parallel-size"
CONTEXT, REPLICAS = "prefill-context-parallel-size", "data-parallel-size"
LOCAL, BOXES = "data-parallel-size-local", "nnodes"
COUNTED = (TENSOR, PIPELINE, CONTEXT, REPLICAS, LOCAL, BOXES)
SHARED = "decode-context-parallel-size"  # over cards that are counted already
MOST = 9999  # of a size; nobody has so many cards
# One replica of data-parallel-size is started by each command line then.
ONE_REPLICA = ("data-parallel-rank", "data-parallel-external-lb")


@dataclass(frozen=True)
class Spread:
    """One copy of the model lies over tensor x pipeline x context cards, on so many boxes.

    replicas: copies in all. here: those that this box's command line starts.
    """

    tensor: int = 1
    pipeline: int = 1
    context: int = 1
    replicas: int = 1
    here: int = 1
    boxes: int = 1

    @property
    def cards(self) -> int:
        """That one box needs."""
        of_a_copy = self.tensor * self.pipeline * self.context
        if self.boxes > 1:
            return of_a_copy * self.replicas // self.boxes
        return of_a_copy * self.here

    @property
    def parts(self) -> int:
        """Into how many parts the weights of one copy are cut."""
        return self.tensor * self.pipeline

    def __str__(self) -> str:
        """ "tensor-parallel-size 2, data-parallel-size 2"; those that are 1 are left out."""
        named = {TENSOR: self.tensor, PIPELINE: self.pipeline, CONTEXT: self.context}
        named |= {REPLICAS: self.replicas, BOXES: self.boxes}
        rows = [f"{name} {size}" for name, size in named.items() if size != 1]
        here = [f"{LOCAL} {self.here}"] if self.here != self.replicas else []
        return ", ".join([*rows, *here])


@dataclass(frozen=True)
class Choice:
    """Which cards a server is to have: those of `uuids`; where none is named, `count` that fit.

    why: the flags that ask for more than one, in words.
    """

    uuids: tuple[str, ...] = ()
    count: int = 1
    why: str = ""


def size_of(value: object) -> int:
    """A size as a flag gives it. ValueError where it is no whole number from 1 to MOST."""
    if isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= MOST:
        return value
    if isinstance(value, str) and re.fullmatch(r"[1-9]\d{0,3}", value, re.ASCII):
        return int(value)
    raise ValueError(f"{value!r:.40}")


def spread_of(flags: Mapping[str, Any]) -> Spread:
    """flags: merged, with their long names. ValueError where a size is none, see size_of."""
    size = {name: size_of(flags[name]) for name in COUNTED if name in flags}
    replicas = size.get(REPLICAS, 1)
    one = any(name in flags and flags[name] is not False for name in ONE_REPLICA)
    return Spread(
        tensor=size.get(TENSOR, 1),
        pipeline=size.get(PIPELINE, 1),
        context=size.get(CONTEXT, 1),
        replicas=replicas,
        here=size.get(LOCAL, 1 if one else replicas),
        boxes=size.get(BOXES, 1),
    )


def torn(flags: Mapping[str, Any]) -> tuple[str, str] | None:
    """A size that vLLM's start refuses beside the others, and why, in words; its parser takes it.

    ValueError where a size is none, see size_of.
    """
    spread, shared = spread_of(flags), size_of(flags.get(SHARED, 1))
    if spread.here > spread.replicas:
        return LOCAL, f"{spread.here}, of {REPLICAS} {spread.replicas} in all"
    if spread.context == 1 and spread.tensor % shared:
        return SHARED, f"{shared}, which does not divide {TENSOR} {spread.tensor}"
    if spread.context > 1 and shared not in (1, spread.context, spread.tensor * spread.context):
        sizes = sorted({1, spread.context, spread.tensor * spread.context})
        return SHARED, f"{shared}; beside {CONTEXT} {spread.context} it is one of {sizes}"
    return None


def readable_spread(flags: Mapping[str, Any]) -> Spread:
    """The same; a single card where a size is none, in what an earlier version let through."""
    try:
        return spread_of(flags)
    except ValueError:
        return Spread()


def pinned_by(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """The cards that a candidate's unit is pinned to; a text in what earlier versions kept."""
    named = spec.get("gpu_uuid")
    return (named,) if isinstance(named, str) else tuple(named or ())


def chosen(wanted: tuple[str, ...], there: Mapping[str, Any]) -> list[Any]:
    """Of what is there by UUID, what is wanted, in that order; all of it where nothing is named.

    Empty where one that is named is not there. Case does not count.
    """
    if not wanted:
        return list(there.values())
    by_name = {name.lower(): one for name, one in there.items()}
    found = [by_name.get(name.lower()) for name in wanted]
    return [] if None in found else found
