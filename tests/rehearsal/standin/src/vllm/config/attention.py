"""The attention's configuration, which knows the backends."""

from __future__ import annotations

from dataclasses import dataclass

from ..options import check_backend


@dataclass(frozen=True)
class AttentionConfig:
    backend: str | None = None

    def __post_init__(self) -> None:
        """Raises OptionError for a name that vLLM does not know."""
        check_backend(self.backend)
