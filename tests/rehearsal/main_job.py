"""The main job, as `make rehearsal` does it: a bare box, a deploy, a served completion."""

from __future__ import annotations

import time
from pathlib import Path

from tests.rehearsal import machine
from tests.rehearsal.box import Box, bridge_address
from tests.rehearsal.emulation import hub
from tests.rehearsal.machine import CHECKOUT_ID, cache_folder
from tests.rehearsal.provision import (
    HostData,
    deploy_shown,
    download_caches,
    files_folder,
    production,
)

# As on a person's box that is its own monitor; the tests' other boxes go without, to be quick.
WHOLE: HostData = {"stream": True, "gateway": True, "monitoring": None, "_monitor": "too"}


def hub_record() -> Path:
    """Where the hub that outlives the command says how to find it."""
    return cache_folder() / f"hub-{CHECKOUT_ID}.json"


def rehearse(name: str) -> int:
    """Build a bare box, deploy to it as to a real one, and leave it up. Returns the exit code.

    On Ctrl-C, and when the deploy fails half-way because of the rehearsal itself, all is taken
    down; a deploy that ends with an error leaves the box up to be looked at.
    """
    began = time.monotonic()
    machine.ready()
    say("fetching what the rehearsal serves to its box (once)")
    files = files_folder()
    say("bringing up a bare Debian 12 host (its image is built the first time, about 40 s)")
    try:
        box = Box.up(name, binds=download_caches())
        address = bridge_address()
        port = hub.usual_port(address, "rehearsal")
        url = hub.start_detached(hub_record(), files=files, address=address, port=port)
        say(f"{name} is up at {box.address}; deploying to it over ssh, as to a real box")
        code = deploy_shown({box: {**production(url), **WHOLE}}, "-y")
    except BaseException:
        clear_away(name)
        raise
    minutes, seconds = divmod(round(time.monotonic() - began), 60)
    verdict = "The box serves" if code == 0 else "The deploy failed"
    say(f"{verdict} after {minutes} min {seconds} s. It stays up:")
    print(f"      .venv/bin/python -m tests.rehearsal ssh {name}")
    print("      make rehearsal-down      takes everything away")
    return code


def say(text: str) -> None:
    print(f"==> {text}", flush=True)


def clear_away(name: str) -> None:
    for box in Box.all():
        if box.name == name:
            box.down()
    stop_hub_if_unused()


def stop_hub_if_unused() -> None:
    """The hub goes with the last box of this checkout."""
    if not Box.all():
        hub.stop_detached(hub_record())
