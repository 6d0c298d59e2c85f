"""Does this release's vLLM take a command line? Run by the release's own python, never imported.

Standard input: {"words": ["serve", weights, flags…], "environment": {name: text}}, the latter taken
on before vLLM is read. Standard output: one line of JSON,

    {"version", "faults": [{"flag", "found", "expected"}], "warnings": [{"flag", "text"}],
     "resolved": {what the parser made of some flags}}

with every fault of the line at once, or {"error": text} where vLLM could not be asked. A flag is
named without its dashes; null where a fault belongs to none. Standard library and vllm only:
nothing of aibox is on that python's path.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.metadata
import json
import os
import re
import sys
import typing
from collections.abc import Callable, Iterable, Iterator
from typing import Any

FLAG = re.compile(r"--?[A-Za-z]")
RESOLVED = (
    *("model", "dtype", "kv_cache_dtype", "gpu_memory_utilization", "max_model_len"),
    *("attention_backend", "enable_prefix_caching", "max_num_seqs", "max_num_batched_tokens"),
    *("served_model_name", "reasoning_parser", "tool_call_parser", "speculative_config"),
    *("host", "port", "hf_overrides"),
)
MOST_NAMES = 12  # of a list that is shown whole
MOST_SHOWN = 6  # of a longer one, the most similar first

Row = dict[str, Any]


class ParseError(Exception):
    """What argparse would have ended the process with."""


def main() -> int:
    given = json.load(sys.stdin)
    words = given["words"]
    os.environ.update(given.get("environment", {}))
    # vLLM and its libraries log to standard output, which is the answer's alone
    answer_to = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        answer = judge(words)
    except (Exception, SystemExit) as error:  # whatever it is, the caller is told in words
        answer = {"error": said(error)}
    print(json.dumps(answer, default=str), file=answer_to, flush=True)
    return 0


def judge(words: list[str]) -> dict[str, Any]:
    """The answer for the words after `vllm`. Raises what importing vLLM raises."""
    from vllm.engine.arg_utils import AsyncEngineArgs  # noqa: PLC0415  vLLM only in here
    from vllm.entrypoints.launchers.cli_args import (  # noqa: PLC0415
        make_arg_parser,
        validate_parsed_serve_args,
    )
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # noqa: PLC0415

    root = FlexibleArgumentParser(prog="vllm")
    parser = make_arg_parser(root.add_subparsers(dest="subparser").add_parser("serve"))
    root.error = parser.error = refuse
    faults: list[Row] = []
    warnings: list[Row] = []
    head, groups = in_groups(words)
    taken = [group for group in groups if takes(root, parser, head, group, faults, warnings)]
    args = root.parse_args([*head, *(word for group in taken for word in group)])
    args.model = args.model_tag or args.model
    checks: tuple[Callable[[], None], ...] = (
        lambda: validate_parsed_serve_args(args),
        lambda: AsyncEngineArgs.from_cli_args(args) and None,
        lambda: tool_parser(args),
        lambda: reasoning_parser(args),
        lambda: attention_backend(args),
        lambda: faults.extend(speculation(args, warnings)),
    )
    for check in checks:
        faults += failed(check)
    resolved = {key: getattr(args, key, None) for key in RESOLVED}
    version = importlib.metadata.version("vllm")
    return {"version": version, "faults": faults, "warnings": warnings, "resolved": resolved}


# --- the parser's own word ---------------------------------------------------------------------


def refuse(message: str) -> typing.NoReturn:
    raise ParseError(message)


def in_groups(words: list[str]) -> tuple[list[str], list[list[str]]]:
    """The words before the first flag, and each flag with what follows it."""
    head: list[str] = []
    groups: list[list[str]] = []
    for word in words:
        if FLAG.match(word):
            groups.append([word])
        else:
            (groups[-1] if groups else head).append(word)
    return head, groups


def takes(
    root: Any, parser: Any, head: list[str], group: list[str], faults: list[Row], notes: list[Row]
) -> bool:
    """Whether the parser takes one flag by itself: so all wrong ones are found at once."""
    flag = group[0].partition("=")[0].partition(".")[0].replace("_", "-")
    known = parser._option_string_actions
    action = known.get(flag)
    if action is None:
        # argparse takes the beginning of a name for the name, while only one begins so
        meant = [name for name in known if name.startswith(flag)]
        if len({id(known[name]) for name in meant}) != 1:
            faults.append(unknown(flag, known))
            return False
        # vLLM would take it, but settings are laid over the card's by whole names
        found = f"{bare(flag)} is only the beginning of {bare(meant[0])}"
        faults.append({"flag": bare(flag), "found": found, "expected": "the whole name"})
        return False
    try:
        root.parse_args([*head, *group])
    except (ParseError, ValueError, TypeError, KeyError) as error:
        faults.append(wrong_value(bare(flag), group, action, str(error)))
        return False
    if getattr(action, "deprecated", False) or action in getattr(type(root), "_deprecated", ()):
        notes.append({"flag": bare(flag), "text": "is deprecated in this version"})
    return True


def unknown(flag: str, known: dict[str, Any]) -> Row:
    name, without = bare(flag), bare(flag).removeprefix("no-")
    if without != name and f"--{without}" in known:
        switch = known[f"--{without}"].nargs == 0
        expected = (
            f"{without} can only be turned on: take it away"
            if switch
            else f"{without} wants a value"
        )
        return {"flag": without, "found": f"no flag is called {name}", "expected": expected}
    names = sorted({bare(option) for option in known if option.startswith("--")})
    begin = [one for one in names if one.startswith(name)]
    if begin:
        return {
            "flag": name,
            "found": f"{name} is the beginning of several flags",
            "expected": one_of(name, begin),
        }
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    expected = f"a flag it knows; the nearest is {close[0]}" if close else "a flag it knows"
    return {"flag": name, "found": f"no flag is called {name}", "expected": expected}


def wrong_value(flag: str, group: list[str], action: Any, message: str) -> Row:
    value = (group[0].partition("=")[2:] if "=" in group[0] else ()) + tuple(group[1:])
    text = message.partition(": ")[2] if message.startswith("argument ") else message
    if "unrecognized arguments" in message and value:
        found = f"{flag} is followed by {' '.join(value)!r:.80}"
        return {"flag": flag, "found": found, "expected": "no value: it is on by being there"}
    choices = [str(choice) for choice in action.choices or ()]
    expected = one_of(value[0], choices) if choices and value else f"what it can read ({text:.200})"
    found = f"{flag} is {' '.join(value)!r:.80}" if value else f"{flag} has no value"
    return {"flag": flag, "found": found, "expected": expected}


def bare(flag: str) -> str:
    return flag.lstrip("-")


def one_of(value: str, names: Iterable[str]) -> str:
    """What is known, the nearest name first; the whole list only where it is short."""
    known = {name.lower(): name for name in names}
    near = [known[name] for name in difflib.get_close_matches(value.lower(), known)]
    nearest = f"; the nearest is {near[0]}" if near else ""
    if len(known) <= MOST_NAMES:
        return f"one of {', '.join(known.values())}{nearest}"
    shown = difflib.get_close_matches(value.lower(), known, n=MOST_SHOWN, cutoff=0)
    return (
        f"one of the {len(known)} it knows, such as {', '.join(known[n] for n in shown)}{nearest}"
    )


# --- what the parser lets pass and the start refuses -------------------------------------------


class WrongError(Exception):
    """A value that is found wrong here."""

    def __init__(self, flag: str, found: str, expected: str) -> None:
        self.row = {"flag": flag, "found": found, "expected": expected}
        super().__init__(found)


def failed(check: Callable[[], None]) -> Iterator[Row]:
    """What a check refuses: by a row of its own, or by whatever vLLM raises."""
    try:
        check()
    except WrongError as error:
        yield error.row
    except Exception as error:  # vLLM raises of every kind
        text = said(error)
        named = re.search(r"--([a-z][a-z-]+)", text)
        yield {
            "flag": named[1] if named else None,
            "found": text,
            "expected": "a command line that it takes",
        }


def said(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"


def tool_parser(args: Any) -> None:
    name = getattr(args, "tool_call_parser", None)
    if not name or getattr(args, "tool_parser_plugin", None):
        return
    from vllm.tool_parsers import ToolParserManager  # noqa: PLC0415

    refuse_unknown("tool-call-parser", name, ToolParserManager.list_registered())


def reasoning_parser(args: Any) -> None:
    name = getattr(args, "reasoning_parser", None)
    if not name or getattr(args, "reasoning_parser_plugin", None):
        return
    from vllm.reasoning import ReasoningParserManager  # noqa: PLC0415

    refuse_unknown("reasoning-parser", name, ReasoningParserManager.list_registered())


def refuse_unknown(flag: str, name: str, known: Iterable[str], what: str = "") -> None:
    names = list(known)
    if name not in names:
        raise WrongError(flag, f"{what or flag} is {name!r}", one_of(name, names))


def attention_backend(args: Any) -> None:
    """argparse lets any name pass; the configuration knows them."""
    name = getattr(args, "attention_backend", None)
    if name is None:
        return
    from vllm.config.attention import AttentionConfig  # noqa: PLC0415

    try:
        AttentionConfig(backend=name)
    except Exception as error:
        names = re.search(r"Valid options are: ([A-Z0-9_, ]+)", str(error))
        expected = one_of(str(name), names[1].split(", ")) if names else said(error)
        found = f"attention-backend is {str(name)!r}"
        raise WrongError("attention-backend", found, expected) from None


def speculation(args: Any, warnings: list[Row]) -> list[Row]:
    """Keys, method and figures of the speculative configuration."""
    given = getattr(args, "speculative_config", None)
    if not given:
        return []
    flag = "speculative-config"
    if not isinstance(given, dict):
        raise WrongError(flag, f"{flag} is {given!r:.80}", "a JSON object")
    from vllm.config import speculative  # noqa: PLC0415

    keys = [field.name for field in dataclasses.fields(speculative.SpeculativeConfig)]
    faults = [
        {"flag": flag, "found": f"{flag} has a key {key!r}", "expected": one_of(key, keys)}
        for key in given
        if key not in keys
    ]
    method, number = given.get("method"), given.get("num_speculative_tokens")
    if number is not None and (type(number) is not int or number < 1):
        found = f"{flag}: num_speculative_tokens is {number!r:.40}"
        faults.append({"flag": flag, "found": found, "expected": "a whole number from 1"})
    methods = list(literals(speculative.SpeculativeMethod))
    if method is not None and method not in methods:
        found = f"{flag}: method is {method!r:.40}"
        faults.append({"flag": flag, "found": found, "expected": one_of(str(method), methods)})
    elif method is None and given.get("model") is None:
        expected = "a method, such as mtp, or a model that drafts"
        faults.append({"flag": flag, "found": f"{flag} names no method", "expected": expected})
    if method != "mtp" and method in list(literals(speculative.MTPModelTypes)):
        warnings.append({"flag": flag, "text": f"method {method} is deprecated; write mtp"})
    return faults


def literals(kind: Any) -> Iterator[str]:
    """The texts of a Literal, of nested ones too."""
    for one in typing.get_args(kind):
        if isinstance(one, str):
            yield one
        else:
            yield from literals(one)


if __name__ == "__main__":
    sys.exit(main())
