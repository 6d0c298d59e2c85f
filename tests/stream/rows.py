"""What servers say, and what clients are to get: the rows F1 to F12 and their kinds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from aibox.stream.mends import DEFAULTS, Mode

ON: dict[str, Mode] = dict.fromkeys(DEFAULTS, "on")
COUNT: dict[str, Mode] = dict.fromkeys(DEFAULTS, "count")
OFF: dict[str, Mode] = dict.fromkeys(DEFAULTS, "off")
DONE = b"data: [DONE]\n\n"
READ = {"read": {"properties": {"path": {"type": "string"}, "lines": {"type": "integer"}}}}
SPELT = (
    "<tool_call>\n<function=read>\n<parameter=path>\na.py\n</parameter>\n</function>\n</tool_call>"
)


def chunk(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat chunk with one choice. more: of the chunk, `index` of the choice."""
    choice = {"index": more.pop("index", 0), "delta": delta, "finish_reason": finish}
    rest = {"object": "chat.completion.chunk", "created": 1, "model": "m"}
    return {"id": "chatcmpl-7", **rest, "choices": [choice], **more}


def call(number: int = 0, **said: Any) -> dict[str, Any]:
    """A delta with a piece of a tool call."""
    function = {key: said.pop(key) for key in ("name", "arguments") if key in said}
    return {"tool_calls": [{"index": number, **said, "function": function}]}


def first_call(arguments: str = "", number: int = 0) -> dict[str, Any]:
    return call(number, id="c1", type="function", name="read", arguments=arguments)


def block_start(number: int, **block: Any) -> dict[str, Any]:
    return {"type": "content_block_start", "index": number, "content_block": block}


def text_start(number: int) -> dict[str, Any]:
    return block_start(number, type="text", text="")


def thinking_start(number: int) -> dict[str, Any]:
    return block_start(number, type="thinking", thinking="", signature="")


def tool_start(number: int, identity: str = "t1", name: str = "read") -> dict[str, Any]:
    return block_start(number, type="tool_use", id=identity, name=name, input={})


def block_delta(number: int, kind: str, **delta: Any) -> dict[str, Any]:
    delta = {"type": f"{kind}_delta", **delta}
    return {"type": "content_block_delta", "index": number, "delta": delta}


def text(number: int, words: str) -> dict[str, Any]:
    return block_delta(number, "text", text=words)


def block_stop(number: int) -> dict[str, Any]:
    return {"type": "content_block_stop", "index": number}


def stop_for(reason: str) -> dict[str, Any]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 9}}


MESSAGE = {"type": "message_start", "message": {"id": "msg_7", "role": "assistant", "content": []}}
MESSAGE_STOP = {"type": "message_stop"}


@dataclass(frozen=True)
class Row:
    """gives: what a client gets with the mend on; counted: how often it applied."""

    name: str
    mend: str
    came: list[dict[str, Any]]
    gives: list[dict[str, Any]]
    counted: int = 1
    api: str = "chat"
    request: dict[str, Any] = field(default_factory=dict)
    malformed: int = 0

    def bytes(self, chunks: list[dict[str, Any]]) -> bytes:
        return stream(chunks, self.api)


def stream(chunks: list[dict[str, Any]], api: str = "chat") -> bytes:
    """The chunks as a server sends them."""
    if api == "responses":
        chunks = [{**one, "sequence_number": number} for number, one in enumerate(chunks)]
    if api in ("messages", "responses"):
        return b"".join(
            b"event: %b\ndata: %b\n\n" % (one["type"].encode(), json.dumps(one).encode())
            for one in chunks
        )
    return b"".join(b"data: %b\n\n" % json.dumps(one).encode() for one in chunks) + DONE


def read_back(sent: bytes) -> list[dict[str, Any]]:
    """The chunks that a client reads, without the mark of the end."""
    found = []
    for event in sent.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n\n"):
        data = [line[5:].strip() for line in event.split(b"\n") if line.startswith(b"data:")]
        if data and data != [b"[DONE]"]:
            found.append(json.loads(b"\n".join(data)))
    return found


def unnumbered(chunks: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The chunks of /v1/responses without their numbers, which must go up."""
    numbers = [chunk["sequence_number"] for chunk in chunks]
    assert numbers == sorted(set(numbers))
    return [{k: v for k, v in chunk.items() if k != "sequence_number"} for chunk in chunks]


def message(*chunks: dict[str, Any], reason: str = "end_turn") -> list[dict[str, Any]]:
    return [MESSAGE, *chunks, stop_for(reason), MESSAGE_STOP]


STOP = chunk({}, "stop")
TOOLS = {"tools": [{"type": "function", "function": {"name": "read", "parameters": READ["read"]}}]}
MESSAGES_TOOLS = {"tools": [{"name": "read", "input_schema": READ["read"]}]}
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
BOTH = {"reasoning": "Let me see", "reasoning_content": "Let me see"}


def said(*texts: str) -> list[dict[str, Any]]:
    return [chunk({"content": text}) for text in texts]


def spelt(identity: int = 0, arguments: str = '{"path": "a.py"}') -> dict[str, Any]:
    named = {"id": f"call_7_{identity}", "type": "function", "name": "read"}
    return chunk(call(identity, **named, arguments=arguments))


CHAT = [
    Row(
        "F1 reasoning",
        "reasoning_names",
        [chunk({"reasoning": "Let me see"}), *said("x"), STOP],
        [chunk(BOTH), *said("x"), STOP],
    ),
    Row(
        "F1 reasoning_content",
        "reasoning_names",
        [chunk({"reasoning_content": "Let me see"}), *said("x"), STOP],
        [chunk(BOTH), *said("x"), STOP],
    ),
    Row(
        "F1 both, and null",
        "reasoning_names",
        [chunk(BOTH), chunk({"reasoning": None, "content": "x"}), STOP],
        [chunk(BOTH), chunk({"reasoning": None, "content": "x"}), STOP],
        counted=0,
    ),
    Row(
        "F1 with the first word, and usage",
        "reasoning_names",
        [chunk({"role": "assistant", "reasoning": "a"}, usage={"total_tokens": 3}), STOP],
        [
            chunk(
                {"role": "assistant", "reasoning": "a", "reasoning_content": "a"},
                usage={"total_tokens": 3},
            ),
            STOP,
        ],
    ),
    Row(
        "F2",
        "null_fields",
        [
            chunk(first_call()),
            chunk(call(id=None, type=None, name=None, arguments='{"p":')),
            chunk(call(id=None, arguments="1}")),
            chunk({}, "tool_calls"),
        ],
        [
            chunk(first_call()),
            chunk(call(arguments='{"p":')),
            chunk(call(arguments="1}")),
            chunk({}, "tool_calls"),
        ],
        counted=2,
    ),
    Row(
        "F2 a second call begins",
        "null_fields",
        [chunk(first_call("{}")), chunk(first_call("{}", number=1)), chunk({}, "tool_calls")],
        [chunk(first_call("{}")), chunk(first_call("{}", number=1)), chunk({}, "tool_calls")],
        counted=0,
    ),
    Row(
        "F3",
        "think_tag",
        [*said("Done.\n</th", "ink>\n\nThe answer"), STOP],
        [chunk({"reasoning": "Done.\n"}), *said("The answer"), STOP],
    ),
    Row(
        "F3 in one piece with the role, usage and finish",
        "think_tag",
        [chunk({"role": "assistant", "content": "a</think>b"}, "stop", usage={"total_tokens": 3})],
        [
            chunk({"role": "assistant", "reasoning": "a"}),
            chunk({"content": "b"}, "stop", usage={"total_tokens": 3}),
        ],
    ),
    Row(
        "F3 a tag in four pieces, what was sent stays",
        "think_tag",
        [*said("Said.", "<", "/thi", "nk", ">", "\n", "\nyes"), STOP],
        [*said("Said.", "yes"), STOP],
    ),
    Row(
        "F3 what only looked like a tag",
        "think_tag",
        [*said("a <", "b </thin", "g> c <"), STOP],
        [*said("a <", "b </thin", "g> c <"), STOP],
        counted=0,
    ),
    Row(
        "F3 of two choices",
        "think_tag",
        [
            chunk({"content": "a</thi"}),
            chunk({"content": "b</thi"}, index=1),
            chunk({"content": "nk>c"}),
            chunk({"content": "s"}, index=1),
            STOP,
            chunk({}, "stop", index=1),
        ],
        [
            chunk({"reasoning": "a"}),
            chunk({"content": "c"}),
            chunk({"content": "b</thi"}, index=1),
            chunk({"content": "s"}, index=1),
            STOP,
            chunk({}, "stop", index=1),
        ],
        request={"n": 2},
    ),
    Row(
        "F4",
        "answer_in_reasoning",
        [chunk({"reasoning": "The "}), chunk({"reasoning": "answer"}), STOP],
        [*said("The ", "answer"), STOP],
        counted=2,
        request=NO_THINKING,
    ),
    Row(
        "F4 with thinking on, thinking is thinking",
        "answer_in_reasoning",
        [chunk({"reasoning": "Hm"}), STOP],
        [chunk({"reasoning": "Hm"}), STOP],
        counted=0,
    ),
    Row(
        "F5",
        "tool_call_text",
        [*said(*[SPELT[at : at + 5] for at in range(0, len(SPELT), 5)]), STOP],
        [spelt(), chunk({}, "tool_calls")],
        request=TOOLS,
    ),
    Row(
        "F5 with words, two calls and a number",
        "tool_call_text",
        [
            *said(
                "I look.",
                SPELT + "\n" + SPELT.replace("path>\na.py", "lines>\n7"),
                "\n",
            ),
            STOP,
        ],
        [*said("I look."), spelt(), spelt(1, '{"lines": 7}'), chunk({}, "tool_calls")],
        counted=2,
        request=TOOLS,
    ),
    Row(
        "F5 as JSON",
        "tool_call_text",
        [
            *said('<tool_call>{"name": "read", "argum', 'ents": {"path": "a.py"}}</tool_call>'),
            STOP,
        ],
        [spelt(), chunk({}, "tool_calls")],
        request=TOOLS,
    ),
    Row(
        "F5 of a tool that is not declared",
        "tool_call_text",
        [*said(SPELT.replace("read", "rm")), STOP],
        [*said(SPELT.replace("read", "rm")), STOP],
        counted=0,
        request=TOOLS,
    ),
    Row(
        "F5 cut off",
        "tool_call_text",
        [*said("So: ", SPELT[:40], SPELT[40:60]), chunk({}, "length")],
        [*said("So: ", SPELT[:40], SPELT[40:60]), chunk({}, "length")],
        counted=0,
        request=TOOLS,
    ),
    Row(
        "F5 beside a call that the server found",
        "tool_call_text",
        [*said(SPELT), chunk(first_call("{}")), chunk({}, "tool_calls")],
        [spelt(), chunk(first_call("{}", number=1)), chunk({}, "tool_calls")],
        request=TOOLS,
    ),
    Row(
        "F6",
        "finish_reason",
        [chunk(first_call("{}")), STOP],
        [chunk(first_call("{}")), chunk({}, "tool_calls")],
    ),
    Row(
        "F6 in the same piece",
        "finish_reason",
        [chunk(first_call("{}"), "stop", usage={"total_tokens": 3})],
        [chunk(first_call("{}"), "tool_calls", usage={"total_tokens": 3})],
    ),
    Row(
        "F6 only of the choice that called",
        "finish_reason",
        [chunk(first_call("{}")), *said("x"), chunk({}, "stop", index=1), STOP],
        [chunk(first_call("{}")), *said("x"), chunk({}, "stop", index=1), chunk({}, "tool_calls")],
        request={"n": 2},
    ),
    Row(
        "F7",
        "finish_reason",
        [chunk(first_call('{"p')), chunk({}, "length")],
        [chunk(first_call('{"p')), chunk({}, "length")],
        counted=0,
    ),
    Row(
        "a name after its arguments",
        "late_name",
        [
            chunk(call(id="c1", type="function", name=None, arguments='{"p"')),
            chunk(call(arguments=":1")),
            chunk(call(name="read", arguments="}")),
            chunk({}, "tool_calls"),
        ],
        [chunk(first_call('{"p":1}')), chunk({}, "tool_calls")],
    ),
    Row(
        "a name that never comes",
        "late_name",
        [chunk(call(id="c1", arguments="{}")), chunk({}, "tool_calls")],
        [chunk(call(id="c1", arguments="{}")), chunk({}, "tool_calls")],
        counted=0,
    ),
    Row(
        "doubled arguments",
        "tool_arguments",
        [
            chunk(first_call('{"p": "}')),
            chunk(call(arguments='\\""}{"p": ')),
            chunk(call(arguments='"}\\""}')),
            chunk({}, "tool_calls"),
        ],
        [
            chunk(first_call('{"p": "}')),
            chunk(call(arguments='\\""}')),
            chunk(call(arguments="")),
            chunk({}, "tool_calls"),
        ],
    ),
    Row(
        "empty arguments",
        "tool_arguments",
        [chunk(first_call()), chunk({}, "tool_calls")],
        [chunk(first_call()), chunk(call(arguments="{}")), chunk({}, "tool_calls")],
    ),
    Row(
        "two texts that are not the same",
        "tool_arguments",
        [chunk(first_call('{"p":1}')), chunk(call(arguments='{"q":2}')), chunk({}, "tool_calls")],
        [
            chunk(first_call('{"p":1}')),
            chunk(call(arguments="")),
            chunk(call(arguments='{"q":2}')),
            chunk({}, "tool_calls"),
        ],
        counted=0,
        malformed=1,
    ),
    Row(
        "arguments that the engine corrupted",
        "tool_arguments",
        [chunk(first_call('{"p": tru')), chunk({}, "tool_calls")],
        [chunk(first_call('{"p": tru')), chunk({}, "tool_calls")],
        counted=0,
        malformed=1,
    ),
    Row(
        "arguments that the length cut off are no fault",
        "tool_arguments",
        [chunk(first_call('{"p": tru')), chunk({}, "length")],
        [chunk(first_call('{"p": tru')), chunk({}, "length")],
        counted=0,
    ),
    Row(
        "F12",
        "reasoning_names",
        [
            *said("several tokens in one piece"),
            STOP,
            {"id": "chatcmpl-7", "choices": [], "usage": {"completion_tokens": 5}},
        ],
        [
            *said("several tokens in one piece"),
            STOP,
            {"id": "chatcmpl-7", "choices": [], "usage": {"completion_tokens": 5}},
        ],
        counted=0,
    ),
]

MESSAGES = [
    Row(
        "F3",
        "think_tag",
        message(text_start(0), text(0, "Done.\n</th"), text(0, "ink>\n\nYes"), block_stop(0)),
        message(
            *(
                thinking_start(0),
                block_delta(0, "thinking", thinking="Done.\n"),
                block_stop(0),
            ),
            *(text_start(1), text(1, "Yes"), block_stop(1)),
        ),
        api="messages",
    ),
    Row(
        "F3 behind sent words, before another block",
        "think_tag",
        message(
            *(text_start(0), text(0, "Hm."), text(0, "a</think>"), text(0, "\nb"), block_stop(0)),
            *(tool_start(1), block_delta(1, "input_json", partial_json="{}"), block_stop(1)),
            reason="tool_use",
        ),
        message(
            *(text_start(0), text(0, "Hm."), block_stop(0)),
            *(thinking_start(1), block_delta(1, "thinking", thinking="a"), block_stop(1)),
            *(text_start(2), text(2, "b"), block_stop(2)),
            *(tool_start(3), block_delta(3, "input_json", partial_json="{}"), block_stop(3)),
            reason="tool_use",
        ),
        api="messages",
    ),
    Row(
        "F3 what only looked like a tag",
        "think_tag",
        message(text_start(0), text(0, "a <"), text(0, "b <"), block_stop(0)),
        message(text_start(0), text(0, "a <"), text(0, "b <"), block_stop(0)),
        counted=0,
        api="messages",
    ),
    Row(
        "an empty text",
        "think_tag",
        message(text_start(0), block_stop(0)),
        message(text_start(0), block_stop(0)),
        counted=0,
        api="messages",
    ),
    Row(
        "F4",
        "answer_in_reasoning",
        message(
            thinking_start(0),
            block_delta(0, "thinking", thinking="Yes"),
            block_delta(0, "signature", signature="s"),
            block_stop(0),
        ),
        message(text_start(0), text(0, "Yes"), block_stop(0)),
        api="messages",
        request=NO_THINKING,
    ),
    Row(
        "F5",
        "tool_call_text",
        message(
            text_start(0),
            text(0, "I look."),
            text(0, SPELT[:30]),
            text(0, SPELT[30:]),
            block_stop(0),
        ),
        message(
            *(text_start(0), text(0, "I look."), block_stop(0)),
            tool_start(1, "toolu_7_1_1"),
            block_delta(1, "input_json", partial_json='{"path": "a.py"}'),
            block_stop(1),
            reason="tool_use",
        ),
        api="messages",
        request=MESSAGES_TOOLS,
    ),
    Row(
        "F6",
        "finish_reason",
        message(tool_start(0), block_stop(0)),
        message(tool_start(0), block_stop(0), reason="tool_use"),
        api="messages",
    ),
    Row(
        "F7",
        "finish_reason",
        message(tool_start(0), block_stop(0), reason="max_tokens"),
        message(tool_start(0), block_stop(0), reason="max_tokens"),
        counted=0,
        api="messages",
    ),
    Row(
        "doubled arguments",
        "tool_arguments",
        message(
            tool_start(0),
            block_delta(0, "input_json", partial_json='{"p":1}'),
            block_delta(0, "input_json", partial_json="1}"),
            block_stop(0),
            reason="tool_use",
        ),
        message(
            tool_start(0),
            block_delta(0, "input_json", partial_json='{"p":1}'),
            block_delta(0, "input_json", partial_json=""),
            block_stop(0),
            reason="tool_use",
        ),
        api="messages",
    ),
    Row(
        "corrupted arguments",
        "tool_arguments",
        message(
            *(tool_start(0), block_delta(0, "input_json", partial_json='{"p":'), block_stop(0)),
            reason="tool_use",
        ),
        message(
            *(tool_start(0), block_delta(0, "input_json", partial_json='{"p":'), block_stop(0)),
            reason="tool_use",
        ),
        counted=0,
        malformed=1,
        api="messages",
    ),
]
