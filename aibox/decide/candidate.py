"""May a candidate be tried at all? What can be told without a start, and costs no service.

Pure: the evidence is read by aibox/box/judge.py. Nothing in here raises on odd evidence: what can't
be read is not judged.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from aibox.decide import fitting
from aibox.decide.fault_about import About
from aibox.decide.figures import MIB
from aibox.decide.fitting import DRIVERS_OWN_BYTES
from aibox.decide.head import Head, judge_head
from aibox.decide.launch import assignments, settings
from aibox.decide.manifest import AIBOX
from aibox.decide.refusal import Refusal
from aibox.decide.spread import TENSOR, Spread, chosen, pinned_by, readable_spread
from aibox.decide.switching import AGAIN
from aibox.decide.vram import Card, Holder

# vLLM 0.31.0's default for a card this large.
DEFAULT_SEQUENCES = 1024
SEQUENCES_STEP = 32
OURS = "# Laid down by the deploy"  # the first line of each file that a deploy has written

Row = Mapping[str, Any]
Spec = Mapping[str, Any]


@dataclass(frozen=True)
class Verdict:
    """What the release's own parser said: rows of argv.py's answer."""

    version: str = "?"
    faults: tuple[Row, ...] = ()
    warnings: tuple[Row, ...] = ()
    resolved: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, answer: Mapping[str, Any]) -> Verdict:
        return cls(
            version=str(answer.get("version", "?")),
            faults=tuple(answer.get("faults", ())),
            warnings=tuple(answer.get("warnings", ())),
            resolved=answer.get("resolved", {}),
        )


@dataclass(frozen=True)
class Owner:
    """The process that listens on the port. unit: systemd's, None outside of any."""

    pid: int
    name: str
    unit: str | None = None


@dataclass(frozen=True)
class Evidence:
    """What was found on the box.

    config, index: of the weights, None where they can't be read. weights_bytes: of their files, 0
    where there are none. own_pids: every process of the
    unit. cards: none where NVML does not answer, and nvml_error says why. drop_ins: {path: text}.
    failed: failed.json, {sha256 of the unit's text: {"command", "cause", "lines"}}.
    """

    verdict: Verdict = Verdict()
    config: Mapping[str, Any] | None = None
    index: Mapping[str, Any] | None = None
    weights_bytes: int = 0
    port_owner: Owner | None = None
    own_pids: frozenset[int] = frozenset()
    cards: tuple[Card, ...] = ()
    nvml_error: str | None = None
    drop_ins: Mapping[str, str] = field(default_factory=dict)
    failed: Mapping[str, Any] = field(default_factory=dict)


def refusals(evidence: Evidence, spec: Spec) -> list[Refusal]:
    """Every reason not to try this candidate; empty when there is none."""
    judges: tuple[Callable[[Evidence, Spec], Iterator[Refusal]], ...] = (
        has_failed,
        command_line,
        head,
        cut,
        context,
        sequences,
        port,
        memory,
        weights,
        drop_ins,
    )
    return [refusal for judge in judges for refusal in judge(evidence, spec)]


def warnings(evidence: Evidence, spec: Spec) -> list[str]:
    """What a person should know although the candidate may be tried."""
    about = About.of(spec)
    rows = [
        f"{row.get('flag')} ({about.file_of(str(row.get('flag')))}) {row.get('text')}"
        for row in evidence.verdict.warnings
    ]
    unread = [name for name in ("config", "index") if getattr(evidence, name) is None]
    if unread:
        rows.append(f"not judged: the weights' {' and '.join(unread)} can't be read")
    if evidence.nvml_error is not None:
        rows.append(f"not judged: free memory of the card (NVML says: {evidence.nvml_error})")
    elif not cards_of(evidence, spec):
        rows.append("not judged: free memory of the card, because it is not known which one serves")
    if longer_by_hand(spec, evidence):
        rows.append("not judged: max-model-len, because the model's own figures are overridden")
    for path, changed in added(evidence, spec).items():
        rows.append(f"{path} adds {', '.join(changed)} to the server's environment")
    for path, keys in changed_beside(evidence).items():
        rows.append(f"{path} stays and changes {', '.join(keys)} of the unit")
    return rows


# --- what has failed before --------------------------------------------------------------------


def has_failed(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """The very same unit failed its gate, and not for a reason that passes."""
    if spec.get("retry"):
        return
    failure = failure_of(evidence.failed, str(spec["text"]))
    if not failure:
        yield from too_many_sequences(evidence, spec)
        return
    if is_passing(failure):
        return
    cause = mapping(failure.get("cause"))
    lines = [str(line) for line in sequence(failure.get("lines"))]
    found = cause.get("found") or "\n".join(["no known cause; the last it said:", *lines])
    remedy = cause.get("remedy") or f"see `sudo {AIBOX} doctor` on the box and change what it shows"
    yield Refusal(
        f"this very unit has failed its gate before: {found}",
        "a unit that has not failed, or a cause that is mended",
        f"{remedy}; to try the same once more: {AGAIN}",
    )


def failure_of(failed: Mapping[str, Any], text: str) -> Mapping[str, Any]:
    """What failed.json holds of the unit with this text; empty where it has not failed."""
    return mapping(failed.get(hashlib.sha256(text.encode()).hexdigest()))


def is_passing(failure: Mapping[str, Any]) -> bool:
    """Whether it failed for what lies around the server, which is not held against the unit."""
    return mapping(failure.get("cause")).get("passing") is True


def too_many_sequences(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """The same command line had fewer Mamba blocks than this one asks sequences for."""
    asked = number(evidence.verdict.resolved.get("max_num_seqs"))
    if asked is None:
        asked = number(mapping(spec.get("flags")).get("max-num-seqs", DEFAULT_SEQUENCES))
    known = [
        blocks
        for failure in map(mapping, mapping(evidence.failed).values())
        if (blocks := blocks_of(mapping(failure.get("cause")))) is not None
        and without_sequences(failure.get("command")) == without_sequences(spec["command"])
    ]
    if not known or asked is None or asked <= min(known):
        return
    fitting = max(min(known) // SEQUENCES_STEP * SEQUENCES_STEP, 1)
    setting = About.of(spec).setting("max-num-seqs", fitting)
    setting += " (it leaves some room)" if fitting < min(known) else ""
    yield Refusal(
        f"max-num-seqs is {asked:.0f}, and this command line has been seen to have "
        f"{min(known)} Mamba cache blocks: each sequence takes one",
        f"max-num-seqs of at most {min(known)}",
        f"{setting}, or raise gpu-memory-utilization; to try it all the same: {AGAIN}",
    )


def blocks_of(cause: Mapping[str, Any]) -> int | None:
    """Of a failure for want of Mamba blocks, how many there were."""
    if cause.get("kind") != "mamba_blocks":
        return None
    text = f"{cause.get('line', '')} {cause.get('found', '')}"
    found = re.search(r"Mamba cache blocks \((\d{1,9})\)", text) or re.search(
        r"(\d{1,9}) (?:Mamba|state)[a-z ]* blocks", text
    )
    return int(found[1]) if found else None


def without_sequences(command: object) -> list[str]:
    words = [str(word) for word in sequence(command)]
    kept: list[str] = []
    skipping = False
    for word in words:
        if skipping and not word.startswith("--"):
            continue
        name = word.partition("=")[0].replace("_", "-")
        skipping = name == "--max-num-seqs" and "=" not in word
        if name != "--max-num-seqs":
            kept.append(word)
    return kept


# --- the command line --------------------------------------------------------------------------


def command_line(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """What the release's own parser refuses, with the file to change."""
    about = About.of(spec)
    for row in evidence.verdict.faults:
        flag = row.get("flag")
        where = "the server's flags" if flag is None else str(flag)
        file = about.card if flag is None else about.file_of(str(flag))
        yield Refusal(
            f"vLLM {evidence.verdict.version}: {row.get('found')}",
            str(row.get("expected")),
            f"change {where} in {file}",
        )


# --- the model ---------------------------------------------------------------------------------


def head(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """MTP needs the head, in config.json and as tensors."""
    promised = mapping(spec.get("head"))
    if not spec.get("speculative") or evidence.config is None or evidence.index is None:
        return
    if not promised or not drafts_by_head(spec):
        return
    wanted = Head(
        config_key=str(promised.get("config_key")),
        layers=int(number(promised.get("layers")) or 0),
        tensor_prefix=str(promised.get("tensor_prefix")),
        tensors=int(number(promised.get("tensors")) or 0),
    )
    refusal = judge_head(evidence.config, evidence.index, wanted)
    if refusal is not None:
        file = About.of(spec).file_of("speculative-config")
        yield Refusal(
            f"speculative-config asks for MTP, and in {spec.get('weights')} {refusal.found}",
            refusal.expected,
            f"{refusal.remedy} ({file})",
        )


def drafts_by_head(spec: Spec) -> bool:
    method = mapping(mapping(spec.get("flags")).get("speculative-config")).get("method")
    return method is None or str(method) == "mtp" or str(method).endswith("_mtp")


def cut(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """Whether the model can be cut into as many parts as the flags say."""
    config, wanted = evidence.config or {}, readable_spread(mapping(spec.get("flags")))
    whole = fitting.uncut(config, wanted)
    if not whole:
        return
    about = About.of(spec)
    if wanted.pipeline > 1 and not fitting.uncut(config, Spread(tensor=wanted.tensor)):
        remedy = about.setting("pipeline-parallel-size", "less")
    else:
        sizes = ", ".join(map(str, fitting.sizes_that_cut(config)))
        remedy = about.setting(TENSOR, f"one of {sizes}")
    yield Refusal(
        f"{wanted} can't cut {' and '.join(whole)} (config.json of {spec.get('weights')})",
        "sizes that give each card whole heads and a layer at least: vLLM refuses others",
        remedy,
    )


# Where a config.json says how many tokens its model was made for; the smallest counts.
CONTEXT_KEYS = (
    *("max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    *("max_target_positions", "max_sequence_length", "max_seq_length", "seq_len"),
)
# Scalings after which these keys say the extended length already.
ALREADY_SCALED = ("default", "mrope", "su", "longrope", "llama3", "yarn", "deepseek_yarn")


def context(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """max-model-len against what the weights' own config.json allows."""
    asked = number(evidence.verdict.resolved.get("max_model_len"))
    if asked is None:
        asked = number(mapping(spec.get("flags")).get("max-model-len"))
    own = own_context(evidence.config or {})
    if asked is None or own is None or asked <= own or longer_by_hand(spec, evidence):
        return
    setting = About.of(spec).setting("max-model-len", f"{own:.0f} or less")
    yield Refusal(
        f"max-model-len is {asked:.0f}, and the model's own context is {own:.0f} tokens "
        f"(config.json of {spec.get('weights')})",
        f"at most {own:.0f}: a start with more is refused by vLLM",
        setting,
    )


def own_context(config: Mapping[str, Any]) -> float | None:
    """Tokens, as vLLM derives them; in favour of the longer one where a scaling leaves a doubt."""
    text = mapping(config.get("text_config")) or config
    found = [tokens for key in CONTEXT_KEYS if (tokens := number(text.get(key))) is not None]
    if not found:
        return number(text.get("model_max_length"))
    longest = number(text.get("model_max_length")) or 0
    return max(min(found) * scaling(text), original(text), longest)


def ropes(text: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    given = mapping(text.get("rope_parameters")) or mapping(text.get("rope_scaling"))
    nested = [mapping(each) for each in given.values() if isinstance(each, Mapping)]
    return [given, *nested]


def scaling(text: Mapping[str, Any]) -> float:
    factors = [
        number(rope.get("factor")) or 1
        for rope in ropes(text)
        if rope.get("rope_type", rope.get("type", "default")) not in ALREADY_SCALED
    ]
    return max([1, *factors])


def original(text: Mapping[str, Any]) -> float:
    """What a scaling promises that names the length before it."""
    promised = [
        (number(rope.get("original_max_position_embeddings")) or 0)
        * (number(rope.get("factor")) or 0)
        for rope in ropes(text)
    ]
    return max(promised)


def longer_by_hand(spec: Spec, evidence: Evidence) -> bool:
    """Whether the person overrides the model's figures on purpose."""
    allowed = str(mapping(spec.get("environment")).get("VLLM_ALLOW_LONG_MAX_MODEL_LEN", "0"))
    flags = mapping(spec.get("flags"))
    overrides = flags.get("hf-overrides") or evidence.verdict.resolved.get("hf_overrides")
    return allowed not in ("0", "", "false", "False") or bool(overrides)


def sequences(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """A batch must hold a token of each sequence."""
    resolved, about = evidence.verdict.resolved, About.of(spec)
    asked, tokens = (number(resolved.get(f"max_num_{n}")) for n in ("seqs", "batched_tokens"))
    if asked is not None and asked < 1:
        remedy = about.setting("max-num-seqs", "1 or more")
        yield Refusal(f"max-num-seqs is {asked:.0f}", "a whole number from 1", remedy)
    elif asked is not None and tokens is not None and tokens < asked:
        yield Refusal(
            f"max-num-batched-tokens is {tokens:.0f}, less than max-num-seqs ({asked:.0f})",
            "a token for each sequence at least",
            about.setting("max-num-batched-tokens", f"{asked:.0f} or more"),
        )


# --- what the box has to give ------------------------------------------------------------------


def port(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    owner = evidence.port_owner
    if owner is None or owner.unit == spec.get("unit") or owner.pid in evidence.own_pids:
        return
    who = f"{owner.name} (pid {owner.pid}{f', {owner.unit}' if owner.unit else ''})"
    stop = f"systemctl disable --now {owner.unit}" if owner.unit else f"end process {owner.pid}"
    yield Refusal(
        f"port {spec.get('port')} is held by {who}",
        f"a port that is free, or held by {spec.get('unit')}",
        f"stop it ({stop}), or change the setting server_port",
    )


def cards_of(evidence: Evidence, spec: Spec) -> list[Card]:
    """The cards that serve; none where that can't be told."""
    pinned = pinned_by(spec)
    cards = chosen(pinned, {card.uuid: card for card in evidence.cards})
    return cards if pinned or len(cards) == 1 else []


def memory(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """gpu-memory-utilization against what is free once our own server is stopped."""
    utilization = number(evidence.verdict.resolved.get("gpu_memory_utilization"))
    if utilization is None:
        utilization = About.of(spec).utilization
    if not 0 < utilization <= 1:
        found = f"gpu-memory-utilization is {utilization:g}"
        remedy = About.of(spec).setting("gpu-memory-utilization", "0.87, say")
        yield Refusal(found, "a share of the card's memory, above 0 and at most 1", remedy)
        return
    for card in cards_of(evidence, spec):
        yield from room_on(card, evidence, spec, utilization)


def room_on(card: Card, evidence: Evidence, spec: Spec, utilization: float) -> Iterator[Refusal]:
    if card.memory_bytes is None or card.free_bytes is None:
        return
    ours = [one for one in card.processes if one.pid in evidence.own_pids]
    if any(one.used_bytes is None for one in ours):
        return  # what comes back is not known
    free = card.free_bytes + sum(one.used_bytes or 0 for one in ours)
    needed = utilization * (card.memory_bytes - DRIVERS_OWN_BYTES)
    if free < needed:
        others = [one for one in card.processes if one.pid not in evidence.own_pids]
        several = len(cards_of(evidence, spec)) > 1
        yield held(card, others, free, needed, spec, named=several)


def held(
    card: Card, others: Sequence[Holder], free: int, needed: float, spec: Spec, *, named: bool
) -> Refusal:
    total = card.memory_bytes or 0
    # rounded down, so that the figure to write fits
    fitting = math.floor(100 * free / max(total - DRIVERS_OWN_BYTES, 1)) / 100
    names = ", ".join(holder(one) for one in others)
    which = f"card {card.index}" if named else "the card"
    stop = f"stop {names}" if names else "take the display off the card"
    lower = About.of(spec).setting("gpu-memory-utilization", f"{fitting:.2f} or less")
    return Refusal(
        f"{free // MIB} MiB of {which} would be free without our own server; held by "
        f"{names or 'no process that NVML names (a display?)'}",
        f"{needed / MIB:.0f} MiB free for gpu-memory-utilization",
        stop + (f", or {lower}" if fitting > 0 else ""),
    )


def holder(one: Holder) -> str:
    used = "an unknown amount" if one.used_bytes is None else f"{one.used_bytes // MIB} MiB"
    return f"{one.name} (pid {one.pid}, {used})"


def weights(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """Weights and the cache of one request against each card, now that config.json is there."""
    config, flags = evidence.config, mapping(spec.get("flags"))
    memory = [card.memory_bytes for card in cards_of(evidence, spec) if card.memory_bytes]
    if config is None or fitting.is_halved(config):
        return
    dense = not fitting.has_experts(config)
    try:
        load = fitting.load_of(flags, evidence.weights_bytes, dense=dense)
    except ValueError:  # a flag that is no number is another refusal's
        return
    given = evidence.verdict.resolved.get("max_model_len", flags.get("max-model-len"))
    tokens = own_context(config) if given is None else number(given)
    if tokens is not None:
        cache = fitting.cache_of_a_request(config, flags, load.spread, tokens)
        load = replace(load, cache=cache, context=int(tokens))
    refusal = fitting.refusal(load, memory)
    if refusal is not None:
        yield refusal


# --- drop-ins ----------------------------------------------------------------------------------

# What a drop-in may not take over: the unit would run something that nobody has judged.
REPLACED = ("ExecStart", "User", "Group", "DynamicUser", "RootDirectory", "RootImage")
READ_FROM = ("EnvironmentFile", "PassEnvironment", "UnsetEnvironment")


def drop_ins(evidence: Evidence, spec: Spec) -> Iterator[Refusal]:
    """Files of somebody else that replace what the unit says."""
    for path, text in evidence.drop_ins.items():
        keys = [key for key, value in settings(str(text)) if replaces(key, value, spec)]
        if keys and not str(text).startswith(OURS):
            what = ", ".join(dict.fromkeys(keys))
            yield Refusal(
                f"{path} replaces {what} of {spec.get('unit')}",
                "a unit that runs what was judged",
                f"move what it sets to the settings (serve, server_environment, server_user) and "
                f"take {path} away",
            )


def replaces(key: str, value: str, spec: Spec) -> bool:
    if key in ("User", "Group"):
        return value != spec.get("user")
    if key == "Environment":
        return not value or any(
            mapping(spec.get("environment")).get(name, text) != text
            for name, text in assignments(value)
        )
    return key in REPLACED


def added(evidence: Evidence, spec: Spec) -> dict[str, list[str]]:
    """{path: names of variables, or of settings that bring some} that a drop-in only adds."""
    ours = mapping(spec.get("environment"))
    found: dict[str, list[str]] = {}
    for path, text in evidence.drop_ins.items():
        if str(text).startswith(OURS):
            continue
        for key, value in settings(str(text)):
            if key in READ_FROM:
                found.setdefault(str(path), []).append(f"{key}={value}")
            elif key == "Environment":
                names = [name for name, _ in assignments(value) if name not in ours]
                found.setdefault(str(path), []).extend(names)
    return {path: names for path, names in found.items() if names}


def changed_beside(evidence: Evidence) -> dict[str, list[str]]:
    """{path: settings} that a drop-in changes, and that are neither refused nor environment."""
    told = {*REPLACED, *READ_FROM, "Environment"}
    found = {
        str(path): dict.fromkeys(key for key, _ in settings(str(text)) if key not in told)
        for path, text in evidence.drop_ins.items()
        if not str(text).startswith(OURS)
    }
    return {path: list(keys) for path, keys in found.items() if keys}


# --- odd evidence ------------------------------------------------------------------------------


def mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def sequence(value: object) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def number(value: object) -> float | None:
    """A finite number as it stands in a JSON document; a text of digits counts."""
    if isinstance(value, str) and re.fullmatch(r"\d{1,12}(\.\d{1,6})?", value, re.ASCII):
        return float(value)
    if isinstance(value, bool) or not isinstance(value, int | float) or abs(value) > 1e15:
        return None
    return float(value) if math.isfinite(value) and value >= 0 else None
