"""What the person reads when something cannot go on."""

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
