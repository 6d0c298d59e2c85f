"""Files of systemd's units: where they lie, and whose they are."""

import re
from pathlib import Path

from aibox.box.probe.files import path_of, read_text, record_in

FIRST_WORDS = "# Laid down by the deploy"  # how every unit of ours begins
# Where systemd looks for drop-ins of a unit of the system (systemd.unit(5)).
UNIT_FOLDERS = (
    "/etc/systemd/system.control",
    "/run/systemd/system.control",
    "/run/systemd/transient",
    "/run/systemd/generator.early",
    "/etc/systemd/system",
    "/run/systemd/system",
    "/run/systemd/generator",
    "/usr/local/lib/systemd/system",
    "/usr/lib/systemd/system",
    "/run/systemd/generator.late",
)
PLACES_OF_UNITS = UNIT_FOLDERS[2:]  # those of control are a switch's own


def unit_file(name: str) -> Path | None:
    """The file of a unit of the system that counts, which need not be loaded: the first one."""
    there = (path_of(folder) / name for folder in PLACES_OF_UNITS)
    return next((path for path in there if path.exists()), None)


def drop_in_folders(unit: str) -> list[str]:
    """a-b.service: its own folder, those of its prefixes, and the one of all services."""
    stem, _, kind = unit.rpartition(".")
    prefixes = [stem[: dash.end()] for dash in re.finditer("-", stem)]
    return [f"{name}.{kind}.d" for name in (stem, *prefixes)] + [f"{kind}.d"]


def unit_of_whom(name: str, deployed: Path) -> str | None:
    """Whose a unit is: "ours" or "foreign"; None without a file that says anything.

    One of a deploy stays ours where its file was taken away or masked since.
    """
    if name in (record_in(deployed) or {}).get("units", {}):
        return "ours"
    return of_whom(unit_file(name))


def of_whom(path: Path | None) -> str | None:
    """Whose a file of systemd's is, by what it says itself: "ours", "foreign", None for nothing."""
    text = (read_text(path) if path else None) or ""
    if not text.strip():
        return None
    return "ours" if text.startswith(FIRST_WORDS) else "foreign"


def is_a_persons(file: Path) -> bool:
    """Whether a unit's file says something, and no deploy has written it."""
    text = (read_text(file) if file.is_file() else None) or ""
    return bool(text.strip()) and not text.startswith(FIRST_WORDS)
