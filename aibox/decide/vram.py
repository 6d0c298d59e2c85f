"""Are the cards there that hold the model: 96 GB each, of the right make, whole?"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from aibox.decide.figures import GB, counted, gibibytes, gigabytes_and_mebibytes
from aibox.decide.refusal import Refusal
from aibox.decide.report import Part, document
from aibox.decide.spread import Choice

# The "96 GB" card reports 97887 MiB, which is 95.59 GiB: the rule counts decimal gigabytes.
MEMORY_FLOOR_BYTES = 96 * GB
# sm_120, the workstation and server Blackwell. Memory alone lets H100 NVL and GH200 through.
CAPABILITY = (12, 0)

MIG = ["MIG enabled"]
EXPECTED = "a card with at least 96 GB (decimal), compute capability 12.0 and MIG off"


@dataclass(frozen=True)
class Holder:
    """A process that holds memory of a card. used_bytes: None where NVML does not say."""

    pid: int
    name: str
    used_bytes: int | None


@dataclass(frozen=True)
class Card:
    """One GPU as NVML reports it. None means that NVML answered "not supported", or was not asked.

    Memory in bytes; the power limit in force and the bounds that the card allows in watts.
    """

    index: int
    name: str
    uuid: str
    memory_bytes: int | None
    capability: tuple[int, int] | None
    mig: str | None  # "enabled" or "disabled"; the Workstation card knows no MIG: None
    free_bytes: int | None = None
    processes: tuple[Holder, ...] = ()
    power_limit_w: float | None = None
    power_min_w: float | None = None
    power_max_w: float | None = None


@dataclass(frozen=True)
class Cuda:
    """What cuInit answered, or how it ended. name, text: as the library gives them."""

    code: int
    name: str
    text: str


@dataclass(frozen=True)
class VramReport:
    """The answer of `aibox vram`. error: NVML's own text when it could not be asked; cuda: None
    where there is no libcuda."""

    error: str | None
    cards: tuple[Card, ...]
    cuda: Cuda | None

    @classmethod
    def parse(cls, text: str) -> "VramReport":
        """Its JSON. Raises ValueError that names the place and what stands there."""
        report = document("vram report", text)
        return cls(
            error=report.text_or_none("error"),
            cards=tuple(_whole_card(part) for part in report.list_of_parts("cards")),
            cuda=_cuda(report.part_or_none("cuda")),
        )


def card_from(part: Part) -> Card:
    """One card as the probe reports it: who it is, without what it is doing."""
    mig = part.text_or_none("mig")
    if mig not in ("enabled", "disabled", None):
        raise ValueError(f"{part.where}.mig: expected enabled, disabled or null, found {mig!r}")
    return Card(
        index=part.count("index"),
        name=part.text("name"),
        uuid=part.text("uuid"),
        memory_bytes=part.count_or_none("memory_bytes"),
        capability=_capability_from(part),
        mig=mig,
    )


def _capability_from(part: Part) -> tuple[int, int] | None:
    value = part.value.get("capability", "missing")
    if value is None:
        return None
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(number, int) and not isinstance(number, bool) for number in value)
    ):
        return value[0], value[1]
    raise ValueError(f"{part.where}.capability: expected two numbers or null, found {value!r:.60}")


def _whole_card(part: Part) -> Card:
    return replace(
        card_from(part),
        free_bytes=part.count_or_none("free_bytes"),
        processes=tuple(
            Holder(one.count("pid"), one.text("name"), one.count_or_none("used_bytes"))
            for one in part.list_of_parts("processes")
        ),
        power_limit_w=part.number_or_none("power_limit_w"),
        power_min_w=part.number_or_none("power_min_w"),
        power_max_w=part.number_or_none("power_max_w"),
    )


def _cuda(part: Part | None) -> Cuda | None:
    if part is None:
        return None
    code = part.number_or_none("code")  # a process that died of a signal has a negative one
    return Cuda(int(code or 0), part.text("name"), part.text("text"))


def judge(
    cards: Sequence[Card], driver_error: str | None, wanted: Choice
) -> tuple[Card, ...] | Refusal:
    """The cards the server gets, each fit for it, or why there are none.

    driver_error is NVML's own text when it could not be asked.
    """
    if driver_error is not None:
        return _driver_refusal(driver_error)
    if not cards:
        return Refusal(
            "an NVIDIA driver, but no card",
            EXPECTED,
            "look for the card with `lspci -d 10de:` and for its fault with `dmesg | grep NVRM`",
        )
    if wanted.uuids:
        return _judge_named(cards, wanted.uuids)
    if wanted.count > 1:
        return _several(cards, wanted)
    if len(cards) > 1:
        return _choose_one(cards)
    return _unfit(cards[0]) or (cards[0],)


def shown(card: Card) -> str:
    """One card in words, with memory in decimal GB and MiB."""
    return f"card {card.index}, {card.name} ({card.uuid}): {_memory(card)}, {_capability(card)}"


def described(card: Card) -> str:
    """The same for a box with one card."""
    return f"{card.name}, {_memory(card)}, {_capability(card)}"


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


def _unfit(card: Card) -> Refusal | None:
    lacks = _lacks(card)
    if not lacks:
        return None
    if lacks == MIG:
        remedy = without_mig([card])
    elif card.memory_bytes is None or card.capability is None:
        remedy = "ask the card with `nvidia-smi -q`; a driver that does not know it must be newer"
    else:
        remedy = "use a box with an RTX PRO 6000 Blackwell (96 GB); this card cannot serve"
    return Refusal(f"{shown(card)}: {', '.join(lacks)}", EXPECTED, remedy)


def _judge_named(cards: Sequence[Card], uuids: Sequence[str]) -> tuple[Card, ...] | Refusal:
    there = {card.uuid.lower(): card for card in cards}
    missing = [uuid for uuid in uuids if uuid.lower() not in there]
    if missing:
        several = "cards" if len(missing) > 1 else "card"
        return Refusal(
            "; ".join(shown(card) for card in cards),
            f"the {several} that gpu_uuid names, {', '.join(missing)}",
            "set gpu_uuid to one of the cards found (`nvidia-smi -L` lists them)"
            if len(uuids) == 1
            else f"set gpu_uuid to {len(uuids)} of the cards found (`nvidia-smi -L` lists them), "
            "or mend what hides a card (`dmesg | grep NVRM`)",
        )
    named = tuple(there[uuid.lower()] for uuid in uuids)
    return together([fault for card in named if (fault := _unfit(card))]) or named


def _several(cards: Sequence[Card], wanted: Choice) -> tuple[Card, ...] | Refusal:
    """Where exactly as many fit as are wanted there is no choice to make."""
    fitting = tuple(card for card in cards if not _lacks(card))
    if len(fitting) == wanted.count:
        return fitting
    shown = "; ".join(_shown_with_lacks(card) for card in cards)
    found = f"{counted(len(cards), 'card')}: {shown}"
    if len(fitting) > wanted.count:
        names = ", ".join(f'"{card.uuid}"' for card in fitting[: wanted.count])
        return Refusal(
            found,
            f"{wanted.count} cards ({wanted.why}), or gpu_uuid naming the {wanted.count} that "
            "serve",
            f"set gpu_uuid = [{names}], or others of those that fit",
        )
    divided = [card for card in cards if _lacks(card) == MIG]
    enough = divided and len(fitting) + len(divided) >= wanted.count
    return Refusal(
        found,
        f"{wanted.count} cards ({wanted.why}), each {EXPECTED.removeprefix('a card ')}",
        without_mig(divided) if enough else fewer_remedy(len(fitting)),
    )


def without_mig(cards: Sequence[Card]) -> str:
    """What makes whole cards of divided ones."""
    commands = " and ".join(f"`nvidia-smi -i {card.index} -mig 0`" for card in cards)
    return f"switch MIG off with {commands} and reboot the box"


def too_few(wanted: Choice, found: int, words: str) -> Refusal | None:
    """Before there is a driver: whether the bus shows enough cards. words: what it shows."""
    named = len(wanted.uuids) or wanted.count
    if found >= named:
        return None
    return Refusal(words, f"{named} cards ({wanted.why})", fewer_remedy(found))


def fewer_remedy(fitting: int) -> str:
    if fitting == 0:
        return "use a box with an RTX PRO 6000 Blackwell (96 GB); none of these cards can serve"
    even = 2 ** (fitting.bit_length() - 1)  # no model's heads can be cut in three
    return (
        "put more such cards into the box, or take the parallel sizes down to what is there: the "
        f'card\'s, or with `serve`, such as {{"tensor-parallel-size": {even}}}'
    )


def together(faults: Sequence[Refusal]) -> Refusal | None:
    """Of several cards, one answer."""
    if not faults:
        return None
    parts = [(one.found, one.expected, one.remedy) for one in faults]
    found, expected, remedy = ("; ".join(dict.fromkeys(part)) for part in zip(*parts, strict=True))
    return Refusal(found, expected, remedy)


def _choose_one(cards: Sequence[Card]) -> Refusal:
    return Refusal(
        f"{len(cards)} cards: " + "; ".join(_shown_with_lacks(card) for card in cards),
        "one card, or gpu_uuid naming the one that serves",
        _choice_remedy(cards),
    )


def _choice_remedy(cards: Sequence[Card]) -> str:
    fitting = [card.uuid for card in cards if not _lacks(card)]
    divided = [card for card in cards if _lacks(card) == MIG]
    if len(fitting) == 1:
        return f'set gpu_uuid = "{fitting[0]}"'
    if fitting:
        return f"set gpu_uuid to one of {', '.join(fitting)}"
    return without_mig(divided[:1]) if divided else fewer_remedy(0)


def _shown_with_lacks(card: Card) -> str:
    lacks = _lacks(card)
    return f"{shown(card)}: {', '.join(lacks)}" if lacks else shown(card)


def _driver_refusal(error: str) -> Refusal:
    if "mismatch" in error.lower():
        remedy = "reboot the box: its driver was upgraded under the loaded kernel module"
    else:
        remedy = "find the cause with `nvidia-smi` and `dmesg | grep NVRM`, then run again"
    return Refusal(f"NVML says: {error}", "an NVIDIA driver that answers", remedy)


# --- cuInit: a working nvidia-smi is no proof --------------------------------------------------

# Remedies by CUresult; nvidia-smi may be fine with each of them.
_CUDA_REMEDIES = {
    802: "a single card needs no fabric manager: take nvidia-fabricmanager away, and look at "
    "`dmesg | grep NVRM`; a machine with NVSwitch is not supported",
    803: "reboot the box: its driver was upgraded under the loaded kernel module",
    100: "see that /dev/nvidia0 is there, and that CUDA_VISIBLE_DEVICES hides no card",
}


def cuda_refusal(cuda: Cuda | None, uvm_disable_hmm: bool) -> Refusal | None:
    """Why CUDA does not start, with its remedy. uvm_disable_hmm: the setting as it stands."""
    expected = "cuInit that answers 0: nvidia-smi alone is no proof that CUDA works"
    if cuda is None:
        return Refusal(
            "no libcuda.so.1", expected, "look at what `ldconfig -p | grep libcuda` shows"
        )
    if cuda.code == 0:
        return None
    if cuda.code in (3, 999):
        remedy = _hmm_remedy(uvm_disable_hmm)
    else:
        remedy = _CUDA_REMEDIES.get(cuda.code, "find the cause with `dmesg | grep -E 'NVRM|Xid'`")
    return Refusal(f"cuInit answers {cuda.code} {cuda.name} ({cuda.text})", expected, remedy)


def _hmm_remedy(uvm_disable_hmm: bool) -> str:
    if uvm_disable_hmm:
        return (
            "uvm_disable_hmm is set already: see that /dev/nvidia-uvm is there (`modprobe "
            "nvidia-uvm`), reboot, and look at `dmesg | grep -iE 'nvrm|uvm'`"
        )
    return (
        "see that /dev/nvidia-uvm is there (`modprobe nvidia-uvm`); if it is, set "
        "uvm_disable_hmm = True and run again: HMM of the kernel keeps CUDA from starting"
    )


# --- free memory and power ---------------------------------------------------------------------


def memory_refusals(cards: Sequence[Card], utilization: float, serving: bool) -> Refusal | None:
    """memory_refusal of each card, in one answer."""
    faults = [memory_refusal(card, utilization, serving) for card in cards]
    return together([fault for fault in faults if fault])


def memory_refusal(card: Card, utilization: float, serving: bool) -> Refusal | None:
    """Whether the card has room for the server. utilization: the share of the whole memory that
    it takes; serving: our own server is not stopped, and then nothing is judged."""
    if serving or card.memory_bytes is None or card.free_bytes is None:
        return None
    needed = int(card.memory_bytes * utilization)
    if card.free_bytes >= needed:
        return None
    held = ", ".join(_holder(one) for one in card.processes)
    pids = " ".join(str(one.pid) for one in card.processes)
    return Refusal(
        f"{gibibytes(card.free_bytes)} of {gibibytes(card.memory_bytes)} free on card "
        f"{card.index}, held by {held or 'no process that NVML names (a display?)'}",
        f"{gibibytes(needed)} free: gpu-memory-utilization {utilization:g} of the whole",
        (
            f"stop what holds it (`ps -fp {pids.replace(' ', ',')}` shows it)"
            if pids
            else "take the display off the card"
        )
        + ", or lower gpu-memory-utilization with `serve`",
    )


def _holder(one: Holder) -> str:
    used = "an unknown amount" if one.used_bytes is None else gibibytes(one.used_bytes)
    return f"{one.name} (pid {one.pid}) with {used}"


def power_refusals(cards: Sequence[Card], limit_w: int | None) -> Refusal | None:
    """power_refusal of each card, in one answer."""
    faults = [power_refusal(card, limit_w) for card in cards]
    return together([fault for fault in faults if fault])


def power_refusal(card: Card, limit_w: int | None) -> Refusal | None:
    """A power limit that the card does not allow. A card that gives no bounds is not judged."""
    low, high = card.power_min_w, card.power_max_w
    if limit_w is None or low is None or high is None or low <= limit_w <= high:
        return None
    return Refusal(
        f"power_limit_w = {limit_w}",
        f"{low:g} to {high:g} W, which {card.name} allows",
        "set power_limit_w within that, or to None for the card's own limit",
    )


def power_reasons(card: Card, limit_w: int | None) -> list[str]:
    """Why the limit must be set (again): it is lost at each reboot."""
    if limit_w is None or card.power_limit_w is None or round(card.power_limit_w) == limit_w:
        return []
    return [f"the power limit is {card.power_limit_w:g} W, not {limit_w} W"]
