"""The pages, charts and comparisons that are made of a benchmark's report."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest

from aibox.decide import bench_compare, bench_page, bench_report
from aibox.decide.refusal import Refusal
from tasks import bench_charts, compare
from tests.unit.made_reports import answers, his, point, report, server


def test_his_table() -> None:
    page = bench_page.page(his())
    assert "| code | 28.5 (one run) | n=2: 67.5 / 66.3 | 2.35 (one run tells no spread) |" in page
    assert "| prose | 28.5 (one run) | n=2: 57.2 / 55.9 | 1.98 (one run tells no spread) |" in page
    assert "| 2 drafts | code, 1 stream | 64.3 % | 2.29 of 3 | 78.6 %, 50.0 % |" in page
    assert "0.100 (0.100 to 0.100)" in page  # the first token apart
    assert "reference box" in page.lower()


def test_the_reference_box_stands_beside_its_own_model_only() -> None:
    page = bench_page.page({**his(), "model": "other", "card": "other"})
    assert "Reference" not in page


def test_speed_pace_and_prefill_of_one_stream() -> None:
    row = bench_report.rows(his())[0]
    assert row.speed.values == pytest.approx((67.5, 66.3))
    assert row.decode.values == pytest.approx(
        (1499 / (1500 / 67.5 - 0.1), 1499 / (1500 / 66.3 - 0.1))
    )
    assert row.tpot.mean == pytest.approx(1000 / row.decode.mean, rel=1e-3)
    assert row.prefill is not None
    assert row.prefill.mean == pytest.approx(600)


def of_cache(caching: bool | None, drafts: int, speed: float) -> dict[str, Any]:
    name = f"{drafts} drafts, prefix caching {'on' if caching else 'off'}"
    made = server(drafts, point([speed, speed]), name=name)
    return {**made, "prefix_caching": caching}


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (of_cache(True, 2, 60.0), of_cache(True, 2, 66.0), True),
        (of_cache(True, 2, 60.0), of_cache(False, 2, 60.0), False),
        (of_cache(False, 2, 60.0), of_cache(None, 2, 60.0), False),
        (of_cache(True, 2, 60.0), of_cache(True, 3, 60.0), False),
    ],
)
def test_servers_with_and_without_the_cache_are_two(
    one: dict[str, Any], other: dict[str, Any], alike: bool
) -> None:
    first, second = bench_report.rows(report("seed", one, other))
    assert (first.key == second.key) is alike


def test_each_cache_is_held_against_its_own_kind() -> None:
    crossed = [of_cache(c, d, v) for c, d, v in ((True, 2, 60.0), (False, 2, 30.0))]
    crossed += [of_cache(c, 0, v) for c, v in ((True, 30.0), (False, 10.0))]
    made = report("seed", *crossed)
    page = bench_page.page(made)
    assert "| code, prefix caching on | 30.0 / 30.0 | n=2: 60.0 / 60.0 | 2.00 ± 0.00 |" in page
    assert "| code, prefix caching off | 10.0 / 10.0 | n=2: 30.0 / 30.0 | 3.00 ± 0.00 |" in page
    compared = bench_compare.page(made, made)
    assert isinstance(compared, str)
    assert (
        "| code, 1 stream | 2 drafts, prefix caching off | 30.0 (30.0 to 30.0) | 30.0" in compared
    )


def test_several_streams_count_together_once_a_run() -> None:
    made = report("cross", server(0, point([105.0, 103.0], concurrency=4, context=1024)))
    row = bench_report.rows(made)[0]
    assert row.speed.values == pytest.approx((105.0, 103.0))
    assert row.prefill is None
    page = bench_page.page(made)
    assert "| 4 | 1K | off | no drafts | 104.0 (103.0 to 105.0) |" in page
    assert "105 all streams (one run, no MTP)" in page


def test_his_long_prompts_stand_beside_ours() -> None:
    made = report("cross", server(0, *(point([28.0], context=k * 1024) for k in (32, 125))))
    page = bench_page.page(made)
    assert "28 of one stream (one run, no MTP)" in page
    assert "27 of one stream (one run, no MTP)" in page


def test_what_failed_or_was_left_out_is_told() -> None:
    first = server(0, point([28.5], failed=2), notes=["no drafts, 64 streams: left out, too much"])
    page = bench_page.page(report("cross", first, server(3)))
    assert "2 requests failed: no drafts, code, 1 stream" in page
    assert "- no drafts, 64 streams: left out, too much" in page
    page = bench_page.page(report("seed", first))
    assert "- 2 requests failed: no drafts, code, 1 stream" in page


@pytest.mark.parametrize(
    ("written", "failed", "words"),
    [
        (3000, 0, None),
        (3010, 0, "3,010 tokens, of them 3,000 of the measured answers: somebody else asked"),
        (3010, 2, "2 requests failed, or somebody else asked"),
        (3000, 2, None),
    ],
)
def test_a_clients_tokens_among_the_measured_are_told(
    written: int, failed: int, words: str | None
) -> None:
    made = point([20.0, 21.0], failed=failed)
    made["counted"]["generation_tokens"] = written
    found = bench_report.disturbed(made)
    assert found is None if words is None else words in str(found)


def test_the_roofline_is_one_line_a_server() -> None:
    lines = bench_report.limits(his())
    assert len(lines) == 2
    assert "88 % of that" in lines[1]  # 28.5 tokens/s of 55 GB each, at 1,792 GB/s


def made_quality(*texts: str, **more: Any) -> dict[str, Any]:
    off = server(0, quality={**answers(*["same"] * 18), "drafts": 0, "hits": 0})
    return report("quality", off, server(2, quality=answers(*texts)), **more)


def test_quality_says_what_differs_and_what_that_means() -> None:
    page = bench_page.page(made_quality(*["same"] * 18))
    assert "| 2 drafts | 18 of 18 (82 to 100 %) | 100.0 % | alike |" in page
    assert "the prefix cache was never hit, so it was not tested" in page
    assert "promises no equal bits" in page
    worse = bench_page.page(made_quality(*["other"] * 18))
    assert "| 2 drafts | 0 of 18 (0 to 18 %) | 0.0 % | these two differ more" in worse


# --- what a job has left -------------------------------------------------------------------------

ASKED = {"mode": "seed"}
WHOLE = {"result": {"ok": True, "report": his()}, "kept": None}
BROKEN = {"result": {"ok": False}, "kept": {**his(), "whole": False}}
OLDER = {name: value for name, value in his().items() if name not in ("unit", "whole")}
OF_OLDER_AIBOX = {"result": {"ok": True, "report": OLDER}}


@pytest.mark.parametrize(
    ("look", "asked", "unit", "is_taken"),
    [
        (WHOLE, ASKED, "b" * 64, True),
        (BROKEN, ASKED, "b" * 64, True),
        (OF_OLDER_AIBOX, ASKED, "b" * 64, True),
        (WHOLE, {"mode": "cross"}, "b" * 64, False),
        (WHOLE, ASKED, "c" * 64, False),  # a flag was deployed since
        (WHOLE, ASKED, None, False),
        (BROKEN, ASKED, "c" * 64, False),
        ({"result": None}, ASKED, "b" * 64, False),  # at work, or never begun
        ({"result": {"ok": False}, "kept": None}, ASKED, "b" * 64, False),
    ],
)
def test_a_report_is_taken_where_it_answers_what_is_asked_now(
    look: dict[str, Any], asked: dict[str, str], unit: str | None, is_taken: bool
) -> None:
    assert (bench_report.left_by(look, asked, unit) is not None) is is_taken


def test_a_benchmark_that_was_broken_off_is_called_that() -> None:
    broken = {**his(), "whole": False}
    assert "did not come to its end" in bench_page.page(broken)
    assert "did not come to its end" not in bench_page.page(his())


FAILED = {"found": "`vllm bench serve` ended with exit code 2", "expected": "x", "remedy": "look"}


@pytest.mark.parametrize(
    ("made", "words", "remedy"),
    [
        (his(), None, ""),
        ({**his(), "whole": False}, "did not come to its end; what it had measured is in a.md", ""),
        (report("seed", server(2, failed=FAILED), server(0, failed=FAILED)), "code 2", "look"),
        (report("cross", server(2, notes=["64 streams: left out, too much"])), "left out", "run"),
        (report("quality", server(2), whole=False), "nothing was measured", "run the same"),
        (report("seed", server(2, point([20.0])), server(0, failed=FAILED)), None, ""),
    ],
)
def test_a_benchmark_without_a_figure_has_failed(
    made: dict[str, Any], words: str | None, remedy: str
) -> None:
    found = bench_report.shortfall(made, "a.md")
    assert bench_report.is_whole(made) is (words is None)
    assert (found is None) if words is None else (found is not None and words in found.found)
    assert found is None or found.remedy.startswith(remedy)
    assert ("**Nothing was measured.**" in bench_page.page(made)) is bench_report.is_empty(made)
    assert found is None or found.found.count("code 2") <= 1


# --- charts --------------------------------------------------------------------------------------

REPORTS = {
    "seed": his(),
    "cross": report(
        "cross",
        server(0, *(point([n * 28.0] * 2, concurrency=n, context=1024) for n in (1, 4))),
        server(2, *(point([n * 60.0] * 2, concurrency=n, context=1024) for n in (1, 4))),
    ),
    "quality": made_quality(*["same"] * 18),
}


@pytest.mark.parametrize("mode", REPORTS)
def test_a_chart_is_a_picture_and_a_drawing(mode: str, tmp_path: Path) -> None:
    made = bench_charts.draw(REPORTS[mode], tmp_path / "name.with.dots")
    assert [path.name for path in made] == ["name.with.dots.png", "name.with.dots.svg"]
    assert made[0].read_bytes().startswith(b"\x89PNG")
    assert ET.parse(made[1]).getroot().tag.endswith("svg")


def test_bars_are_his_and_ours() -> None:
    groups = dict(bench_page.seed_bars(his()))
    assert [name for name, _ in groups["code"]] == [
        "no drafts",
        "2 drafts",
        "reference box, no drafts",
        "reference box, 2 drafts",
    ]
    assert groups["code"][1][1].mean == pytest.approx(66.9)


@pytest.mark.parametrize("mode", REPORTS)
def test_where_nothing_was_measured_there_is_no_chart(mode: str, tmp_path: Path) -> None:
    empty = report(mode, server(0))
    assert bench_charts.draw(empty, tmp_path / "none") == []
    assert bench_page.page(empty)


# --- two of them ---------------------------------------------------------------------------------


def measured(card: str, *speeds: float) -> dict[str, Any]:
    return report("seed", server(2, point(speeds)), card=card, model=card)


def test_two_cards_side_by_side() -> None:
    page = bench_compare.page(measured("big", 66.8, 67.0), measured("flash", 102.0, 102.4))
    assert isinstance(page, str)
    assert (
        "| code, 1 stream | 2 drafts | 66.9 (66.8 to 67.0) | 102.2 (102.0 to 102.4) | 1.53 ±"
        in page
    )
    assert "flash is faster" in page
    assert page.count("% of that") == 2  # a line of roofline each
    assert "- model: big and flash" in page


@pytest.mark.parametrize("other", [(60.0, 75.0), (66.0,)])
def test_no_verdict_within_the_spread(other: tuple[float, ...]) -> None:
    page = bench_compare.page(measured("big", 66.0, 68.0), measured("other", *other))
    assert isinstance(page, str)
    assert "no verdict: " in page
    assert "is faster" not in page


def test_qualities_side_by_side() -> None:
    same, other = made_quality(*["same"] * 18), made_quality(*[""] * 18, card="quantised")
    page = bench_compare.page(same, other)
    assert isinstance(page, str)
    assert "empty answers | 0 of 18 (0 to 18 %) | 18 of 18 (82 to 100 %) | they differ" in page
    assert (
        "| no drafts | empty answers | 0 of 18 (0 to 18 %) | 0 of 18 (0 to 18 %) | alike |" in page
    )
    assert "| 2 drafts | alike with each other | 0 of 18 (0 to 18 %) |" in page


def test_reports_of_two_modes_are_refused() -> None:
    found = bench_compare.page(his(), made_quality("same"))
    assert isinstance(found, Refusal)
    assert "mode seed" in found.found


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": 1}', '{"format": 2, "servers": []}', "null", '"x"']
)
def test_what_is_no_report_is_refused(text: str) -> None:
    found = bench_compare.read("a.json", text)
    assert isinstance(found, Refusal)
    assert "a.json is no whole report" in found.found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(compare, "REPORTS", tmp_path)
    for name, made in (
        ("seed-big-ai-box-20260101-000000", {**measured("big", 1.0, 1.1), "when": 1.0}),
        ("seed-big-ai-box-20260102-000000", {**measured("big", 66.0, 66.1), "when": 2.0}),
        ("seed-big-ai-box-20260103-000000", {**measured("big", 7.0), "when": 3.0, "whole": False}),
        ("seed-big-fp8-ai-box-20260104-000000", {**measured("big-fp8", 9.0), "when": 4.0}),
        ("seed-flash-ai-box-20251231-000000", measured("flash", 102.0, 102.1)),
    ):
        (tmp_path / f"{name}.json").write_text(json.dumps(made))
    (tmp_path / "seed-big-ai-box-20260105-000000.json").write_text("cut o")
    return tmp_path


def test_a_card_means_its_newest_report(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert compare.main(["big", "flash"]) == 0
    told = capsys.readouterr().out
    assert "66.0 (66.0 to 66.1)" in told
    assert "1.0 (1.0 to 1.1)" not in told
    assert (
        compare.main([str(path) for path in sorted(folder.glob("seed-big-ai-box-*-*.json"))[:2]])
        == 0
    )
    assert "1.1 (1.0 to 1.1)" in capsys.readouterr().out


@pytest.mark.parametrize("words", [[], ["big"], ["--mode", "sprint", "big", "flash"]])
def test_wrong_usage_ends_with_1(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        compare.main(words)
    assert ended.value.code == 1
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["big", "absent"], "found     no model card named absent\n"),
        (["big", "flesh"], "no model card named flesh; did you mean flash?"),
        (["big", "qwen3.8-27b"], "no report of mode seed of the card qwen3.8-27b"),
        (["big", "nothing"], "no report of mode seed of the card nothing that measured something"),
        (["big", "reports/a.md"], "do        name reports/a.json"),
        (["big", "/nowhere/a.json"], "found     /nowhere/a.json can't be read"),
        (["big", "big"], "both are one report: "),
    ],
)
def test_what_is_not_there_is_said(
    words: list[str], said: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = report("seed", server(2), card="nothing", model="nothing")
    (folder / "seed-nothing-ai-box-20260101-000000.json").write_text(json.dumps(made))
    assert compare.main(words) == 1
    assert said in capsys.readouterr().err


def test_where_nothing_was_measured_in_both_nothing_is_compared() -> None:
    pairs = [
        (measured("big", 66.0), report("seed", server(2))),
        (measured("big", 66.0), report("seed", server(3, point([20.0])))),
        (made_quality("same"), report("quality", server(3, quality=answers("same")))),
    ]
    for first, second in pairs:
        found = bench_compare.page(first, second, ("a.json", "b.json"))
        assert isinstance(found, Refusal)
        assert "nothing was measured in both (a.json, b.json)" in found.found


def test_the_page_says_which_reports_it_is_of() -> None:
    first, second = measured("big", 66.0, 67.0), {**measured("big", 66.0, 67.0), "box": "two"}
    page = bench_compare.page(first, second, ("reports/a.json", "reports/b.json"))
    assert "- A (big): 2026-09-21 14:13 UTC, ai-box, reports/a.json" in str(page)
    assert "- B (big): 2026-09-21 14:13 UTC, two, reports/b.json" in str(page)
    assert "- box: ai-box and two" in str(page)


def test_what_was_not_asked_for_is_what_the_mode_does_by_itself() -> None:
    first = measured("big", 66.0, 67.0)
    said = {"mode": "seed", "prefix_caching": "now", "runs": "2"}
    page = str(bench_compare.page(first, {**first, "asked": said, "driver": None}))
    assert "prefix_caching" not in page
    assert "- asked runs: 3 and 2" in page
    assert "- driver: 580.178.04 and not set" in page


def test_where_there_was_nothing_to_count_that_is_said() -> None:
    made = made_quality("same")
    page = str(bench_compare.page(made, {**made, "box": "two"}))
    calls = "| calls that can't be carried out | none made | none made | no verdict: there is"
    assert calls in page
    assert "| 2 drafts | alike from run to run | 1 of 1" in page
    assert "none made" in bench_page.page(made)
