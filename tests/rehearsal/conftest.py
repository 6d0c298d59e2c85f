"""Boxes, hub and layers for the rehearsal's tests.

Four kinds of box, each but the first from a layer that is built once and kept:
  bare      the pristine image: a card, and no driver
  based     with the distribution's packages that the base stage installs
  driven    based, with a driver that a person has installed by hand
  serving   driven, deployed with the stand-in release, its server up
"""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest

from tasks import base
from tests.rehearsal import by_hand
from tests.rehearsal.box import Box, drop_layers, layer_exists
from tests.rehearsal.emulation import nvidia_repository
from tests.rehearsal.emulation.hub import Hub, usual_port
from tests.rehearsal.machine import CHECKOUT, cache_folder, locked
from tests.rehearsal.main_job import stop_hub_if_unused
from tests.rehearsal.provision import deploy, files_folder, standin
from tests.rehearsal.registry import network_held

# What a deployed box depends on; a change of any of it builds the layer anew.
DEPLOYED_BY = (
    "aibox",
    "tasks",
    "templates",
    "group_data",
    "deploy.py",
    "config.py",
    "tests/rehearsal/group_data",
    "tests/rehearsal/emulation",
    "tests/rehearsal/standin/src",
    "tests/rehearsal/provision.py",
)
STANDS_ON = {"based": "bare", "driven": "based", "serving": "driven"}
# Each of pytest-xdist's processes has a hub, to which the boxes that it deploys go back.
WORKER = os.environ.get("PYTEST_XDIST_WORKER", "")


def pytest_sessionfinish() -> None:
    """The hub of the `make rehearsal` of a test, which stayed beside another process's boxes."""
    if not WORKER:
        stop_hub_if_unused()


class RealStarts:
    """How often the real vLLM was started: half a minute and more each, so there is a budget."""

    BUDGET = 12  # of one `make test`, failed starts included

    def __init__(self) -> None:
        self.total = 0

    def of(self, box: Box) -> int:
        """Starts of the server on a box, by the journal of systemd itself."""
        words = "journalctl -u vllm-coder -o cat --no-pager _PID=1 | grep -c '^Starting ' || true"
        return int(box.run(words).stdout)

    def count(self, box: Box) -> None:
        self.total += self.of(box)


class MakeBox(Protocol):
    """Brings up a box of a kind, gone again at the test's end."""

    def __call__(
        self, name: str, kind: str = "serving", *, disk_limit_mb: int | None = None
    ) -> Box: ...


@pytest.fixture(scope="session")
def real_starts() -> Iterator[RealStarts]:
    """Counted over the whole session; more than the budget is a failure."""
    counted = RealStarts()
    yield counted
    print(f"\nreal vLLM starts: {counted.total} of at most {counted.BUDGET}")
    assert counted.total <= counted.BUDGET, f"{counted.total} real starts"


@pytest.fixture(scope="session")
def bridge() -> Iterator[str]:
    """The address on which stand-in servers listen, with the bridge up."""
    with network_held() as address:
        yield address


@pytest.fixture(scope="session")
def hub(bridge: str) -> Iterator[Hub]:
    """The model hub and file server of this session."""
    port = usual_port(bridge, f"tests{WORKER}")
    with Hub(files=files_folder(), address=bridge, port=port) as running:
        yield running


@pytest.fixture(autouse=True)
def _healthy_hub(request: pytest.FixtureRequest) -> Iterator[None]:
    """No test inherits the faults that another one set."""
    hub = request.getfixturevalue("hub") if "hub" in request.fixturenames else None
    yield
    if hub is not None:
        hub.ctl(reset=True)


@pytest.fixture(scope="session")
def layers(hub: Hub) -> Callable[[str], str | None]:
    """The full name of the layer that a kind of box starts from; built when it is not there."""
    return lambda kind: layer_of(kind, hub)


@pytest.fixture
def make_box(layers: Callable[[str], str | None]) -> Iterator[MakeBox]:
    """Makes boxes for one test."""
    made: list[Box] = []

    def make(name: str, kind: str = "serving", *, disk_limit_mb: int | None = None) -> Box:
        box = Box.up(name, layer=layers(kind), disk_limit_mb=disk_limit_mb, owned=True)
        made.append(box)
        if kind == "serving":
            box.run("systemctl start vllm-coder")  # waits until it answers
        return box

    yield make
    for box in made:
        box.down()


def layer_of(kind: str, hub: Hub) -> str | None:
    if kind == "bare":
        return None
    key = {
        "based": key_of_packages(),
        "driven": key_of_driver(),
        "serving": key_of_deploy(hub),
    }[kind]
    name = f"{kind}{WORKER}" if kind == "serving" else kind
    with locked(cache_folder() / "layers" / f"{name}.lock"):  # several runs of one checkout
        if not layer_exists(name, key):
            build_layer(kind, name, key, hub)
            drop_layers(name, key)
    return f"{name}-{key}"


def build_layer(kind: str, name: str, key: str, hub: Hub) -> None:
    with Box.up(f"layer-{name}", layer=layer_of(STANDS_ON[kind], hub)) as box:
        if kind == "based":
            packages = " ".join(base.PACKAGES)
            box.run(f"apt-get -q update && apt-get -qy install --no-install-recommends {packages}")
        elif kind == "driven":
            by_hand.set_up_driver(box, hub.url)
        else:
            ended = deploy({box: standin(hub.url)}, "-y")
            assert ended.code == 0, ended.said
        box.snapshot(name, key=key)


def key_of_packages() -> str:
    return hashlib.sha256(" ".join(base.PACKAGES).encode()).hexdigest()[:10]


def key_of_driver() -> str:
    """The repository's content names the outer machine's kernel as well, which a driver is for."""
    parts = (key_of_packages(), nvidia_repository.content_key(), inspect.getsource(by_hand))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:10]


def key_of_deploy(hub: Hub) -> str:
    """Everything that a deployed box comes from, the hub's address in its settings included."""
    digest = hashlib.sha256(f"{key_of_driver()} {hub.url}".encode())
    for name in DEPLOYED_BY:
        for path in files_under(CHECKOUT / name):
            digest.update(f"{path.relative_to(CHECKOUT)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:10]


def files_under(path: Path) -> list[Path]:
    if path.is_file():
        return [path]
    return sorted(f for f in path.rglob("*") if f.is_file() and "__pycache__" not in f.parts)
