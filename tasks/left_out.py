"""Which boxes the gateways of a run leave out: a box that is out serves, and nobody asks it."""

from __future__ import annotations

from pyinfra import host

from aibox.decide.doors import ROTATION
from aibox.decide.rotation import Out
from aibox.decide.summary import left_out_rows
from aibox.gateway.rotation import out_in
from tasks import fleet
from tasks.box import AIBOX, Box
from tasks.facts import LaidFile

LEFT_OUT = "left_out"  # in a gateway's connector data: see aibox.decide.rotation.Out


def rows(box: Box) -> list[str]:
    """For a box's last screen, in words; what a gateway leaves out is noted for the summary."""
    out = out_here() if box.fleet else None
    host.connector_data[LEFT_OUT] = out
    return left_out_rows(out, [one.name for one in fleet.gateways()], f"sudo {AIBOX} rotation")


def out_here() -> Out:
    """A file that is not whole leaves nobody out."""
    record = host.get_fact(LaidFile, path=ROTATION)
    try:
        return out_in(record["content"].decode()) if record else {}
    except ValueError:
        return {}


def noted() -> dict[str, Out]:
    """{gateway: what it leaves out}, of those gateways that came to their last screen."""
    told = {one.name: one.connector_data.get(LEFT_OUT) for one in fleet.gateways()}
    return {name: out for name, out in told.items() if out}
