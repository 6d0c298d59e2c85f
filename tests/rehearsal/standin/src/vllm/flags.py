"""The flags of `vllm serve` 0.31.0, read as it reads them: argparse, exit 2, the same words."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from typing import Any

_MULTIPLIER = {
    **{"k": 10**3, "m": 10**6, "g": 10**9, "t": 10**12},
    **{"K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40},
}


def table() -> dict[str, Any]:
    """Flags with their types and choices, and the names of parsers and backends."""
    text = resources.files("vllm").joinpath("flags.json").read_text()
    found: dict[str, Any] = json.loads(text)
    return found


def human_readable_int(text: str) -> int:
    """'1k' is 1000, '1K' is 1024, '25.6k' is 25600."""
    found = re.fullmatch(r"(\d+(?:\.\d+)?)([kKmMgGtT])", text.strip())
    if not found:
        return int(text)
    number, suffix = found.groups()
    if suffix.isupper() and "." in number:
        raise argparse.ArgumentTypeError(
            f"Decimals are not allowed with binary suffixes like {suffix}. "
            f"Did you mean to use {number}{suffix.lower()} instead?"
        )
    return int(float(number) * _MULTIPLIER[suffix])


def human_readable_int_or_auto(text: str) -> int:
    return -1 if text.strip().lower() in ("-1", "auto") else human_readable_int(text)


def str_or_json(text: str) -> object:
    return _optional(json.loads, "function loads")(text) if _is_object(text) else text


def _is_object(text: str) -> bool:
    return re.match(r"(?s)^\s*{.*}\s*$", text) is not None


def _optional(convert: Callable[[str], object], name: str) -> Callable[[str], object]:
    def read(text: str) -> object:
        if text in ("", "None"):
            return None
        try:
            return convert(text)
        except ValueError:
            raise argparse.ArgumentTypeError(
                f"Value {text} cannot be converted to <{name}>."
            ) from None

    return read


_TYPES: dict[str, Callable[[str], object]] = {
    "str": str,
    "int": int,
    "float": float,
    "json": json.loads,
    "str?": _optional(str, "class 'str'"),
    "int?": _optional(int, "class 'int'"),
    "float?": _optional(float, "class 'float'"),
    "json?": _optional(json.loads, "function loads"),
    "str or json": str_or_json,
    "human int": human_readable_int,
    "human int or auto": human_readable_int_or_auto,
}


def parser() -> argparse.ArgumentParser:
    """What `vllm serve` takes. Flags that were not given are not in the namespace."""
    made = argparse.ArgumentParser(
        prog="vllm serve",
        usage="vllm serve [model_tag] [options]",
        argument_default=argparse.SUPPRESS,
    )
    add_to(made)
    return made


def add_to(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model_tag", nargs="?", default=None)
    for name, row in table()["flags"].items():
        parser.add_argument(name, *row.get("also", []), **_keywords(row))


def _keywords(row: dict[str, Any]) -> dict[str, Any]:
    match row.get("kind"):
        case "switch":
            return {"action": argparse.BooleanOptionalAction}
        case "flag":
            return {"action": "store_true"}
        case "append":
            return {"action": "append"}
    known = {"type": _TYPES[row.get("type", "str")]}
    return known | {key: row[key] for key in ("nargs", "choices") if key in row}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Read the words after `vllm serve`. Ends the process with 2, as argparse does."""
    return parser().parse_args(prepared(words))


def prepared(words: Sequence[str]) -> list[str]:
    """Underscores in names become dashes, -O3 a level, --json.key value one JSON object."""
    plain: list[str] = []
    dotted: dict[str, dict[str, Any]] = {}
    waiting: list[str] | None = None
    for word in words:
        if waiting is not None:
            _put(dotted, waiting, word)
            waiting = None
        elif found := re.match(r"^(--[^.=]+)\.([^=]+)(?:=(.*))?$", word, re.DOTALL):
            path = [found[1].replace("_", "-"), *found[2].split(".")]
            if found[3] is None:
                waiting = path
            else:
                _put(dotted, path, found[3])
        elif re.match(r"^-O=?.+", word):
            plain += ["--optimization-level", word[2:].lstrip("=")]
        else:
            plain.append(_dashed(word))
    return plain + [part for key, value in dotted.items() for part in (key, json.dumps(value))]


def _put(tree: dict[str, Any], path: list[str], text: str) -> None:
    for key in path[:-1]:
        tree = tree.setdefault(key, {})
    try:
        tree[path[-1]] = json.loads(text)
    except ValueError:
        tree[path[-1]] = text


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    return "--" + name[2:].replace("_", "-") + equals + value
