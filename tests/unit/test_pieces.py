"""What of a file is on the disk, by its journal, and what is asked for."""

import pytest

from aibox.decide.pieces import PIECE, SPAN, count, head, landed, length, spans

SUM = "a" * 64
SIZE = 3 * PIECE + 5  # four pieces, the last one short


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        ("", set()),
        ("0\n2\n", {0, 2}),
        ("0\n2\n3", {0, 2}),  # torn
        ("0\n\x00\x00\n1\n", {0, 1}),
        ("0\n-1\n4\n99999999999999999999\n³\n3\n", {0, 3}),
        ("1\n1\n", {1}),
    ],
)
def test_only_whole_lines_of_pieces_count(lines: str, found: set[int]) -> None:
    assert landed(head(SIZE, SUM) + lines, SIZE, SUM) == found


@pytest.mark.parametrize(
    "journal", ["", "0\n1\n", head(SIZE + 1, SUM), head(SIZE, "b" * 64), head(SIZE, SUM)[:-1] + "x"]
)
def test_a_journal_of_another_file_is_none(journal: str) -> None:
    assert landed(journal, SIZE, SUM) is None


def test_what_is_missing_is_asked_for_in_few_requests() -> None:
    assert spans(SIZE, set()) == [(0, SIZE)]
    assert spans(SIZE, {1}) == [(0, PIECE), (2 * PIECE, SIZE)]
    assert spans(SIZE, {0, 1, 2, 3}) == []
    assert spans(0, set()) == []
    assert spans(2 * SPAN + 1, set()) == [(0, SPAN), (SPAN, 2 * SPAN), (2 * SPAN, 2 * SPAN + 1)]


@pytest.mark.parametrize("have", [set(), {0}, {3}, {0, 1, 2, 3}])
def test_what_is_there_and_what_is_missing_make_the_whole(have: set[int]) -> None:
    missing = sum(end - start for start, end in spans(SIZE, have))
    assert length(SIZE, have) + missing == SIZE
    assert count(SIZE) == 4
