"""How a server stands, in the words of the last screen and of `aibox status`."""

from collections.abc import Mapping
from typing import Any

from aibox.decide.acceptance import Counters, in_words

Rows = list[tuple[str, str]]


def rows(
    deployed: Mapping[str, Any],
    driver: str | None,
    since: str | None,
    counters: Counters | None,
    proof: Mapping[str, Any] | None,
    proven: str | None,
) -> Rows:
    """(label, text) of `aibox status`.

    deployed: the record of the last deploy. driver: the loaded one, in words, None without one.
    since: when the server that answers was started, None when none answers. counters: since then.
    proof, proven: the last proof, and when it was made.
    """
    server, weights = deployed["server"], deployed["weights"]
    address = f"http://localhost:{server['port']}/v1"
    serves = f"{server['model']} on {address}" if since else f"nothing on {address}"
    return [
        ("serves", serves),
        ("since", since or f"see `systemctl status {server['unit']}`"),
        ("model", f"{weights['repository']} at {weights['commit'][:12]}"),
        ("release", f"vLLM {deployed['release']['id']}"),
        ("driver", driver or "none is loaded"),
        ("MTP", acceptance_of(counters) if server["speculative"] else "off"),
        ("proof", proof_of(server, proof, proven)),
    ]


def driver(loaded: Mapping[str, Any] | None) -> str | None:
    """ "580.178.04, open modules". loaded: {"version", "open"} of the module, None without one."""
    if loaded is None:
        return None
    return f"{loaded['version']}, {'open' if loaded['open'] else 'proprietary'} modules"


def acceptance_of(counters: Counters | None) -> str:
    if counters is None:
        return "on; the server does not tell its counters"
    return f"on: {in_words(counters)} ({counters.drafts} drafts since the start)"


def proof_of(server: Mapping[str, Any], proof: Mapping[str, Any] | None, proven: str | None) -> str:
    if proof is None:
        return "none yet"
    other = "" if proof.get("identity") == server["identity"] else ", of another command line"
    return f"{proven}{other}: {speed(proof)}; MTP {mtp(server['speculative'], proof)}"


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
    return f"on: {accepted:.0f} of {drafted:.0f} draft tokens accepted ({accepted / drafted:.0%})"
