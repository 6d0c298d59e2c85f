"""What a unit names of its cards: none on a box with one, all of them where several serve."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from aibox.decide.driver_sources import power_unit_text
from aibox.settings import ReleaseLock, driver_wanted_from, release_lock
from tasks.box import Box
from tasks.server import unit_text
from tests.unit.conftest import Load

FIRST, SECOND = "GPU-00000001", "GPU-00000002"
TWO = {"serve": {"tensor-parallel-size": 2}}


def box_of(load: Load, **changes: Any) -> Box:
    settings = load(**changes)
    lock = release_lock(settings, "3.11")
    assert isinstance(lock, ReleaseLock)
    wanted = driver_wanted_from(settings, lock, "debian", "12")
    return Box(settings, lock, wanted, "", cards_there=lambda: (FIRST, SECOND))


@pytest.mark.parametrize(
    ("changes", "uuids"),
    [
        ({}, ()),  # whatever stands in the box: a second card there is refused before
        ({"gpu_uuid": SECOND}, (SECOND,)),
        (TWO, (FIRST, SECOND)),
        ({**TWO, "gpu_uuid": [SECOND, FIRST]}, (SECOND, FIRST)),
    ],
)
def test_the_unit_names_its_cards(
    load: Load, changes: dict[str, Any], uuids: tuple[str, ...]
) -> None:
    box = box_of(load, **changes)
    lines = unit_text(box).splitlines()
    visible = [line for line in lines if "CUDA_VISIBLE_DEVICES" in line]
    (waits,) = (line for line in lines if " gpu " in line and line.startswith("ExecStartPre"))
    named = ",".join(uuids)
    assert visible == [f"Environment=CUDA_VISIBLE_DEVICES={named}"] * bool(uuids)
    assert (f" gpu --uuid {named} --utilization" in waits) == bool(uuids)
    assert box.candidate_spec["gpu_uuid"] == (list(uuids) or None)
    limits = power_unit_text(450, box.gpu_uuids)
    assert limits.count("\nExecStart=") == max(1, len(uuids))


def test_a_box_that_tells_no_cards_yet_is_planned_without(load: Load) -> None:
    """Before its first driver; the run asks again when the unit is made."""
    box = replace(box_of(load, **TWO), cards_there=lambda: ())
    assert "CUDA_VISIBLE_DEVICES" not in unit_text(box)
