"""How this run was called: pyinfra's own options, which config.py hands over."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

_options: dict[str, Any] = {}


def remember(options: Mapping[str, Any]) -> None:
    """options: pyinfra's, by their names in click."""
    _options.update(options)


def only_shows() -> bool:
    """Whether it shows a plan to a person and does nothing: --dry, without --json."""
    return bool(_options.get("dry")) and not _options.get("json_output")


def inventory() -> str:
    """The inventory as it was named: a file, or hosts."""
    return str(_options.get("inventory", ""))


def can_ask() -> bool:
    """Whether somebody sits there and is to be asked before anything is done."""
    silent = ("dry", "yes", "json_output")
    return bool(_options) and sys.stdin.isatty() and not any(_options.get(name) for name in silent)


def deploys() -> bool:
    """Whether it is a deploy file that runs, for a person to read what it says."""
    files = _options.get("operations") or ("",)
    return str(files[0]).endswith(".py") and not _options.get("json_output")
