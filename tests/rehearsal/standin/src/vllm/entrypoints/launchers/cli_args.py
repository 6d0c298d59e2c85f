"""The flags of `vllm serve`, and what vLLM checks of them before it loads anything."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TypeVar

from ... import flags

Parser = TypeVar("Parser", bound=argparse.ArgumentParser)


def make_arg_parser(parser: Parser) -> Parser:
    """Add every flag; those that are not given are None."""
    flags.add_to(parser)
    return parser


def validate_parsed_serve_args(args: argparse.Namespace) -> None:
    """Raises what vLLM raises, in its words."""
    template = args.chat_template
    if template and not Path(template).is_file() and not set("{}\n") & set(template):
        raise ValueError(
            f"The supplied chat template string ({template}) appears path-like, but doesn't exist!"
        )
    if args.enable_auto_tool_choice and not args.tool_call_parser:
        raise TypeError("Error: --enable-auto-tool-choice requires --tool-call-parser")
    if args.enable_log_outputs and not args.enable_log_requests:
        raise TypeError("Error: --enable-log-outputs requires --enable-log-requests")
