"""Tool calls that real clients make, on the scripted server: on a CPU the real one ends at them.

Behind the filter the server speaks as vLLM does when it is awkward: nulls in every piece, its
reasoning under one name only, and "stop" after a call.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.benchmarks.doors import (
    KEY,
    free_port,
    litellm_command,
    litellm_environment,
    process,
    ready,
)
from tests.rehearsal.clients import turns
from tests.rehearsal.clients.turns import Turn
from tests.stream.rows import (
    MESSAGE_STOP,
    block_delta,
    block_stop,
    call,
    chunk,
    stop_for,
    stream,
    thinking_start,
    tool_start,
)
from tests.stream.scripted import Script, doors

USAGE = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
CHAT = stream(
    [
        chunk({"role": "assistant", "content": "", "tool_calls": None}),
        chunk({"reasoning": "It wants a file.", "content": None}),
        chunk(call(id="c1", type="function", name="read", arguments="")),
        chunk(call(id=None, type=None, name=None, arguments='{"path": ')),
        chunk(call(id=None, type=None, name=None, arguments='"a.py"}')),
        chunk({"content": None}, "stop"),
        {**chunk({}), "choices": [], "usage": USAGE},
    ]
)
BEGUN = {"id": "msg_7", "type": "message", "role": "assistant", "content": [], "model": "m"}
MESSAGES = stream(
    [
        {
            "type": "message_start",
            "message": {**BEGUN, "usage": {"input_tokens": 5, "output_tokens": 0}},
        },
        thinking_start(0),
        block_delta(0, "thinking", thinking="It wants a file."),
        block_stop(0),
        tool_start(1),
        block_delta(1, "input_json", partial_json='{"path": '),
        block_delta(1, "input_json", partial_json='"a.py"}'),
        block_stop(1),
        {**stop_for("tool_use"), "usage": {"output_tokens": 9}},
        MESSAGE_STOP,
    ],
    "messages",
)
CALLED = [("read", {"path": "a.py"})]


def turn(
    ask: Callable[..., Any], key: str = "none", url: str | None = None, port: int = 0
) -> tuple[Any, dict[str, Any]]:
    """One forced turn at the filter, or at a url that stands before it; and what the server was
    asked. port: of the filter."""

    async def talk() -> tuple[Any, dict[str, Any]]:
        async with doors(Script([CHAT]), port=port) as d:
            d.server.by_path["/v1/messages"] = Script([MESSAGES])
            told = await asyncio.to_thread(ask, url or d.url, key, "m", forced=True)
            return told, json.loads(d.server.asked[-1].body)

    return asyncio.run(talk())


def test_openais_client_makes_a_call() -> None:
    told, asked = turn(turns.openai_sdk)
    assert told == Turn("", "It wants a file.", CALLED, "tool_calls", 9)
    assert asked["tool_choice"]["function"] == {"name": "read"}


def test_anthropics_client_makes_a_call() -> None:
    told, asked = turn(turns.anthropic_sdk)
    assert told == Turn("", "It wants a file.", CALLED, "tool_use", 9)
    assert asked["tool_choice"] == {"type": "tool", "name": "read"}


def test_the_ai_sdk_makes_a_call() -> None:
    told, asked = turn(turns.ai_sdk)
    assert told["errors"] == []
    assert told["calls"] == [{"name": "read", "input": {"path": "a.py"}}]
    assert told["reasoning"] == "It wants a file."
    assert told["finish"] == "tool-calls"
    assert asked["tool_choice"]["function"] == {"name": "read"}


# --- through LiteLLM, which asks the filter ------------------------------------------------------


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, int]]:
    """(its address, the port at which it expects the filter), from its lock."""
    folder, port, upstream = tmp_path_factory.mktemp("litellm"), free_port(), free_port()
    command = litellm_command(folder, port, upstream)
    assert command, "its venv could not be made"
    with process(command, 0, **litellm_environment(folder)):
        ready(port)
        yield f"http://127.0.0.1:{port}", upstream


@pytest.mark.long
@pytest.mark.parametrize("ask", [turns.openai_sdk, turns.anthropic_sdk])
def test_a_call_comes_through_the_gateway(
    gateway: tuple[str, int], ask: Callable[..., Turn]
) -> None:
    url, port = gateway
    told, asked = turn(ask, KEY, url, port)
    assert told.calls == CALLED
    assert told.finish in ("tool_calls", "tool_use")
    assert told.thinking == "It wants a file."
    assert asked["tool_choice"]


@pytest.mark.long
def test_the_ai_sdk_makes_a_call_through_the_gateway(gateway: tuple[str, int]) -> None:
    url, port = gateway
    told, asked = turn(turns.ai_sdk, KEY, url, port)
    assert (told["errors"], told["finish"]) == ([], "tool-calls")
    assert told["calls"] == [{"name": "read", "input": {"path": "a.py"}}]
    assert asked["tool_choice"]["function"] == {"name": "read"}
