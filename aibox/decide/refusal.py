"""What the person reads when something cannot go on."""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """What was found, what was expected, and the one thing to do next."""

    found: str
    expected: str
    remedy: str

    def __str__(self) -> str:
        """Three short labelled lines, without a newline at the end."""
        return f"found     {self.found}\nexpected  {self.expected}\ndo        {self.remedy}"


def some(names: Sequence[str], most: int = 3) -> str:
    """The first ones, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def of_file(error: OSError, what: str = "") -> str:
    """What went wrong with which file. what: in words of ours."""
    where = f" at {error.filename}" if error.filename else ""
    return f"{what or error.strerror or error}{where}"
