"""Weights over an unkind network: resumed, verified, proven, mended; never half a folder."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal import checkpoints, jobs
from tests.rehearsal.box import Box
from tests.rehearsal.checkpoints import SHARD, TINY
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import Deploy, deploy, standin

Spec = dict[str, Any]

SHARD_BYTES = 998_960
WIDE = "wide"  # with one file large enough for several connections
BALLAST, BALLAST_BYTES = "ballast.bin", 48 << 20


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Repositories beside the tiny one, and below `cards` their cards and locks."""
    folder = tmp_path_factory.mktemp("shelf")
    models, cards = folder / "models", folder / "cards"
    cards.mkdir()
    ballast = checkpoints.copy(models, WIDE) / BALLAST
    ballast.write_bytes(random.Random(1).randbytes(BALLAST_BYTES))
    checkpoints.without_head(models, "headless")
    checkpoints.quantised(models, "fp8")
    checkpoints.copy(models, TINY)
    for name in (WIDE, "headless", "fp8", TINY):
        checkpoints.write_card(models, name, cards)
    return folder


@pytest.fixture(scope="module")
def store(shelf: Path, bridge: str) -> Iterator[Hub]:
    """A hub with all of them; every test begins with it healthy and its log empty."""
    with Hub(models=shelf / "models", address=bridge) as running:
        yield running


@pytest.fixture(autouse=True)
def _healthy(store: Hub) -> Iterator[None]:
    store.ctl(reset=True, clear_log=True)
    yield
    store.ctl(reset=True)


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("weights", layer=layers("serving"), owned=True) as made:
        made.run("systemctl start vllm-coder")
        yield made


_folders = count()


@pytest.fixture
def spec_of(shelf: Path, hub: Hub, store: Hub) -> Callable[[str], Spec]:
    """The task of the weights job for a model, into a folder that is not there yet."""

    def spec(model: str = TINY) -> Spec:
        data = {**standin(hub.url), "hub": store.url, "cards_folder": str(shelf / "cards")}
        folder = f"/srv/test/{next(_folders)}"
        return jobs.wanted({**data, "model": model, "models_folder": folder}).weights_spec

    return spec


def sent(store: Hub) -> Counter[str]:
    """Bytes that the hub has sent since its log was cleared, by file."""
    total: Counter[str] = Counter()
    for line in store.log():
        name = re.search(r"(?:/resolve/[^/]+/|content-disposition=)(.+)$", line["path"])
        assert name, line
        total[name[1]] += line["bytes"]
    return total


def partial(spec: Spec) -> str:
    folder, _, commit = spec["folder"].rpartition("/")
    return f"{folder}/.partial-{commit}"


def is_there(box: Box, path: str) -> bool:
    return box.run(f"test -e {path}", check=False).returncode == 0


def sums_are_right(box: Box, spec: Spec) -> None:
    """By sha256sum in the box, of the folder as it stands in the end."""
    listing = "".join(f"{file['sha256']}  {path}\n" for path, file in spec["files"].items())
    box.run(f"cd {spec['folder']} && sha256sum --check --strict --quiet", text=listing)
    assert box.run(f"cd {spec['folder']} && ls | grep -c .").stdout == f"{len(spec['files'])}\n"
    assert not is_there(box, partial(spec))


def half_fetched(box: Box, store: Hub, spec: Spec) -> None:
    """A job that was ended in the middle of the shard."""
    store.ctl(slow=300_000, only=SHARD)
    assert jobs.start(box, "weights", spec)["ok"]
    jobs.until(lambda: sent(store)[SHARD] > SHARD_BYTES // 3, "the download did not begin")
    box.run("systemctl kill aibox-weights")
    refusal = jobs.finish(box, "weights")["refusal"]
    assert refusal["found"] == "aibox-weights.service was ended before it was done"
    assert not is_there(box, spec["folder"])
    store.ctl(reset=True, clear_log=True)


# --- killed, cut, damaged on the way -----------------------------------------------------------


def test_a_killed_download_goes_on_where_it_stopped(
    box: Box, store: Hub, spec_of: Callable[[str], Spec]
) -> None:
    spec = spec_of(WIDE)
    store.ctl(slow=8_000_000, only=BALLAST)
    assert jobs.start(box, "weights", spec)["how"] == "started"
    jobs.until(lambda: sent(store)[BALLAST] > BALLAST_BYTES // 2, "the download did not begin")
    box.run("systemctl kill aibox-weights")
    assert not jobs.finish(box, "weights")["ok"]
    assert not is_there(box, spec["folder"])
    store.ctl(reset=True, clear_log=True)

    assert jobs.work(box, "weights", spec) == {"ok": True, "fetched": [BALLAST]}
    assert set(sent(store)) == {BALLAST}
    assert 0 < sent(store)[BALLAST] < BALLAST_BYTES * 2 // 3
    assert all(line["range"] for line in store.log() if line["bytes"] > 1 << 20)
    sums_are_right(box, spec)


def test_after_a_power_cut_a_download_goes_on(
    box: Box, store: Hub, spec_of: Callable[[str], Spec]
) -> None:
    spec = spec_of(TINY)
    store.ctl(slow=100_000, only=SHARD)
    assert jobs.start(box, "weights", spec)["ok"]
    # aria2 writes down what it has every 5 s
    saved = f"find {partial(spec)}/{SHARD} -size +100k | grep -q ."
    box.run(f"timeout 30 sh -c 'until {saved}; do sleep 0.2; done' 2>&1")
    box.power_cut()
    box.start()
    store.ctl(reset=True, clear_log=True)
    assert not is_there(box, spec["folder"])
    assert jobs.look(box, "weights")["state"] == "none"

    assert jobs.work(box, "weights", spec) == {"ok": True, "fetched": [SHARD]}
    assert set(sent(store)) == {SHARD}
    assert 0 < sent(store)[SHARD] < SHARD_BYTES
    sums_are_right(box, spec)


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(": > {file}.aria2", id="an empty control file"),
        pytest.param("rm {file}.aria2", id="no control file"),
        pytest.param("dd if=/dev/zero of={file} conv=notrunc bs=1 seek=9999 count=99", id="a hole"),
    ],
)
def test_what_a_power_cut_can_leave_behind_is_no_obstacle(
    box: Box, store: Hub, spec_of: Callable[[str], Spec], damage: str
) -> None:
    spec = spec_of(TINY)
    half_fetched(box, store, spec)
    box.run(damage.format(file=f"{partial(spec)}/{SHARD}"))
    assert jobs.work(box, "weights", spec) == {"ok": True, "fetched": [SHARD]}
    sums_are_right(box, spec)


def test_cut_connections_are_taken_up_again(
    box: Box, store: Hub, spec_of: Callable[[str], Spec]
) -> None:
    spec = spec_of(TINY)
    store.ctl(truncate_after=300_000, truncate_times=2, only=SHARD)
    assert jobs.work(box, "weights", spec)["ok"]
    assert sent(store)[SHARD] < 2 * SHARD_BYTES
    sums_are_right(box, spec)


def test_a_busy_hub_is_asked_again(box: Box, store: Hub, spec_of: Callable[[str], Spec]) -> None:
    spec = spec_of(TINY)
    store.ctl(unavailable=3)
    assert jobs.work(box, "weights", spec)["ok"]
    sums_are_right(box, spec)


def test_a_file_damaged_on_the_way_is_refused_and_then_fetched_anew(
    box: Box, store: Hub, spec_of: Callable[[str], Spec]
) -> None:
    spec = spec_of(TINY)
    store.ctl(corrupt=True, only=SHARD)
    refusal = jobs.work(box, "weights", spec)["refusal"]
    assert refusal["found"] == f"{SHARD} came with another sha256 than the lock's and was removed"
    assert not is_there(box, spec["folder"])
    assert not is_there(box, f"{partial(spec)}/{SHARD}")
    store.ctl(reset=True, clear_log=True)

    assert jobs.work(box, "weights", spec)["ok"]
    assert sent(store) == {SHARD: SHARD_BYTES}
    sums_are_right(box, spec)


@pytest.mark.parametrize(
    ("faults", "found", "remedy"),
    [
        ({"revision_missing": True}, "a file of the lock is not on the hub", "pin the weights"),
        ({"token": "secret"}, "the hub wants a login for this repository", "reaches the hub"),
        (None, "Failed to establish connection, cause: Connection refused", "reaches the hub"),
    ],
    ids=["commit gone", "gated", "hub gone"],
)
def test_a_hub_that_does_not_give_is_named(
    box: Box,
    store: Hub,
    spec_of: Callable[[str], Spec],
    bridge: str,
    faults: dict[str, Any] | None,
    found: str,
    remedy: str,
) -> None:
    spec = spec_of(TINY)
    store.ctl(**(faults or {}))
    hub = store.url if faults else f"http://{bridge}:9"
    refusal = jobs.work(box, "weights", spec | {"hub": hub})["refusal"]
    assert refusal["found"].startswith(found)
    assert f"at {hub}/rehearsal/{TINY}/resolve/{spec['commit']}" in refusal["found"]
    assert remedy in refusal["remedy"]
    assert not is_there(box, spec["folder"])


# --- what the files must hold ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "found"),
    [
        (
            "headless",
            'config.json says "mtp_num_hidden_layers": 1, the index lists 0 tensors named mtp.*:'
            " the head was stripped, the MTP flag would not help",
        ),
        ("fp8", "quantised weights: F8_E4M3"),
    ],
)
def test_a_checkpoint_that_is_not_what_the_card_says_is_refused(
    box: Box, store: Hub, hub: Hub, shelf: Path, model: str, found: str
) -> None:
    before = box.run("systemctl show vllm-coder -p InvocationID --value").stdout
    data = {**standin(hub.url), "hub": store.url, "cards_folder": str(shelf / "cards")}
    ended = deploy({box: {**data, "model": model}}, "-y")
    assert ended.code == 1, ended.said
    assert found in flat(ended)
    assert "Traceback" not in ended.said
    assert box.run(f"ls /srv/models/{model}").stdout == ""
    assert box.run("systemctl show vllm-coder -p InvocationID --value").stdout == before


def flat(ended: Deploy) -> str:
    return " ".join(ended.said.split())


# --- what stands on the box --------------------------------------------------------------------


def planned(box: Box, data: dict[str, Any]) -> list[str]:
    """The operations that a run would change."""
    ended = deploy({box: data}, "--dry", "--json")
    assert ended.code == 0, ended.said
    return [row["name"] for row in json.loads(ended.output)["plan"] if row["hosts_with_change"]]


def test_files_damaged_deleted_or_touched_on_the_box_are_mended_one_by_one(
    box: Box, store: Hub, hub: Hub
) -> None:
    data = {**standin(hub.url), "hub": store.url}
    folder = jobs.wanted(data).weights_folder
    serving = box.run("systemctl show vllm-coder -p InvocationID --value").stdout
    box.run(
        f"cd {folder} && printf X | dd of={SHARD} conv=notrunc bs=1 seek=500000 status=none"
        " && rm vocab.json && touch tokenizer.json && echo mine > foreign.txt"
    )
    assert planned(box, data) == [
        f"Weights | Weights of {TINY}: start",
        f"Weights | Weights of {TINY}: verified",
    ]
    assert sent(store) == {}
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    assert sent(store) == {SHARD: SHARD_BYTES, "vocab.json": 3262}
    assert box.run(f"cat {folder}/foreign.txt && rm {folder}/foreign.txt").stdout == "mine\n"
    sums_are_right(box, jobs.wanted(data).weights_spec)
    assert planned(box, data) == []
    # it ran on a damaged file
    assert box.run("systemctl show vllm-coder -p InvocationID --value").stdout != serving
