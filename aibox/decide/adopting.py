"""What a deploy would change about a server that a person runs: line by line, and for clients."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from aibox.decide import launch
from aibox.decide.discovery import Discovered, Ours, Server
from aibox.decide.foreign import is_loopback
from aibox.decide.launch import Launch
from aibox.decide.secrecy import words_without_secrets
from aibox.decide.unit import OWN_FLAGS, flag_changes

SITE = "group_data/site.py"
MOST_CHANGES = 14
# What they mean to clients stands with the consequences.
TOLD_THERE = ("port", "api-key", "served-model-name")
PARALLEL = ("tensor-parallel-size", "pipeline-parallel-size", "data-parallel-size")


def adopted(servers: Sequence[Server], ours: Ours) -> Server | None:
    """The one that a deploy would stand in for: what serves now, of our name or on our port first;
    else a unit of our name that does not run."""
    running = [one for one in servers if one.pid is not None]
    named = [one for one in servers if one.manager == "system" and one.unit == ours.unit]
    on_port = [one for one in running if one.port == ours.port]
    named_and_running = [one for one in named if one.pid is not None]
    return next(iter([*named_and_running, *on_port, *running, *named]), None)


def changes(theirs: Server, ours: Ours) -> list[str]:
    """Line by line against what they run: flags, user, environment, and the rest of the unit."""
    start = theirs.launch
    older = start.without(*TOLD_THERE) if start else []
    own = [word for words in OWN_FLAGS for word in words]
    newer = [*own, *launch.launch(ours.flags).without(*TOLD_THERE)]
    rows = in_groups(flag_changes(words_without_secrets(older), newer)) or ["no flag"]
    if theirs.user and theirs.user != ours.user:
        rows.append(f"user {theirs.user} -> {ours.user}")
    lost = sorted(set(launch.environment(*theirs.texts)) - set(ours.environment))
    if lost:
        rows.append(f"no longer set: {', '.join(lost)} (what is missed goes to server_environment)")
    other = _other_settings(theirs)
    if other:
        rows.append(f"lines of the unit that go: {', '.join(other)}")
    rows += _of_drop_ins(theirs)
    stem = ours.unit.removesuffix(".service")
    sandbox = "sandbox: no home folders, no new rights, no device but the card's; it writes to"
    return [*rows, f"{sandbox} /var/lib/{stem} and /var/cache/{stem} only"]


def in_groups(rows: Sequence[str]) -> list[str]:
    """flag_changes' rows, what changes first, then what comes and what goes."""
    changed: list[str] = []
    come: list[str] = []
    gone: list[str] = []
    for row in rows:
        old, _, new = row.partition(" -> ")
        if old == "nothing":
            come.insert(0 if "speculative" in new else len(come), f"+ {new}")
        elif new == "nothing":
            gone.append(f"- {old}")
        else:
            changed.append(row)
    shown = [*changed, *come, *gone]
    more = len(shown) - MOST_CHANGES
    return shown[:MOST_CHANGES] + ([f"and {more} more"] if more > 0 else [])


def stays(theirs: Server, ours: Ours) -> list[str]:
    """What a person keeps, and the way back."""
    if theirs.manager != "system" or theirs.unit != ours.unit or theirs.starter:
        return []
    return [
        f"{theirs.unit} as it is now is kept, and comes back with",
        "  pyinfra inventory tasks/rollback.py --data to=found",
        f"files of {theirs.user or 'its user'}, other units and their ports are not touched",
    ]


_KNOWN = {"ExecStart", "Environment", "User", "Group", "Type", "Restart", "RestartSec"}
_OURS_TOO = {"WorkingDirectory", "LimitNOFILE", "TimeoutStartSec", "TimeoutStopSec", "KillMode"}


def _of_drop_ins(theirs: Server) -> list[str]:
    """Those of /etc/systemd/system go with their unit; what lies elsewhere is not its alone."""
    folder = PurePosixPath("/etc/systemd/system", f"{theirs.unit}.d")
    paths = [PurePosixPath(path) for path in sorted(theirs.drop_ins)]
    going = ", ".join(path.name for path in paths if path.parent == folder)
    staying = ", ".join(str(path) for path in paths if path.parent != folder)
    rows = [f"drop-ins set aside: {going}"] if going else []
    return rows + ([f"drop-ins that stay, and change ours too: {staying}"] if staying else [])


def _other_settings(theirs: Server) -> list[str]:
    """Settings of their unit that ours has no like of."""
    names = [name for text in theirs.texts for name, _ in launch.settings(text)]
    return sorted(set(names) - _KNOWN - _OURS_TOO)


@dataclass(frozen=True)
class Consequence:
    """What a person or their clients would notice. keep: how to keep their way, in words."""

    what: str
    keep: str


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
        *_lost_features(start, ours),
        _spread(start),
    ]
    return [one for one in met if one is not None]


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
        f"server_port = {theirs.port} keeps it",
    )


def _another_name(start: Launch, ours: Ours) -> Consequence | None:
    names = [one for one in start.served_names if one not in ours.names]
    if not names:
        return None
    kept: list[str] = [*ours.names, *names]
    return Consequence(
        f"clients ask for the model {quoted(names)}; it will be called {quoted(ours.names)}",
        f"serve = {json.dumps({'served-model-name': kept})} answers to all of them",
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
        f'serve = {{"max-model-len": {given}}} keeps it',
    )


def _fewer_sequences(start: Launch, ours: Ours) -> Consequence | None:
    given = start.value("max-num-seqs") or ""
    mine = launch.launch(ours.flags).value("max-num-seqs") or ""
    if not (given.isdigit() and mine.isdigit()) or int(mine) >= int(given):
        return None
    return Consequence(
        f"of more than {mine} requests at the same time the rest waits; up to {given} ran together",
        f'serve = {{"max-num-seqs": {given}}} keeps it, where memory beside MTP allows so many',
    )


def _no_prefix_cache(start: Launch, ours: Ours) -> Consequence | None:
    mine = launch.launch(ours.flags)
    name = "enable-prefix-caching"
    if start.values(name) is None or mine.values(name) is not None:
        return None
    return Consequence(
        "what prompts have in common is read anew for each: there is no prefix cache",
        f"serve = {as_python({name: True})} keeps it",
    )


def _lost_features(start: Launch, ours: Ours) -> Iterator[Consequence]:
    mine = launch.launch(ours.flags)
    adapters = start.values("lora-modules")
    if start.values("enable-lora") is not None and mine.values("enable-lora") is None:
        kept: dict[str, object] = {"enable-lora": True}
        kept |= {"lora-modules": list(adapters)} if adapters else {}
        yield Consequence("its LoRA adapters are not served", f"serve = {as_python(kept)} keeps it")
    given = start.value("quantization")
    if given and mine.value("quantization") is None:
        yield Consequence(
            f"it quantises the weights as it loads them ({given}); a deploy serves them whole",
            f"serve = {as_python({'quantization': given})} keeps it",
        )


def as_python(value: Mapping[str, object]) -> str:
    """As it stands in a settings file."""
    return json.dumps(value).replace(": true", ": True").replace(": false", ": False")


def _spread(start: Launch) -> Consequence | None:
    spread = [f"--{name} {start.value(name)}" for name in PARALLEL if start.value(name) not in _ONE]
    if not spread:
        return None
    return Consequence(
        f"it spreads over several cards ({', '.join(spread)}); a deploy serves from one",
        "no setting keeps this: the project is for one card",
    )


_ONE = (None, "1")
