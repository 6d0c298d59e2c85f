"""What a benchmark was asked for, which servers it needs, and what it measures on each."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

from aibox.decide.figures import counted
from aibox.decide.nearest import nearest
from aibox.decide.refusal import Refusal
from aibox.decide.unit import exec_start, server_command

NOW = "now"  # as the server is
MODES = ("seed", "cross", "quality")
KINDS = ("code", "prose", "agent")
MOST = {"runs": 50, "tokens": 32_768, "concurrency": 512, "context": 262_144, "drafts": 16}
CACHE = "enable-prefix-caching"
SPECULATIVE = "speculative-config"
K = 1024


@dataclass(frozen=True)
class Variant:
    """A server to measure. drafts: speculative tokens, 0 for none; None: as it is. prefix_caching:
    None: as it is."""

    drafts: int | None = None
    prefix_caching: bool | None = None

    @property
    def is_now(self) -> bool:
        return self.drafts is None and self.prefix_caching is None


@dataclass(frozen=True)
class Point:
    """One thing to measure on one server. context: tokens of the prompt, 0: the prompt alone."""

    kind: str
    concurrency: int
    context: int
    thinking: bool

    @property
    def name(self) -> str:
        streams = "1 stream" if self.concurrency == 1 else f"{self.concurrency} streams"
        parts = [self.kind, streams]
        parts += [shown_context(self.context)] if self.context else []
        return ", ".join([*parts, "thinking"] if self.thinking else parts)


@dataclass(frozen=True)
class Asked:
    """A benchmark as it was asked for; every list without doubles, in the order given."""

    mode: str
    runs: int
    tokens: int
    kinds: tuple[str, ...]
    concurrency: tuple[int, ...]
    context: tuple[int, ...]
    drafts: tuple[int | None, ...]
    thinking: tuple[bool, ...]
    prefix_caching: tuple[bool | None, ...]
    overfull: bool = False

    @property
    def variants(self) -> list[Variant]:
        return [Variant(*pair) for pair in product(self.drafts, self.prefix_caching)]

    @property
    def starts_others(self) -> int:
        """How many servers are started that are not the installed one, at most."""
        return sum(1 for variant in self.variants if not variant.is_now)

    @property
    def points(self) -> list[Point]:
        """What is measured on each server. The longest prompts come last."""
        return [
            Point(kind, concurrency, context, thinking)
            for context, kind, thinking, concurrency in product(
                sorted(self.context), self.kinds, self.thinking, self.concurrency
            )
        ]


# What a mode measures where nothing else is asked for.
DEFAULTS: dict[str, dict[str, str]] = {
    "seed": {"runs": "3", "tokens": "1500", "kinds": "code,prose", "concurrency": "1"},
    "cross": {"runs": "2", "tokens": "256", "kinds": "agent", "concurrency": "1,4,16,64"},
    "quality": {"runs": "2", "tokens": "256", "kinds": "agent", "concurrency": "1"},
}
DEFAULTS["seed"] |= {"context": "0", "drafts": "0,now", "thinking": "off", "prefix_caching": NOW}
DEFAULTS["cross"] |= {"context": "1K,32K,125K", "drafts": "0,1,2,3", "thinking": "off"}
DEFAULTS["cross"] |= {"prefix_caching": NOW, "overfull": "no"}
DEFAULTS["quality"] |= {"context": "4K", "drafts": "0,now", "thinking": "off"}
DEFAULTS["quality"] |= {"prefix_caching": "off,on"}
# Fixed in a mode: his method is one stream, and a test of quality asks one thing after the other.
FIXED = {
    "seed": ("concurrency", "context", "overfull"),
    "cross": (),
    "quality": ("concurrency", "kinds", "overfull"),
}
WORDS = {
    "runs": "how often each thing is measured, a whole number",
    "tokens": "tokens of each answer, a whole number",
    "kinds": f"some of {', '.join(KINDS)}",
    "concurrency": "numbers of streams, such as 1,4",
    "context": "lengths of prompts in tokens, such as 1K,32K; 0: the short prompt alone",
    "drafts": f"numbers of speculative tokens, such as 0,2, or {NOW}",
    "thinking": "on, off or both",
    "prefix_caching": f"on, off or both, or {NOW}",
    "overfull": "yes or no",
}


def read(data: Mapping[str, object]) -> Asked | list[Refusal]:
    """What `--data` asks for, as texts or numbers; each fault of it as a refusal."""
    mode = str(data.get("mode", "seed"))
    if mode not in MODES:
        near = nearest(mode, MODES) or MODES[0]
        return [Refusal(f"mode={mode}", f"one of {', '.join(MODES)}", f"--data mode={near}")]
    texts, faults = dict(DEFAULTS[mode]), []
    for name in WORDS:
        given = text_of(data[name]) if name in data else None
        if given is not None and name in FIXED[mode]:
            remedy = f"leave --data {name} out, or measure it with mode=cross"
            faults.append(Refusal(f"{name}={given} with mode={mode}", "the mode's own", remedy))
        elif given is not None:
            texts[name] = given
    values: dict[str, Any] = {}
    for name, text in texts.items():
        try:
            values[name] = READERS[name](name, text)
        except ValueError:
            remedy = f"--data {name}={DEFAULTS[mode][name]}"
            faults.append(Refusal(f"{name}={text}", WORDS[name], remedy))
    return faults or Asked(mode=mode, **values)


def unfit(history: Mapping[str, Any]) -> list[Refusal]:
    """Why a box can't be measured. history: what `aibox status --history --json` answers.

    While a server is lent, the installed one does not serve: then the box itself judges, which
    follows the benchmark at work, gives its report, or takes back first what it has left.
    """
    if history.get("serves") or history.get("benchmark"):
        return []
    return [
        Refusal(
            "nothing that has passed its gate serves on this box",
            "a server that was deployed and serves",
            "run the deploy: pyinfra inventory deploy.py",
        )
    ]


def text_of(value: object) -> str:
    """pyinfra reads `true` and `on` as truth values, and hands numbers over as they are."""
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def one_number(name: str, text: str) -> int:
    return numbers(name, text)[0]


def numbers(name: str, text: str) -> tuple[int, ...]:
    least = 0 if name in ("drafts", "context") else 1
    return unique(name, text, lambda word: number(word, least, MOST[name]))


def number(word: str, least: int, most: int) -> int:
    match = re.fullmatch(r"(\d{1,7})([kK]?)", word, re.ASCII)
    value = int(match[1]) * (K if match[2] else 1) if match else -1
    if not least <= value <= most:
        raise ValueError(word)
    return value


def drafts(name: str, text: str) -> tuple[int | None, ...]:
    return unique(name, text, lambda word: None if word == NOW else number(word, 0, MOST[name]))


def kinds(name: str, text: str) -> tuple[str, ...]:
    return unique(name, text, lambda word: KINDS[KINDS.index(word)])


def switches(name: str, text: str) -> tuple[bool, ...]:
    return unique(name, text, truth)


def caches(name: str, text: str) -> tuple[bool | None, ...]:
    return unique(name, text, lambda word: None if word == NOW else truth(word))


def truth(word: str) -> bool:
    known = {"on": True, "off": False, "yes": True, "no": False}
    if word not in known:
        raise ValueError(word)
    return known[word]


def one_truth(_name: str, text: str) -> bool:
    return truth(text)


def unique(_name: str, text: str, reader: Any) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(reader(word.strip().lower()) for word in text.split(",")))


READERS: dict[str, Any] = {
    "runs": one_number,
    "tokens": one_number,
    "kinds": kinds,
    "concurrency": numbers,
    "context": numbers,
    "drafts": drafts,
    "thinking": switches,
    "prefix_caching": caches,
    "overfull": one_truth,
}


# --- the servers ---------------------------------------------------------------------------------


def flags_of(flags: Mapping[str, Any], variant: Variant) -> dict[str, Any]:
    """The server's flags as a variant wants them."""
    wanted = dict(flags)
    if variant.drafts == 0:
        wanted.pop(SPECULATIVE, None)
    elif variant.drafts is not None:
        now = wanted.get(SPECULATIVE)
        config = json.loads(now) if isinstance(now, str) else dict(now or {"method": "mtp"})
        wanted[SPECULATIVE] = {**config, "num_speculative_tokens": variant.drafts}
    if variant.prefix_caching is not None:
        wanted[CACHE] = variant.prefix_caching
    return wanted


def drafts_of(flags: Mapping[str, Any]) -> int:
    """Speculative tokens that a server drafts; 0 without. One that counts by itself drafts 1."""
    config = flags.get(SPECULATIVE)
    config = json.loads(config) if isinstance(config, str) else config
    return int(config.get("num_speculative_tokens") or 1) if config else 0


def candidate(good: Mapping[str, Any], variant: Variant) -> dict[str, Any] | Refusal:
    """The unit that serves with a variant's flags, made of the one that is installed.

    good: what the switch keeps of a unit that has passed, see `Box.candidate_spec`. The one that
    is installed, where the variant's flags are its own.
    """
    flags = flags_of(good["flags"], variant)
    if flags == good["flags"]:
        return dict(good)
    places = good["release"], good["weights"], good["port"]
    old = f"ExecStart={exec_start(server_command(*places, good['flags']))}\n"
    if not good["flags"] or good["text"].count(old) != 1:
        return Refusal(
            f"{good['unit']} does not start the server as a deploy writes it",
            "the flags of a model card, which a benchmark can change for a while",
            "measure it as it is: --data drafts=now --data prefix_caching=now; or deploy first",
        )
    if SPECULATIVE in flags and SPECULATIVE not in good["flags"] and not good.get("head"):
        return Refusal(
            f"drafts={variant.drafts}, and the model card knows no MTP head",
            "a speculative-config in the card, or a head",
            "--data drafts=0, or write a speculative-config into the card and deploy",
        )
    lines = server_command(*places, flags)
    return {
        **good,
        "text": good["text"].replace(old, f"ExecStart={exec_start(lines)}\n"),
        "command": [word for line in lines for word in line],
        "flags": flags,
        "speculative": SPECULATIVE in flags,
        "how": "bench",
        "restart": True,
    }


def named(variant: Variant, flags: Mapping[str, Any]) -> str:
    """A variant in words: "2 drafts", "no drafts, prefix caching off". flags: of the server."""
    count = drafts_of(flags_of(flags, variant))
    words = [f"{count} drafts" if count > 1 else "1 draft" if count else "no drafts"]
    if variant.prefix_caching is not None:
        words.append(f"prefix caching {'on' if variant.prefix_caching else 'off'}")
    return ", ".join(words)


# --- room ----------------------------------------------------------------------------------------


def fits(point: Point, tokens: int, cache: int | None, context: int) -> str | None:
    """Why a point is left out; None where it can be measured.

    tokens: of each answer. cache: tokens that the KV cache holds. context: tokens of a request.
    """
    whole = point.context + tokens
    if whole > context:
        return f"a request takes {whole:,} tokens, and the server takes {context:,}"
    if cache is not None and point.concurrency * whole > cache:
        most = f"{point.concurrency * whole:,} tokens at once are more than the KV cache's"
        return f"{most} {cache:,}: it would measure the queue (--data overfull=yes measures it)"
    return None


CAPACITY = re.compile(r'\bkv_cache_size_tokens="(\d+)"')


def cache_tokens(exposition: str) -> int | None:
    """Tokens that the KV cache holds, by vLLM's own metrics; None where they do not say."""
    rows = [row for row in exposition.splitlines() if row.startswith("vllm:cache_config_info{")]
    found = [match[1] for row in rows if (match := CAPACITY.search(row))]
    return sum(map(int, found)) if found else None  # a row for each replica


def shown_context(tokens: int) -> str:
    return f"{tokens // K}K" if tokens and tokens % K == 0 else f"{tokens:,}"


def batches(concurrency: int, runs: int) -> list[int]:
    """How many requests each call of `vllm bench serve` sends: each run of several streams needs
    a total of its own, the runs of one stream come one after the other in one call."""
    return [runs] if concurrency == 1 else [concurrency] * runs


def in_short(asked: Asked) -> Sequence[str]:
    """What a person reads before it begins."""
    servers = counted(len(asked.variants), "server")
    points = counted(len(asked.points), "point")
    rows = [f"mode {asked.mode}: {points} on {servers}, runs of each: {asked.runs}"]
    if asked.mode == "quality":
        rows = [f"mode quality: a fixed set of prompts on {servers}, runs of each: {asked.runs}"]
    if asked.starts_others:
        times = asked.starts_others + 1
        rows.append(f"the server is started anew up to {times} times; at the end it is what it was")
    return rows


def beside_gateways(
    box: str,
    alike: Sequence[str],
    run: Sequence[str],
    gateways: Sequence[str],
    rotation: str,
    *,
    stops: int,
) -> list[tuple[str, str]]:
    """Rows of (label, text) before a box is measured that gateways ask, beside others of its name.

    alike: boxes that serve the same, itself too. run: boxes of this run. rotation: the command that
    takes a box out, on a gateway. stops: how often the server is stopped for another one.
    """
    if not gateways or len(alike) < 2:
        return []
    rows = []
    together = [one for one in alike if one in run]
    if len(together) > 1 and box in together:
        what = "pause" if stops else "be slow"
        text = (
            f"{', '.join(together[:-1])} and {together[-1]} serve the same and would {what} at the "
            f"same time: measure one after the other, this one with --limit {box}"
        )
        rows.append(("together", text))
    where = " and ".join(gateways)
    measured = f"what comes to {box} through {where} is measured along, unless it is taken out"
    return [
        *rows,
        ("requests", measured),
        ("first", f"{rotation} out {box} --why benchmark (on {where})"),
        ("after", f"{rotation} back {box}"),
    ]
