"""Every mode of a benchmark with real vLLM on the CPU, small; drafts are turned off and changed.

Its figures are held against the server's counters as this test reads them. The prefix cache stays
off: a CPU can't cache the prefixes of a hybrid model (test_bench.py has that half).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aibox.decide import bench_compare
from tests.rehearsal.box import Box
from tests.rehearsal.candidates import assert_serves, candidate, history_of, process_of
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import Deploy, HostData, deploy, download_caches, production

pytestmark = pytest.mark.long

NAME = "real-bench"


@pytest.fixture(scope="module")
def data(hub: Hub) -> HostData:
    return production(hub.url)


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None], data: HostData) -> Iterator[Box]:
    layer = layers("driven")
    with Box.up(NAME, layer=layer, binds=download_caches(), owned=True) as made:
        ended = deploy({made: data}, "-y", timeout_s=1800)
        assert ended.code == 0, ended.said
        yield made


@pytest.fixture
def brought() -> Iterator[Callable[[], Path]]:
    """The JSON of the report that came since; everything that came goes at the end."""
    before = files()

    def report() -> Path:
        found = sorted(path for path in files() - before if path.suffix == ".json")
        assert len(found) == 1, found
        return found[0]

    yield report
    for path in files() - before:
        path.unlink()


def files() -> set[Path]:
    return {*(CHECKOUT / "reports").glob(f"*-{NAME}-*")}


def measure(box: Box, data: HostData, asked: Mapping[str, object], code: int = 0) -> Deploy:
    """`pyinfra inventory tasks/bench.py`, as a person types it."""
    words = [word for name, text in asked.items() for word in ("--data", f"{name}={text}")]
    ended = deploy({box: data}, "-y", *words, entry="tasks/bench.py", timeout_s=3000)
    assert ended.code == code, ended.said
    assert "Traceback" not in ended.said
    return ended


def assert_as_before(box: Box, data: HostData, history: list[dict[str, Any]]) -> None:
    assert_serves(box, candidate(data))
    assert history_of(box) == history


def test_seed_with_and_without_drafts(
    box: Box, data: HostData, brought: Callable[[], Path]
) -> None:
    history = history_of(box)
    ended = measure(box, data, {"tokens": 96, "runs": 2})
    assert_as_before(box, data, history)
    report = json.loads(brought().read_text())
    drafting, plain = report["servers"]
    assert (drafting["drafts"], plain["drafts"]) == (2, 0)
    assert [point["kind"] for point in plain["points"]] == ["code", "prose"]
    for point in drafting["points"]:
        own, counted = point["batches"][0]["speculative"], point["counted"]
        assert own["num_drafts"] == counted["drafts"] > 0
        assert own["accepted_tokens"] == counted["accepted_tokens"]
        assert counted["generation_tokens"] == 2 * 96
    for point in plain["points"]:
        assert point["counted"]["drafts"] == 0
        assert point["batches"][0]["speculative"] is None
    assert "no MTP, tokens/s" in ended.said
    assert "n=2: " in ended.said


def test_cross_of_streams_prompts_drafts_and_thinking(
    box: Box, data: HostData, brought: Callable[[], Path]
) -> None:
    history = history_of(box)
    asked = {"mode": "cross", "concurrency": "1,4", "context": "1K,4K", "drafts": "1,now"}
    measure(box, data, {**asked, "thinking": "off,on", "tokens": 32, "runs": 1})
    assert_as_before(box, data, history)
    report = json.loads(brought().read_text())
    assert [server["drafts"] for server in report["servers"]] == [2, 1]
    for server in report["servers"]:
        assert len(server["points"]) == 8
        for point in server["points"]:
            requests = [one for batch in point["batches"] for one in batch["requests"]]
            assert len(requests) == point["concurrency"]
            lengths = [one["prompt"] for one in requests]
            assert all(0.9 <= one / point["context"] <= 1.1 for one in lengths), point
            assert point["counted"]["generation_tokens"] == 32 * len(requests)


def test_quality_with_and_without_drafts(
    box: Box, data: HostData, brought: Callable[[], Path]
) -> None:
    history = history_of(box)
    asked = {"mode": "quality", "prefix_caching": "now", "context": "2K", "tokens": 24}
    ended = measure(box, data, asked)
    assert_as_before(box, data, history)
    path = brought()
    report = json.loads(path.read_text())
    for server in report["servers"]:
        assert len(server["quality"]["answers"]) == 2 * 18
        assert bool(server["quality"]["drafts"]) is bool(server["drafts"])
    assert "Agreement" in ended.said
    page = bench_compare.page(report, report)  # two reports side by side
    assert isinstance(page, str)
    assert "no verdict" in page


def test_a_restart_in_the_middle_is_no_figure(
    box: Box, data: HostData, brought: Callable[[], Path]
) -> None:
    """A measurement that the server did not live through is told, and nothing is made of it."""
    history, before = history_of(box), process_of(box)
    box.run("systemd-run --collect --on-active=25 systemctl restart vllm-coder")
    asked = {"kinds": "code", "tokens": 2000, "runs": 5, "drafts": "now"}
    ended = measure(box, data, asked, code=1)
    assert process_of(box) != before
    assert "nothing was measured" in ended.said
    server = json.loads(brought().read_text())["servers"][0]
    assert server["points"] == []
    assert "not measured to the end" in server["notes"][0]
    assert history_of(box) == history
