"""A server that a person built by hand: adopted, undone as it was, adopted again, whatever it is.

Whole deploys on a box as its owner left it; the many shapes of a unit by the switch alone, on a box
whose release and weights are there already.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from aibox.box.good_units import sum_of
from aibox.decide.doors import MASTER_KEY
from tests.rehearsal import fingerprint, jobs
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import (
    INSTALLED,
    TRIED,
    UNIT,
    Spec,
    answers,
    assert_serves,
    candidate,
    flags_of,
    history_of,
    process_of,
    script,
    scripted,
    switch,
    until_it_answers,
    wait_for_step,
)
from tests.rehearsal.checkpoints import TINY
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import Deploy, HostData, deploy, standin
from tests.rehearsal.refusal import refusals_in, untouched, unwrapped
from tests.rehearsal.seed_box import (
    HOME,
    LISTENERS,
    VENV,
    His,
    his,
    his_unit,
    make_seed_box,
    seeded,
    snapshot,
    start_his,
    write,
)
from tests.rehearsal.test_doors import ask, bearer
from tests.rehearsal.test_teardown import ALL, differences, torn_down

BY_DEFAULT: HostData = {"stream": None, "gateway": None}  # left out where somebody is there
LEFT_OUT = (  # his are there
    "the stream filter is left out: port 4000 belongs to python3",
    "the gateway (LiteLLM) is left out: litellm.service is a unit that no deploy has written",
)
FOUND = "/var/lib/aibox/server/found.json"
NEWER = "/var/lib/aibox/server/found-2.json"
DROP_INS = f"{INSTALLED}.d"
CONTROL, TURNING = "/etc/systemd/system.control", "/etc/systemd/aibox"


# --- whole deploys -------------------------------------------------------------------------------


def rolled_back(box: Box, data: HostData, *words: str) -> Deploy:
    """`pyinfra inventory tasks/rollback.py`, as a person runs it."""
    return deploy({box: data}, "-y", *words, timeout_s=900, entry="tasks/rollback.py")


def weights_sent(hub: Hub) -> int:
    """Bytes of any repository's files since the log was cleared."""
    return sum(line["bytes"] for line in hub.log() if "/resolve/" in line["path"])


def test_a_server_built_by_hand_is_adopted_and_undone_in_one_command(
    make_box: MakeBox, hub: Hub
) -> None:
    box, data = make_seed_box(make_box, hub, "adopt-seed"), {**standin(hub.url), **BY_DEFAULT}
    box.run("useradd --system --home-dir /srv/llm --shell /bin/bash vllm")
    box.run("systemd-run -q --uid=vllm sleep infinity")  # usermod fails while a user runs anything
    account = "getent passwd vllm; id vllm"
    before, user = his(box), box.run(account).stdout
    box.run("sudo true", user="admin")  # the first one leaves a file
    with untouched(box):
        refused = deploy({box: {**data, "stream": True, "gateway": True}}, "-y")
    assert [one.found for one in refusals_in(refused)] == [
        f"port 4000 belongs to python3 (pid {before.listeners['stream-filter']}, "
        "unit stream-filter.service)",
        "litellm.service is a unit that no deploy has written",
    ]
    hub.ctl(clear_log=True)
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    assert all(words in ended.said for words in LEFT_OUT), ended.said
    assert box.run(account).stdout == user
    assert weights_sent(hub) == 0
    assert f"taken over from {HOME}/.cache/huggingface/hub" in ended.said
    assert "draft tokens accepted" in ended.said
    assert "--speculative-config" in flags_of(box)
    now = his(box)
    assert (now.listeners, now.venv, now.cache) == (before.listeners, before.venv, before.cache)

    ended = rolled_back(box, data)
    assert ended.code == 0, ended.said
    assert his(box) == before
    assert flags_of(box)[:4] == [f"{VENV}/bin/python", f"{VENV}/bin/vllm", "serve", snapshot()]
    assert answers(box)

    again = deploy({box: data}, "--dry")
    assert again.code == 0, again.said
    assert "a unit of your own stands here again" in again.log
    assert "is kept already, as it stood" in again.log
    assert all(words in unwrapped(again) for words in LEFT_OUT), again.said
    assert again.log.count("+ --speculative-config") == 2  # on the page, and on the plan's

    ended = deploy({box: data}, "-y")  # and forward again
    assert ended.code == 0, ended.said
    assert "--speculative-config" in flags_of(box)
    assert deploy({box: data}, "--dry", "--json").planned == []
    ended = rolled_back(box, data, "--data", "to=found")
    assert ended.code == 0, ended.said
    assert his(box) == before


@pytest.mark.long
def test_both_doors_before_an_adopted_server_go_with_it(make_box: MakeBox, hub: Hub) -> None:
    """Nobody is in their place; after the way back they stand before his own server."""
    box = make_seed_box(make_box, hub, "adopt-doors")
    units = " ".join(LISTENERS)
    box.run(
        f"systemctl disable -q --now {units}; cd /etc/systemd/system && rm stream-filter.service"
    )
    box.run("rm /etc/systemd/system/litellm.service; systemctl daemon-reload")
    data = {**standin(hub.url), **BY_DEFAULT}
    before, whole = his(box), fingerprint.taken(box)
    ended = deploy({box: data}, "-y")
    assert ended.code == 0, ended.said
    assert deploy({box: data}, "--dry", "--json").planned == []
    key = box.run(f"cat {MASTER_KEY}").stdout.strip()
    for door in (4000, 4001):
        assert status_through(box, door, key) == 200

    ended = rolled_back(box, data)
    assert ended.code == 0, ended.said
    assert replace(his(box), listeners=before.listeners) == before  # LiteLLM is ours by now
    for door in (4000, 4001):
        assert status_through(box, door, key) == 200

    torn_down(box, data, *ALL)
    assert his(box) == before
    assert answers(box)
    assert differences(whole, fingerprint.taken(box)) == []


def status_through(box: Box, port: int, key: str) -> int:
    """What a completion through one of the doors answers."""
    body = {"model": TINY, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
    return ask(box, port, "/v1/chat/completions", body, bearer(key))[0]


@pytest.mark.long
def test_another_units_server_on_our_port_is_refused_with_the_word_to_edit(
    make_box: MakeBox, hub: Hub
) -> None:
    box, data = make_seed_box(make_box, hub, "adopt-name", start=False), standin(hub.url)
    box.run(f"systemctl disable -q {UNIT}; mv {INSTALLED} /etc/systemd/system/qwen.service")
    box.run("systemctl daemon-reload; systemctl enable -q --now qwen")
    until_it_answers(box)
    ended = deploy({box: data}, "--dry")
    assert ended.code == 1
    assert 'adopt it: set server_unit = "qwen" in group_data/site.py' in ended.said


# --- by the switch alone -------------------------------------------------------------------------


@pytest.fixture(scope="module")
def made(layers: Callable[[str], str | None], hub: Hub) -> Iterator[Box]:
    with Box.up("adopt-shapes", layer=layers("serving"), owned=True) as box:
        seeded(box, hub, start=False)
        yield box


@pytest.fixture
def box(made: Box) -> Box:
    """His box before any deploy, but for release, weights and aibox; his unit is not there yet."""
    script(made)
    stop = f"systemctl disable -q --now {UNIT}; systemctl revert -q {UNIT}"
    made.run(f"{stop}; systemctl reset-failed {UNIT}", check=False)
    made.run("rm -rf /var/lib/aibox/server /var/lib/aibox/deployed.json /var/lib/aibox/proof.json")
    gone = f"{INSTALLED} {DROP_INS} {TRIED}* {CONTROL} {TURNING} /usr/local/lib/systemd"
    made.run(f"rm -rf {gone} /etc/systemd/system/*.wants/{UNIT}.service; systemctl daemon-reload")
    return made


@pytest.fixture(scope="module")
def ours(hub: Hub) -> Spec:
    return candidate(scripted(standin(hub.url), seed=1))


def stands(box: Box, text: str, drop_ins: dict[str, str] | None = None) -> His:
    """Lay down his unit, enable and start it; what is his then."""
    write(box, INSTALLED, text)
    for name, content in (drop_ins or {}).items():
        write(box, f"{DROP_INS}/{name}", content)
    box.run(f"systemctl daemon-reload; systemctl enable -q {UNIT}")
    start_his(box)
    return his(box)


def adopts(box: Box, spec: Spec) -> None:
    """Judged, tried, accepted: ours is whole, and nothing of a trial is left."""
    judged = jobs.work(box, "judge", spec)
    assert judged["ok"], judged
    result = switch(box, spec)
    assert result["ok"], result
    assert_serves(box, spec)
    nothing_is_left(box)
    assert box.run(f"ls -A {DROP_INS}", check=False).stdout == ""


def nothing_is_left(box: Box) -> None:
    places = f"{CONTROL} {TURNING} {TRIED} {TRIED}.d /etc/systemd/system/.{UNIT}*"
    assert box.run(f"ls -d {places}", check=False).stdout == ""


def back(box: Box, name: str) -> dict[str, Any]:
    """The job that tasks/rollback.py gives to the box."""
    assert jobs.start(box, "switch", {"verb": "back", "sha256": name})["ok"]
    return jobs.finish(box, "switch")


def found(box: Box) -> dict[str, Any]:
    record: dict[str, Any] = json.loads(box.run(f"cat {FOUND}").stdout)
    return record


def told(result: dict[str, Any]) -> str:
    assert not result["ok"], result
    return str(result["refusal"]["found"])


START = f"{VENV}/bin/vllm serve {snapshot()} --served-model-name tiny-qwen3.5-mtp --port 8000"
OVERRIDE = f"[Service]\nUser=root\nExecStart=\nExecStart={START} --seed 7\n"
WITH_DROP_INS = {"50-override.conf": OVERRIDE, "10-nice.conf": "[Service]\nNice=3\n"}


def seed(box: Box) -> str | None:
    words = flags_of(box)
    return words[words.index("--seed") + 1] if "--seed" in words else None


@pytest.mark.long
def test_drop_ins_go_with_his_unit_and_come_back_with_it(box: Box, ours: Spec) -> None:
    before = stands(box, his_unit(), WITH_DROP_INS)
    listed = box.run(f"cd {DROP_INS} && stat -c '%n %a %U:%G %Y' * && cat *").stdout
    assert seed(box) == "7"
    adopts(box, ours)
    result = back(box, found(box)["sha256"])
    assert result["ok"], result
    assert (his(box), seed(box)) == (before, "7")
    assert box.run(f"cd {DROP_INS} && stat -c '%n %a %U:%G %Y' * && cat *").stdout == listed
    nothing_is_left(box)
    adopts(box, ours)


@pytest.mark.long
def test_where_ours_fails_his_unit_serves_again_by_itself(box: Box, ours: Spec) -> None:
    before = stands(box, his_unit(), WITH_DROP_INS)
    script(box, only="--seed 1", fail={"lines": ["ValueError: not today"]})
    assert "back to the last good unit" in told(switch(box, ours))
    assert answers(box)
    assert (his(box), seed(box)) == (before, "7")
    nothing_is_left(box)
    assert history_of(box)[0]["how"] == "found"


@pytest.mark.long
def test_what_he_changes_after_an_undo_is_what_comes_back_from_then_on(
    box: Box, ours: Spec
) -> None:
    stands(box, his_unit(), WITH_DROP_INS)
    adopts(box, ours)
    first = found(box)["sha256"]
    assert back(box, first)["ok"]

    write(box, INSTALLED, his_unit() + "# mine\n")
    write(box, f"{DROP_INS}/50-override.conf", OVERRIDE.replace("--seed 7", "--seed 8"))
    box.run(f"chmod 600 {INSTALLED}; systemctl daemon-reload; systemctl restart {UNIT}")
    until_it_answers(box)
    before = his(box)
    script(box, only="--seed 1", fail={"lines": ["ValueError: not today"]})
    assert "back to the last good unit" in told(switch(box, ours))
    assert (his(box), seed(box), answers(box)) == (before, "8", True)
    nothing_is_left(box)

    script(box)
    adopts(box, {**ours, "retry": True})
    history = json.loads(box.run("/opt/aibox/current/bin/aibox status --history --json").stdout)
    newest = history["found"]["sha256"]
    assert newest != first
    result = back(box, newest)
    assert result["ok"], result
    assert (his(box), seed(box)) == (before, "8")
    nothing_is_left(box)
    assert found(box)["sha256"] == first  # as it was written
    assert json.loads(box.run(f"cat {NEWER}").stdout)["sha256"] == newest


@pytest.mark.long
@pytest.mark.parametrize("when", ["tried", "turning", "turned"])
def test_a_power_cut_leaves_his_unit_or_ours_and_the_next_run_ends_it(
    box: Box, ours: Spec, when: str
) -> None:
    stands(box, his_unit(), WITH_DROP_INS)
    if when == "tried":
        script(box, ready_after_s=20)
        assert jobs.start(box, "switch", ours)["ok"]
        wait_for_step(box, "loading weights")
        script(box)
    else:
        stopped_at(box, ours, "point" if when == "turning" else "settle")
    box.power_cut()
    box.start()
    until_it_answers(box)
    assert seed(box) == ("1" if when == "turned" else "7")
    if when == "turned":
        assert flags_of(box)[-len(ours["command"]) :] == ours["command"]
    result = switch(box, {**ours, "restart": when != "turned"})
    assert result["ok"], result
    assert_serves(box, ours)
    nothing_is_left(box)
    assert back(box, found(box)["sha256"])["ok"]
    assert seed(box) == "7"


STOPPED = """\
import os, sys
from aibox.box import adoption, turning
from aibox.box.service import Service
service, act = Service({unit!r}), turning.{step}
record = adoption.keep(service)
def last(*words):
    if {step!r} == "settle" or words[1] == "ours":
        os._exit(0)
    act(*words)
turning.{step} = last
turning.turn(service, record, sys.stdin.read(), "ours")
"""


def stopped_at(box: Box, spec: Spec, step: str) -> None:
    """One unit takes the other's place, but for all from this step on."""
    python = "/opt/aibox/current/bin/python"
    program = STOPPED.format(unit=f"{UNIT}.service", step=step)
    box.run([python, "-c", program], text=spec["text"])
    assert box.run(f"readlink {TURNING}/{UNIT}.service/now").stdout.strip() == (
        "found" if step == "point" else "ours"
    )


@pytest.mark.long
def test_a_unit_that_does_not_serve_is_kept_and_is_no_good_one(box: Box, ours: Spec) -> None:
    write(box, INSTALLED, his_unit())
    box.run("systemctl daemon-reload")
    before = his(box)
    adopts(box, ours)
    assert [entry["how"] for entry in history_of(box)] == ["deploy"]
    assert found(box)["active"] is False
    result = back(box, found(box)["sha256"])
    assert result["ok"], result
    assert his(box) == before  # not enabled, as it was
    assert answers(box)


@pytest.mark.long
def test_his_unit_that_is_still_starting_is_not_lost_to_a_failed_try(box: Box, ours: Spec) -> None:
    script(box, ready_after_s=300)
    write(box, INSTALLED, his_unit())
    box.run(f"systemctl daemon-reload; systemctl start {UNIT}")
    begun = f"journalctl -u {UNIT} -o cat -n 3 _SYSTEMD_INVOCATION_ID=$(systemctl show {UNIT} -p "
    begun += "InvocationID --value)"
    jobs.until(lambda: "V1 LLM engine" in box.run(begun).stdout, "his server does not begin")
    script(box, only="--seed 1", fail={"lines": ["ValueError: not today"]})
    assert "is your own again and was started" in told(switch(box, ours))
    until_it_answers(box)
    assert "--max-num-seqs" in flags_of(box)
    nothing_is_left(box)


@pytest.mark.long
def test_a_linked_unit_comes_back_as_that_link(box: Box, ours: Spec) -> None:
    file = f"{HOME}/{UNIT}.service"
    write(box, file, his_unit())
    box.run(f"systemctl link -q {file}; systemctl enable -q {UNIT}")
    start_his(box)
    before = his(box)
    assert file in before.unit
    adopts(box, ours)
    box.run(f"systemctl enable {UNIT}; systemctl is-enabled {UNIT}")
    result = back(box, found(box)["sha256"])
    assert result["ok"], result
    assert his(box) == before
    assert box.run(f"cat {file}").stdout == his_unit()


@pytest.mark.long
def test_one_below_usr_is_covered_and_uncovered(box: Box, ours: Spec) -> None:
    file = f"/usr/local/lib/systemd/system/{UNIT}.service"
    write(box, file, his_unit())
    box.run(f"systemctl daemon-reload; systemctl enable -q {UNIT}")
    start_his(box)
    adopts(box, ours)
    result = back(box, found(box)["sha256"])
    assert result["ok"], result
    assert box.run(f"ls {INSTALLED}", check=False).stdout == ""
    assert box.run(f"systemctl show {UNIT} -p FragmentPath --value").stdout.strip() == file
    assert box.run(f"systemctl is-enabled {UNIT}").stdout.strip() == "enabled"
    history = json.loads(box.run("/opt/aibox/current/bin/aibox status --history --json").stdout)
    assert history["serves"]


@pytest.mark.long
@pytest.mark.parametrize("how", ["masked", "empty"])
def test_a_masked_or_an_empty_unit_stands_in_nobodys_way(box: Box, ours: Spec, how: str) -> None:
    box.run(f"ln -s /dev/null {INSTALLED}" if how == "masked" else f"touch {INSTALLED}")
    box.run("systemctl daemon-reload")
    adopts(box, ours)
    assert found(box)["text"] == ""
    history = json.loads(box.run("/opt/aibox/current/bin/aibox status --history --json").stdout)
    assert history["found"] is None


WAYS = {
    "a shell": f"/bin/bash -c 'source {VENV}/bin/activate; vllm serve {snapshot()}; true'",
    "a script": f"{HOME}/start.sh",
}


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_however_he_starts_it_it_is_gone_back_to(box: Box, ours: Spec, way: str) -> None:
    write(box, f"{HOME}/start.sh", f"#!/bin/sh\n{VENV}/bin/vllm serve {snapshot()}\ntrue\n")
    box.run(f"chmod 755 {HOME}/start.sh")
    text = f"[Service]\nUser=me\nExecStart={WAYS[way]}\n[Install]\nWantedBy=multi-user.target\n"
    before = stands(box, text)
    adopts(box, ours)
    assert history_of(box)[1]["how"] == "found"
    result = back(box, found(box)["sha256"])
    assert result["ok"], result
    assert his(box) == before


@pytest.mark.long
def test_one_that_was_stopped_is_gone_back_to_on_the_port_of_its_script(
    box: Box, ours: Spec
) -> None:
    start = f"#!/bin/sh\nexec {VENV}/bin/vllm serve {snapshot()} --port 8002\n"
    write(box, f"{HOME}/start.sh", start)
    box.run(f"chmod 755 {HOME}/start.sh")
    write(box, INSTALLED, f"[Service]\nUser=me\nExecStart={HOME}/start.sh\n")
    box.run("systemctl daemon-reload")
    adopts(box, ours)
    result = back(box, found(box)["sha256"])
    assert result["ok"], result
    assert "8002" in box.run("ss -ltn").stdout


@pytest.mark.long
def test_a_port_of_his_own_is_watched_on_the_way_back(box: Box, ours: Spec) -> None:
    write(box, INSTALLED, his_unit().replace("--port 8000", "--port 8002"))
    box.run(f"systemctl daemon-reload; systemctl start {UNIT}")
    jobs.until(lambda: "8002" in box.run("ss -ltn").stdout, "his server does not listen")
    time.sleep(0.5)
    script(box, only="--seed 1", fail={"lines": ["ValueError: not today"]})
    assert "back to the last good unit" in told(switch(box, ours))
    assert "8002" in box.run("ss -ltn").stdout
    assert sum_of(box.run(f"cat {INSTALLED}").stdout) == history_of(box)[0]["sha256"]


@pytest.mark.long
def test_a_unit_that_stops_in_its_own_way_does_so(box: Box, ours: Spec) -> None:
    text = his_unit().replace("Restart=on", "ExecStop=/bin/touch /home/me/stopped\nRestart=on")
    stands(box, text)
    adopts(box, ours)
    assert box.run(f"ls {HOME}/stopped").stdout
    box.run(f"rm {HOME}/stopped")
    assert process_of(box) != "0"
