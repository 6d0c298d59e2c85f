"""Is there one card that holds the model: 96 GB, of the right make, whole?"""

from collections.abc import Sequence
from dataclasses import dataclass

from aibox.decide.figures import GB, gigabytes_and_mebibytes
from aibox.decide.refusal import Refusal

# The "96 GB" card reports 97887 MiB, which is 95.59 GiB: the rule counts decimal gigabytes.
MEMORY_FLOOR_BYTES = 96 * GB
# sm_120, the workstation and server Blackwell. Memory alone lets H100 NVL and GH200 through.
CAPABILITY = (12, 0)

EXPECTED = "a card with at least 96 GB (decimal), compute capability 12.0 and MIG off"


@dataclass(frozen=True)
class Card:
    """One GPU as NVML reports it. None means that NVML answered "not supported"."""

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    capability: tuple[int, int] | None
    mig: str | None  # "enabled" or "disabled"; the Workstation card knows no MIG: None


def judge(
    cards: Sequence[Card], driver_error: str | None, wanted_uuid: str | None
) -> Card | Refusal:
    """The card the server gets, or why there is none.

    driver_error is NVML's own text when it could not be asked; wanted_uuid the setting gpu_uuid.
    """
    if driver_error is not None:
        return _driver_refusal(driver_error)
    if not cards:
        return Refusal(
            "an NVIDIA driver, but no card",
            EXPECTED,
            "look for the card with `lspci -d 10de:` and for its fault with `dmesg | grep NVRM`",
        )
    if wanted_uuid is not None:
        return _judge_wanted(cards, wanted_uuid)
    if len(cards) > 1:
        return _choose_one(cards)
    return _judge_one(cards[0])


def shown(card: Card) -> str:
    """One card in words, with memory in decimal GB and MiB."""
    return f"card {card.index}, {card.name} ({card.uuid}): {_memory(card)}, {_capability(card)}"


def _memory(card: Card) -> str:
    if card.memory_bytes is None:
        return "memory not reported (not supported)"
    return gigabytes_and_mebibytes(card.memory_bytes)


def _capability(card: Card) -> str:
    if card.capability is None:
        return "compute capability not reported (not supported)"
    return "compute capability {}.{}".format(*card.capability)


def _lacks(card: Card) -> list[str]:
    """What keeps the card from serving, each with its remedy's reason; empty when it will do."""
    lacks = []
    if card.memory_bytes is None or card.memory_bytes < MEMORY_FLOOR_BYTES:
        lacks.append("too little memory" if card.memory_bytes is not None else "memory unknown")
    if card.capability is None:
        lacks.append("compute capability unknown")
    elif card.capability != CAPABILITY:
        lacks.append("another GPU architecture")
    if card.mig == "enabled":
        lacks.append("MIG enabled")
    return lacks


def _judge_one(card: Card) -> Card | Refusal:
    lacks = _lacks(card)
    if not lacks:
        return card
    if lacks == ["MIG enabled"]:
        remedy = f"switch MIG off with `nvidia-smi -i {card.index} -mig 0` and reboot the box"
    elif card.memory_bytes is None or card.capability is None:
        remedy = "ask the card with `nvidia-smi -q`; a driver that does not know it must be newer"
    else:
        remedy = "use a box with an RTX PRO 6000 Blackwell (96 GB); this card cannot serve"
    return Refusal(f"{shown(card)}: {', '.join(lacks)}", EXPECTED, remedy)


def _judge_wanted(cards: Sequence[Card], wanted_uuid: str) -> Card | Refusal:
    for card in cards:
        if card.uuid.lower() == wanted_uuid.lower():
            return _judge_one(card)
    return Refusal(
        "; ".join(shown(card) for card in cards),
        f"the card that gpu_uuid names, {wanted_uuid}",
        "set gpu_uuid to one of the cards found (`nvidia-smi -L` lists them)",
    )


def _choose_one(cards: Sequence[Card]) -> Refusal:
    fitting = [card.uuid for card in cards if not _lacks(card)]
    remedy = (
        f'set gpu_uuid = "{fitting[0]}"'
        if len(fitting) == 1
        else f"set gpu_uuid to one of {', '.join(fitting)}"
        if fitting
        else "use a box with an RTX PRO 6000 Blackwell (96 GB); none of these cards can serve"
    )
    return Refusal(
        f"{len(cards)} cards: " + "; ".join(_shown_with_lacks(card) for card in cards),
        "one card, or gpu_uuid naming the one that serves",
        remedy,
    )


def _shown_with_lacks(card: Card) -> str:
    lacks = _lacks(card)
    return f"{shown(card)}: {', '.join(lacks)}" if lacks else shown(card)


def _driver_refusal(error: str) -> Refusal:
    if "mismatch" in error.lower():
        remedy = "reboot the box: its driver was upgraded under the loaded kernel module"
    else:
        remedy = "find the cause with `nvidia-smi` and `dmesg | grep NVRM`, then run again"
    return Refusal(f"NVML says: {error}", "an NVIDIA driver that answers", remedy)
