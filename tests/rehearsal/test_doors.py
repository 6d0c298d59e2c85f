"""Both doors on a box that serves: who gets in, what is left of them, and strangers in their place.

The filter alone is cheap and carries what both have in common; LiteLLM takes a minute to build and
half a minute to start, so what only it can show is long.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from aibox.decide.doors import CONFIG_FOLDER, GATEWAY, MASTER_KEY, STREAM, STREAM_CONFIG
from tasks.box import AIBOX
from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.jobs import deploying, until
from tests.rehearsal.kill_harness import differences, manifest_of
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import (
    Deploy,
    HostData,
    deploy,
    download_caches,
    standin,
)
from tests.rehearsal.refusal import refusals_in, the_one_refusal, unwrapped
from tests.rehearsal.test_drift import check
from tests.rehearsal.test_literal_command import copy_of_the_project

MODEL = "tiny-qwen3.5-mtp"
BODY = {"model": MODEL, "max_tokens": 8, "messages": [{"role": "user", "content": "Hello"}]}
STRANGER = "systemd-run --unit=stranger python3 -m http.server {port}"


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    name = layers("serving")
    with Box.up("doors", layer=name, binds=download_caches(), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture
def data(hub: Hub) -> HostData:
    return {**standin(hub.url), "stream": True}


@pytest.fixture
def both(data: HostData) -> HostData:
    return {**data, "gateway": True}


def deployed(box: Box, data: HostData, *words: str, project: Path = CHECKOUT) -> Deploy:
    ended = deploy({box: data}, "-y", *words, project=project)
    assert ended.code == 0, ended.said
    assert "Traceback" not in ended.said, ended.said
    return ended


def planned(box: Box, data: HostData) -> list[str]:
    return deploy({box: data}, "--dry", "--json").planned


def ask(
    box: Box, port: int, path: str, body: object = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """(status, what came: JSON where it is) from another machine's point of view."""
    told = None if body is None else json.dumps(body).encode()
    given = {"Content-Type": "application/json", **(headers or {})}
    request = urllib.request.Request(f"http://{box.address}:{port}{path}", told, given)
    try:
        with urllib.request.urlopen(request, timeout=60) as answer:
            status, said = answer.status, answer.read()
    except urllib.error.HTTPError as error:
        status, said = error.code, error.read()
    try:
        return status, json.loads(said)
    except ValueError:
        return status, said.decode(errors="replace")


def bearer(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def invocation(box: Box, unit: str) -> str:
    return box.run(f"systemctl show {unit} -p InvocationID --value").stdout.strip()


def exposure(box: Box, unit: str) -> float:
    said = box.run(f"systemd-analyze security --no-pager {unit} | tail -n 1").stdout
    return float(said.split(":")[1].split()[0])


# --- the filter alone ----------------------------------------------------------------------------


@pytest.mark.long
def test_a_stranger_keeps_a_door_out_and_is_named(box: Box, data: HostData) -> None:
    """The other door stands all the same; one that was asked for is refused."""
    box.run(STRANGER.format(port=4001))
    box.until(lambda: box.run("ss -ltn | grep -q :4001", check=False).returncode == 0, 30)
    by_default = {**data, "gateway": None}
    said = deployed(box, by_default).said
    assert "the stream filter on port 4000" in said
    assert "the gateway (LiteLLM) is left out: port 4001 belongs to python3" in said
    assert "unit stranger.service" in said
    assert planned(box, by_default) == []
    assert exposure(box, STREAM.unit) <= 2.0
    ended = deploy({box: {**data, "gateway": True}}, "-y")
    refusal = the_one_refusal(ended)
    assert "port 4001 belongs to python3" in refusal.found
    assert "gateway = False" in refusal.do
    box.run("systemctl stop stranger")


@pytest.mark.long
def test_a_unit_of_the_persons_own_by_our_name_is_left_alone(box: Box, data: HostData) -> None:
    """It does not run, and lies where a program of his has put it."""
    file = f"/usr/local/lib/systemd/system/{GATEWAY.unit}"
    text = "[Service]\nExecStart=/home/me/litellm\n"
    box.run(f"mkdir -p $(dirname {file}) && cat >{file} && systemctl daemon-reload", text=text)
    by_default = {**data, "gateway": None}
    try:
        plan = unwrapped(deploy({box: by_default}, "--dry"))
        said = deployed(box, by_default).said
        refusal = the_one_refusal(deploy({box: {**data, "gateway": True}}, "-y"))
        left = box.run(f"cat {file}; ls {GATEWAY.unit_file}", check=False).stdout
    finally:
        box.run(f"rm {file} && systemctl daemon-reload")
    words = f"{GATEWAY.unit} is a unit that no deploy has written"
    assert f"the gateway (LiteLLM) is left out: {words}" in plan
    assert f"the gateway (LiteLLM) is left out: {words}" in said
    assert words in refusal.found
    assert "rename yours, or set gateway = False" in refusal.do
    assert left == text


@pytest.mark.long
@pytest.mark.parametrize("how", ["rm {}", "ln -sfn /dev/null {}"], ids=["deleted", "masked"])
def test_a_unit_that_is_gone_while_the_door_runs_is_laid_again(
    box: Box, data: HostData, how: str
) -> None:
    """It is no stranger's door for that, nor left out."""
    deployed(box, data)
    box.run(f"{how.format(STREAM.unit_file)}; systemctl daemon-reload")
    deployed(box, {**data, "stream": None})
    assert "ExecStart=" in box.run(f"cat {STREAM.unit_file}").stdout
    assert ask(box, 4000, "/v1/models")[0] == 200
    assert planned(box, data) == []


@pytest.mark.long
def test_the_filter_answers_and_is_locked_up(box: Box, data: HostData) -> None:
    deployed(box, data)
    status, answer = ask(box, 4000, "/v1/chat/completions", BODY)
    assert status == 200, answer
    assert answer["choices"][0]["message"]
    assert ask(box, 4000, "/metrics")[0] == 403
    assert exposure(box, STREAM.unit) <= 2.0
    assert check({box: data}).code == 0
    [row] = [one for one in box.run([AIBOX, "status"]).stdout.splitlines() if "4000" in one]
    assert row.startswith("stream")
    assert "answers" in row


@pytest.mark.long
def test_a_filter_that_fails_its_gate_makes_way_for_the_one_before(
    box: Box, data: HostData
) -> None:
    """An address that is not this box's: it can't listen there."""
    deployed(box, data)
    before = box.run(f"cat {STREAM_CONFIG}").stdout
    ended = deploy({box: {**data, "doors_address": "203.0.113.7"}}, "-y")
    assert ended.code == 1, ended.said
    assert "vllm-stream.service ended:" in ended.said
    assert "203.0.113.7 port 4000" in ended.said  # its own words, from the journal
    assert "the one before it was put back and started" in ended.said
    assert box.run(f"cat {STREAM_CONFIG}").stdout == before
    box.until(lambda: ask(box, 4000, "/v1/models")[0] == 200, 30)
    assert planned(box, data) == []

    started = invocation(box, STREAM.unit)
    again = the_one_refusal(deploy({box: {**data, "doors_address": "203.0.113.7"}}, "-y"))
    assert "this very door has failed its gate before" in again.found
    assert "203.0.113.7 port 4000" in again.found
    assert "retry_failed=true" in again.do
    assert invocation(box, STREAM.unit) == started  # nobody was cut off


@pytest.mark.long
def test_a_filter_that_is_starting_by_itself_is_no_plan(box: Box, data: HostData) -> None:
    """As after a reboot, drawn out."""
    deployed(box, data)
    folder = f"/run/systemd/system/{STREAM.unit}.d"
    slow = "[Service]\nExecStartPre=+/bin/sleep 60\n"
    box.run(["sh", "-ec", f"mkdir {folder}; cat >{folder}/slow.conf"], text=slow)
    box.run(f"systemctl daemon-reload; systemctl restart --no-block {STREAM.unit}")
    try:
        until(lambda: state_of(box, STREAM.unit) == "activating", "it did not begin to start")
        assert planned(box, data) == []
        assert state_of(box, STREAM.unit) == "activating"
    finally:
        box.run(f"rm -r {folder}; systemctl daemon-reload; systemctl restart {STREAM.unit}")


def state_of(box: Box, unit: str) -> str:
    return box.run(f"systemctl is-active {unit}", check=False).stdout.strip()


@pytest.mark.long
def test_what_was_changed_by_hand_is_drift_and_is_mended(box: Box, data: HostData) -> None:
    deployed(box, data)
    box.run(f"sed -i s/4000/4002/ {STREAM_CONFIG}")
    found = check({box: data})
    assert found.code == 2
    assert f"{STREAM_CONFIG} has another content" in found.table
    before = invocation(box, STREAM.unit)
    deployed(box, data)
    assert invocation(box, STREAM.unit) != before
    assert planned(box, data) == []


@pytest.mark.long
def test_a_door_that_is_turned_off_leaves_nothing_but_its_keys(box: Box, data: HostData) -> None:
    deployed(box, data)
    off = {**data, "stream": False}
    said = deployed(box, off).said
    assert "without the filter only this box reads localhost:8000/metrics" in said
    left = box.run(f"ls {CONFIG_FOLDER} {STREAM.root} {STREAM.unit_file}", check=False).stdout
    assert left.split() == [f"{CONFIG_FOLDER}:", "stream-keys"]
    assert box.run(f"systemctl is-active {STREAM.unit}", check=False).stdout == "inactive\n"
    assert planned(box, off) == []
    assert "doors" in manifest_of(box)["bit"]
    assert manifest_of(box)["bit"]["doors"] == {}


# --- both ----------------------------------------------------------------------------------------


@pytest.mark.long
def test_litellm_lets_in_who_has_a_key(box: Box, both: HostData) -> None:
    said = deployed(box, both, "-vv", "--diff").said
    key = box.run(f"cat {MASTER_KEY}").stdout.strip()
    assert key.startswith("sk-")
    path = "/v1/chat/completions"
    status, answer = ask(box, 4001, path, BODY, bearer(key))
    assert status == 200, answer
    assert ask(box, 4001, path, BODY, {"x-api-key": key})[0] == 200
    messages = ask(box, 4001, "/v1/messages", BODY, {"x-api-key": key})
    assert messages[0] == 200, messages
    assert [one["id"] for one in ask(box, 4001, "/v1/models", None, bearer(key))[1]["data"]] == [
        MODEL
    ]
    for closed in ("/", "/ui", "/ui/", "/docs", "/openapi.json", "/key/generate", "/metrics/"):
        assert ask(box, 4001, closed, None, bearer(key))[0] in (403, 404), closed
    metrics = "python3 -c 'import urllib.request as r; {}'".format(
        'print(r.urlopen("http://127.0.0.1:4001/metrics/").read().decode())'
    )
    assert "litellm_" in box.run(metrics).stdout
    is_nowhere_but(box, key, said, [MASTER_KEY])


def is_nowhere_but(box: Box, key: str, said: str, files: list[str]) -> None:
    """The key is in its files and in the processes' memory only."""
    assert key not in said
    shown = [
        box.run(f"systemctl show {door.unit} -p MainPID --value") for door in (STREAM, GATEWAY)
    ]
    places = [
        f"/proc/{one.stdout.strip()}/{what}" for one in shown for what in ("environ", "cmdline")
    ]
    places += ["/etc/systemd", "/var/lib/aibox", "/var/log", CONFIG_FOLDER, "/tmp/journal"]
    look = f"grep -rlaF {key} {' '.join(places)} /opt/litellm/*/release.json"
    words = f"journalctl --no-pager -q > /tmp/journal; {look}; rm /tmp/journal"
    looked = box.run(words, check=False).stdout
    assert sorted(looked.split()) == files


# --- keys of the person's own -------------------------------------------------------------------

AL, BO = ("al-of-the-filter", "sk-al-of-litellm"), ("bo-of-the-filter", "sk-bo-of-litellm")
FILES_OF_KEYS = {"stream-keys": 0, "litellm-keys": 1}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of this project, with secrets of its own."""
    copy = copy_of_the_project(tmp_path / "project")
    (copy / "secrets").mkdir(mode=0o700)
    return copy


def say_keys(project: Path, *lines: tuple[str, str]) -> None:
    """Lay down both files of keys on control: a line for the filter, and one for LiteLLM."""
    for name, at in FILES_OF_KEYS.items():
        path = project / "secrets" / name
        path.write_text("".join(f"{line[at]}\n" for line in lines))
        path.chmod(0o600)


def lines_of(name: str, keys: tuple[str, str]) -> tuple[str, str]:
    return f"{name}: {keys[0]}", f"{name}: {keys[1]}"


def lets_in(box: Box, keys: tuple[str, str]) -> bool:
    """Whether a person's keys open both doors, in both ways of sending them; all or none."""
    doors = zip((4000, 4001), keys, strict=True)
    path = "/v1/chat/completions"
    answers = [
        ask(box, port, path, BODY, headers)
        for port, key in doors
        for headers in (bearer(key), {"x-api-key": key})
    ]
    assert len({status for status, _ in answers}) == 1, answers
    return answers[0][0] == 200


def nobody_else_gets_in(box: Box) -> None:
    """Without a key and with a wrong one: 401, as the API that was asked says it."""
    for port in (4000, 4001):
        for path in ("/v1/chat/completions", "/v1/messages", "/v1/models"):
            body = None if path == "/v1/models" else BODY
            for headers in ({}, bearer("sk-0123456789"), {"x-api-key": "sk-0123456789"}):
                status, said = ask(box, port, path, body, headers)
                assert status == 401, (port, path, said)
                assert said["error"]["type"] == "authentication_error", said
                assert (said.get("type") == "error") is (path == "/v1/messages"), said
                assert "sk-0123456789" not in str(said)


@pytest.mark.long
def test_each_key_opens_both_doors_until_it_is_taken_out_of_its_file(
    box: Box, both: HostData, project: Path
) -> None:
    say_keys(project, lines_of("al", AL), lines_of("bo", BO))
    plan = deploy({box: both}, "--dry", "--json", "--diff", project=project).said
    said = plan + deployed(box, both, "-vv", "--diff", project=project).said
    assert lets_in(box, AL)
    assert lets_in(box, BO)
    nobody_else_gets_in(box)
    for key, file in zip(AL, ("stream-keys", "litellm-keys"), strict=True):
        is_nowhere_but(box, key, said, [f"{CONFIG_FOLDER}/{file}"])
    assert deploy({box: both}, "--dry", "--json", project=project).planned == []

    say_keys(project, lines_of("bo", BO))  # al was the first, with which the gateway asked
    deployed(box, both, project=project)
    assert not lets_in(box, AL)
    assert lets_in(box, BO)
    nobody_else_gets_in(box)

    say_keys(project, ("# nobody is left", "# nobody is left"))
    refusals = refusals_in(deploy({box: both}, "-y", project=project))
    assert [one.found.partition(", and ")[2] for one in refusals] == [
        f"secrets/{name} names no key" for name in FILES_OF_KEYS
    ]
    assert lets_in(box, BO)
    nobody_else_gets_in(box)

    say_keys(project, ("none", "none"))
    deployed(box, both, project=project)
    assert ask(box, 4000, "/v1/chat/completions", BODY)[0] == 200  # open again, as it was said
    assert ask(box, 4001, "/v1/chat/completions", BODY, bearer(BO[1]))[0] == 401
    assert planned(box, both) == []


@pytest.mark.long
def test_both_doors_are_silent_after_that_and_come_back_after_a_reboot(
    box: Box, both: HostData
) -> None:
    deployed(box, both)
    assert planned(box, both) == []
    before = [invocation(box, door.unit) for door in (STREAM, GATEWAY)]
    deployed(box, both)
    assert [invocation(box, door.unit) for door in (STREAM, GATEWAY)] == before
    assert exposure(box, GATEWAY.unit) <= 2.0
    assert check({box: both}).code == 0
    box.reboot()
    key = bearer(box.run(f"cat {MASTER_KEY}").stdout.strip())
    box.until(lambda: is_up(box, key), 300)
    assert planned(box, both) == []
    order = "systemctl show {} -p ActiveEnterTimestampMonotonic --value"
    units = ("vllm-coder.service", STREAM.unit, GATEWAY.unit)
    up = [int(box.run(order.format(one)).stdout) for one in units]
    assert up == sorted(up)


def is_up(box: Box, key: dict[str, str]) -> bool:
    try:
        return ask(box, 4001, "/v1/chat/completions", BODY, key)[0] == 200
    except OSError:
        time.sleep(1)
        return False


@pytest.mark.long
def test_a_power_cut_in_a_switch_is_made_good(box: Box, both: HostData) -> None:
    """LiteLLM is told something else, and the box loses power while that starts."""
    deployed(box, both)
    reference = manifest_of(box)
    cut = {**both, "metrics_from": ["203.0.113.0/24"]}
    job = "systemctl is-active -q aibox-gateway-switch"
    with deploying(box, cut):
        until(lambda: box.run(job, check=False).returncode == 0, "the switch did not begin")
        time.sleep(2)  # stopped, and not up again
        box.power_cut()
    box.start()
    box.run("systemctl start vllm-coder")
    deployed(box, both)
    assert differences(reference, box) == []
    assert planned(box, both) == []
    assert box.run("ls /var/lib/aibox/doors").stdout.split() == ["gateway.json", "stream.json"]


@pytest.mark.long
def test_a_teardown_takes_the_doors_too(box: Box, both: HostData) -> None:
    deployed(box, both)
    box.run("umount /var/cache/aibox/uv")  # this test's own
    ended = deploy({box: both}, "-y", entry="tasks/teardown.py")
    assert ended.code == 0, ended.said
    homes = [path for door in (STREAM, GATEWAY) for path in (*door.folders, door.unit_file)]
    assert box.run(["ls", "-d", *homes], check=False).stdout == ""
    users = f"getent passwd {STREAM.user} {GATEWAY.user}"
    assert box.run(users, check=False).stdout == ""


@pytest.mark.long
def test_a_clone_without_the_keys_opens_nothing(box: Box, data: HostData) -> None:
    deployed(box, data)
    box.run("echo 'al: sk-0123456789' >/etc/aibox/stream-keys")
    try:
        refusal = the_one_refusal(deploy({box: data}, "-y"))
        assert "this project has no secrets/stream-keys" in refusal.found
        assert "sk-0123456789" not in str(refusal)
        assert box.run("cat /etc/aibox/stream-keys").stdout == "al: sk-0123456789\n"
    finally:
        box.run(": >/etc/aibox/stream-keys")
