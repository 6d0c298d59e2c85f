"""Kill it anywhere: the whole matrix, in the long run. `make test` has the switch's own cuts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.kill_harness import (
    CELLS,
    EVERYTHING,
    MATRICES,
    OPERATIONS,
    SMALL_DISK_MB,
    Cell,
    Harness,
    data_of,
    failed_in_words,
    manifest_of,
    named,
    planned,
    restore,
)
from tests.rehearsal.provision import deploy, download_caches
from tests.rehearsal.stepping import stepping

pytestmark = pytest.mark.long


MakeHarness = Callable[[str], Harness]


@pytest.fixture(scope="module")
def harnesses(layers: Callable[[str], str | None], hub: Hub) -> Iterator[MakeHarness]:
    """Gives the harness of a matrix, made when it is first asked for."""
    made: dict[str, Box] = {}

    def up(name: str, kind: str, disk_limit_mb: int | None = None) -> Box:
        if name not in made:
            binds = download_caches() if kind == "serving" else None  # for LiteLLM's files
            limit = disk_limit_mb
            made[name] = Box.up(
                name, layer=layers(kind), disk_limit_mb=limit, binds=binds, owned=True
            )
        return made[name]

    def other(bare: bool, small: bool) -> Box:
        kind = "bare" if bare else "based"
        name = f"kill-{kind}-small" if small else f"kill-{kind}"
        return up(name, kind, SMALL_DISK_MB if small else None)

    def with_its_filter(box: Box) -> Box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        assert deploy({box: data_of(hub)}, "-y").code == 0
        return box

    @cache
    def harness(name: str) -> Harness:
        matrix = MATRICES[name]
        if name != "whole":
            return Harness(matrix, None, with_its_filter(up(f"kill-{name}", "serving")), hub, other)
        # By the same name: a box that watches itself is named in its Prometheus's configuration.
        with Box.up("kill", layer=layers("serving"), owned=True) as undisturbed:
            reference = manifest_of(with_its_filter(undisturbed))
        return Harness(matrix, reference, up("kill", "based"), hub, other)

    try:
        yield harness
    finally:
        for box in made.values():
            box.down()


@pytest.fixture
def harness(harnesses: MakeHarness) -> Harness:
    return harnesses("whole")


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
    harnesses: MakeHarness, cell: Cell, done: dict[str, str]
) -> None:
    done[cell.name] = harnesses(cell.matrix).try_cell(cell)


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


def test_no_operation_is_left_out(layers: Callable[[str], str | None], hub: Hub) -> None:
    with Box.up("kill-planned", layer=layers("based"), owned=True) as box:
        names = planned(box, {**data_of(hub), **EVERYTHING})
    names.remove("Persistence starts at boot")  # in the run itself the driver's package does it
    every = [one for matrix in MATRICES.values() for one in matrix.operations]
    missing = [name for name in names if named(name, every) is None]
    assert missing == [], "give it cells: a line in OPERATIONS"
