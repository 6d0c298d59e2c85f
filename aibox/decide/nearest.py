"""The name that was probably meant, for what is said of one that nobody knows."""

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str]) -> str | None:
    close = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return close[0] if close else None


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """ "; did you mean NAME?" or nothing."""
    close = nearest(name, known)
    return f"; did you mean {close}?" if close else ""
