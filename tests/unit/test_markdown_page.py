"""A benchmark's page on a terminal and in a file: within its width, and nothing of it lost."""

from __future__ import annotations

import re

import click
import pytest

from aibox.decide import bench_compare, bench_page
from tasks import markdown_page
from tests.unit.made_reports import answers, his, point, report, server

CROSS = report(
    "cross",
    *(server(n, point([105.0, 103.0], concurrency=4, context=1024, thinking=True)) for n in (0, 3)),
    notes=["somebody else asked"],
)
QUALITY = report("quality", server(0, quality=answers("a")), server(2, quality=answers("a")))
PAGES = {one["mode"]: bench_page.page(one) for one in (his(), CROSS, QUALITY)}
PAGES["compared"] = str(bench_compare.page(his(), {**his(), "box": "two"}, ("a.json", "b.json")))


@pytest.mark.parametrize("width", [60, 80, 100])
@pytest.mark.parametrize("name", PAGES)
def test_no_line_is_longer_than_the_screen(name: str, width: int) -> None:
    found = [click.unstyle(line) for line in markdown_page.lines(PAGES[name], width)]
    assert max(map(len, found)) <= width
    assert len(found) > 5


@pytest.mark.parametrize("name", PAGES)
def test_no_word_is_lost(name: str) -> None:
    def words(text: str) -> list[str]:
        return sorted(re.findall(r"[^\s|*#•-]+", text))

    assert words("\n".join(markdown_page.lines(PAGES[name], None))) == words(PAGES[name])


@pytest.mark.parametrize("name", PAGES)
def test_in_a_file_each_row_is_a_line_and_nothing_but_text(name: str) -> None:
    found = markdown_page.lines(PAGES[name], None)
    rows = [line for line in PAGES[name].splitlines() if line.startswith("| ")]
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|") if cell.strip()]
        assert cells in [re.split(r"\s{2,}", line) for line in found]
    assert not re.search(r"[\x00-\x1f\u2500-\u257f]", "".join(found))


def test_a_cell_that_is_too_wide_goes_on_below() -> None:
    table = "# T\n\n| Prompt | MTP, tokens/s |\n|---|---|\n| code | 66.9 (66.3 to 67.5) |\n"
    assert markdown_page.lines(table, None) == [
        *("T", ""),
        "Prompt  MTP, tokens/s",
        "---------------------------",
        "code    66.9 (66.3 to 67.5)",
    ]
    assert [click.unstyle(line).rstrip() for line in markdown_page.lines(table, 20)] == [
        *("T", ""),
        "        MTP,",
        "Prompt  tokens/s",
        "--------------------",
        "code    66.9 (66.3",
        "        to 67.5)",
    ]


def test_a_word_that_is_wider_than_its_column_is_shown_whole() -> None:
    table = "| A (qwen3.8-27b) | B (qwen3.8-35b-a3b) |\n|---|---|\n| 1 | 2 |\n"
    shown = click.unstyle("".join(markdown_page.lines(table, 24)))
    assert "…" not in shown and "a3b" in shown


def test_a_heading_is_bold_or_underlined_on_a_terminal_alone() -> None:
    page = "# One\n\nAll of\nthis **is** one.\n"
    assert markdown_page.lines(page, None) == ["One", "", "All of this is one."]
    shown = markdown_page.lines(page, 40)
    assert shown[0] != "One" and click.unstyle(shown[0]) == "One"


def test_what_looks_like_html_is_shown() -> None:
    found = markdown_page.lines("- flags end: <think> and not set\n", None)
    assert found[-1] == " • flags end: <think> and not set"
