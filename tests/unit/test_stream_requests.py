"""Requests as clients send them, and as the server gets them."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aibox.stream.mends.arguments import Arguments, is_object, sanitised
from aibox.stream.mends.request import asked, read
from tests.stream.rows import COUNT, OFF, ON

USER, LATER = {"role": "user", "content": "u1"}, {"role": "user", "content": "u2"}


def system(content: Any, role: str = "system") -> dict[str, Any]:
    return {"role": role, "content": content}


def parts(*texts: str) -> list[dict[str, str]]:
    return [{"type": "text", "text": text} for text in texts]


def calling(arguments: Any) -> dict[str, Any]:
    function = {"name": "read", "arguments": arguments}
    return {"role": "assistant", "content": None, "tool_calls": [{"id": "c", "function": function}]}


# (API, mend, request, what the server gets)
MENDED: list[tuple[str, str, dict[str, Any], dict[str, Any]]] = [
    (
        "chat",
        "role_order",
        {"messages": [USER, system("a"), LATER, system("b", "developer")]},
        {"messages": [system("a\n\nb"), USER, LATER]},
    ),
    (
        "chat",
        "role_order",
        {"messages": [system("a"), system(parts("b", "c")), USER]},
        {"messages": [system(parts("a", "b", "c")), USER]},
    ),
    (
        "chat",
        "role_order",
        {"messages": [system("a", "developer"), USER]},
        {"messages": [system("a"), USER]},
    ),
    (
        "messages",
        "role_order",
        {"system": "a", "messages": [USER, system("b")]},
        {"system": parts("a", "b"), "messages": [USER]},
    ),
    (
        "messages",
        "role_order",
        {"messages": [USER, system("b", "developer")]},
        {"messages": [USER], "system": "b"},
    ),
    (
        "count_tokens",
        "role_order",
        {"system": parts("a"), "messages": [USER, system(parts("b"))]},
        {"system": parts("a", "b"), "messages": [USER]},
    ),
    (
        "responses",
        "role_order",
        {"instructions": "a", "input": [USER, system([{"type": "input_text", "text": "b"}])]},
        {"instructions": "a\n\nb", "input": [USER]},
    ),
    (
        "responses",
        "role_order",
        {"input": [system("a", "developer"), USER]},
        {"input": [system("a"), USER]},
    ),
    (
        "chat",
        "history_arguments",
        {"messages": [USER, calling('{"path": "a.py')]},
        {"messages": [USER, calling('{"path": "a.py"}')]},
    ),
    (
        "messages",
        "history_arguments",
        {"messages": [{"content": [{"type": "tool_use", "input": '{"path": "a'}]}]},
        {"messages": [{"content": [{"type": "tool_use", "input": {"path": "a"}}]}]},
    ),
    (
        "responses",
        "history_arguments",
        {"input": [{"type": "function_call", "arguments": '{"a": 1'}]},
        {"input": [{"type": "function_call", "arguments": '{"a": 1}'}]},
    ),
    (
        "chat",
        "reasoning_names",
        {"messages": [{"role": "assistant", "reasoning_content": "Hm", "content": "x"}]},
        {"messages": [{"role": "assistant", "content": "x", "reasoning": "Hm"}]},
    ),
    (
        "chat",
        "reasoning_names",
        {"messages": [{"role": "assistant", "reasoning": "Hm", "reasoning_content": "Hm"}]},
        {"messages": [{"role": "assistant", "reasoning": "Hm"}]},
    ),
]


@pytest.mark.parametrize(("api", "mend", "request_", "gives"), MENDED)
def test_what_the_server_gets(
    api: str, mend: str, request_: dict[str, Any], gives: dict[str, Any]
) -> None:
    body = json.dumps(request_).encode()
    mended, _, counts = read(api, body, {**OFF, mend: "on"})
    assert json.loads(mended) == gives
    assert counts == {mend: 1}
    again, _, counts = read(api, mended, ON)
    assert (again, counts) == (mended, {})
    assert read(api, body, COUNT)[0] == body
    assert read(api, body, COUNT)[2] == {mend: 1}
    assert read(api, body, OFF)[2] == {}


@pytest.mark.parametrize(
    ("api", "body"),
    [
        ("chat", b'{"messages":  [{"role":"system","content":"a"},{"role":"user"}]}'),
        ("chat", b'{"messages": [7, null, {"role": 7}], "tools": 7}'),
        ("chat", b'{"messages": {"role": "developer"}}'),
        (
            "chat",
            json.dumps({"messages": [calling('{"a": 1}'), calling(""), calling({})]}).encode(),
        ),
        ("chat", b"{"),
        ("chat", b"[1]"),
        ("chat", b"\xff"),
        ("completions", b'{"prompt":  "x"}'),
        ("responses", b'{"input":  "x"}'),
        ("responses", b'{"input": [{"role":"system","content":[{"type":"input_image"}]}, 1]}'),
        ("messages", b'{"system": "a", "messages": [{"role":"user","content":"b"}]}'),
        ("models", b""),
    ],
)
def test_a_request_that_needs_nothing_keeps_its_bytes(api: str, body: bytes) -> None:
    mended, _, counts = read(api, body, ON)
    assert mended == body
    assert not counts


NAMES = ["messages", "input", "system", "instructions", "role", "content", "tool_calls", "tools"]
NAMES += ["function", "arguments", "name", "type", "text", "reasoning_content", "input_schema"]
LEAVES = st.none() | st.integers(0, 1) | st.sampled_from(["system", "developer", "tool_use", "{"])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["chat", "messages", "responses"]),
    st.recursive(
        LEAVES,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4)
        ),
        max_leaves=15,
    ),
)
def test_no_shape_of_json_breaks_a_request(api: str, request_: Any) -> None:
    body = json.dumps(request_).encode()
    assert read(api, body, COUNT)[0] == body
    json.loads(read(api, body, ON)[0])


def test_what_is_asked() -> None:
    tools = [
        {"type": "function", "function": {"name": "a", "parameters": {"type": "object"}}},
        {"name": "b", "input_schema": {"x": 1}},
        {"name": "c"},
        {"type": "web_search"},
    ]
    found = asked({"stream": True, "n": 3, "tools": tools}, True)
    assert (found.stream, found.choices, found.thinking_off) == (True, 3, False)
    assert found.tools == {"a": {"type": "object"}, "b": {"x": 1}, "c": {}}
    assert asked({"stream": 1, "n": "3"}, True).choices == 1


@pytest.mark.parametrize(
    ("request_", "default", "off"),
    [
        ({"chat_template_kwargs": {"enable_thinking": False}}, True, True),
        ({"chat_template_kwargs": {"thinking": False}}, True, True),
        ({"chat_template_kwargs": {"enable_thinking": True}}, False, False),
        ({"chat_template_kwargs": {}}, False, True),
        ({"chat_template_kwargs": None}, True, False),
        ({"chat_template_kwargs": "x"}, True, False),
        ({"reasoning_effort": "none"}, True, True),
        ({"reasoning_effort": "low"}, False, False),
        ({"reasoning": {"effort": "none"}}, True, True),
        ({"reasoning": {"effort": "high"}}, False, False),
        ({"reasoning": {"effort": None}}, False, True),
        ({"reasoning": []}, True, False),
        ({"thinking": {"type": "disabled"}}, True, True),
        ({"thinking": {"type": "enabled"}}, False, False),
        ({"thinking": {"type": "adaptive"}}, True, False),
        (
            {"reasoning_effort": "none", "chat_template_kwargs": {"enable_thinking": True}},
            *(True, False),
        ),
    ],
)
def test_whether_thinking_is_off(request_: dict[str, Any], default: bool, off: bool) -> None:
    assert asked(request_, default).thinking_off is off


@pytest.mark.parametrize(
    ("text", "gives"),
    [
        ('{"path": "a.py', {"path": "a.py"}),
        ('{"path": "a.py", "lin', {"path": "a.py"}),
        ('{"path": "a.py"}{"path": "a.py"}', {"path": "a.py"}),
        ('{"text": "two\nlines"}', {"text": "two\nlines"}),
        ('"{\\"a\\": 1}"', {"a": 1}),
        ("null", {}),
        ("{", {}),
        ("rm -rf", {"invalid_arguments": "rm -rf"}),
        ("[1, 2]", {"invalid_arguments": "[1, 2]"}),
        ("[" * 100_000, {"invalid_arguments": "[" * 100_000}),
    ],
)
def test_invalid_arguments_become_an_object(text: str, gives: dict[str, Any]) -> None:
    assert not is_object(text)
    assert sanitised(text) == gives


@pytest.mark.parametrize(
    ("text", "passed", "end"),
    [
        ('{"a": "}"}', '{"a": "}"}', ("", "fine")),
        ('{"a": "\\"}"} \n', '{"a": "\\"}"} \n', ("", "fine")),
        ('{"a": 1}{"a": 1}', '{"a": 1}', ("", "doubled")),
        ('{"a": 1} 1}', '{"a": 1}', ("", "doubled")),
        ('{"a": 1}{"b": 1}', '{"a": 1}', ('{"b": 1}', "malformed")),
        ('{"a": [1, {"b": 2}', '{"a": [1, {"b": 2}', ("", "malformed")),
        ("", "", ("{}", "empty")),
        ("7", "7", ("", "malformed")),
    ],
)
def test_arguments_are_watched_wherever_they_are_cut(
    text: str, passed: str, end: tuple[str, str]
) -> None:
    for size in (1, 2, 3, len(text) or 1):
        watched = Arguments()
        got = "".join(watched.feed(text[at : at + size]) for at in range(0, len(text), size))
        assert (got.strip(), watched.end()) == (passed.strip(), end)
