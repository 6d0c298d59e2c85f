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
from typing import Any

import pytest

from aibox.decide.doors import CONFIG_FOLDER, GATEWAY, MASTER_KEY, STREAM, STREAM_CONFIG
from tasks.box import AIBOX
from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.jobs import deploying, until
from tests.rehearsal.kill_harness import differences, manifest_of
from tests.rehearsal.provision import (
    Deploy,
    HostData,
    deploy,
    download_caches,
    standin,
)
from tests.rehearsal.refusal import the_one_refusal
from tests.rehearsal.test_drift import check

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


def deployed(box: Box, data: HostData, *words: str) -> Deploy:
    ended = deploy({box: data}, "-y", *words)
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
    ended = deploy({box: {**data, "gateway": True}}, "-y")
    refusal = the_one_refusal(ended)
    assert "port 4001 belongs to python3" in refusal.found
    assert "gateway = False" in refusal.do
    box.run("systemctl stop stranger")


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


def test_a_filter_that_fails_its_gate_makes_way_for_the_one_before(
    box: Box, data: HostData
) -> None:
    """An address that is not this box's: it can't listen there."""
    before = box.run(f"cat {STREAM_CONFIG}").stdout
    ended = deploy({box: {**data, "doors_address": "203.0.113.7"}}, "-y")
    assert ended.code == 1, ended.said
    assert "vllm-stream.service ended:" in ended.said
    assert "203.0.113.7 port 4000" in ended.said  # its own words, from the journal
    assert "the one before it was put back and started" in ended.said
    assert box.run(f"cat {STREAM_CONFIG}").stdout == before
    box.until(lambda: ask(box, 4000, "/v1/models")[0] == 200, 30)
    assert planned(box, data) == []


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
    assert ask(box, 4001, path, BODY, bearer("sk-0123456789"))[0] == 401
    assert ask(box, 4001, path, BODY)[0] == 401
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
    is_nowhere(box, key, said)


def is_nowhere(box: Box, key: str, said: str) -> None:
    """The key is in its file and in LiteLLM's memory only."""
    assert key not in said
    pid = box.run(f"systemctl show {GATEWAY.unit} -p MainPID --value").stdout.strip()
    places = f"/proc/{pid}/environ /proc/{pid}/cmdline /etc/systemd /var/lib/aibox /var/log"
    looked = box.run(
        f"journalctl --no-pager -q > /tmp/journal; grep -rlaF {key} /tmp/journal {places} "
        f"{CONFIG_FOLDER} /opt/litellm/*/release.json; rm /tmp/journal",
        check=False,
    ).stdout
    assert looked.split() == [MASTER_KEY]


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
    up = [int(box.run(order.format(one)).stdout) for one in (STREAM.unit, GATEWAY.unit)]
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
