"""Whose answer counts at the gate."""

from collections.abc import Collection

import pytest

from aibox.box import gate

HIS = {"unit": "vllm-coder.service", "port": 8000, "probe": None}


@pytest.mark.parametrize(
    ("ports", "health", "passes"),
    [
        ({8000, 29500}, 200, True),
        ({8000}, 503, False),
        ({29500}, 200, False),  # another process has the port, such as a container's
        ((), 200, False),
    ],
)
def test_of_a_persons_unit_only_its_own_control_group_answers(
    monkeypatch: pytest.MonkeyPatch, ports: Collection[int], health: int, passes: bool
) -> None:
    monkeypatch.setattr(gate, "ports_of_unit", lambda unit: ports if unit == HIS["unit"] else ())
    monkeypatch.setattr(gate, "health", lambda _port: health)
    assert gate.answers(HIS, 7) is passes
