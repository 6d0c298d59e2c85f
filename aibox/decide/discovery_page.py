"""A box that no deploy has seen, on one page: what it is, what serves on it, what would change.

Rows are (label, text); an empty label goes on with the row above.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from aibox.decide import adopting, consequences, driver, driver_refusals, vram
from aibox.decide.acceptance import Counters, in_words
from aibox.decide.discovery import Discovered, Kept, Ours, Server, Weights
from aibox.decide.driver import DriverWanted
from aibox.decide.driver_evidence import Evidence
from aibox.decide.figures import GB, gigabytes
from aibox.decide.foreign import is_loopback
from aibox.decide.launch import Launch
from aibox.decide.plan import labelled, shortened
from aibox.decide.preflight import BoxReport
from aibox.decide.refusal import Refusal
from aibox.decide.secrecy import words_without_secrets
from aibox.decide.standing import moment

Rows = list[tuple[str, str]]

PORTS_OF_INTEREST = (3000, 4000, 4001, 8000, 9090)  # Grafana, doors, vLLM, Prometheus
MOST_PORTS, MOST_WEIGHTS, MOST_SERVERS = 9, 4, 3
ANY_ADDRESS = ("0.0.0.0", "::")  # noqa: S104  these are looked for, nothing binds to them


def page(
    report: BoxReport,
    evidence: Evidence,
    wanted: DriverWanted,
    found: Discovered | None,
    ours: Ours,
    kept: Kept | None = None,
) -> Rows:
    """The whole page. found: None where the box gave no answer to that. kept: how a deploy kept
    the person's unit before."""
    rows = [("box", _box(report, evidence)), *_cards(report, evidence, wanted)]
    rows += _driver(evidence, wanted)
    if found is None:
        return [*rows, ("serves", "the box gave no answer: what runs on it is not known")]
    rows += labelled("serves", _servers(found))
    rows += labelled("weights", _held(found, ours))
    rows += labelled("ports", _ports(found, ours))
    theirs = adopting.adopted(found.servers, ours)
    if theirs is None or theirs.launch is None:
        return rows
    rows += labelled("changes", adopting.changes(theirs, ours))
    met = consequences.consequences(theirs, theirs.launch, ours, found)
    for one in met:
        rows += [("mind", str(one)), *(("", f"  {words}") for words in one.below)]
    rows += labelled("keep", consequences.one_line(met, ours))
    return rows + labelled("stays", adopting.stays(theirs, ours, kept))


# --- the machine ---------------------------------------------------------------------------------


def _box(report: BoxReport, evidence: Evidence) -> str:
    python = f"Python {report.python}" if report.python else "no python3"
    memory = gigabytes(report.memory_bytes)
    return f"{report.os_name}, kernel {evidence.kernel}, {python}, {memory} of memory"


def _cards(report: BoxReport, evidence: Evidence, wanted: DriverWanted) -> Rows:
    """NVML's word where it has one, else the ids on the bus."""
    gpu = report.gpu
    if gpu.library and gpu.error is None and gpu.cards:
        judged = vram.judge(gpu.cards, None, wanted.cards_wanted)
        if isinstance(judged, Refusal):
            wrong = "not the right one" if len(gpu.cards) == 1 else "not the right ones"
            return [("card", judged.found), ("", f"{wrong}: it takes {judged.expected}")]
        if len(gpu.cards) == 1:
            return [("card", f"{vram.described(judged[0])}: the right one")]
        return labelled("card", [f"{vram.shown(card)}: a right one" for card in judged])
    if not evidence.pci:
        return [("card", f"no NVIDIA card on the PCI bus; it takes {vram.EXPECTED}")]
    texts = []
    for card in evidence.pci:
        right = card.id in wanted.pci_ids
        name = driver_refusals.NAMES.get(card.id, "RTX PRO 6000 Blackwell" if right else "a card")
        verdict = (
            "the right one by its PCI id; the driver will tell its memory"
            if right
            else f"not one of gpu_pci_ids ({', '.join(wanted.pci_ids)})"
        )
        texts.append(f"{name} ({card.id}, held by {card.driver or 'no module'}): {verdict}")
    return labelled("card", texts)


def _driver(evidence: Evidence, wanted: DriverWanted) -> Rows:
    loaded = evidence.loaded
    if loaded is None:
        is_there = "nouveau holds the card" if evidence.nouveau else "no NVIDIA module is loaded"
    else:
        kind = "open" if loaded.open else "proprietary"
        is_there = f"{loaded.version}, {kind} modules"
    install = driver.install_reasons(evidence, wanted)
    reboot = driver.reboot_reasons(evidence, wanted)
    if not install and not reboot:
        return [("driver", f"{is_there}: the right one, kept as it is and pinned")]
    swapped = driver.exchanged(evidence, wanted)
    if swapped and not reboot:
        return [
            (
                "driver",
                f"{is_there}: the right one; a deploy exchanges its packages "
                f"({shortened(swapped)}) for NVIDIA's own of the same version, "
                "without a reboot",
            )
        ]
    todo = [f"installs {wanted.version} with open modules"] * bool(install)
    todo += ["reboots once"] * bool(reboot)
    absent = evidence.library is None and loaded is None
    why = "there is no driver yet" if absent else shortened(install or reboot)
    return [("driver", f"{is_there}; a deploy {' and '.join(todo)}: {why}")]


# --- what serves ---------------------------------------------------------------------------------


def _servers(found: Discovered) -> list[str]:
    if not found.servers:
        return ["no vLLM runs here, and no unit starts one"]
    texts: list[str] = []
    for server in found.servers[:MOST_SERVERS]:
        texts += _served(server)
    more = len(found.servers) - MOST_SERVERS
    return texts + ([f"and {more} more"] if more > 0 else [])


def _served(server: Server) -> list[str]:
    start = server.launch
    if server.pid is None:
        return [f"nothing now; {server.path or server.unit} would, as {server.user}"]
    port, health = server.port, server.health
    name = server.model or (start.served_names[0] if start and start.served_names else "a model")
    answers = {200: "it answers", None: "nothing answers there"}.get(health, f"/health: {health}")
    texts = [f"{name} on port {port} ({answers}), by {server.keeper}"]
    if server.since is not None:
        texts[0] += f", since {moment(server.since)}"
    if start is None:
        return texts
    texts.append(f"MTP {_mtp(start, server.counters)}")
    flags = " ".join(words_without_secrets(start.without()))
    return [*texts, f"flags {flags}" if flags else "no flags"]


def _mtp(start: Launch, counters: Counters | None) -> str:
    if not drafts(start):
        return "off"
    if counters is None:
        return "on; it does not tell its counters"
    return f"on; since its start: {in_words(counters)}"


def drafts(start: Launch) -> bool:
    """Whether a server was told to use the model's own head."""
    given = " ".join(start.values("speculative-config") or ())
    dotted = start.value("speculative-config.method") or ""
    return bool(re.search(r"mtp", f"{given} {dotted}"))


# --- weights and ports ---------------------------------------------------------------------------


def _held(found: Discovered, ours: Ours) -> list[str]:
    texts: list[str] = []
    for one in found.weights[:MOST_WEIGHTS]:
        name = one.repository or "a folder"
        at = f" at {one.commit[:12]}" if one.commit else ""
        missing = f", {one.missing} files missing" if one.missing else ""
        facts = f"{size(one.size)}{missing}, {one.dtype or 'type unknown'}, MTP head {one.head}"
        texts.append(f"{name}{at}: {facts}, in {place(one)}")
    if not texts:
        texts.append("none in the usual places (weights_from names another folder)")
    elif len(found.weights) > MOST_WEIGHTS:
        texts.append(f"and {len(found.weights) - MOST_WEIGHTS} more")
    return [*texts, _taken(found.weights, ours)]


def place(weights: Weights) -> str:
    """The hub cache that holds them, or their own folder."""
    return weights.folder.partition("/models--")[0]


def _taken(weights: Sequence[Weights], ours: Ours) -> str:
    mine = [one for one in weights if one.repository == ours.repository or one.repository is None]
    if not mine:
        whole = f" ({size(ours.weights_bytes)})" if ours.weights_bytes else ""
        return f"a deploy fetches {ours.repository}{whole}"
    if ours.commit is None:
        return (
            f"a deploy takes over by sum what it finds of {ours.repository}, and fetches the rest"
        )
    if any(one.commit == ours.commit and not one.missing for one in mine):
        return "a deploy takes them over by their sums, and fetches none again"
    return (
        f"a deploy serves {ours.repository} at {ours.commit[:12]}: it takes over what has the same "
        "sum, and fetches the rest"
    )


def size(number: int) -> str:
    return gigabytes(number) if number >= GB / 10 else f"{number / 1e6:.1f} MB"


def _ports(found: Discovered, ours: Ours) -> list[str]:
    """Each port once; those that matter here first, then those open to others."""
    wanted = {*PORTS_OF_INTEREST, ours.port, *(one.port for one in found.servers)}
    owners: dict[tuple[int, str, str | None], set[str]] = {}
    for one in found.listeners:
        owners.setdefault((one.port, one.name, one.unit), set()).add(one.address)
    rank = {
        key: (key[0] not in wanted, all(is_loopback(one) for one in owners[key]), key[0])
        for key in owners
    }
    ordered = sorted(owners, key=lambda key: rank[key])
    shown = sorted(ordered[:MOST_PORTS], key=lambda key: key[0])
    texts = [
        f"{port:<6}{reach(owners[port, name, unit]):<17}{name}{f' ({unit})' if unit else ''}"
        for port, name, unit in shown
    ]
    more = len(ordered) - len(shown)
    if more > 0:
        texts.append(f"and {more} more")
    return texts or ["nothing listens"]


def reach(addresses: set[str]) -> str:
    """Who can reach a port, by the addresses it listens on."""
    if all(is_loopback(one) for one in addresses):
        return "this box only"
    if addresses & set(ANY_ADDRESS):
        return "every network"
    return ", ".join(sorted(one for one in addresses if not is_loopback(one)))
