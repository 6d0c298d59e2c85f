"""The names of tool parsers."""

from __future__ import annotations

from .. import flags


class ToolParserManager:
    @classmethod
    def list_registered(cls) -> list[str]:
        return sorted(flags.table()["tool_call_parsers"])
