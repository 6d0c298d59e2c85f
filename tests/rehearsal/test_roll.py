"""Four boxes behind two gateways, rolled under load; each way in which a roll can stop.

The last box serves with real vLLM. In order: each test goes on from where the one before left them.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tasks.box import AIBOX
from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import script, scripted
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.load import Gateway, Load
from tests.rehearsal.provision import HostData, deploy, download_caches, production, standin
from tests.rehearsal.rolling import out_at, rolled, rolling, rotation

pytestmark = pytest.mark.long

MODEL = "tiny-qwen3.5-mtp"
NAMES = ["roll-a", "roll-b", "roll-c", "roll-d"]
GATEWAYS, REAL = NAMES[:2], NAMES[3]
SLOW = {"step_s": 0.05}  # seconds a token: a request takes one or two


@pytest.fixture(scope="module")
def boxes(layers: Callable[[str], str | None], hub: Hub) -> Iterator[list[Box]]:
    caches = download_caches()
    kinds = ["driven" if name == REAL else "serving" for name in NAMES]
    named = zip(NAMES, kinds, strict=True)
    made = [Box.up(name, layer=layers(kind), binds=caches, owned=True) for name, kind in named]
    try:
        for box in made[:3]:
            box.run("systemctl start vllm-coder")
            script(box, **SLOW)
        ended = deploy(fleet(made, hub), "-y", timeout_s=1800)
        assert ended.code == 0, ended.said
        yield made
    finally:
        for box in made:
            box.down()


def fleet(boxes: list[Box], hub: Hub, **serve: Any) -> dict[Box, HostData]:
    """As the inventory has them, with these flags over the card's."""
    gateway = {"gateway": True, "_gateway": True}
    usual = {**scripted(standin(hub.url), **serve), "stream": True}
    of = {box: {**usual, **(gateway if box.name in GATEWAYS else {})} for box in boxes}
    flags = {name.replace("_", "-"): value for name, value in serve.items()}
    real = {**production(hub.url), "stream": True, "serve": flags}
    return {box: real if box.name == REAL else one for box, one in of.items()}


def gateways(boxes: list[Box]) -> list[Gateway]:
    return [Gateway.on(box) for box in boxes[:2]]


def flags(box: Box) -> str:
    return box.run("systemctl cat vllm-coder | grep -- --max-num-seqs || true").stdout


def until_said(running: jobs.Running, words: str, after: str = "") -> None:
    """Wait until a roll has said something, in what follows the last `after`."""

    def is_said() -> bool:
        said = running.said()
        return words in (said.rpartition(after)[2] if after else said)

    jobs.until(lambda: is_said() or running.process.poll() is not None, words, 400)
    assert is_said(), running.said()


def all_in(boxes: list[Box]) -> bool:
    """Whether both gateways ask every box."""
    told = [rotation(box) for box in boxes[:2]]
    return all(not of["out"] and of["healthy"] for found in told for of in found.values())


def test_a_roll_under_load_loses_no_request(boxes: list[Box], hub: Hub) -> None:
    jobs.until(lambda: all_in(boxes), "every box is asked", 60)
    with Load(gateways(boxes), MODEL, clients=8) as load:
        ended = rolled(fleet(boxes, hub, max_num_seqs=5))
        after = load.answered
        jobs.until(lambda: load.answered > after + 8, "requests go on", 60)
    assert ended.code == 0, ended.said
    assert load.failed == [], load.failed
    assert load.streams > 10 and load.wholes > 10
    assert all("--max-num-seqs 5" in flags(box) for box in boxes)
    assert all_in(boxes)
    again = rolled(fleet(boxes, hub, max_num_seqs=5))
    assert (again.code, "==>" in again.said) == (0, False), again.said


def test_a_failed_gate_stops_it_and_the_box_serves_on(boxes: list[Box], hub: Hub) -> None:
    script(boxes[1], **SLOW, fail={"lines": ["ValueError: no"]}, only="--max-num-seqs 6")
    with Load(gateways(boxes), MODEL) as load:
        ended = rolled(fleet(boxes, hub, max_num_seqs=6))
    script(boxes[1], **SLOW)
    assert ended.code == 1, ended.said
    assert load.failed == [], load.failed
    assert "roll-b serves what it served before and is asked again" in ended.said
    found = [flags(box).split()[1] for box in boxes]
    assert found == ["6", "5", "5", "5"]
    assert all_in(boxes)


def test_a_box_without_power_stops_it_and_a_later_roll_finishes(boxes: list[Box], hub: Hub) -> None:
    wanted = fleet(boxes, hub, max_num_seqs=7)
    cut = boxes[2]
    with Load(gateways(boxes), MODEL) as load:
        with rolling(wanted) as running:
            until_said(running, "roll-c is out of rotation")
            until_said(running, "[roll-c] ", after="==>")
            cut.power_cut()
            ended = running.ended(timeout_s=1200)
        assert ended.code == 1, ended.said
        assert "roll-c is out of rotation at roll-a, roll-b" in ended.said
        assert out_at(boxes[0]) == {"roll-c"} == out_at(boxes[1])
        refused = rolled(wanted)  # without its power it is not begun
        assert refused.code == 1 and "roll-c could not be looked at" in refused.said, refused.said
        cut.start()
        ended = rolled(wanted)
    assert ended.code == 0, ended.said
    assert ended.said.index("==> roll-c (1 of 2)") < ended.said.index("==> roll-d (2 of 2)")
    assert load.failed == [], load.failed
    assert all("--max-num-seqs 7" in flags(box) for box in boxes)
    assert all_in(boxes)


def test_power_lost_elsewhere_loses_only_streams_that_had_begun(boxes: list[Box], hub: Hub) -> None:
    wanted, limits = fleet(boxes, hub, max_num_seqs=8), ("--limit=roll-b", "--limit=roll-d")
    with Load(gateways(boxes), MODEL, clients=8) as load, rolling(wanted, *limits) as running:
        until_said(running, "roll-b is out of rotation")
        boxes[3].power_cut()
        ended = running.ended(timeout_s=1200)
    boxes[3].start()
    assert ended.code == 1, ended.said
    assert "roll-d has become ill" in ended.said
    assert [one for one in load.failed if not one.startswith("stream")] == []
    assert len(load.failed) <= 8, load.failed
    jobs.until(lambda: all_in(boxes), "every box is asked", 120)
    ended = rolled(wanted, *limits)
    assert ended.code == 0, ended.said
    assert "==> roll-d (1 of 1)" in ended.said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_ended_in_its_middle_it_is_finished_by_the_next(
    boxes: list[Box], hub: Hub, number: signal.Signals
) -> None:
    wanted = fleet(boxes, hub, max_num_seqs=9 + (number == signal.SIGKILL))
    with rolling(wanted, "--limit=roll-a") as running:
        until_said(running, "roll-a is out of rotation")
        running.process.send_signal(number)
        ended = running.ended()
    if number == signal.SIGINT:
        assert ended.code == 1, ended.said
        assert "roll-a is out of rotation at roll-a, roll-b. The next roll" in ended.said
    assert out_at(boxes[0]) == {"roll-a"} == out_at(boxes[1])
    ended = rolled(wanted, "--limit=roll-a")
    assert ended.code == 0, ended.said
    assert "it is out since an earlier roll" in ended.said
    assert all_in(boxes)


def test_what_another_hand_has_taken_out_is_left_alone(boxes: list[Box], hub: Hub) -> None:
    before = flags(boxes[3])
    boxes[0].run(f"{AIBOX} rotation out roll-d --why 'a loud fan'")
    ended = rolled(fleet(boxes, hub, max_num_seqs=12), "--limit=roll-c", "--limit=roll-d")
    boxes[0].run(f"{AIBOX} rotation back roll-d")
    assert ended.code == 1, ended.said
    assert "roll-d still differs and was left alone" in ended.said
    assert "a loud fan" in ended.said
    assert "--max-num-seqs 12" in flags(boxes[2])
    assert flags(boxes[3]) == before


def test_a_flag_that_no_vllm_knows_takes_no_box_out(boxes: list[Box], hub: Hub) -> None:
    ended = rolled(fleet(boxes, hub, max_num_sqs=7))
    assert ended.code == 1, ended.said
    assert "a deploy to roll-a would be refused" in ended.said and "max-num-seqs" in ended.said
    assert "==>" not in ended.said


def test_the_only_box_of_a_model_needs_a_word(boxes: list[Box], hub: Hub) -> None:
    for box in boxes[1:]:
        boxes[0].run(f"{AIBOX} rotation out {box.name} --why 'a loud fan'")
    wanted = fleet(boxes, hub, max_num_seqs=13)
    ended = rolled(wanted, "--limit=roll-a")
    assert ended.code == 1, ended.said
    assert f"no box but roll-a can be asked for {MODEL}" in ended.said
    assert "a loud fan" in ended.said and "--interrupt" in ended.said
    assert "==>" not in ended.said
    ended = rolled(wanted, "--limit=roll-a", "--interrupt")
    assert ended.code == 0, ended.said
    assert "--max-num-seqs 13" in flags(boxes[0])
