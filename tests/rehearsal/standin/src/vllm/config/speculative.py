"""Keys and methods of the speculative configuration."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal

from .. import flags

_TABLE = flags.table()
_METHODS = tuple(_TABLE["speculative_methods"])

SpeculativeMethod: Any = Literal[_METHODS]
MTPModelTypes: Any = Literal[tuple(name for name in _METHODS if name.endswith("mtp"))]
SpeculativeConfig = dataclasses.make_dataclass(
    "SpeculativeConfig",
    [(key, Any, None) for key in _TABLE["speculative_config_keys"]],
)
