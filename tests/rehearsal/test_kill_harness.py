"""Kill it anywhere: the whole matrix, in the long run. `make test` has the switch's own cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.kill_harness import (
    CELLS,
    OPERATIONS,
    SMALL_DISK_MB,
    Cell,
    Harness,
    data_of,
    failed_in_words,
    manifest_of,
    planned,
    restore,
)
from tests.rehearsal.provision import deploy
from tests.rehearsal.stepping import stepping

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def harness(layers: Callable[[str], str | None], hub: Hub) -> Iterator[Harness]:
    made: dict[str, Box] = {}

    def up(name: str, kind: str, disk_limit_mb: int | None = None) -> Box:
        if name not in made:
            layer = layers(kind)
            made[name] = Box.up(name, layer=layer, disk_limit_mb=disk_limit_mb, owned=True)
        return made[name]

    def other(bare: bool, small: bool) -> Box:
        kind = "bare" if bare else "based"
        name = f"kill-{kind}-small" if small else f"kill-{kind}"
        return up(name, kind, SMALL_DISK_MB if small else None)

    with Box.up("kill-reference", layer=layers("serving"), owned=True) as undisturbed:
        undisturbed.run("systemctl start vllm-coder")  # waits until it answers
        assert deploy({undisturbed: data_of(hub)}, "-y").code == 0  # its door
        reference = manifest_of(undisturbed)
    try:
        yield Harness(reference, up("kill", "based"), hub, other)
    finally:
        for box in made.values():
            box.down()


@pytest.fixture(scope="module")
def done(pytestconfig: pytest.Config) -> Iterator[dict[str, str]]:
    """Where each cell's stop fell, of the cells that reached the end; counted at the end."""
    cells: dict[str, str] = {}
    yield cells
    if cells:
        inside = sum(where == "in it" for where in cells.values())
        capture = pytestconfig.pluginmanager.getplugin("capturemanager")
        with capture.global_and_fixture_disabled():
            print(
                f"\nkill matrix: {len(cells)} of {len(CELLS)} reached the undisturbed manifest; "
                f"{inside} stops fell inside their operation, the others at its end"
            )


def ids(cell: Cell) -> str:
    return cell.name


@pytest.mark.parametrize("cell", CELLS, ids=ids)
def test_every_stopped_deploy_reaches_the_undisturbed_end(
    harness: Harness, cell: Cell, done: dict[str, str]
) -> None:
    done[cell.name] = harness.try_cell(cell)


# What useradd leaves when it is stopped between two of its files.
HALF_A_USER = {
    "only its group": "groupadd -r vllm",
    "no group": "useradd -r -M vllm; sed -i '/^vllm:/d' /etc/group /etc/gshadow",
}


@pytest.mark.parametrize("half", HALF_A_USER)
def test_half_a_user_is_made_whole(harness: Harness, half: str) -> None:
    restore(harness.box, harness.kept / "weights")
    harness.box.run(HALF_A_USER[half])
    harness.reaches_the_end(harness.box, harness.data)


def test_a_run_notices_that_its_box_lost_its_power(harness: Harness) -> None:
    operation = next(one for one in OPERATIONS if one.name == "aibox")
    restore(harness.box, harness.kept / harness.start_of(Cell("power-cut-in", operation)))
    with stepping(harness.box, harness.data) as run:
        harness.into(run, operation)
        harness.box.power_cut()
        harness.box.start()
        failed_in_words(run.ended(), ("the connection to the box ended",))


def test_no_operation_is_left_out(harness: Harness) -> None:
    harness.box.reset()
    names = planned(harness.box, harness.data)
    names.remove("Persistence starts at boot")  # in the run itself the driver's package does it
    missing = [name for name in names if not any(name.startswith(one.begins) for one in OPERATIONS)]
    assert missing == [], "give it cells: a line in OPERATIONS"
