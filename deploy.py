"""Build a box, or change exactly what differs: `pyinfra inventory deploy.py`."""

from tasks import base, preflight, proof, release, server, vram, weights

# Reads settings and box, and refuses with every cause at once, before the first change.
box = preflight.judged_box()

if box:
    base.laid_out(box=box)
    vram.verified(box=box)
    weights.fetched(box=box)
    release.built(box=box)
    weights.arrived(box=box)
    server.running(box=box)
    proof.served(box=box)
