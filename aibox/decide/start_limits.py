"""How long a start may take, how often it may fail, and what it waits for before it begins."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from aibox.decide.figures import MIB, gibibytes
from aibox.decide.refusal import Refusal
from aibox.decide.unit import differences
from aibox.decide.vram import Holder

GPU_WAIT_S = 90  # a boot's driver is there long before; a dead server's memory is given back in 10
STOP_S = 30  # vLLM ends about a second after SIGTERM; then SIGKILL
RESTART_S = 5
TRIES = 5
SLACK_S = 30  # what else a start has to do: nvidia-modprobe, aibox's own start, systemd's
LEAST_S = 600  # 55 GB of weights from a hard disk that nothing has read since the boot
SLOWER = 4  # times the slowest measured start: a cold disk, caches that are gone
# vLLM's own where no flag says otherwise (0.31.0).
UTILIZATION = 0.92
DRIVER = "a driver that answers NVML"


@dataclass(frozen=True)
class UnitLimits:
    """Seconds, and the number of starts in `interval`, as they stand in the unit."""

    gpu_wait: int
    start: int
    stop: int
    restart: int
    tries: int
    interval: int


def unit_limits(start_timeout: int) -> UnitLimits:
    """Limits under which the slowest of failures still ends after TRIES starts.

    start_timeout: seconds that a server may take to answer.
    """
    start = GPU_WAIT_S + start_timeout + SLACK_S
    longest = start + STOP_S + RESTART_S
    return UnitLimits(GPU_WAIT_S, start, STOP_S, RESTART_S, TRIES, TRIES * longest)


def start_limit(history: object, command: Sequence[str], start_timeout: float) -> float:
    """Seconds that a start of this command line may take, by those that were measured.

    history: what history.json holds, newest first; anything else counts as nothing measured, and
    so does another command line: a changed flag may have to compile anew.
    """
    entries = history if isinstance(history, list) else []
    measured = [
        seconds
        for entry in entries
        if isinstance(entry, dict) and is_of(entry.get("command"), command)
        if (seconds := number(entry.get("seconds_start"))) is not None
    ]
    if not measured:
        return start_timeout
    return min(start_timeout, max(LEAST_S, SLOWER * max(measured)))


def is_of(recorded: object, command: Sequence[str]) -> bool:
    if not isinstance(recorded, list) or not all(isinstance(word, str) for word in recorded):
        return False
    return bool(recorded) and not differences(command, recorded)


def number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and value > 0 else None


# --- the card, before the server starts ----------------------------------------------------------


@dataclass(frozen=True)
class Memory:
    """A card's memory in bytes as NVML says it; reserved is the driver's own, 0 if not said."""

    total: int
    reserved: int
    free: int


@dataclass(frozen=True)
class Room:
    """What is on a card that serves. memory: None where the card does not say."""

    uuid: str
    memory: Memory | None
    holders: tuple[Holder, ...] = ()


@dataclass(frozen=True)
class GpuState:
    """What the driver answers now.

    library: whether there is an NVML. error: its words when it does not answer, mismatch: whether
    they are of two versions. uuids: the cards there are. rooms: of those that serve, empty where
    one is not there. closed: device nodes that may not be opened, missing: that are not there.
    """

    library: bool
    error: str | None = None
    mismatch: bool = False
    uuids: tuple[str, ...] = ()
    rooms: tuple[Room, ...] = ()
    missing: tuple[str, ...] = ()
    closed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Blocked:
    """Why a server cannot start now. passing: whether waiting can help. about: changes with the
    reason, and not with every MiB."""

    refusal: Refusal
    passing: bool
    about: str


def blocked(state: GpuState, uuids: Sequence[str], utilization: float) -> Blocked | None:
    """What stands between a server and its cards; None when it can start.

    uuids: the cards that serve, none for the first. utilization: the share of each card's memory
    that vLLM asks for, 0 to 1.
    """
    several = len(state.rooms) > 1
    full = (no_room(room, utilization, named=several) for room in state.rooms)
    return (
        no_library(state.library)
        or no_node(state.missing)
        or closed_to_us(state.closed)
        or no_driver(state.error, state.mismatch)
        or no_card(state.uuids, uuids)
        or next(filter(None, full), None)
    )


def closed_to_us(closed: Sequence[str]) -> Blocked | None:
    """systemd looks the devices up once, when it makes the unit's control group."""
    if not closed:
        return None
    found = f"this start may not open {', '.join(closed)}"
    remedy = (
        "nothing, if the next try serves: the module was loaded after this one began. "
        "Else see what overrides the unit: systemctl cat"
    )
    refusal = Refusal(found, "devices that DeviceAllow= of the unit covers", remedy)
    return Blocked(refusal, passing=False, about=found)


def no_library(there: bool) -> Blocked | None:
    if there:
        return None
    found = "there is no NVML on this box (libnvidia-ml.so.1)"
    remedy = "run the deploy: its driver stage installs the driver"
    return Blocked(Refusal(found, DRIVER, remedy), passing=False, about=found)


def no_driver(error: str | None, mismatch: bool) -> Blocked | None:
    if error is None:
        return None
    found = f"the driver does not answer: {error}"
    remedy = "run the deploy, which says what the driver lacks; `nvidia-smi` shows its state"
    if mismatch:
        remedy = "reboot: the driver's files were replaced under the loaded module"
    return Blocked(Refusal(found, DRIVER, remedy), passing=not mismatch, about=found)


def no_card(there_are: Sequence[str], wanted: Sequence[str]) -> Blocked | None:
    known = [uuid.lower() for uuid in there_are]
    missing = [uuid for uuid in wanted if uuid.lower() not in known]
    if there_are and not missing:
        return None
    there = f"the driver shows {', '.join(there_are) or 'no card'}"
    remedy = "look at `nvidia-smi -L` and `sudo dmesg | grep NVRM`; gpu_uuid names the card"
    named = ", ".join(missing) or "that serves"
    refusal = Refusal(there, f"the card{'s' if len(missing) > 1 else ''} {named}", remedy)
    return Blocked(refusal, passing=True, about=there)


def no_node(missing: Sequence[str]) -> Blocked | None:
    """The next try may make them, by nvidia-modprobe: its control group knows the module."""
    if not missing:
        return None
    found = f"there is no {', '.join(missing)}"
    remedy = "sudo modprobe nvidia-uvm; the deploy's driver stage has it loaded at boot"
    refusal = Refusal(found, "the driver's device nodes", remedy)
    return Blocked(refusal, passing=False, about=found)


def no_room(room: Room, utilization: float, *, named: bool = False) -> Blocked | None:
    """vLLM asks for a share of what CUDA shows as total, and that is without the reserved part."""
    memory, holders = room.memory, room.holders
    if memory is None:
        return None
    needed = math.ceil((memory.total - memory.reserved) * utilization)
    if memory.free >= needed:
        return None
    held = "; ".join(map(in_words, holders)) or "no process that NVML names"
    which = f"card {room.uuid}" if named else "the card"
    found = f"{gibibytes(memory.free)} of {which} are free; held by {held}"
    expected = f"{gibibytes(needed)} free, for gpu-memory-utilization {utilization:g}"
    remedy = "end what holds the memory, or lower gpu-memory-utilization in the model card"
    about = f"{which} held by " + ", ".join(str(holder.pid) for holder in holders)
    return Blocked(Refusal(found, expected, remedy), passing=True, about=about)


def in_words(holder: Holder) -> str:
    size = "?" if holder.used_bytes is None else holder.used_bytes // MIB
    return f"pid {holder.pid} {holder.name} {size} MiB"
