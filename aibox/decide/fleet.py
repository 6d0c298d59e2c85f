"""Several boxes behind one gateway: what each is asked for, where, and which can't be asked."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aibox.decide import doors
from aibox.decide.foreign import is_loopback
from aibox.decide.monitoring import is_no_address
from aibox.decide.refusal import Refusal

RETRIES_MOST = 3  # other boxes that a request goes to before it has failed


@dataclass(frozen=True)
class Member:
    """A box as a gateway asks it. models: every name it is to answer to. upstream: base address.
    context: tokens. keyed: it is asked with the filter's key. by_hand: upstream is a person's own
    server, of which no more is known than that it speaks OpenAI's API."""

    box: str
    models: tuple[str, ...]
    upstream: str
    context: int
    keyed: bool
    by_hand: bool = False

    @property
    def names(self) -> str:
        """The URL that names what it serves."""
        return f"{self.upstream}/v1/models"

    @property
    def health(self) -> str:
        """The URL that answers 200 while it serves."""
        return self.names if self.by_hand else f"{self.upstream}/health"


@dataclass(frozen=True)
class Other:
    """A box that is not the gateway's own, by its settings. models: none while its weights are not
    pinned. stream: whether its filter is to stand. listens: the address of its doors. doubt: why
    its address may be nothing that the gateway knows, in words."""

    box: str
    models: tuple[str, ...]
    address: str
    port: int
    context: int
    stream: bool
    listens: str
    doubt: str | None = None


@dataclass(frozen=True)
class Fleet:
    """What a gateway asks, its own box first. left_out: {box: why it can't be asked}, in words;
    doubts: {box: why its address may be unknown here} likewise."""

    members: tuple[Member, ...]
    left_out: Mapping[str, str]
    doubts: Mapping[str, str] = field(default_factory=dict)


def member(other: Other) -> Member:
    """A box that can be asked, see `unreachable`."""
    address = f"[{other.address}]" if ":" in other.address else other.address
    upstream = f"http://{address}:{other.port}"
    return Member(other.box, other.models, upstream, other.context, keyed=True)


def itself(
    box: str,
    models: tuple[str, ...],
    context: int,
    standing: doors.Standing,
    *,
    filters: str,
    server: str,
) -> Member:
    """The gateway's own box, which it asks as it would alone. filters, server: base addresses."""
    asks = standing.upstream
    is_filter = standing.stream.on and asks == filters
    by_hand = not is_filter and asks != server
    return Member(box, models, asks, context, keyed=is_filter, by_hand=by_hand)


def unreachable(other: Other) -> str | None:
    """Why a gateway can't ask a box, in words."""
    if not other.models:
        return "its model is not pinned yet: deploy to it, then to the gateways"
    if not other.stream:
        return "it has no stream filter (stream = None or True lets the gateways in)"
    if is_loopback(other.listens):
        return f"its doors are for itself alone (doors_address {other.listens})"
    if is_no_address(other.address) or is_loopback(other.address):
        return f"it is called {other.address}, which no other machine reaches: set box_address"
    return None


def at_one_address(boxes: Sequence[Other]) -> list[Refusal]:
    """Boxes that are one machine, as far as their addresses say: a gateway would count its requests
    twice, and go on asking the one while a roll works on the other."""
    by_address: dict[tuple[str, int], list[str]] = {}
    for one in boxes:
        if not (is_no_address(one.address) or is_loopback(one.address)):
            by_address.setdefault((one.address.lower(), one.port), []).append(one.box)
    return [same_address(names, address) for (address, _), names in by_address.items() if names[1:]]


# --- what is laid down ---------------------------------------------------------------------------


def config(members: Sequence[Member]) -> str:
    """LiteLLM's configuration. rotation.py chooses the box, for each try of a request anew.

    LiteLLM's own pauses after errors stay off: one request that fails on every box would keep all
    of them from everybody.
    """
    deployments = [placed(one, name) for one in members for name in one.models]
    most = max(len(boxes) for boxes in by_name(members).values())
    router = {
        "num_retries": min(most - 1, RETRIES_MOST),
        "retry_after": 0,
        "disable_cooldowns": True,
    }
    return doors.litellm_config(deployments, router)


def placed(member: Member, name: str) -> dict[str, Any]:
    found = doors.deployment(name, member.upstream, member.context, keyed=member.keyed)
    return {**found, "model_info": {**found["model_info"], "box": member.box}}


def by_name(members: Sequence[Member]) -> dict[str, list[Member]]:
    """{a model's name: who serves it}"""
    names = dict.fromkeys(name for one in members for name in one.models)
    return {name: [one for one in members if name in one.models] for name in names}


def fleet_text(url: str, members: Sequence[Member]) -> str:
    """What rotation.py and `aibox rotation` go by. url: of the gateway, as its box reaches it."""
    boxes = {
        one.box: {
            "models": list(one.models),
            "health": one.health,
            "names": one.names,
            "keyed": one.keyed,
        }
        for one in members
    }
    return json.dumps({"url": url, "out": doors.ROTATION, "boxes": boxes}, indent=1) + "\n"


def offered(fleet: Fleet) -> dict[str, Any]:
    """For clients: every name, and the tokens of context that they can count on with each."""
    context = min(one.context for one in fleet.members)
    return {"models": list(by_name(fleet.members)), "context": context}


# --- in words ------------------------------------------------------------------------------------


def turned_off(name: str) -> Refusal:
    return Refusal(
        f"{name} is in the group `gateways`, and its gateway is turned off",
        "a gateway that stands",
        "set gateway = None or True for it, or take it out of `gateways` in the inventory",
    )


def same_address(names: Sequence[str], address: str) -> Refusal:
    return Refusal(
        f"{', '.join(names[:-1])} and {names[-1]} have the same address, {address}",
        "an address of its own for each box, by its name, your ssh configuration or box_address",
        "set box_address of the one that is wrong, or name each box once in the inventory",
    )


def plan_rows(fleet: Fleet | None) -> list[str]:
    """What the plan says of a gateway; nothing of a box that is none."""
    if fleet is None:
        return []
    names = by_name(fleet.members)
    rows = [
        f"the gateway spreads {name} over {', '.join(one.box for one in boxes)}"
        for name, boxes in names.items()
    ]
    others = fleet.members[1:]
    rows += [asked_at(one, fleet.doubts.get(one.box)) for one in others]
    rows += [f"the gateway does not ask {box}: {why}" for box, why in fleet.left_out.items()]
    different = {name: of for name, of in names.items() if len({one.context for one in of}) > 1}
    return [*rows, *(unlike(name, boxes) for name, boxes in different.items())]


def asked_at(member: Member, doubt: str | None) -> str:
    return f"the gateway asks {member.box} at {member.upstream}{f'; {doubt}' if doubt else ''}"


def unlike(name: str, boxes: Sequence[Member]) -> str:
    told = ", ".join(f"{one.context:,} on {one.box}" for one in boxes)
    return (
        f"{name} has contexts of {told} tokens, and a request goes to any of them: clients can "
        "count on the smallest (another served-model-name keeps them apart)"
    )
