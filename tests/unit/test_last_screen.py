"""What one is told to type next, after a deploy."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from aibox.decide import monitoring
from aibox.decide.fleet import Fleet, Member
from tasks import left_out, monitor, proof, watching
from tasks.box import AIBOX

BOXES = [Member(name, ("coder",), "http://x", 1000, keyed=True) for name in ("a", "b")]


@pytest.mark.parametrize(
    ("host", "fleet", "said"),
    [
        ("a", None, None),
        ("a", Fleet(tuple(BOXES), {}), f"ssh -t a sudo {AIBOX} clients    the gateway's address"),
        ("@local", Fleet(tuple(BOXES), {}), f"sudo {AIBOX} clients    the gateway's address"),
    ],
)
def test_a_gateway_names_its_own_address_for_clients(
    monkeypatch: pytest.MonkeyPatch, host: str, fleet: Fleet | None, said: str | None
) -> None:
    monkeypatch.setattr(proof, "host", SimpleNamespace(name=host))
    settings = SimpleNamespace(server_port=8000)
    box: Any = SimpleNamespace(settings=settings, served_model="coder", fleet=fleet)
    found = [one for one in proof.next_commands(box) if "clients" in one]
    assert [one.startswith(said or "-") for one in found] == ([True] if said else [])


def test_a_gateway_says_over_whom_it_spreads(monkeypatch: pytest.MonkeyPatch) -> None:
    others = {
        proof: ("door_rows",),
        left_out: ("rows",),
        monitor: ("screen_rows",),
        watching: ("asked",),
        monitoring: ("plan_rows",),
    }
    for module, names in others.items():
        for name in names:
            monkeypatch.setattr(module, name, lambda *_: [])
    monkeypatch.setattr(proof, "mtp", lambda *_: "on")
    weights = SimpleNamespace(repository="r", commit="c")
    box: Any = SimpleNamespace(
        settings=SimpleNamespace(server_port=8000, weights=weights),
        served_model="coder",
        release=SimpleNamespace(release_id="0"),
        speculative=None,
        watched=None,
        fleet=Fleet(tuple(BOXES), {}),
    )
    rows = proof.screen(box, {"proof": None})
    assert ("gateway", "the gateway spreads coder over a, b") in rows
