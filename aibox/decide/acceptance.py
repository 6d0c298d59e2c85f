"""How much of what the MTP head drafts is accepted, from vLLM's Prometheus text."""

import re
from collections.abc import Iterator
from dataclasses import dataclass

_PREFIX = "vllm:spec_decode_num_"
_SIMPLE = {
    f"{_PREFIX}drafts_total": "drafts",
    f"{_PREFIX}draft_tokens_total": "draft_tokens",
    f"{_PREFIX}accepted_tokens_total": "accepted_tokens",
    "vllm:generation_tokens_total": "generation_tokens",
}
_PER_POSITION = f"{_PREFIX}accepted_tokens_per_pos_total"

_SAMPLE = re.compile(r"([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+-?\d+)?\s*")
_LABEL = re.compile(r'\s*([A-Za-z_][A-Za-z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)')


@dataclass(frozen=True)
class Counters:
    """Totals since the server started: drafts made, tokens drafted and accepted, tokens written.

    accepted_at holds the accepted tokens for each draft position, the first position first.
    """

    drafts: int = 0
    draft_tokens: int = 0
    accepted_tokens: int = 0
    accepted_at: tuple[int, ...] = ()
    generation_tokens: int = 0


@dataclass(frozen=True)
class Acceptance:
    """rate: accepted of drafted tokens, 0 to 1. mean_length: tokens a step yields, the one that
    the model itself adds included. at: the share of drafts accepted at each position."""

    rate: float
    mean_length: float
    at: tuple[float, ...]

    def __str__(self) -> str:
        """In words: "64.3 % of the drafted tokens accepted, 2.29 tokens a step; of each step's
        drafted tokens the first 78.6 %, the second 50.0 %"."""
        words = f"{percent(self.rate)} of the drafted tokens accepted"
        words += f", {self.mean_length:.2f} tokens a step"
        if self.at:
            places = [*PLACES, *(f"{at + 1}th" for at in range(len(PLACES), len(self.at)))]
            each = (
                f"{place} {percent(share)}" for place, share in zip(places, self.at, strict=False)
            )
            words += f"; of each step's drafted tokens the {', the '.join(each)}"
        return words


PLACES = ("first", "second", "third")


def percent(share: float) -> str:
    """0.643 as "64.3 %"."""
    return f"{100 * share:.1f} %"


def parse_metrics(text: str, model_name: str | None = None) -> Counters:
    """The counters in vLLM's /metrics, summed over the engines.

    model_name keeps only what carries that label. Counters that are not there are 0. Raises
    ValueError when a line of one of these counters cannot be read.
    """
    totals = dict.fromkeys(_SIMPLE.values(), 0)
    positions: dict[int, int] = {}
    for name, labels, value in _samples(text):
        if model_name is not None and labels.get("model_name") != model_name:
            continue
        if name in _SIMPLE:
            totals[_SIMPLE[name]] += value
        else:
            position = _position(labels)
            positions[position] = positions.get(position, 0) + value
    length = max(positions, default=-1) + 1
    return Counters(**totals, accepted_at=tuple(positions.get(at, 0) for at in range(length)))


def mean_of(text: str, name: str) -> tuple[int, float] | None:
    """(count, mean) of a Prometheus histogram over all its labels; None when it counted nothing."""
    totals = {"_sum": 0.0, "_count": 0.0}
    for line in text.split("\n"):
        sample = _SAMPLE.fullmatch(line)
        part = sample[1].removeprefix(name) if sample else ""
        if sample is None or part not in totals or not sample[1].startswith(name):
            continue
        try:
            totals[part] += float(sample[3])
        except ValueError:
            return None
    count = totals["_count"]
    return (round(count), totals["_sum"] / count) if count > 0 else None


def difference(before: Counters, after: Counters) -> Counters:
    """What happened between two readings. Raises ValueError when the server restarted between."""
    pairs = [
        (before.drafts, after.drafts),
        (before.draft_tokens, after.draft_tokens),
        (before.accepted_tokens, after.accepted_tokens),
        (before.generation_tokens, after.generation_tokens),
    ]
    length = max(len(before.accepted_at), len(after.accepted_at))
    pairs += zip(_padded(before, length), _padded(after, length), strict=True)
    if any(later < earlier for earlier, later in pairs):
        raise ValueError("the counters went back: the server restarted between the two readings")
    drafts, draft_tokens, accepted, generated, *at = (later - earlier for earlier, later in pairs)
    return Counters(drafts, draft_tokens, accepted, tuple(at), generated)


def acceptance(counters: Counters) -> Acceptance | None:
    """Rate and mean length; None when nothing was drafted."""
    if counters.drafts <= 0 or counters.draft_tokens <= 0:
        return None
    return Acceptance(
        rate=counters.accepted_tokens / counters.draft_tokens,
        mean_length=1 + counters.accepted_tokens / counters.drafts,
        at=tuple(accepted / counters.drafts for accepted in counters.accepted_at),
    )


def in_words(counters: Counters) -> str:
    """The acceptance for a person; "no traffic" when nothing was drafted."""
    found = acceptance(counters)
    return "no traffic" if found is None else str(found)


def _padded(counters: Counters, length: int) -> tuple[int, ...]:
    return counters.accepted_at + (0,) * (length - len(counters.accepted_at))


def _samples(text: str) -> Iterator[tuple[str, dict[str, str], int]]:
    for line in text.split("\n"):
        name = re.split(r"[{\s]", line, maxsplit=1)[0]
        if name not in _SIMPLE and name != _PER_POSITION:
            continue
        sample = _SAMPLE.fullmatch(line)
        if sample is None:
            raise ValueError(f"cannot read the line {line!r:.200}")
        yield name, _labels(sample[2] or "", line), _count(sample[3], line)


def _labels(text: str, line: str) -> dict[str, str]:
    labels, at = {}, 0
    while at < len(text):
        label = _LABEL.match(text, at)
        if label is None:
            raise ValueError(f"cannot read the labels of {line!r:.200}")
        labels[label[1]] = re.sub(
            r"\\(.)", lambda escape: "\n" if escape[1] == "n" else escape[1], label[2]
        )
        at = label.end()
    return labels


def _count(text: str, line: str) -> int:
    try:
        value = float(text)
        if 0 <= value < 2**63:
            return round(value)
    except ValueError:
        pass
    raise ValueError(f"expected a count in {line!r:.200}")


def _position(labels: dict[str, str]) -> int:
    text = labels.get("position", "")
    if not (text.isascii() and text.isdigit() and len(text) <= 3):
        raise ValueError(f"expected a draft position of 0 or more, found {text!r}")
    return int(text)
