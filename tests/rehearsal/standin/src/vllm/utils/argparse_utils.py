"""The parser's class, under vLLM's own name."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from .. import flags


class FlexibleArgumentParser(argparse.ArgumentParser):
    """Reads names with underscores, -O3 and --json.key value as `vllm serve` does."""

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        read: argparse.Namespace = super().parse_args(flags.prepared(args or ()), namespace)
        return read
