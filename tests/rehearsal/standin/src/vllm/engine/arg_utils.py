"""What the engine is started with, from the parsed flags."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from ..options import OptionError


@dataclass(frozen=True)
class AsyncEngineArgs:
    model: str

    @classmethod
    def from_cli_args(cls, args: argparse.Namespace) -> AsyncEngineArgs:
        """Offline, a model that is neither there nor in a cache is refused here already."""
        model = str(args.model)
        if os.environ.get("HF_HUB_OFFLINE") == "1" and not Path(model).exists():
            raise OptionError(
                "Repo id must be in the form 'repo_name' or 'namespace/repo_name': "
                f"'{model}'. Use `repo_type` argument if needed."
            )
        return cls(model)
