"""What a person or their clients would notice when a deploy takes a server of theirs over."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from aibox.decide import launch
from aibox.decide.discovery import Discovered, Ours, Server
from aibox.decide.fault_about import SITE
from aibox.decide.foreign import is_loopback
from aibox.decide.launch import Launch
from aibox.decide.spread import COUNTED
from aibox.decide.start_limits import UTILIZATION

MANY = "but each sequence takes memory, and beside MTP the more"


@dataclass(frozen=True)
class Consequence:
    """keep: how to keep their way, in words. flags: those that do, with their values. known: what
    speaks against them."""

    what: str
    keep: str = ""
    flags: Mapping[str, Any] = field(default_factory=dict)
    known: str | None = None

    def __str__(self) -> str:
        """With the flags in front, as the line that keeps them has them."""
        return ": ".join([*([", ".join(self.flags)] if self.flags else []), self.what])

    @property
    def below(self) -> list[str]:
        """What stands below it: the way to keep it, or what is known against keeping it."""
        return [text for text in (self.keep, self.known) if text]


def consequences(theirs: Server, start: Launch, ours: Ours, found: Discovered) -> list[Consequence]:
    """All of them; the first are the ones that stop clients."""
    met = [
        _not_adoptable(theirs, ours),
        _another_port(theirs, ours),
        _another_name(start, ours),
        _reached_from_outside(theirs, start, found),
        _key(theirs, start),
        _another_model(start, found, ours),
        _shorter(start, ours),
        _fewer_sequences(start, ours),
        _no_prefix_cache(start, ours),
        _graphs(start, ours),
        _memory(start, ours),
        *_lost_features(start, ours),
        _spread(start, ours),
    ]
    return [one for one in met if one is not None]


def one_line(met: Sequence[Consequence], ours: Ours) -> list[str]:
    """All flags that keep their way in one line, over what the person has set already: of several
    lines that set one name only the last would count. Empty where no flag keeps anything."""
    kept = {name: value for one in met for name, value in one.flags.items()}
    if not kept:
        return []
    instead = " in place of its `serve`" if ours.serve else ""
    return [
        f"all that flags keep, by this one line in {SITE}{instead}:",
        f"  serve = {as_python({**ours.serve, **kept})}",
    ]


def _not_adoptable(theirs: Server, ours: Ours) -> Consequence | None:
    if theirs.starter:
        other = f'; and server_unit = "aibox-vllm" in {SITE}, as its name is taken'
        return Consequence(
            f"{theirs.starter} starts a container: it can't be adopted, and holds the card while "
            "it runs",
            f"before the deploy: systemctl disable --now {theirs.starter}"
            + (other if theirs.starter == ours.unit else ""),
        )
    if theirs.manager == "system":
        if theirs.unit == ours.unit:
            return None
        stem = (theirs.unit or "").removesuffix(".service")
        return Consequence(
            f"{theirs.unit} is not {ours.unit}: a deploy would set up a second server beside it",
            f'server_unit = "{stem}" in {SITE} adopts this one',
        )
    stop = {
        "user": f"as {theirs.user}: systemctl --user disable --now {theirs.unit}",
        "container": f"docker stop {theirs.unit or 'NAME'}, and take its restart policy away",
    }.get(theirs.manager, "stop it where it was started")
    return Consequence(
        "it is no unit of the system: it can't be adopted, and holds the card while it runs",
        f"before the deploy: {stop}",
    )


def _another_port(theirs: Server, ours: Ours) -> Consequence | None:
    if theirs.port is None or theirs.port == ours.port:
        return None
    return Consequence(
        f"port {theirs.port} becomes {ours.port}: who asks {theirs.port} finds nobody",
        f"server_port = {theirs.port} in {SITE} keeps it",
    )


def _another_name(start: Launch, ours: Ours) -> Consequence | None:
    names = [one for one in start.served_names if one not in ours.names]
    if not names:
        return None
    kept: list[str] = [*ours.names, *names]
    return Consequence(
        f"clients ask for the model {quoted(names)}; it will be called {quoted(ours.names)}",
        flags={"served-model-name": kept},
    )


def quoted(names: Sequence[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _reached_from_outside(theirs: Server, start: Launch, found: Discovered) -> Consequence | None:
    """By the sockets that listen, else by its flag: without one vLLM binds to every address."""
    addresses = {one.address for one in found.listeners if one.port == theirs.port}
    if theirs.pid is None or not addresses:
        host = start.value("host")
        outside = host not in ("localhost", "127.0.0.1", "::1") and start.value("uds") is None
    else:
        outside = not all(is_loopback(one) for one in addresses)
    if not outside:
        return None
    return Consequence(
        f"other machines reach port {theirs.port} directly; ours answers this box alone",
        "no setting keeps this: put a proxy of yours in front, or use `ssh -L`",
    )


def _key(theirs: Server, start: Launch) -> Consequence | None:
    in_unit = any("VLLM_API_KEY" in text for text in theirs.texts)
    if start.value("api-key") is None and not theirs.asks_for_key and not in_unit:
        return None
    return Consequence(
        "clients need an API key; ours asks for none, and answers this box alone",
        "no setting keeps this: ask for the key in what stands in front, such as LiteLLM",
    )


def _another_model(start: Launch, found: Discovered, ours: Ours) -> Consequence | None:
    repository = repository_of(start, found)
    if repository is None or repository == ours.repository:
        return None
    return Consequence(
        f"it serves {repository}; a deploy serves {ours.repository}",
        f"a card for it beside {ours.card_file}, and model = its name, keep it",
    )


def repository_of(start: Launch, found: Discovered) -> str | None:
    """What a server serves, by the hub's name; None where only a folder is known."""
    cached = re.search(r"/models--([^/]+)/snapshots/", start.model)
    if cached:
        return cached[1].replace("--", "/", 1)
    held = [one.repository for one in found.weights if one.folder == start.model.rstrip("/")]
    if held and held[0]:
        return held[0]
    is_name = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", start.model)
    return start.model if is_name else None


def _shorter(start: Launch, ours: Ours) -> Consequence | None:
    given = start.value("max-model-len") or ""
    mine = launch.launch(ours.flags).value("max-model-len") or ""
    if not (given.isdigit() and mine.isdigit()) or int(mine) >= int(given):
        return None
    return Consequence(
        f"prompts of more than {mine} tokens are refused; up to {given} they were not",
        flags={"max-model-len": int(given)},
    )


def _fewer_sequences(start: Launch, ours: Ours) -> Consequence | None:
    given = start.value("max-num-seqs") or ""
    mine = launch.launch(ours.flags).value("max-num-seqs") or ""
    if not (given.isdigit() and mine.isdigit()) or int(mine) >= int(given):
        return None
    return Consequence(
        f"of more than {mine} requests at the same time the rest waits; up to {given} ran together",
        flags={"max-num-seqs": int(given)},
        known=_beyond(ours, "max-num-seqs", int(given)) or MANY,
    )


def _beyond(ours: Ours, flag: str, given: int) -> str | None:
    """What the card knows of a flag's values above its own limit."""
    limit = ours.limits.get(flag)
    if limit is None or given <= limit.most:
        return None
    return f"but {ours.card_file} knows: {limit.why}"


def _no_prefix_cache(start: Launch, ours: Ours) -> Consequence | None:
    """vLLM's default is on: it goes only where it is turned off."""
    name = "enable-prefix-caching"
    if start.values(name) is None or launch.launch(ours.flags).values(f"no-{name}") is None:
        return None
    issue = ours.issues.get(name)
    return Consequence(
        "what prompts have in common is read anew for each: there is no prefix cache",
        flags={name: True},
        known=issue and f"but a known issue of this vLLM: {issue.partition(':')[0]}",
    )


def _graphs(start: Launch, ours: Ours) -> Consequence | None:
    name = "enforce-eager"
    theirs, mine = (one.values(name) is not None for one in (start, launch.launch(ours.flags)))
    if theirs == mine:
        return None
    if mine:
        what = "answers come slower: nothing is compiled or captured as graphs"
        return Consequence(what, flags={name: None})
    what = "it compiles and captures CUDA graphs: starts take longer, answers come faster"
    return Consequence(what, flags={name: True})


def _memory(start: Launch, ours: Ours) -> Consequence | None:
    """The share of the card, where they gave one: another vLLM may have another default."""
    name = "gpu-memory-utilization"
    theirs = _share(start.value(name))
    mine = _share(launch.launch(ours.flags).value(name)) or UTILIZATION
    if theirs is None or theirs == mine:
        return None
    less = "fewer prompts fit at the same time"
    effect = less if mine < theirs else "what else is on the card has less"
    return Consequence(
        f"it takes {mine:g} of the card's memory, not {theirs:g}: {effect}", flags={name: theirs}
    )


def _share(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _lost_features(start: Launch, ours: Ours) -> Iterator[Consequence]:
    mine = launch.launch(ours.flags)
    adapters = start.values("lora-modules")
    if start.values("enable-lora") is not None and mine.values("enable-lora") is None:
        kept: dict[str, object] = {"enable-lora": True}
        kept |= {"lora-modules": list(adapters)} if adapters else {}
        yield Consequence("its LoRA adapters are not served", flags=kept)
    given = start.value("quantization")
    if given and mine.value("quantization") is None:
        yield Consequence(
            f"it quantises the weights as it loads them ({given}); a deploy serves them whole",
            flags={"quantization": given},
        )


def as_python(value: object) -> str:
    """As it stands in a settings file, texts in double quotes."""
    if isinstance(value, Mapping):
        pairs = (f"{json.dumps(name)}: {as_python(one)}" for name, one in value.items())
        return f"{{{', '.join(pairs)}}}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(as_python(one) for one in value)}]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


def _spread(start: Launch, ours: Ours) -> Consequence | None:
    """Over how many cards; what keeps theirs is refused where the box lacks the cards."""
    theirs, mine = ({name: one.value(name) for name in COUNTED} for one in (start, _of(ours)))
    other = {name for name in COUNTED if (theirs[name] or "1") != (mine[name] or "1")}
    if not other:
        return None
    words = [
        ", ".join(f"--{name} {one[name]}" for name in COUNTED if one[name] not in (None, "1"))
        for one in (theirs, mine)
    ]
    what = f"it spreads over several cards ({words[0]})" if words[0] else "it serves from one card"
    instead = f"with {words[1]}" if words[1] else "from one"
    kept = {name: whole(theirs[name] or "1") for name in COUNTED if name in other}
    return Consequence(
        f"{what}; a deploy serves {instead}",
        flags={} if None in kept.values() else kept,
    )


def _of(ours: Ours) -> Launch:
    return launch.launch(ours.flags)


def whole(text: str) -> int | None:
    return int(text) if re.fullmatch(r"[1-9]\d{0,3}", text, re.ASCII) else None
