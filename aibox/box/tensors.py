"""What safetensors files hold, from their headers alone."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from aibox.box.job import JobError

LONGEST_HEADER = 100_000_000  # safetensors' own limit, bytes

Header = Mapping[str, Any]


def is_tensors(path: str) -> bool:
    return path.endswith(".safetensors")


def header(file: Path) -> Header:
    """name -> {"dtype", "shape"} of each tensor. Raises JobError for what is no such file."""
    try:
        with file.open("rb") as content:
            size = int.from_bytes(content.read(8), "little")
            found = json.loads(content.read(size)) if 0 < size < LONGEST_HEADER else {}
        found.pop("__metadata__", None)
        dtypes(found)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise JobError(
            f"{file.name} does not begin with a safetensors header",
            "a file that vLLM can read",
            "pin the weights anew",
        ) from None
    tensors: Header = found
    return tensors


def sizes(file: Path) -> dict[str, int]:
    """Bytes of each tensor. Raises JobError for what is no such file."""
    offsets = {name: tensor.get("data_offsets", (0, 0)) for name, tensor in header(file).items()}
    return {name: int(end) - int(begin) for name, (begin, end) in offsets.items()}


def dtypes(tensors: Header) -> dict[str, int]:
    """How many parameters there are of each dtype."""
    numbers: Counter[str] = Counter()
    for tensor in tensors.values():
        numbers[tensor["dtype"]] += math.prod(tensor["shape"])
    return dict(numbers)
