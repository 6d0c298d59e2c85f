"""How a server stands, in the words of the last screen and of `aibox status`."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from typing import Any

from aibox.decide.acceptance import Counters, acceptance, in_words, percent
from aibox.decide.history import (
    AS_FOUND,
    BY_DEPLOY,
    BY_ROLLBACK,
    TO,
    TO_HIS,
    Passed,
    changes,
    missing,
    release_of,
)
from aibox.decide.manifest import STATE_FOLDER

TIME = "%Y-%m-%d %H:%M:%S UTC"
GIB = 2**30
HOW = {BY_DEPLOY: "a deploy", BY_ROLLBACK: "a rollback", AS_FOUND: "nobody: it was found serving"}

Rows = list[tuple[str, str]]


@dataclass(frozen=True)
class Facts:
    """What `aibox status` has looked at.

    deployed: the record of the last deploy. gate: what passed last, None before any. state: the
    unit's ActiveState. since: the start of the process that answers, seconds since the epoch,
    None when none answers. driver: in words, None without one. counters: since then, None when
    the server does not tell. requests, seconds_per_token: since then, the mean of them all.
    doors: what each answers when it is asked whether it is ready, None for nothing.
    card_bytes, used_bytes, own_bytes: of the memory of all cards that serve. proof, proven: the
    last one, and when it was made. failed: the last try that did not pass, from failed.json.
    gated: whether what runs is what passed last. measured: whether a benchmark is at work. lent:
    whether it has the server, with other flags for a while.
    """

    deployed: Mapping[str, Any]
    gate: Passed | None = None
    state: str = "inactive"
    since: float | None = None
    driver: str | None = None
    counters: Counters | None = None
    requests: int | None = None
    seconds_per_token: float | None = None
    card_bytes: int | None = None
    used_bytes: int | None = None
    own_bytes: int | None = None
    cards: int = 1
    proof: Mapping[str, Any] | None = None
    proven: float | None = None
    failed: Mapping[str, Any] | None = None
    gated: bool = True
    measured: bool = False
    lent: bool = False
    doors: Mapping[str, int | None] = field(default_factory=dict)

    @property
    def serves(self) -> bool:
        return self.since is not None


def rows(facts: Facts) -> Rows:
    """(label, text) of `aibox status`."""
    server, weights, gate = facts.deployed["server"], facts.deployed["weights"], facts.gate
    address = f"http://localhost:{server['port']}/v1"
    model = gate.model if gate else server["model"]
    commit = gate.commit if gate else weights["commit"]
    release = release_of(gate) if gate else f"vLLM {facts.deployed['release']['id']}"
    status = f"it is {facts.state}, see `systemctl status {server['unit']}`"
    return [
        ("serves", f"{model} on {address}" if facts.serves else f"nothing on {address}"),
        ("since", status if facts.since is None else moment(facts.since)),
        *benchmark_of(facts),
        *doors_of(facts),
        ("model", f"{weights['repository']} at {commit[:12]}"),
        ("release", release),
        ("driver", facts.driver or "none is loaded"),
        ("MTP", mtp_of(facts)),
        ("speed", speed_of(facts)),
        ("memory", memory_of(facts)),
        ("gate", gate_of(gate, gated=facts.gated, lent=facts.lent)),
        ("proof", proof_of(facts)),
        *failed_of(facts),
    ]


def as_json(facts: Facts) -> dict[str, Any]:
    """The same for a program: times in seconds since the epoch, memory in bytes."""
    counters = facts.counters
    rate = acceptance(counters) if counters else None
    pace = facts.seconds_per_token
    return {
        "serves": facts.serves,
        "state": facts.state,
        "since": facts.since,
        "doors": dict(facts.doors),
        "driver": facts.driver,
        "speculative": speculative(facts),
        "acceptance": rate and {"rate": rate.rate, "mean_length": rate.mean_length, "at": rate.at},
        "drafts": counters.drafts if counters else None,
        "requests": facts.requests,
        "tokens_per_second": 1 / pace if pace else None,
        "memory": {
            "total": facts.card_bytes,
            "used": facts.used_bytes,
            "own": facts.own_bytes,
            "cards": facts.cards,
        },
        "model": facts.gate.model if facts.gate else facts.deployed["server"]["model"],
        "port": facts.deployed["server"]["port"],
        "release": facts.gate.release_id if facts.gate else facts.deployed["release"]["id"],
        "weights": facts.gate.commit if facts.gate else facts.deployed["weights"]["commit"],
        "gate": asdict(facts.gate) if facts.gate else None,
        "gated": facts.gated,
        "measured": facts.measured,
        "lent": facts.lent,
        "failed": facts.failed,
        "proof": facts.proof,
        "proven": facts.proven,
    }


def benchmark_of(facts: Facts) -> Rows:
    if facts.lent:
        words = "to a benchmark: other flags for a while; then what is installed serves again"
        return [("lent", words)]
    return [("measured", "a benchmark is at work on it")] if facts.measured else []


def doors_of(facts: Facts) -> Rows:
    """A row for each door that the last deploy has laid out."""
    return [
        (name, door_words(one, facts.doors.get(name)))
        for name, one in facts.deployed.get("doors", {}).items()
    ]


def door_words(door: Mapping[str, Any], answer: int | None) -> str:
    """door: its entry in the deploy's record. answer: HTTP status, None where nothing answers."""
    where = f"{door['title']} on port {door['port']}"
    if answer != 200:
        return f"{where} answers {answer or 'nothing'}: see `systemctl status {door['unit']}`"
    key = f"its key lies in {door['key_file']}" if door["key_file"] else "open, it asks for no key"
    return f"{where} answers; {key}"


def moment(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime(TIME)


def driver(loaded: Mapping[str, Any] | None) -> str | None:
    """ "580.178.04, open modules". loaded: {"version", "open"} of the module, None without one."""
    if loaded is None:
        return None
    return f"{loaded['version']}, {'open' if loaded['open'] else 'proprietary'} modules"


def speculative(facts: Facts) -> bool:
    return bool(facts.gate.speculative if facts.gate else facts.deployed["server"]["speculative"])


def mtp_of(facts: Facts) -> str:
    if facts.lent:
        drafted = in_words(facts.counters) if facts.counters else "the server does not tell"
        return f"as the benchmark has it now: {drafted}"
    if not speculative(facts):
        return "off"
    if facts.counters is None:
        return "on; the server does not tell its counters"
    return f"on: {in_words(facts.counters)} ({facts.counters.drafts} drafts since the start)"


def speed_of(facts: Facts) -> str:
    if not facts.seconds_per_token or not facts.requests:
        return "no requests since the start"
    rate = 1 / facts.seconds_per_token
    return f"{rate:.1f} tokens/s a request, the mean of {facts.requests} since the start"


def memory_of(facts: Facts) -> str:
    if facts.card_bytes is None or facts.used_bytes is None:
        return "the card does not tell"
    own = "" if facts.own_bytes is None else f", {facts.own_bytes / GIB:.1f} by the server"
    over = f" on {facts.cards} cards" if facts.cards > 1 else ""
    return f"{facts.used_bytes / GIB:.1f} of {facts.card_bytes / GIB:.1f} GiB used{over}{own}"


def failed_of(facts: Facts) -> Rows:
    """The last try, where it is newer than what passed."""
    if facts.failed is None or (facts.gate and facts.failed["when"] < facts.gate.when):
        return []
    cause = facts.failed.get("cause") or {"found": "no known cause"}
    return [("failed", f"a try of {moment(facts.failed['when'])}: {cause['found']}")]


def gate_of(gate: Passed | None, *, gated: bool = True, lent: bool = False) -> str:
    if gate is None:
        return "nothing has passed it yet"
    if lent:
        return f"what is lent is in no history; the last that passed: {moment(gate.when)}"
    if not gated:
        return f"what runs now has not passed it; the last that did: {moment(gate.when)}"
    took = "" if gate.seconds_start is None else f"; the start took {gate.seconds_start:.0f} s"
    return f"passed {moment(gate.when)} by {HOW.get(gate.how, gate.how)}{took}"


def proof_of(facts: Facts) -> str:
    proof, proven = facts.proof, facts.proven
    if proof is None or proven is None:
        return "none yet"
    return f"{moment(proven)}: {speed(proof)}; MTP {mtp(speculative(facts), proof)}"


def shortened(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def speed(proof: Mapping[str, Any]) -> str:
    if not proof.get("seconds"):
        return "not measured"
    rate = proof["tokens"] / proof["seconds"]
    return f"{rate:.1f} tokens/s ({proof['tokens']} tokens, prefill included)"


def mtp(speculative: bool, proof: Mapping[str, Any]) -> str:
    if not speculative:
        return "off"
    drafted, accepted = proof.get("draft_tokens") or 0, proof.get("accepted") or 0
    if not drafted:
        return "on, no drafts yet"
    share = percent(accepted / drafted)
    return f"on: {accepted:.0f} of {drafted:.0f} draft tokens accepted ({share})"


# --- what has passed the gate ----------------------------------------------------------------


def history_rows(
    passed: Sequence[Passed], there: Collection[str], found: Sequence[Passed] = ()
) -> list[str]:
    """`aibox status --history`: each entry, how it differs from the one before, and whether it can
    come back. there: folders and sums of units that the box still has. found: a person's own unit
    as deploys met it, the newest first."""
    lines = []
    for number, entry in enumerate(passed, 1):
        start = "" if entry.seconds_start is None else f", start {entry.seconds_start:.0f} s"
        down = "" if entry.seconds_down is None else f", {entry.seconds_down:.0f} s without service"
        how = HOW.get(entry.how, entry.how)
        lines.append(
            f"{number:>2}  {entry.sha256[:12]}  {moment(entry.when)}  by {how}: {entry.model}, "
            f"{release_of(entry)}{start}{down}"
        )
        older = passed[number] if number < len(passed) else None
        rows = changes(entry, older) if older else []
        lines += [f"      {row}" for row in rows]
        gone = missing(entry, there)
        lines += [f"      can't come back: {' and '.join(gone)}"] if gone else []
    for number, one in enumerate(found):
        file = f"{STATE_FOLDER}/server/units/{one.sha256}.service"
        way = f"of {moment(one.when)}, older: {TO}{one.sha256[:12]} ({file})"
        lines.append(f" -  {one.sha256[:12]}  kept for ever; {way if number else TO_HIS}")
    return lines
