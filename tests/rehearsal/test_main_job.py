"""The main job on the real vLLM: `make rehearsal`, judged from outside, then lived with.

One box, in order: each test goes on from where the one before left it, because a real start costs
half a minute and more. The starts are counted.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from testinfra.host import Host

from aibox.monitoring.alerts import ALERTS
from tests.rehearsal import watched
from tests.rehearsal.box import Box
from tests.rehearsal.by_hand import DRIVER
from tests.rehearsal.clients import turns
from tests.rehearsal.conftest import RealStarts
from tests.rehearsal.emulation import hub
from tests.rehearsal.judge import assert_driver, boots, host_of
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.main_job import WHOLE, clear_away, hub_record
from tests.rehearsal.provision import Deploy, deploy, production
from tests.rehearsal.refusal import the_one_refusal
from tests.rehearsal.test_drift import check

NAME = "main-job"
MODEL = "tiny-qwen3.5-mtp"
BOTH_DOORS = pytest.mark.parametrize("port", [4000, 4001], ids=["filter", "gateway"])
# Random weights think to the end of their tokens, and a forced tool call together with MTP ends the
# engine on a CPU (`tensor must be contiguous`): tests/stream has the calls, on a scripted server.
NO_THINKING: dict[str, Any] = {"extra_body": {"chat_template_kwargs": {"enable_thinking": False}}}
UNIT = "/etc/systemd/system/vllm-coder.service"
MAIN_PID = "systemctl show vllm-coder -p MainPID --value"
ASK = """
import json, urllib.request
def get(path, body=None):
    data = json.dumps(body).encode() if body else None
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request("http://localhost:8000" + path, data, headers)
    return urllib.request.urlopen(request, timeout=120).read().decode()
"""


@pytest.fixture(scope="module")
def rehearsed(real_starts: RealStarts) -> Iterator[subprocess.CompletedProcess[str]]:
    """`make rehearsal` itself, as a newcomer types it."""
    command = ["make", "rehearsal", f"NAME={NAME}"]
    done = subprocess.run(
        command, cwd=CHECKOUT, capture_output=True, text=True, check=False, timeout=2400
    )
    try:
        yield done
    finally:
        for box in Box.all():
            if box.name == NAME and box.is_running:
                real_starts.count(box)
        clear_away(NAME)


@pytest.fixture(scope="module")
def box(rehearsed: subprocess.CompletedProcess[str]) -> Box:
    assert rehearsed.returncode == 0, rehearsed.stdout + rehearsed.stderr
    return Box.find(NAME)


@pytest.fixture(scope="module")
def host(box: Box) -> Host:
    """The box as testinfra sees it, over ssh, with sudo."""
    return host_of(box)


def again(box: Box, *words: str, entry: str = "deploy.py", **data: object) -> Deploy:
    """A further deploy to the box, from the hub that `make rehearsal` left running."""
    record = hub.detached(hub_record())
    assert record, "the hub went away"
    return deploy({box: {**production(record["url"]), **WHOLE, **data}}, *words, entry=entry)


def accepted_drafts(metrics: str) -> float:
    """Draft tokens accepted since the server started."""
    counters = [
        float(line.split()[-1])
        for line in metrics.splitlines()
        if line.startswith("vllm:spec_decode_num_accepted_tokens_total")
    ]
    assert counters, metrics
    return sum(counters)


def test_it_ends_with_a_completion_and_accepted_drafts(
    rehearsed: subprocess.CompletedProcess[str],
) -> None:
    said = rehearsed.stdout + rehearsed.stderr
    assert rehearsed.returncode == 0, said
    assert "draft tokens accepted" in said
    assert "The box serves after" in said
    assert "Traceback" not in said


def test_its_driver_came_with_one_reboot(box: Box) -> None:
    assert len(boots(box)) == 2  # the box came up bare; the run rebooted it
    assert_driver(box, DRIVER)


def test_the_box_serves_as_its_own_user_on_localhost_only(box: Box, host: Host) -> None:
    service = host.service("vllm-coder")
    assert service.is_running
    assert service.is_enabled
    pid = host.check_output("systemctl show vllm-coder -p MainPID --value")
    assert host.check_output(f"stat -c %U /proc/{pid}") == "vllm"
    assert host.socket("tcp://127.0.0.1:8000").is_listening
    assert not host.socket("tcp://0.0.0.0:8000").is_listening
    unit = host.file(UNIT)
    assert (unit.user, unit.mode) == ("root", 0o644)
    assert unit.contains("--allowed-origins")
    verified = box.run(f"systemd-analyze verify {UNIT} 2>&1", check=False)
    assert (verified.returncode, verified.stdout) == (0, "")


def test_it_answers_and_its_drafts_are_accepted(box: Box) -> None:
    body = {
        "model": "tiny-qwen3.5-mtp",
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 40,
        "temperature": 0,
    }
    asked = f"[get('/metrics'), get('/v1/chat/completions', {body!r}), get('/metrics')]"
    said = box.run(["python3", "-c", f"{ASK}\nprint(json.dumps({asked}))"]).stdout
    before, answer, after = json.loads(said)
    assert json.loads(answer)["usage"]["completion_tokens"] == 40
    assert accepted_drafts(after) - accepted_drafts(before) > 0


def test_release_and_weights_are_what_the_locks_say(box: Box, host: Host) -> None:
    release = host.check_output("ls -d /opt/vllm/releases/0.31.0-*")
    version = (
        f"{release}/bin/python -c 'import importlib.metadata as m; print(m.version(\"vllm\"))'"
    )
    assert host.check_output(version) == "0.31.0"
    assert (
        host.check_output(f"find {release} -not -user root -o -perm /022 -not -type l | head") == ""
    )
    lock = json.loads(
        (CHECKOUT / "tests/rehearsal/group_data/models/tiny-qwen3.5-mtp.lock.json").read_text()
    )
    folder = f"/srv/models/tiny-qwen3.5-mtp/{lock['commit']}"
    sums = "".join(f"{file['sha256']}  {folder}/{path}\n" for path, file in lock["files"].items())
    box.run("sha256sum --check --strict --quiet", text=sums)


def test_a_second_deploy_changes_nothing(box: Box) -> None:
    before = box.run(MAIN_PID).stdout
    assert again(box, "--dry", "--json").planned == []
    ended = again(box, "-y")
    assert ended.code == 0, ended.said
    assert "Success" not in ended.log.split("--> Results")[0], ended.log
    assert box.run(MAIN_PID).stdout == before


@pytest.fixture(scope="module")
def key(box: Box) -> str:
    return box.run("cat /etc/aibox/litellm-master-key").stdout.strip()


@BOTH_DOORS
def test_the_sdks_have_their_turns_through_both_doors(box: Box, key: str, port: int) -> None:
    url = f"http://{box.address}:{port}"
    chat = turns.openai_sdk(url, key, MODEL, temperature=0)
    assert (chat.tokens, chat.finish, bool(chat.thinking)) == (64, "length", True), chat
    seen = turns.openai_sdk(url, key, MODEL, image=True, temperature=0, **NO_THINKING)
    assert (seen.tokens, bool(seen.text)) == (64, True), seen
    message = turns.anthropic_sdk(url, key, MODEL)
    assert message.tokens > 0, message
    assert message.thinking or message.text, message
    told = turns.ai_sdk(url, key, MODEL)
    assert (told["errors"], bool(told["reasoning"] or told["text"])) == ([], True), told


@pytest.mark.parametrize("port", [4000, pytest.param(4001, marks=pytest.mark.long)])
def test_opencode_runs_a_turn_through_both_doors(box: Box, key: str, port: int) -> None:
    """With the configuration that `aibox clients` prints."""
    url = f"http://{box.address}:{port}"
    page = box.run(f"/opt/aibox/current/bin/aibox clients --address {box.address}").stdout
    start = page.index("{\n")
    shown = page[start : page.index("\n}", start) + 2].replace(":4000", f":{port}")
    before = answered_chats(box)
    shown = shown.replace('"output": 8192', '"output": 64')  # random weights end nowhere
    turns.opencode(shown.replace('"none"', '"{env:AI_BOX_KEY}"'), "AI_BOX_KEY", key, "Hello")
    assert answered_chats(box) > before
    assert url in shown


def answered_chats(box: Box) -> float:
    """Chat completions that the filter, which the gateway asks too, has seen end well."""
    asked = "u.urlopen('http://127.0.0.1:4000/metrics').read().decode()"
    metrics = box.run(["python3", "-c", f"import urllib.request as u; print({asked})"]).stdout
    rows = [line for line in metrics.splitlines() if line.startswith("aibox_stream_requests_total")]
    wanted = [row for row in rows if "chat/completions" in row and 'status="200"' in row]
    return sum(float(row.split()[-1]) for row in wanted)


def drafted(box: Box) -> tuple[float, ...]:
    """Drafts, tokens drafted and accepted, and tokens written: the server's counters now."""
    said = box.run(["python3", "-c", f"{ASK}\nprint(get('/metrics'))"]).stdout.splitlines()
    names = [f"spec_decode_num_{name}" for name in ("drafts", "draft_tokens", "accepted_tokens")]
    return tuple(
        sum(float(row.split()[-1]) for row in said if row.startswith(f"vllm:{name}_total{{"))
        for name in (*names, "generation_tokens")
    )


def test_the_benchmark_says_what_the_counters_say(box: Box) -> None:
    """`pyinfra inventory tasks/bench.py`, a small part of it, on the server as it is."""
    part = {"kinds": "code", "tokens": 48, "runs": 2, "drafts": "now"}
    process, before, old = box.run(MAIN_PID).stdout, drafted(box), reports()
    ended = again(box, "-y", entry="tasks/bench.py", **part)
    made = reports() - old
    try:
        assert ended.code == 0, ended.said
        counted = [now - then for then, now in zip(before, drafted(box), strict=True)]
        assert sorted(path.suffix for path in made) == [".json", ".md", ".png", ".svg"]
        assert_measured(next(path for path in made if path.suffix == ".json"), counted)
        assert "2 drafts  code, 1 stream  " in ended.said
    finally:
        for path in made:
            path.unlink()
    assert box.run(MAIN_PID).stdout == process  # nothing was started for it


def reports() -> set[Path]:
    return {*(CHECKOUT / "reports").glob(f"*-{NAME}-*")}


def assert_measured(path: Path, counted: list[float]) -> None:
    """counted: what the server's counters rose by in the meantime, read by this test."""
    point = json.loads(path.read_text())["servers"][0]["points"][0]
    names = ("drafts", "draft_tokens", "accepted_tokens", "generation_tokens")
    assert [point["counted"][name] for name in names] == counted
    batch = point["batches"][0]
    assert [one["tokens"] for one in batch["requests"]] == [48, 48]
    own = batch["speculative"]  # what `vllm bench serve` says of the same
    assert [own["num_drafts"], own["draft_tokens"], own["accepted_tokens"]] == counted[:3]
    assert own["acceptance_length"] == pytest.approx(1 + counted[2] / counted[0])
    assert sum(one["seconds"] for one in batch["requests"]) <= batch["seconds"]


def test_every_panel_and_alert_has_its_figure(box: Box) -> None:
    """Read from its own Prometheus, after the turns above and an answer that holds nothing."""
    record = hub.detached(hub_record())
    assert record
    assert check({box: {**production(record["url"]), **WHOLE}}).code == 0  # its figures too
    empty_answer(box)
    # a hybrid model on a CPU caches no prefix, and this gateway asks one box alone
    without = {"Prefix hits", "Where a gateway's requests are"}
    box.until(lambda: not missing_panels(box) - without, 90)
    assert missing_panels(box) == without
    every = watched.series_of_alerts()
    assert {"BoxNotAsked", "BoxTakenOut"} <= every.keys()
    for alert, series in every.items():
        if alert in ("BoxNotAsked", "BoxTakenOut"):
            continue
        found = watched.asked(box, [query(one) for one in series])
        assert series and all(one["result"] for one in found), (alert, series)
    watched.asked(box, [query(alert.expr) for alert in ALERTS])
    if os.environ.get("AIBOX_PICTURE"):
        watched.draw(box, CHECKOUT / "docs/images/dashboard.png", seconds=600)


def query(expr: str) -> str:
    return f"/api/v1/query?{urllib.parse.urlencode({'query': expr})}"


def missing_panels(box: Box) -> set[str]:
    """Titles of panels with a curve that has no figure now."""
    curves = watched.expressions()
    answers = watched.asked(box, [query(expr) for expr in curves.values()])
    return {
        name.partition(":")[0]
        for name, answer in zip(curves, answers, strict=True)
        if not name.startswith("What is wrong now")
        and not any(math.isfinite(float(one["value"][1])) for one in answer["result"])
    }


def empty_answer(box: Box) -> None:
    """Ask for a stop at the very first letter."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 8}
    body |= {"temperature": 0, **NO_THINKING["extra_body"]}
    asked = f"get('/v1/chat/completions', {body!r})"
    program = ASK.replace(":8000", ":4000")
    said = box.run(["python3", "-c", f"{program}\nprint({asked})"]).stdout
    first = json.loads(said)["choices"][0]["message"]["content"][:1]
    asked = f"get('/v1/chat/completions', {{**{body!r}, 'stop': [{first!r}]}})"
    box.run(["python3", "-c", f"{program}\nfor _ in range(3): print({asked})"])


def test_flags_that_the_real_parser_refuses_cost_no_second(box: Box) -> None:
    before = box.run(MAIN_PID).stdout
    ended = again(box, "-y", serve={"tool-call-parser": "qwen3_codr", "max-num-seqz": 4})
    refusal = the_one_refusal(ended)
    assert "max-num-seqz" in refusal.found
    assert "qwen3_codr" in refusal.found
    assert "qwen3_coder" in f"{refusal.expected} {refusal.do}"  # what it knows, the nearest first
    assert box.run(MAIN_PID).stdout == before


def test_compiled_it_serves_as_well(box: Box) -> None:
    """The one start with torch.compile; every other is eager."""
    ended = again(box, "-y", serve={"enforce-eager": False})
    assert ended.code == 0, ended.said
    assert "switch: compiling" in ended.said
    assert "draft tokens accepted" in ended.said
    passed = json.loads(box.run("cat /var/lib/aibox/server/history.json").stdout)[0]
    assert passed["seconds_start"] > 10
    # two busy cores; the stand-in's switch asserts the two seconds themselves
    assert passed["seconds_down"] <= 1.05 * passed["seconds_start"], passed


def test_no_more_real_starts_than_these(box: Box, real_starts: RealStarts) -> None:
    assert real_starts.of(box) == 2  # the first deploy, and the compiled one
