"""nvidia-persistenced: keeps the cards initialised, so that what nvidia-smi sets is kept too."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from .commands import CommandError
from .files import changing_boot, state
from .loading import is_loaded

FOLDER = Path("/run/nvidia-persistenced")


def nvidia_persistenced(words: list[str]) -> int:
    """Become a daemon that holds every card until SIGTERM."""
    if os.geteuid() != 0:
        raise CommandError("nvidia-persistenced failed to initialize: it needs root.")
    if not is_loaded():
        raise CommandError(
            "nvidia-persistenced failed to initialize: Failed to query NVIDIA devices. Please"
            " ensure that the NVIDIA device files (/dev/nvidia*) exist."
        )
    set_persistence("--no-persistence-mode" not in words)
    FOLDER.mkdir(exist_ok=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    child = os.fork()
    if child:
        (FOLDER / "nvidia-persistenced.pid").write_text(f"{child}\n")
        return 0
    os.setsid()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    set_persistence(False)
    (FOLDER / "nvidia-persistenced.pid").unlink(missing_ok=True)
    return 0


def set_persistence(on: bool, only: str | None = None) -> None:
    """Of every card, or of the one with a UUID. A limit is lost with it, as on a real card."""
    with changing_boot() as boot:
        for card in state()["cards"]:
            if only in (None, card["uuid"]):
                boot["persistence"][card["uuid"]] = on
                if not on:
                    boot["power_limit_mw"].pop(card["uuid"], None)
