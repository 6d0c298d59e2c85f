"""How wide a page is."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from tasks import page


@pytest.mark.parametrize(
    ("columns", "width"), [(40, 60), (80, 80), (110, 110), (200, 120), (0, 100)]
)
def test_a_page_is_as_wide_as_the_terminal_within_reason(
    monkeypatch: pytest.MonkeyPatch, columns: int, width: int
) -> None:
    size = os.terminal_size((columns, 24))
    monkeypatch.setattr(os, "get_terminal_size", lambda _file: size)
    monkeypatch.setattr("sys.stderr.fileno", lambda: 2, raising=False)
    assert page.width() == width


def test_without_a_terminal_it_is_a_hundred_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_file: int) -> os.terminal_size:
        raise OSError

    monkeypatch.setattr(os, "get_terminal_size", none)
    assert page.width() == 100
    assert page.as_read([("doors", "word " * 60)], 11) == [page.labelled("doors", "word " * 60, 11)]


def test_on_a_terminal_a_row_goes_on_below_its_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "get_terminal_size", lambda _file: os.terminal_size((60, 24)))
    monkeypatch.setattr("sys.stderr.fileno", lambda: 2, raising=False)
    monkeypatch.setattr(page, "host", SimpleNamespace(name="b"))
    first, second = page.as_read([("doors", "one two three four five six seven eight nine")], 11)
    assert first == page.labelled("doors", "one two three four five six seven eight", 11)
    assert second == page.labelled("", "  nine", 11)
