"""The 96 GB check, on the word of nvidia-ml-py on the box."""

from __future__ import annotations

from pyinfra import host
from pyinfra.api import deploy, operation

from aibox.decide.refusal import Refusal
from aibox.decide.vram import Card, judge
from tasks.box import AIBOX, Box
from tasks.drift_report import because
from tasks.facts import AiboxAnswer
from tasks.operations import Commands, refused


@deploy("VRAM")
def verified(box: Box) -> None:
    vram_verified(name="96 GB of VRAM, by NVML", gpu_uuid=box.settings.gpu_uuid)


@operation()
def vram_verified(gpu_uuid: str | None) -> Commands:
    """Fails in words where the card is not the one the model needs; changes nothing."""
    answer = host.get_fact(AiboxAnswer, program=AIBOX, words="vram")
    if answer is None:
        host.noop("aibox is not on the box yet; the run itself will ask it")
        return
    cards = [
        Card(**{**card, "capability": card["capability"] and tuple(card["capability"])})
        for card in answer["cards"]
    ]
    verdict = judge(cards, answer["error"], gpu_uuid)
    if isinstance(verdict, Refusal):
        because(host, verdict.found)
        yield refused(verdict)
    else:
        host.noop(f"{verdict.name}: 96 GB verified")
