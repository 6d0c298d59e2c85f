"""Build a box, or change exactly what differs: `pyinfra inventory deploy.py`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # pyinfra can be run in any folder

from tasks import (
    base,
    cuda,
    deploy_lock,
    driver,
    firewall,
    gateway,
    monitor,
    monitoring,
    plan,
    preflight,
    proof,
    release,
    server,
    stream,
    vram,
    weights,
)

# Reads settings and box, and refuses with every cause at once, before the first change.
box = preflight.judged_box()

if box:
    deploy_lock.held(name="One deploy at a time")
    base.laid_out(box=box)
    driver.installed(box=box)
    vram.verified(box=box)
    weights.fetched(box=box)
    cuda.toolkit_installed(box=box)
    release.built(box=box)
    weights.arrived(box=box)
    server.running(box=box)
    firewall.in_force(box=box)
    stream.running(box=box)
    gateway.running(box=box)
    monitoring.running(box=box)
    monitor.watching_boxes()
    proof.served(box=box)
    plan.shown(box)
elif monitor.stands_alone():
    deploy_lock.held(name="One deploy at a time")
    monitor.watching_boxes()
    monitor.last_screen(name="What was set up")
    plan.shown_of_monitor()
