"""The name that was probably meant, for what is said of one that nobody knows."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], *, alike: float = 0.6) -> str | None:
    """alike: 0 takes any, 1 the same alone."""
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=alike)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean NAME?" or nothing."""
    close = nearest(name, known)
    return f"; did you mean {close}?" if close else ""
