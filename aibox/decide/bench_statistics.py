"""What repeated measurements say: a figure with its spread, and when two of them differ."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, variance

# Student's t for 95 % on both sides, by degrees of freedom from 1; beyond them the normal's.
STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
NORMAL = 1.960

FASTER, SLOWER, SAME = "faster", "slower", "the spread covers the difference"
UNKNOWN = "one run tells no spread"


@dataclass(frozen=True)
class Figure:
    """Measurements of one thing, in the order they were made; at least one."""

    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        return fmean(self.values)

    @property
    def low(self) -> float:
        return min(self.values)

    @property
    def high(self) -> float:
        return max(self.values)

    @property
    def error(self) -> float | None:
        """The variance of the mean; None for one measurement."""
        return variance(self.values) / len(self.values) if len(self.values) > 1 else None

    def text(self, digits: int = 1) -> str:
        """ "66.9 (66.3 to 67.5)", and of one measurement "28.5 (one run)"."""
        if len(self.values) == 1:
            return f"{self.mean:.{digits}f} (one run)"
        return f"{self.mean:.{digits}f} ({self.low:.{digits}f} to {self.high:.{digits}f})"


def figure(values: Sequence[float]) -> Figure | None:
    """None without a measurement."""
    return Figure(tuple(values)) if values else None


@dataclass(frozen=True)
class Comparison:
    """The second figure against the first. ratio: of the means. half: half the width of the
    ratio's 95 % interval, None where one of them is a single run. verdict: FASTER or SLOWER of
    the second, SAME, or UNKNOWN."""

    ratio: float
    half: float | None
    verdict: str

    def text(self) -> str:
        """ "2.35 ± 0.27", or "2.35 (one run tells no spread)"."""
        if self.half is None:
            return f"{self.ratio:.2f} ({UNKNOWN})"
        return f"{self.ratio:.2f} ± {self.half:.2f}"


def compared(first: Figure, second: Figure) -> Comparison:
    """Welch's test for two figures above zero; no verdict where the spread covers the difference.

    Raises ValueError for a figure of zero or less, which is no speed.
    """
    if first.mean <= 0 or second.mean <= 0:
        raise ValueError("a figure of 0 or less can't be compared")
    ratio, one, other = second.mean / first.mean, first.error, second.error
    if one is None or other is None:
        return Comparison(ratio, None, UNKNOWN)
    wide = student(freedom(first, second))
    half = wide * ratio * math.sqrt(one / first.mean**2 + other / second.mean**2)
    if abs(second.mean - first.mean) <= wide * math.sqrt(one + other):
        return Comparison(ratio, half, SAME)
    return Comparison(ratio, half, FASTER if ratio > 1 else SLOWER)


def freedom(first: Figure, second: Figure) -> float:
    """Welch's and Satterthwaite's degrees of freedom, of figures with a spread."""
    one, other = first.error or 0.0, second.error or 0.0
    below = one**2 / (len(first.values) - 1) + other**2 / (len(second.values) - 1)
    return (one + other) ** 2 / below if below else math.inf


def student(degrees: float) -> float:
    """Degrees in between count as the smaller whole number: the wider interval."""
    return STUDENT[max(int(degrees), 1) - 1] if degrees < len(STUDENT) + 1 else NORMAL


@dataclass(frozen=True)
class Share:
    """So many of so many. low, high: Wilson's 95 % interval, 0 to 1; of none it is all of it."""

    count: int
    of: int

    @property
    def rate(self) -> float:
        return self.count / self.of if self.of else 0.0

    @property
    def low(self) -> float:
        return self._interval()[0]

    @property
    def high(self) -> float:
        return self._interval()[1]

    def _interval(self) -> tuple[float, float]:
        if not self.of:
            return 0.0, 1.0
        square = NORMAL**2
        below = 1 + square / self.of
        middle = (self.rate + square / (2 * self.of)) / below
        spread = self.rate * (1 - self.rate) / self.of + square / (4 * self.of**2)
        half = NORMAL * math.sqrt(spread) / below
        return max(0.0, middle - half), min(1.0, middle + half)

    def text(self, none: str = "none asked") -> str:
        """ "11 of 12 (65 to 99 %)". none: what is said of none."""
        if not self.of:
            return none
        return f"{self.count} of {self.of} ({100 * self.low:.0f} to {100 * self.high:.0f} %)"


def differ(first: Share, second: Share) -> bool:
    """Whether two shares differ by more than their spread."""
    return first.high < second.low or second.high < first.low
