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
PIECE = 4 << 20  # what is written down at once


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


# --- killed, cut, damaged on the way -------------------------------------------------------------


def test_a_killed_download_goes_on_where_it_stopped(
    box: Box, store: Hub, spec_of: Callable[[str], Spec]
) -> None:
    spec = spec_of(WIDE)
    store.ctl(silent_after=7 * PIECE, only=BALLAST)
    assert jobs.start(box, "weights", spec)["how"] == "started"
    pieces_landed(box, spec, 6)
    box.run("systemctl kill aibox-weights")
    assert not jobs.finish(box, "weights")["ok"]
    assert not is_there(box, spec["folder"])
    store.ctl(reset=True, clear_log=True)

    assert jobs.work(box, "weights", spec)["ok"]
    assert set(sent(store)) <= {BALLAST, SHARD}
    assert 0 < sent(store)[BALLAST] < BALLAST_BYTES * 2 // 3
    assert all(line["range"] for line in store.log() if line["bytes"] > 1 << 20)
    sums_are_right(box, spec)


def pieces_landed(box: Box, spec: Spec, count: int) -> None:
    """Wait until so many are written down, each a line below the first."""
    journal = f"{partial(spec)}/{BALLAST}.pieces"
    landed = f"[ $(wc -l < {journal}) -gt {count} ]"
    box.run(f"timeout 120 sh -c 'until {landed}; do sleep 0.1; done' 2>&1")


@pytest.mark.long
def test_after_a_power_cut_a_download_goes_on(
    box: Box, store: Hub, spec_of: Callable[[str], Spec]
) -> None:
    spec = spec_of(WIDE)
    store.ctl(slow=8_000_000, only=BALLAST)
    assert jobs.start(box, "weights", spec)["ok"]
    pieces_landed(box, spec, 4)
    box.power_cut()
    box.start()
    store.ctl(reset=True, clear_log=True)
    assert not is_there(box, spec["folder"])
    assert jobs.look(box, "weights")["state"] == "none"

    assert jobs.work(box, "weights", spec)["ok"]
    assert 0 < sent(store)[BALLAST] <= BALLAST_BYTES - 4 * PIECE
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


# --- what the files must hold --------------------------------------------------------------------


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
    tries = starts(box)
    before = box.run("systemctl show vllm-coder -p InvocationID --value").stdout
    data = {**standin(hub.url), "hub": store.url, "cards_folder": str(shelf / "cards")}
    ended = deploy({box: {**data, "model": model}}, "-y")
    assert ended.code == 1, ended.said
    assert found in flat(ended)
    assert "Traceback" not in ended.said
    assert starts(box) == tries + 1, "it was tried twice"
    assert box.run(f"ls /srv/models/{model}").stdout == ""
    assert box.run("systemctl show vllm-coder -p InvocationID --value").stdout == before


def starts(box: Box) -> int:
    """How often the weights job was ever started."""
    unit = "journalctl -u aibox-weights -o cat --no-pager -t systemd"
    return int(box.run(f"{unit} | grep -c '^Started ' || :").stdout)


def flat(ended: Deploy) -> str:
    return " ".join(ended.said.split())


# --- what stands on the box ----------------------------------------------------------------------


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


@pytest.mark.long
def test_strange_weights_are_refused_and_what_was_superseded_goes(
    box: Box, store: Hub, hub: Hub
) -> None:
    data = {**standin(hub.url), "hub": store.url}
    folder = jobs.wanted(data).weights_folder
    models = folder.rpartition("/")[0]
    box.run(f"cp {folder}/{SHARD} {folder}/consolidated.safetensors")
    refused = deploy({box: data}, "-y")
    assert refused.code == 1, refused.said
    assert f"consolidated.safetensors in {folder}: no file of this commit" in flat(refused)
    box.run(f"rm {folder}/consolidated.safetensors")

    older, old, half = ("1" * 40, "2" * 40, "3" * 40)
    box.run(
        f"cd {models} && for one in {older} {old}; do cp -al {folder} $one; "
        "rm $one/.manifest.json; echo > $one/.manifest.json; sleep 0.1; done; "
        f"mkdir mine .partial-{half}"
    )
    assert planned(box, data) == ["Proof | Weights that were superseded"]
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    commit = folder.rpartition("/")[2]
    assert set(box.run(f"ls -A {models}").stdout.split()) == {commit, old, "mine"}
    assert planned(box, data) == []


# --- a token --------------------------------------------------------------------------------------


@pytest.mark.long
def test_the_token_of_a_gated_model_is_seen_by_nobody(
    box: Box, store: Hub, hub: Hub, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ctl(token="hf_right")
    data = {**standin(hub.url), "hub": store.url, "cards_folder": str(shelf / "cards")}
    data["model"] = WIDE
    before = starts(box)
    monkeypatch.setenv("HF_TOKEN", "hf_other")
    refused = deploy({box: data}, "-y", "--diff", "-vvv")
    assert refused.code == 1, refused.said
    assert "is gated, and not open to this token (403" in flat(refused)
    assert starts(box) == before + 1, "it was tried twice"
    store.ctl(slow=20_000_000, only=BALLAST)
    monkeypatch.setenv("HF_TOKEN", "hf_right")
    with jobs.deploying(box, data) as run:
        jobs.until(lambda: sent(store)[BALLAST], "the download did not begin")
        seen = box.run(
            "grep -ra 'hf_[r]ight' /run/aibox /etc /proc/[0-9]*/cmdline /run/systemd || :"
        )
        assert seen.stdout == ""
        assert "hf_right" not in box.run("systemctl show 'aibox-*'").stdout
        ended = run.ended()
    assert ended.code == 0, ended.said
    journal = box.run("journalctl -o export --no-pager").stdout
    for said in (refused.said, ended.said, journal):
        assert "hf_right" not in said and "hf_other" not in said


# --- taken over ----------------------------------------------------------------------------------


@pytest.mark.long
def test_weights_of_a_person_are_taken_over_and_stay_theirs(box: Box, store: Hub, hub: Hub) -> None:
    data = {**standin(hub.url), "hub": store.url, "models_folder": "/srv/second"}
    folder = jobs.wanted(data).weights_folder
    cache = "/home/person/hub"
    there = jobs.wanted(standin(hub.url)).weights_folder
    box.run(
        f"useradd -M person; mkdir -p {cache} && cp -r {there} {cache}/plain"
        f" && rm -f {cache}/plain/.*.json && chmod 600 {cache}/plain/vocab.json"
        f" && chown -R person:person /home/person"
    )
    look = f"find {cache} -printf '%p %u %m %i %s %T@\\n' | sort"
    before = box.run(look).stdout
    ended = deploy({box: {**data, "weights_from": f"{cache}/plain"}}, "-y")
    assert ended.code == 0, ended.said
    assert sent(store) == {}
    assert "10 hard-linked (owner and mode stay as they are), 1 copied" in flat(ended)
    assert box.run(look).stdout == before
    sums_are_right(box, jobs.wanted(data).weights_spec)
    owners = box.run(f"stat -c '%U %a %n' {folder}/{SHARD} {folder}/vocab.json").stdout
    assert owners == f"person 644 {folder}/{SHARD}\nroot 644 {folder}/vocab.json\n"
    assert planned(box, {**data, "weights_from": f"{cache}/plain"}) == []
