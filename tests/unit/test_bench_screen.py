"""A benchmark's page on a terminal: within its width, and nothing of it lost."""

from __future__ import annotations

import re

import pytest

from aibox.decide import bench_compare, bench_page, bench_screen
from tests.unit.made_reports import answers, his, point, report, server

CROSS = report(
    "cross",
    *(server(n, point([105.0, 103.0], concurrency=4, context=1024, thinking=True)) for n in (0, 3)),
    notes=["somebody else asked"],
)
QUALITY = report("quality", server(0, quality=answers("a")), server(2, quality=answers("a")))
PAGES = {one["mode"]: bench_page.page(one) for one in (his(), CROSS, QUALITY)}
PAGES["compared"] = str(bench_compare.page(his(), {**his(), "box": "two"}, ("a.json", "b.json")))


@pytest.mark.parametrize("width", [60, 88, 120])
@pytest.mark.parametrize("name", PAGES)
def test_no_line_is_longer_than_the_screen(name: str, width: int) -> None:
    found = bench_screen.lines(PAGES[name], width)
    assert max(map(len, found)) <= width
    assert len(found) > 5


@pytest.mark.parametrize("name", PAGES)
def test_no_word_is_lost(name: str) -> None:
    def words(text: str) -> list[str]:
        return sorted(re.findall(r"[^\s|*-]+", text))

    assert words("\n".join(bench_screen.lines(PAGES[name], 120))) == words(PAGES[name])


def test_a_cell_that_is_too_wide_goes_on_below() -> None:
    table = "| Prompt | MTP, tokens/s |\n|---|---|\n| code | 66.9 (66.3 to 67.5) |\n"
    assert bench_screen.lines(table, 40) == [
        "Prompt  MTP, tokens/s",
        "------  -------------------",
        "code    66.9 (66.3 to 67.5)",
    ]
    assert bench_screen.lines(table, 20) == [
        "Prompt  MTP,",
        "        tokens/s",
        "------  ------------",
        "code    66.9 (66.3",
        "        to 67.5)",
    ]


def test_prose_is_broken_anew_and_points_go_on_indented() -> None:
    page = "# One\n\nAll of\nthis is one.\n- a point that is long\n- b\n"
    assert bench_screen.lines(page, 14) == [
        *("# One", "", "All of this is", "one."),
        *("- a point that", "  is long", "- b"),
    ]
