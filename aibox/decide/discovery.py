"""What runs and lies on a box that no deploy has seen, and what a deploy would serve there.

aibox/box/discover.py has looked; the words are those of discovery_page.py and adopting.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from aibox.decide import launch
from aibox.decide.acceptance import Counters
from aibox.decide.launch import Launch
from aibox.decide.report import Part, document


@dataclass(frozen=True)
class Server:
    """A vLLM that runs, or a unit that would start one (pid None).

    manager: "system", "user", "container" or "none". unit: of systemd, or a container's id.
    starter: the unit of the system that starts the container it is in. within: the tmux or screen
    that it was started in. port: the box's. health: its HTTP status.
    model: what it calls itself. counters: since its start, None where it does not tell.
    """

    unit: str | None
    path: str | None
    text: str | None
    drop_ins: Mapping[str, str]
    manager: str
    starter: str | None
    within: str | None
    user: str | None
    pid: int | None
    since: float | None
    command: tuple[str, ...]
    port: int | None
    health: int | None
    model: str | None
    asks_for_key: bool
    counters: Counters | None

    @property
    def texts(self) -> list[str]:
        """The unit's file and its drop-ins, in the order in which systemd reads them."""
        return [self.text or "", *(self.drop_ins[path] for path in sorted(self.drop_ins))]

    @property
    def launch(self) -> Launch | None:
        """How it was started, or would be."""
        return launch.launched(self.command) or launch.of_unit(*self.texts)

    @property
    def keeper(self) -> str:
        """Who runs it, in words."""
        user = self.user or "somebody"
        if self.manager == "system":
            more = f" and {len(self.drop_ins)} drop-in(s)" if self.drop_ins else ""
            return f"{self.path or self.unit}{more} as {user}"
        if self.manager == "user":
            return f"the user unit {self.unit} of {user}"
        if self.manager == "container":
            by = f", started by {self.starter}" if self.starter else ""
            return f"a container ({self.unit or 'of no name'}){by}"
        where = f"inside {self.within}" if self.within else "without a unit"
        return f"{user}, by hand and {where} (pid {self.pid})"


@dataclass(frozen=True)
class Weights:
    """One model on the box. missing: files that its index names and that are not there. head: see
    `head.standing`."""

    folder: str
    repository: str | None
    commit: str | None
    size: int
    missing: int
    head: str
    dtype: str | None


@dataclass(frozen=True)
class Listener:
    """A TCP socket that listens."""

    port: int
    address: str
    name: str
    unit: str | None


@dataclass(frozen=True)
class Discovered:
    """The answer of aibox/box/discover.py."""

    servers: tuple[Server, ...]
    weights: tuple[Weights, ...]
    listeners: tuple[Listener, ...]

    @classmethod
    def parse(cls, text: str) -> Discovered:
        """Its JSON. Raises ValueError that names the place and what stands there."""
        report = document("discovery", text)
        return cls(
            servers=tuple(_server(part) for part in report.list_of_parts("servers")),
            weights=tuple(_weights(part) for part in report.list_of_parts("weights")),
            listeners=tuple(_listener(part) for part in report.list_of_parts("listeners")),
        )


@dataclass(frozen=True)
class Ours:
    """What a deploy would serve, as the settings have it now.

    unit: with ".service". flags: the words of the card's flags. names: what clients ask for.
    environment: what the unit sets. commit: None where the weights are not pinned yet. serve,
    variables: the person's settings `serve` and `server_environment` as they are. limits: what the
    card knows of a flag's values. issues: of a flag, the known issue that comes with it.
    """

    unit: str
    user: str
    port: int
    flags: tuple[str, ...]
    names: tuple[str, ...]
    environment: Mapping[str, str]
    repository: str
    commit: str | None
    weights_bytes: int | None
    context: int
    card_file: str
    start_timeout: int  # seconds
    serve: Mapping[str, Any] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    limits: Mapping[str, Limit] = field(default_factory=dict)
    issues: Mapping[str, str] = field(default_factory=dict)


class Limit(Protocol):
    """The largest value of a flag that is known to work, and why not more."""

    @property
    def most(self) -> int: ...
    @property
    def why(self) -> str: ...


@dataclass(frozen=True)
class Kept:
    """A person's unit as a deploy kept it last. when: seconds since the epoch. changed: whether it
    stands otherwise now."""

    when: float
    changed: bool


# --- reading the report ---------------------------------------------------------------------------


def _server(part: Part) -> Server:
    metrics = part.part_or_none("metrics")
    return Server(
        unit=part.text_or_none("unit"),
        path=part.text_or_none("path"),
        text=part.text_or_none("text"),
        drop_ins=part.texts_by_name("drop_ins"),
        manager=part.text("manager"),
        starter=part.text_or_none("starter"),
        within=part.text_or_none("within"),
        user=part.text_or_none("user"),
        pid=part.count_or_none("pid"),
        since=part.seconds_or_none("since"),
        command=part.texts("command"),
        port=part.count_or_none("port"),
        health=part.count_or_none("health"),
        model=part.text_or_none("model"),
        asks_for_key=part.truth("asks_for_key"),
        counters=_counters(metrics) if metrics else None,
    )


def _counters(part: Part) -> Counters:
    names = ("drafts", "draft_tokens", "accepted_tokens", "generation_tokens")
    at = part.value.get("accepted_at", [])
    return Counters(
        **{name: part.count(name) for name in names},
        accepted_at=tuple(one for one in at if isinstance(one, int)),
    )


def _weights(part: Part) -> Weights:
    return Weights(
        folder=part.text("folder"),
        repository=part.text_or_none("repository"),
        commit=part.text_or_none("commit"),
        size=part.count("bytes"),
        missing=part.count("missing"),
        head=part.text("head"),
        dtype=part.text_or_none("dtype"),
    )


def _listener(part: Part) -> Listener:
    return Listener(
        part.count("port"), part.text("address"), part.text("name"), part.text_or_none("unit")
    )
