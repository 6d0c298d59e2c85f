"""What stands around a server: who has its port, who has its card's memory, what the driver is."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from aibox.box.probe import nvml
from aibox.box.probe.commands import text_of
from aibox.box.probe.driver import library_file, library_version, loaded_module
from aibox.box.probe.port_owners import owner_of
from aibox.box.probe.processes import unit_of
from aibox.decide.faults import About, Holder
from aibox.decide.spread import chosen, pinned_by
from aibox.decide.vram import Card

MIB = 1 << 20


def about(spec: Mapping[str, Any], *, serves: bool) -> About:
    """For the diagnosis. spec: of a candidate, or at least its "unit" and "port"."""
    unit, port = str(spec["unit"]), int(spec["port"])
    loaded = loaded_module()
    library = library_file(text_of(["ldconfig", "-p"]) or "")
    card_bytes, holders = card(unit, pinned_by(spec))
    return About.of(
        spec,
        port_owner=foreign_owner(unit, port),
        holders=holders,
        card_bytes=card_bytes,
        driver_loaded=loaded["version"] if loaded else None,
        driver_installed=library_version(library),
        serves=serves,
    )


def foreign_owner(unit: str, port: int) -> Holder | None:
    owner = owner_of(port)
    if owner is None or owner["unit"] == unit:
        return None
    return Holder(int(owner["pid"]), str(owner["name"]))


def card(unit: str, pinned: tuple[str, ...] = ()) -> tuple[int | None, list[Holder]]:
    """(bytes of the card, who holds memory of it, the unit's own processes apart).

    Of several that serve together the smallest counts; where none is named, the largest there is.
    """
    found: list[Card] = chosen(pinned, {one.uuid: one for one in cards_now()[0]})
    holders = [
        Holder(one.pid, one.name, None if one.used_bytes is None else one.used_bytes // MIB)
        for each in found
        for one in each.processes
        if unit_of(one.pid) != unit
    ]
    size = min if pinned else max
    return size((each.memory_bytes or 0 for each in found), default=0) or None, holders


def cards_now() -> tuple[tuple[Card, ...], str | None]:
    """The cards, or why NVML does not tell."""
    import pynvml  # noqa: PLC0415  only where a card is asked for

    from aibox.box import vram  # noqa: PLC0415

    try:
        return tuple(vram.cards()), None
    except (pynvml.NVMLError, pynvml.NVMLLibraryMismatchError) as error:
        return (), str(error)


def nvml_complaint() -> list[str]:
    """What NVML answers now, in nvidia-smi's words, where it is a fault that is known."""
    error = nvml.gpu()["error"]
    return [f"Failed to initialize NVML: {error}"] if error else []
