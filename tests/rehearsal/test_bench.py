"""A benchmark lends the server: other flags for a while, and then what it was, whatever happened.

All on the stand-in release; test_main_job.py and test_real_bench.py measure real vLLM. The half of
mode=quality that is about the prefix cache is here alone: a CPU can't cache a hybrid's prefixes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from aibox.box.good_units import sum_of
from aibox.decide import bench_page
from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import (
    TRIED,
    Spec,
    answers,
    assert_serves,
    candidate,
    history_of,
    process_of,
    script,
    scripted,
    switch,
    until_it_answers,
)
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import HostData, standin

LENT = "/run/aibox/lent.json"
CACHING, DRAFTS = "--enable-prefix-caching", "--speculative-config"
CROSSED = {"mode": "quality", "drafts": "0,now", "prefix_caching": "off,on", "tokens": "16"}
ONE_OTHER = {"mode": "quality", "drafts": "0", "prefix_caching": "now", "tokens": "16"}


@pytest.fixture(scope="module")
def made(layers: Callable[[str], str | None]) -> Iterator[Box]:
    with Box.up("bench", layer=layers("serving"), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture(scope="module")
def data(hub: Hub) -> HostData:
    return scripted(standin(hub.url), enable_prefix_caching=True)


@pytest.fixture(scope="module")
def good(data: HostData) -> Spec:
    """What is installed when a benchmark begins: MTP and the prefix cache are on."""
    return candidate(data)


@pytest.fixture
def box(made: Box, good: Spec) -> Box:
    script(made)
    made.run("rm -f /var/lib/aibox/server/failed.json")
    if history_of(made)[0]["command"] != good["command"] or not answers(made):
        result = switch(made, good)
        assert result["ok"], result
    return made


def bench(box: Box, asked: dict[str, str]) -> dict[str, Any]:
    """The report of a benchmark that went well."""
    result = jobs.work(box, "bench", {"asked": asked})
    assert result["ok"], result
    report: dict[str, Any] = result["report"]
    return report


def begin(box: Box, asked: dict[str, str]) -> None:
    """Start one, and wait until another server than the installed one runs."""
    assert jobs.start(box, "bench", {"asked": asked})["ok"]
    jobs.until(lambda: not drafts(box), "no server without drafts came")


def drafts(box: Box) -> bool:
    """Whether the server that runs does; also where none runs at this moment."""
    words = "tr '\\0' ' ' < /proc/$(systemctl show vllm-coder -p MainPID --value)/cmdline"
    shown = box.run(words, check=False)
    return shown.returncode != 0 or " serve " not in shown.stdout or DRAFTS in shown.stdout


def assert_as_before(box: Box, good: Spec, history: list[dict[str, Any]]) -> None:
    """The installed unit serves, by a process of its own flags, and nothing has been recorded."""
    assert_serves(box, good)
    assert history_of(box) == history
    assert box.run(f"ls {LENT}", check=False).stdout == ""
    kept = box.run("ls /var/lib/aibox/server/units").stdout
    known = {sum_of(good["text"]), *(entry["sha256"] for entry in history)}
    assert {line.split(".")[0] for line in kept.split()} <= known


@pytest.mark.long
def test_quality_crosses_drafts_and_prefix_cache_and_leaves_the_box_as_it_was(
    box: Box, good: Spec
) -> None:
    history = history_of(box)
    script(box, text="something else altogether", only=CACHING)
    report = bench(box, CROSSED)
    assert_as_before(box, good, history)
    by_name = {server["name"]: server for server in report["servers"]}
    assert next(iter(by_name)) == "2 drafts, prefix caching on"  # the one that runs comes first
    assert len(by_name) == 4
    for name, server in by_name.items():
        asked = server["quality"]
        assert server["notes"] == [], server
        assert len(asked["answers"]) == 2 * 18
        assert bool(asked["hits"]) is ("caching on" in name), name  # two blocks and more are shared
        assert bool(asked["drafts"]) is name.startswith("2 drafts"), name
    page = bench_page.page({**report, "box": "bench"})
    assert page.count("these two differ more") == 2  # both servers without the cache
    assert page.count("| alike |") == 1


def test_a_killed_benchmark_gives_the_server_back(box: Box, good: Spec) -> None:
    history, before = history_of(box), process_of(box)
    script(box, step_s=0.5)
    begin(box, ONE_OTHER)
    script(box)
    box.run("systemctl kill -s KILL aibox-bench")
    jobs.until(lambda: not box.run(f"ls {LENT}", check=False).stdout, "nobody took it back")
    until_it_answers(box)
    assert process_of(box) != before
    assert_as_before(box, good, history)


@pytest.mark.long
@pytest.mark.parametrize("cut", ["control is killed", "ssh is cut"])
def test_whoever_was_cut_off_types_the_same_again_and_gets_the_report(
    box: Box, data: HostData, good: Spec, cut: str
) -> None:
    """The job goes on while nobody looks; the second command follows it, and starts none."""
    history = history_of(box)
    words = [word for name, text in ONE_OTHER.items() for word in ("--data", f"{name}={text}")]
    script(box, step_s=0.5)
    with jobs.deploying(box, data, *words, entry="tasks/bench.py") as running:
        jobs.until(lambda: not drafts(box), "no server without drafts came")
        if cut == "ssh is cut":
            box.run("pkill -f '^sshd: admin'")
            ended = running.ended()
            assert (ended.code, "no longer answers" in ended.said) == (1, True), ended.said
        else:
            running.process.kill()
            running.process.wait()
    assert box.run(f"ls {LENT}", check=False).stdout, "the server is still lent"
    job = box.run("systemctl show aibox-bench -p InvocationID --value").stdout
    with jobs.deploying(box, data, *words, entry="tasks/bench.py") as running:
        jobs.until(lambda: "already under way on the box" in running.said(), "it is followed")
        assert box.run("systemctl show aibox-bench -p InvocationID --value").stdout == job
        script(box)
        ended = running.ended()
    assert ended.code == 0, ended.said
    assert "reports/" in ended.said
    for path in (CHECKOUT / "reports").glob("*-bench-*"):
        path.unlink()
    assert_as_before(box, good, history)


@pytest.mark.long
def test_nobody_changes_the_server_while_it_is_measured(box: Box, data: HostData) -> None:
    script(box, step_s=0.5)
    begin(box, ONE_OTHER)
    result = switch(box, candidate({**data, "serve": {**data["serve"], "seed": 3}}))
    assert result["ok"] is False
    assert "a benchmark is at work on this server" in result["refusal"]["found"]
    script(box)
    box.run("systemctl stop aibox-bench")
    until_it_answers(box)
    assert drafts(box)


@pytest.mark.long
@pytest.mark.parametrize("power", ["cut", "reboot"])
def test_a_box_that_goes_down_boots_what_is_installed(box: Box, good: Spec, power: str) -> None:
    history = history_of(box)
    script(box, step_s=0.5)
    begin(box, ONE_OTHER)
    script(box)
    if power == "cut":
        box.power_cut()
        box.start()
    else:
        box.reboot()
    until_it_answers(box)
    assert_as_before(box, good, history)


@pytest.mark.long
def test_a_server_that_does_not_start_is_left_out_and_told(box: Box, good: Spec) -> None:
    history = history_of(box)
    fail = {"lines": ["ValueError: nothing to be done"], "code": 1}
    script(box, fail=fail, only="--no-enable-prefix-caching")
    report = bench(box, {**CROSSED, "drafts": "now"})
    assert_as_before(box, good, history)
    well, ill = report["servers"]
    assert well["quality"]["answers"]
    assert "quality" not in ill
    assert "not measured to the end" in ill["notes"][0]


@pytest.mark.long
def test_what_nobody_took_back_the_next_benchmark_does(box: Box, good: Spec) -> None:
    history = history_of(box)
    script(box, step_s=0.5)
    begin(box, ONE_OTHER)
    record = box.run(f"cat {LENT}").stdout
    unit = box.run(f"cat {TRIED}").stdout
    script(box)
    box.run("systemctl kill -s KILL aibox-bench")
    until_it_answers(box)
    # as if what runs at a job's end had been killed as well
    box.run(["sh", "-c", f"cat > {TRIED}"], text=unit)
    box.run(["sh", "-c", f"cat > {LENT}"], text=record)
    box.run("systemctl daemon-reload && systemctl restart vllm-coder")
    until_it_answers(box)
    assert not drafts(box)
    report = bench(box, {**ONE_OTHER, "drafts": "now"})
    assert report["servers"][0]["is_installed"]
    assert_as_before(box, good, history)


@pytest.mark.long
def test_what_is_wrongly_asked_for_costs_no_second(box: Box) -> None:
    before = process_of(box)
    result = jobs.work(box, "bench", {"asked": {**ONE_OTHER, "drafts": "two"}})
    assert result["ok"] is False
    assert "drafts=two" in result["refusal"]["found"]
    assert process_of(box) == before


@pytest.mark.long
def test_a_server_that_does_not_serve_is_not_measured(box: Box) -> None:
    box.run("systemctl stop vllm-coder")
    result = jobs.work(box, "bench", {"asked": ONE_OTHER})
    box.run("systemctl start vllm-coder")
    assert result["ok"] is False
    assert "does not answer" in result["refusal"]["found"]
    assert json.dumps(result["refusal"]).count("run the deploy") == 1
