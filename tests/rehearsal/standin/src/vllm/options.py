"""What the given flags mean for the server, checked as vLLM checks them after the parser."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass, field
from typing import Any

from . import flags

# Of the card with the reference flags: tokens that its KV cache holds.
KV_CACHE_TOKENS = 747_706


class OptionError(Exception):
    """A flag that the parser took and vLLM refuses; the text is the last line."""


@dataclass(frozen=True)
class Options:
    model: str
    given: dict[str, Any]
    names: list[str]
    host: str
    port: int
    draft_length: int
    method: str | None
    reasoning_parser: str | None
    template_defaults: dict[str, Any]
    api_keys: list[str]
    max_num_seqs: int
    max_model_len: int | None
    prefix_caching: bool
    access_log: bool
    log_stats: bool
    utilization: float = 0.92
    speculative: dict[str, Any] = field(default_factory=dict)


def read(given: argparse.Namespace) -> Options:
    """Raises OptionError for names that only vLLM itself knows to be wrong."""
    got = {key: value for key, value in vars(given).items() if key != "model_tag"}
    speculative = _speculative(got.get("speculative_config"))
    keys = got.get("api_key") or [key for key in [os.environ.get("VLLM_API_KEY")] if key]
    model = given.model_tag or got.get("model") or "Qwen/Qwen3-0.6B"
    length = got.get("max_model_len")
    return Options(
        model=model,
        given=got | {"model_tag": given.model_tag},
        names=got.get("served_model_name") or [model],
        host=got.get("host") or "",
        port=got.get("port", 8000),
        draft_length=int(speculative.get("num_speculative_tokens") or (1 if speculative else 0)),
        method=speculative.get("method"),
        reasoning_parser=got.get("reasoning_parser") or None,
        template_defaults=got.get("default_chat_template_kwargs") or {},
        api_keys=keys,
        max_num_seqs=got.get("max_num_seqs", 1024),
        max_model_len=None if length in (None, -1) else length,
        prefix_caching=got.get("enable_prefix_caching") is not False,
        access_log=not got.get("disable_uvicorn_access_log", False),
        log_stats=not got.get("disable_log_stats", False),
        utilization=got.get("gpu_memory_utilization", 0.92),
        speculative=speculative,
    )


def _speculative(value: object) -> dict[str, Any]:
    """The speculative configuration; an empty one without it."""
    what = "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
    if not isinstance(value or {}, dict):
        raise OptionError(what + "SpeculativeConfig\n  Input should be a valid dictionary")
    found: dict[str, Any] = value or {}  # type: ignore[assignment]
    number = found.get("num_speculative_tokens", 1)
    if not isinstance(number, int) or number < 1:
        raise OptionError(
            what + "SpeculativeConfig\nnum_speculative_tokens\n  Input should be greater than 0"
        )
    return found


def check_parsers(options: Options) -> None:
    """Names of parsers: refused before the port is taken."""
    known = flags.table()
    tools = known["tool_call_parsers"]
    tool = options.given.get("tool_call_parser")
    if options.given.get("enable_auto_tool_choice") and tool not in tools:
        raise OptionError(
            f"KeyError: 'invalid tool call parser: {tool} (chose from {{ {','.join(tools)} }})'"
        )
    reasoning = known["reasoning_parsers"]
    if options.reasoning_parser and options.reasoning_parser not in reasoning:
        raise OptionError(
            f"KeyError: 'invalid reasoning parser: {options.reasoning_parser} "
            f"(chose from {{ {','.join(reasoning)} }})'"
        )


def check_engine(options: Options, context: int) -> None:
    """What the engine's configuration refuses; `context` is the model's own, in tokens."""
    known = flags.table()
    check_backend(options.given.get("attention_backend"))
    for key in options.speculative:
        if key not in known["speculative_config_keys"]:
            raise OptionError(
                "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
                f"SpeculativeConfig\n{key}\n  Unexpected keyword argument"
            )
    if options.method and options.method not in known["speculative_methods"]:
        raise OptionError(
            "pydantic_core._pydantic_core.ValidationError: 1 validation error for "
            f"SpeculativeConfig\nmethod\n  Input should be one of {known['speculative_methods']}"
        )
    if options.max_model_len and options.max_model_len > context:
        raise OptionError(
            f"ValueError: User-specified max_model_len ({options.max_model_len}) is greater than "
            f"the derived max_model_len (max_position_embeddings={context} or "
            "model_max_length=None in model's config.json)."
        )


def check_backend(backend: str | None) -> None:
    """Raises OptionError for a name of the attention that vLLM does not know."""
    known = flags.table()["attention_backends"]
    if backend and backend.lower() != "auto" and backend.upper() not in known:
        raise OptionError(
            f"ValueError: Unknown attention backend: '{backend}'. "
            f"Valid options are: {', '.join(known)}"
        )
