"""The 96 GB check, on the word of nvidia-ml-py and of CUDA itself on the box."""

from __future__ import annotations

from pyinfra import host, logger, state
from pyinfra.api import deploy, operation

from aibox.decide import fitting
from aibox.decide.refusal import Refusal
from aibox.decide.vram import Card, VramReport, cuda_refusal, judge, memory_refusals
from aibox.settings import load_on_cards
from tasks.box import Box
from tasks.drift_report import because
from tasks.driver import is_pending, vram_report
from tasks.operations import Commands, refused
from tasks.server import server_state


@deploy("VRAM")
def verified(box: Box) -> None:
    vram_verified(name="96 GB of VRAM, by NVML and cuInit", box=box)


@operation()
def vram_verified(box: Box) -> Commands:
    """Fails in words where the cards are not what the model needs; changes nothing."""
    report = vram_report()
    if report is None or is_pending(box):
        host.noop("comes with the driver; the run itself will ask")
        return
    verdict = verdict_of(box, report)
    if isinstance(verdict, Refusal):
        because(host, verdict.found)
        yield refused(verdict)
        return
    names = ", ".join(dict.fromkeys(card.name for card in verdict))
    several = f"{len(verdict)} × " if len(verdict) > 1 else ""
    verified = f"{several}{names}: 96 GB verified"
    if state.is_executing:
        host.log(verified, logger.info)
    host.noop(verified)


def verdict_of(box: Box, report: VramReport) -> tuple[Card, ...] | Refusal:
    """The cards, of the right make, with a CUDA that starts, large enough for the weights, and
    free where our server is not."""
    settings = box.settings
    cards = judge(report.cards, report.error, settings.cards_wanted)
    if isinstance(cards, Refusal):
        return cards
    fault = cuda_refusal(report.cuda, settings.uvm_disable_hmm) if report.cuda else None
    if fault is None:
        share = fitting.share_of(settings.flags)
        serving = server_state(box)["process"] is not None
        fault = memory_refusals(cards, share, serving)
    load = load_on_cards(settings)
    if fault is None and load is not None:
        fault = fitting.refusal(load, [card.memory_bytes or 0 for card in cards])
    return fault or cards
