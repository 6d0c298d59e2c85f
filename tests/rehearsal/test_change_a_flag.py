"""The story behind the gate, as a person lives it: a flag that fails at start, and the way back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.candidates import (
    UNIT,
    answers,
    failures_of,
    flags_of,
    history_of,
    process_of,
    script,
    scripted,
)
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import (
    Deploy,
    HostData,
    command_line,
    deploy,
    environment,
    standin,
)
from tests.rehearsal.refusal import the_one_refusal
from tests.rehearsal.terminal import Terminal
from tests.rehearsal.test_drift import check

AIBOX = "/opt/aibox/current/bin/aibox"


@pytest.fixture(scope="module")
def data(hub: Hub) -> HostData:
    return standin(hub.url)


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None], data: HostData) -> Iterator[Box]:
    """In order: each test goes on from where the one before left it."""
    with Box.up("change-a-flag", layer=layers("serving"), owned=True) as made:
        made.run(f"systemctl start {UNIT}")  # waits until it answers
        script(made, mamba_blocks=501)
        ended = deploy({made: scripted(data)}, "-y")
        assert ended.code == 0, ended.said
        yield made


def with_sequences(data: HostData, number: int) -> HostData:
    return scripted(data, **{"max-num-seqs": number})


def rollback(box: Box, data: HostData, *words: str) -> Deploy:
    """`pyinfra inventory tasks/rollback.py`, as a person types it, but for the inventory."""
    return deploy({box: data}, "-y", *words, timeout_s=900, entry="tasks/rollback.py")


def test_a_start_that_fails_is_explained_and_undone(box: Box, data: HostData) -> None:
    before = history_of(box)[0]
    refusal = the_one_refusal(deploy({box: with_sequences(data, 512)}, "-y"))
    assert "512 sequences do not fit 501" in refusal.found
    assert "exceeds available Mamba cache blocks (501)" in refusal.found  # the line itself
    assert "it has passed its gate again and serves" in refusal.found
    assert "s without service" in refusal.found
    assert "set max-num-seqs to 480" in refusal.do
    assert "group_data/site.py" in refusal.do  # the file that won
    assert answers(box)
    assert history_of(box)[0]["sha256"] == before["sha256"]


def test_the_same_card_is_refused_at_once_the_next_time(box: Box, data: HostData) -> None:
    running = process_of(box)
    refusal = the_one_refusal(deploy({box: with_sequences(data, 512)}, "-y"))
    assert "501" in refusal.found
    looked = deploy({box: with_sequences(data, 512)}, "--dry")
    assert the_one_refusal(looked).found == refusal.found
    assert "what this run would do" not in looked.said
    assert process_of(box) == running
    drift = check({box: with_sequences(data, 512)}).table
    assert "a deploy refuses this unit: it failed its gate at " in drift
    assert "512 sequences do not fit 501" in drift
    assert "a deploy mends it" not in drift


def test_a_person_who_sits_there_is_not_asked_for_it(
    box: Box, data: HostData, tmp_path: Path
) -> None:
    surroundings = environment({box: with_sequences(data, 512)}, tmp_path)
    with Terminal(command_line(), CHECKOUT, surroundings) as terminal:
        assert terminal.ended() == 1
    assert "has failed its gate before: 512 sequences do not fit 501" in terminal.said
    assert "Press enter" not in terminal.said
    assert "what this run would do" not in terminal.said


def test_a_like_one_is_refused_as_well_without_a_try(box: Box, data: HostData) -> None:
    running = process_of(box)
    refusal = the_one_refusal(deploy({box: with_sequences(data, 640)}, "-y"))
    assert "501" in refusal.found
    assert process_of(box) == running


def test_a_flag_that_is_refused_stops_nothing(box: Box, data: HostData) -> None:
    running = process_of(box)
    wrong = scripted(data, **{"tool-call-parser": "qwen3_codr", "max-num-seqz": 4})
    looked = the_one_refusal(deploy({box: wrong}, "--dry"))
    assert "max-num-seqz" in looked.found and "qwen3_codr" in looked.found
    refusal = the_one_refusal(deploy({box: wrong}, "-y"))
    assert (refusal.found, refusal.do) == (looked.found, looked.do)
    assert process_of(box) == running


def test_with_what_the_remedy_says_it_serves(box: Box, data: HostData) -> None:
    ended = deploy({box: with_sequences(data, 480)}, "-y")
    assert ended.code == 0, ended.said
    assert "480 sequences fit" in ended.said
    assert "--max-num-seqs 480" in " ".join(flags_of(box))
    again = deploy({box: with_sequences(data, 480)}, "--dry", "--json")
    assert again.planned == []


def test_told_to_it_is_tried_again(box: Box, data: HostData) -> None:
    script(box)  # more memory, say
    retried = {**with_sequences(data, 512), "retry_failed": True}
    ended = deploy({box: retried}, "-y")
    assert ended.code == 0, ended.said
    assert failures_of(box) == {}


def test_a_rollback_goes_to_what_served_before(box: Box, data: HostData) -> None:
    ended = rollback(box, with_sequences(data, 512))
    assert ended.code == 0, ended.said
    assert "--max-num-seqs 512 -> --max-num-seqs 480" in ended.said
    last = ended.log[ended.log.rindex("serves  ") :]
    assert "http://localhost:8000/v1" in last and "the next deploy goes forward again" in last
    assert "Results" not in last  # pyinfra's own table stands above it
    assert "--max-num-seqs 480" in " ".join(flags_of(box))
    shown = box.run(f"{AIBOX} status --history").stdout
    assert "by a rollback" in shown.splitlines()[0]
    planned = deploy({box: with_sequences(data, 512)}, "--dry", "--json").planned
    assert planned == ["Server | vllm-coder.service runs what the card says"]


def test_settings_that_are_broken_keep_nobody_from_going_back(box: Box, data: HostData) -> None:
    ended = rollback(box, {**data, "model": "no-such-card"})
    assert ended.code == 0, ended.said
    assert "--max-num-seqs" in " ".join(flags_of(box))


def test_what_is_not_there_is_refused_in_words(box: Box, data: HostData) -> None:
    running = process_of(box)
    refusal = the_one_refusal(rollback(box, data, "--data", "to=77"))
    assert refusal.found == "no unit of the history by the name '77'"
    last = len(history_of(box))
    box.run(f"rm /var/lib/aibox/server/units/{history_of(box)[-1]['sha256']}.json")
    refusal = the_one_refusal(rollback(box, data, "--data", f"to={last}"))
    assert "its unit is gone" in refusal.found
    assert process_of(box) == running


def test_a_box_that_was_never_deployed_to_is_refused(
    layers: Callable[[str], str | None], data: HostData
) -> None:
    with Box.up("never-deployed", layer=layers("driven"), owned=True) as bare:
        ended = rollback(bare, data)
        assert "no aibox on this box" in the_one_refusal(ended).found
        assert "No hosts remaining" not in ended.said


def test_the_status_is_one_screen(box: Box) -> None:
    lines = box.run(f"{AIBOX} status").stdout.splitlines()
    labels = [line.split()[0] for line in lines]
    assert labels == [
        *("serves", "since", "model", "release", "driver"),
        *("MTP", "speed", "memory", "gate", "proof"),
    ]
