"""Which parts of a file that is being fetched are on the disk: a journal, a line for each piece."""

import json
from collections.abc import Collection

# Bytes. What a kill loses is at most the pieces in flight: this times the number of connections.
PIECE = 4 << 20
# Bytes that one request asks for: long enough that the hub is not asked thousands of times.
SPAN = 64 << 20


def head(size: int, sha256: str) -> str:
    """The journal's first line: what file it is about, and how long its pieces are."""
    return json.dumps({"size": size, "sha256": sha256, "piece": PIECE}) + "\n"


def landed(journal: str, size: int, sha256: str) -> set[int] | None:
    """The numbers of the pieces that are on the disk; None for a journal of another file.

    The last line may be torn by a power cut: only what ends with a line end counts.
    """
    first, _, rest = journal.partition("\n")
    if f"{first}\n" != head(size, sha256):
        return None
    lines = rest.split("\n")[:-1]
    numbers = {int(line) for line in lines if line.isascii() and line.isdigit() and len(line) < 10}
    return {number for number in numbers if number < count(size)}


def count(size: int) -> int:
    """How many pieces a file of `size` bytes has."""
    return -(-size // PIECE)


def length(size: int, have: Collection[int]) -> int:
    """Bytes that the pieces take together; the last one of a file may be short."""
    last = count(size) - 1
    short = count(size) * PIECE - size if last in have else 0
    return len(have) * PIECE - short


def spans(size: int, have: Collection[int]) -> list[tuple[int, int]]:
    """What is to be asked for, as (start, end) in bytes, end exclusive; each begins a piece."""
    found: list[tuple[int, int]] = []
    for number in range(count(size)):
        if number in have:
            continue
        start, end = number * PIECE, min(size, (number + 1) * PIECE)
        if found and found[-1][1] == start and end - found[-1][0] <= SPAN:
            found[-1] = found[-1][0], end
        else:
            found.append((start, end))
    return found
