"""The names of reasoning parsers."""

from __future__ import annotations

from .. import flags


class ReasoningParserManager:
    @classmethod
    def list_registered(cls) -> list[str]:
        return sorted(flags.table()["reasoning_parsers"])
