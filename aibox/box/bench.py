"""Measure the server that stands here, and others that differ from it in a flag or two for a while.

What is installed serves again at the end, whatever happened: see lent.py.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from aibox.box import (
    bench_prompts,
    bench_quality,
    bench_serve,
    gate,
    good_units,
    judge,
    lent,
    prove,
    surroundings,
    tensors,
)
from aibox.box.job import FAILURES, JobError, Progress, Spec, refusal_of
from aibox.box.probe.driver import cards_on_the_bus, loaded_module
from aibox.box.probe.files import path_of, read_text, record_in
from aibox.box.service import Service
from aibox.box.switch import served_now, tried
from aibox.decide import bench_plan, bench_report, roofline
from aibox.decide.acceptance import Counters, difference
from aibox.decide.bench_plan import Asked, Point, Variant
from aibox.decide.refusal import Refusal
from aibox.decide.spread import chosen, pinned_by, readable_spread
from aibox.decide.vram import Card

FORMAT = 1
Report = dict[str, Any]


def bench(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Do a benchmark: {"report": see docs/bench.md, "notes": [text]}. spec: {"asked": {name: text}}
    as `--data` gives it. Raises JobError; then, too, what is installed serves. After each point
    the report is kept as it is by then.
    """
    asked = bench_plan.read(spec["asked"])
    if not isinstance(asked, Asked):
        raise judge.together(asked)
    service, good = standing(progress)
    servers = candidates(asked, good, progress)
    report = about(asked, good, spec["asked"])
    with lending(service, good, progress) as lend:
        for variant, candidate in servers:
            server = entry(variant, candidate, good)
            report["servers"].append(server)
            one_server(asked, candidate, server, lend, lambda: progress.keep(report))
    report["whole"] = not bench_report.is_empty(report)
    return {"report": report, "notes": [note for one in report["servers"] for note in one["notes"]]}


# --- what stands here ----------------------------------------------------------------------------


def standing(progress: Progress) -> tuple[Service, Spec]:
    """The service and the spec of its unit, which has passed its gate and serves. Raises JobError.

    What a benchmark that was cut off has left is taken back first.
    """
    passed = good_units.passed()
    good = good_units.kept(passed[0].sha256) if passed else None
    if good is None:
        raise unfit("nothing has passed its gate on this box")
    service = Service(good["unit"])
    if lent.is_lent():
        give_back(service, good, progress)
    if service.text() != good["text"]:
        raise unfit(f"{service.name} is not the unit that passed its gate last")
    if not served_now(service, good):
        raise unfit(f"{service.name} does not answer on port {good['port']}")
    return service, {**good, "model": good["model"] or gate.model_served(good["port"])}


def unfit(found: str) -> JobError:
    remedy = "run the deploy: pyinfra inventory deploy.py; then measure"
    return JobError(found, "a server that was deployed and serves", remedy)


def candidates(asked: Asked, good: Spec, progress: Progress) -> list[tuple[Variant, Spec]]:
    """Every server that is to be measured, judged before anything stops; the one that runs first.

    Two variants that come to the same flags are one. Raises JobError with every fault.
    """
    found: dict[str, tuple[Variant, Spec]] = {}
    faults: list[Refusal] = []
    for variant in asked.variants:
        made = bench_plan.candidate(good, variant)
        if isinstance(made, Refusal):
            faults.append(made)
        else:
            found.setdefault(made["text"], (variant, made))
    for _, made in found.values():
        if made["text"] != good["text"]:
            try:
                judge.judge(made, progress, keep=False)
            except JobError as error:
                faults.append(error.refusal)
    if faults:
        raise judge.together(list(dict.fromkeys(faults)))
    return sorted(found.values(), key=lambda pair: pair[1]["text"] != good["text"])


def about(asked: Asked, good: Spec, given: Spec) -> Report:
    """What the report says of the box, before anything is measured."""
    driver, pinned = loaded_module(), pinned_by(good)
    cards: list[Card] = chosen(pinned, {one.uuid: one for one in surroundings.cards_now()[0]})
    return {
        "format": FORMAT,
        "mode": asked.mode,
        "whole": False,
        "asked": given,
        "unit": good_units.sum_of(good["text"]),
        "when": round(time.time(), 3),
        "model": good["model"],
        "card": Path(str(good.get("card_file", ""))).stem,
        "commit": good["commit"],
        "release": good["release_id"],
        "flags": good["flags"],
        "gpu": gpu_named([card.name for card in cards[: len(pinned) or 1]]),
        "pci": pci_of(next(iter(pinned), None)),
        "tensor": readable_spread(good["flags"]).tensor,
        "driver": driver["version"] if driver else None,
        "step": step_of(good),
        "tools": bench_prompts.required(),
        "servers": [],
    }


def gpu_named(names: Sequence[str]) -> str | None:
    """ "2 × NVIDIA RTX …"; None without a card."""
    counts = Counter(names)
    named = [f"{many} × {name}" if many > 1 else name for name, many in counts.items()]
    return ", ".join(named) or None


def pci_of(uuid: str | None) -> str | None:
    """The PCI id of the card that serves; None where nothing on the bus says that it is this one.

    uuid: None on a box with one card.
    """
    for card in cards_on_the_bus():
        told = path_of("proc/driver/nvidia/gpus") / card["slot"] / "information"
        if uuid is None or uuid in (read_text(told) or ""):
            return str(card["id"])
    return None


def step_of(good: Spec) -> dict[str, float] | None:
    """Bytes of weights that a step reads; None where the files do not tell."""
    folder, sizes = Path(good["weights"]), {}
    head = (good.get("head") or {}).get("tensor_prefix")
    try:
        for file in sorted(folder.glob("*.safetensors")):
            sizes.update(tensors.sizes(file))
    except (JobError, OSError):
        return None
    found = roofline.step_of(sizes, record_in(folder / "config.json") or {}, head)
    return vars(found) if sizes else None


# --- lending the server --------------------------------------------------------------------------


class Lend:
    """The server, as one of its variants."""

    def __init__(self, service: Service, good: Spec, progress: Progress) -> None:
        self.service, self.good, self.progress = service, good, progress

    def serve(self, candidate: Spec) -> None:
        """Have it run a candidate that has passed the gate. Raises JobError."""
        if candidate["text"] == self.service.text() and served_now(self.service, candidate):
            return
        lent.begun(self.service)
        tried(self.service, {**candidate, "restart": True}, self.progress)


@contextmanager
def lending(service: Service, good: Spec, progress: Progress) -> Iterator[Lend]:
    try:
        yield Lend(service, good, progress)
    finally:
        if lent.is_lent():
            give_back(service, good, progress)


def give_back(service: Service, good: Spec, progress: Progress) -> None:
    """What is installed serves again, through the gate. Raises JobError where it does not."""
    progress.step("giving the server back")
    service.stop()
    lent.cleared(service)
    try:
        tried(service, {**good, "restart": True}, progress, strict=False)
    except JobError as error:
        why = error.refusal
        raise JobError(
            f"the measurement is over, and {service.name}, which served before, does not: "
            f"{why.found}",
            why.expected,
            why.remedy,
        ) from None
    lent.over()


# --- measuring -----------------------------------------------------------------------------------


def entry(variant: Variant, candidate: Spec, good: Spec) -> Report:
    """A server in the report, before anything is measured on it."""
    return {
        "name": bench_plan.named(variant, good["flags"]),
        "drafts": bench_plan.drafts_of(candidate["flags"]),
        "prefix_caching": candidate["flags"].get(bench_plan.CACHE),
        "is_installed": candidate["text"] == good["text"],
        "points": [],
        "notes": [],
    }


def one_server(
    asked: Asked, candidate: Spec, server: Report, lend: Lend, keep: Callable[[], None]
) -> None:
    """Everything that is measured on one server, added to its entry; keep is called after each
    part of it. One that does not start is told, and left out."""
    try:
        lend.serve(candidate)
        server["kv_tokens"] = bench_plan.cache_tokens(prove.exposition(candidate["port"]))
        if asked.mode == "quality":
            name = server["name"]
            server["quality"] = bench_quality.answers(asked, candidate, name, lend.progress)
        else:
            measure(asked, candidate, server, lend.progress, keep)
    except FAILURES as error:
        why = refusal_of(error)
        server["notes"].append(f"{server['name']}: not measured to the end: {why.found}")
        server["failed"] = vars(why)
    keep()


def measure(
    asked: Asked, candidate: Spec, server: Report, progress: Progress, keep: Callable[[], None]
) -> None:
    """The points of one server, added to its report one by one."""
    long = any(point.context for point in asked.points)
    characters = bench_prompts.characters_of_a_token(candidate) if long else 0.0
    context = context_of(candidate)
    for at, point in enumerate(asked.points):
        why = bench_plan.fits(
            point, asked.tokens, None if asked.overfull else server["kv_tokens"], context
        )
        if why is not None:
            server["notes"].append(f"{server['name']}, {point.name}: left out, {why}")
            continue
        progress.step(f"{at + 1} of {len(asked.points)}, {server['name']}: {point.name}")
        measured = one_point(asked, point, candidate, characters, progress)
        server["points"].append(measured)
        others = bench_report.disturbed(measured)
        if others is not None:
            server["notes"].append(f"{server['name']}, {point.name}: {others}")
        keep()


def one_point(
    asked: Asked, point: Point, candidate: Spec, characters: float, progress: Progress
) -> Report:
    """One measurement, and what the server itself counted in the meantime."""
    before, runs = counters(candidate), []
    for count in bench_plan.batches(point.concurrency, asked.runs):
        texts = [bench_prompts.prompt(point.kind, point.context, characters) for _ in range(count)]
        runs.append(
            bench_serve.measured(
                candidate,
                texts,
                concurrency=point.concurrency,
                tokens=asked.tokens,
                thinking=point.thinking,
                progress=progress,
            )
        )
    try:
        counted = difference(before, counters(candidate))
    except ValueError as error:
        raise JobError(
            f"{point.name}: {error}",
            "a server that stays up while it is measured",
            f"look at `journalctl -u {candidate['unit']}` on the box",
        ) from None
    return {**vars(point), "name": point.name, "batches": runs, "counted": vars(counted)}


def counters(candidate: Spec) -> Counters:
    return prove.counters(candidate)


def context_of(candidate: Spec) -> int:
    """Tokens of a request that the server takes."""
    given = candidate["flags"].get("max-model-len")
    return given if isinstance(given, int) and given > 0 else int(candidate["context"])
