"""What repeated measurements say, with the figures of the reference box."""

from __future__ import annotations

import pytest

from aibox.decide.acceptance import Counters, acceptance, difference
from aibox.decide.bench_statistics import (
    FASTER,
    SAME,
    SLOWER,
    UNKNOWN,
    Comparison,
    Figure,
    Share,
    compared,
    differ,
    figure,
    student,
)


def of(*values: float) -> Figure:
    return Figure(values)


@pytest.mark.parametrize(
    ("without", "with_drafts", "ratio"),
    [((28.5,), (67.5, 66.3), "2.35"), ((28.5,), (57.2, 55.9), "1.98")],
)
def test_his_ratios(without: tuple[float, ...], with_drafts: tuple[float, ...], ratio: str) -> None:
    found = compared(Figure(without), Figure(with_drafts))
    assert f"{found.ratio:.2f}" == ratio
    assert found.verdict == UNKNOWN  # his figure without drafts is a single run
    assert found.text() == f"{ratio} (one run tells no spread)"


def test_his_smoke_test() -> None:
    found = acceptance(
        Counters(drafts=70, draft_tokens=140, accepted_tokens=90, accepted_at=(55, 35))
    )
    assert found is not None
    assert (f"{100 * found.rate:.1f}", f"{found.mean_length:.3f}") == ("64.3", "2.286")
    assert [f"{share:.3f}" for share in found.at] == ["0.786", "0.500"]


def test_positions_are_differences_too_and_a_restart_is_noticed() -> None:
    before = Counters(100, 200, 120, (70, 50), 1000)
    after = Counters(170, 340, 210, (125, 85), 1160)
    assert difference(before, after) == Counters(70, 140, 90, (55, 35), 160)
    with pytest.raises(ValueError, match="restarted between"):
        difference(after, before)
    with pytest.raises(ValueError, match="restarted between"):  # one counter is enough
        difference(before, Counters(170, 340, 210, (69, 141), 1160))


@pytest.mark.parametrize(
    ("first", "second", "verdict"),
    [
        (of(28.5, 28.4), of(67.5, 66.3), FASTER),
        (of(67.5, 66.3), of(28.5, 28.4), SLOWER),
        (of(67.5, 66.3), of(66.9, 65.8), SAME),
        (of(50.0, 60.0), of(61.0, 71.0), SAME),  # apart, but by less than two runs can tell
        (of(50.0, 50.2, 49.9, 50.1), of(51.0, 51.2, 50.9, 51.1), FASTER),
        (of(50.0, 50.2, 49.9, 50.1), of(50.1, 50.3, 50.0, 50.2), SAME),
        (of(28.5), of(67.5, 66.3), UNKNOWN),
        (of(28.5, 28.5), of(28.5), UNKNOWN),
        (of(28.5, 28.5), of(28.5, 28.5), SAME),
    ],
)
def test_no_verdict_where_the_spread_covers_the_difference(
    first: Figure, second: Figure, verdict: str
) -> None:
    assert compared(first, second).verdict == verdict


def test_the_interval_is_welchs() -> None:
    found = compared(of(28.5, 28.4), of(67.5, 66.3))
    # errors of the means 0.05 and 0.6, 1.01 degrees of freedom, t = 12.706
    relative = ((0.05 / 28.45) ** 2 + (0.6 / 66.9) ** 2) ** 0.5
    assert found.half == pytest.approx(12.706 * found.ratio * relative)
    assert found.text() == "2.35 ± 0.27"


def test_a_figure_never_stands_alone() -> None:
    assert of(67.5, 66.3).text() == "66.9 (66.3 to 67.5)"
    assert of(28.5).text() == "28.5 (one run)"
    assert figure([]) is None
    assert Comparison(2.0, 0.5, FASTER).text() == "2.00 ± 0.50"


def test_what_is_no_speed_is_not_compared() -> None:
    with pytest.raises(ValueError, match="can't be compared"):
        compared(of(0.0, 0.0), of(1.0, 1.0))


@pytest.mark.parametrize(
    ("degrees", "wide"), [(0.4, 12.706), (1.0, 12.706), (2.9, 4.303), (30.0, 2.042), (31.5, 1.96)]
)
def test_students_t(degrees: float, wide: float) -> None:
    assert student(degrees) == wide


def test_shares_have_wilsons_interval() -> None:
    share = Share(11, 12)
    assert (share.low, share.high) == pytest.approx((0.646, 0.985), abs=1e-3)
    assert share.text() == "11 of 12 (65 to 99 %)"
    assert (Share(0, 12).low, Share(12, 12).high) == (0.0, 1.0)
    assert (Share(0, 0).low, Share(0, 0).high, Share(0, 0).text()) == (0.0, 1.0, "none asked")


def test_shares_differ_only_beyond_their_spread() -> None:
    assert differ(Share(18, 18), Share(5, 18))
    assert not differ(Share(18, 18), Share(14, 18))
    assert not differ(Share(0, 0), Share(18, 18))
