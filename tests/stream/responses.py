"""The rows of /v1/responses: what the server says there, and what clients are to get."""

from __future__ import annotations

from typing import Any

from tests.stream.rows import NO_THINKING, READ, SPELT, Row

TOOLS = {"tools": [{"type": "function", "name": "read", "parameters": READ["read"]}]}
EFFORT_NONE = {"reasoning": {"effort": "none"}}
USAGE = {"input_tokens": 3, "output_tokens": 9, "total_tokens": 12}
Events = list[dict[str, Any]]


def event(kind: str, **more: Any) -> dict[str, Any]:
    return {"type": f"response.{kind}", **more}


def message(identity: str, text: str) -> dict[str, Any]:
    rest = {"type": "message", "role": "assistant", "status": "completed"}
    return {"id": identity, **rest, "content": [part(text)]}


def part(text: str) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": []}


def reasoning(identity: str, text: str) -> dict[str, Any]:
    content = [{"type": "reasoning_text", "text": text}]
    rest = {"type": "reasoning", "summary": [], "content": content, "status": "completed"}
    return {"id": identity, **rest}


def function_call(
    identity: str, arguments: str = '{"path": "a.py"}', call_id: str = "c1"
) -> dict[str, Any]:
    rest = {"type": "function_call", "call_id": call_id, "name": "read", "arguments": arguments}
    return {"id": identity, **rest, "status": "completed"}


def begun(item: dict[str, Any], number: int) -> Events:
    """The start of a message or of thinking."""
    thought = item["type"] == "reasoning"
    holder, inner = ("reasoning", "reasoning") if thought else ("content", "output")
    first = {**item["content"][0], "type": f"{inner}_text", "text": ""}
    at = {"output_index": number, "item_id": item["id"], "content_index": 0}
    added = {**item, "status": "in_progress", "content": []}
    return [
        event("output_item.added", output_index=number, item=added),
        event(f"{holder}_part.added", **at, part=first),
    ]


def delta(item: dict[str, Any], number: int, text: str) -> dict[str, Any]:
    at = {"output_index": number, "item_id": item["id"], "content_index": 0}
    if item["type"] == "reasoning":
        return event("reasoning_text.delta", **at, delta=text)
    return event("output_text.delta", **at, delta=text, logprobs=[])


def ended(item: dict[str, Any], number: int) -> Events:
    thought = item["type"] == "reasoning"
    holder, inner = ("reasoning", "reasoning") if thought else ("content", "output")
    at = {"output_index": number, "item_id": item["id"], "content_index": 0}
    text = item["content"][0]["text"]
    logprobs: dict[str, Any] = {} if thought else {"logprobs": []}
    return [
        event(f"{inner}_text.done", **at, text=text, **logprobs),
        event(f"{holder}_part.done", **at, part=item["content"][0]),
        event("output_item.done", output_index=number, item=item),
    ]


def spoken(item: dict[str, Any], number: int, *texts: str) -> Events:
    """A message or thinking, in these pieces."""
    pieces = [delta(item, number, text) for text in texts]
    return [*begun(item, number), *pieces, *ended(item, number)]


def called(item: dict[str, Any], number: int, *texts: str, told: bool = True) -> Events:
    """A call with its arguments in these pieces. told: whether the server tells them whole too."""
    at = {"output_index": number, "item_id": item["id"]}
    added = {**item, "arguments": "", "status": "in_progress"}
    kind = "function_call_arguments"
    whole = [event(f"{kind}.done", **at, arguments=item["arguments"])] if told else []
    return [
        event("output_item.added", output_index=number, item=added),
        *[event(f"{kind}.delta", **at, delta=text) for text in texts],
        *whole,
        event("output_item.done", output_index=number, item=item),
    ]


def body(*items: dict[str, Any], status: str = "completed") -> dict[str, Any]:
    rest = {"object": "response", "status": status, "usage": USAGE}
    return {"id": "resp_7", **rest, "output": list(items)}


def answer(events: Events, *items: dict[str, Any], status: str = "completed") -> Events:
    """A whole answer; vLLM says completed of one that was cut off too."""
    whole = body(*items, status=status)
    created = {**whole, "status": "in_progress", "output": [], "usage": None}
    first = [event("created", response=created), event("in_progress", response=created)]
    return [*first, *events, event("completed", response=whole)]


SAID = message("m1", "Hi")
THOUGHT = reasoning("r1", "Hm")
CALL = function_call("f1")
ONLY_CALL = answer(called(CALL, 0, '{"path"', ': "a.py"}'), CALL)
LONG = message("m1", "Done.\n</think>\n\nThe answer")
MOVED = [reasoning("rs_7_0", "Done.\n"), message("msg_7_1", "The answer")]
LATE = message("m1", "Said.a</think>b")
APART = [message("m1", "Said."), reasoning("rs_7_1", "a"), message("msg_7_2", "b")]
TWO = SPELT + "\n" + SPELT.replace("path>\na.py", "lines>\n7")
CALLS = [
    function_call("fc_7_1", call_id="call_7_1"),
    function_call("fc_7_2", '{"lines": 7}', "call_7_2"),
]
FIRST = function_call("fc_7_0", call_id="call_7_0")
ANSWER, AS_ANSWER = reasoning("r1", "Yes"), message("r1", "Yes")
DOUBLED = function_call("f1", '{"p":1}1}')
OTHER = function_call("f1", '{"p":1}{"q":2}')
BROKEN = function_call("f1", '{"p":')
EMPTY = function_call("f1", "")


def untouched(name: str, mend: str, came: Events, **more: Any) -> Row:
    return Row(name, mend, came, came, counted=0, api="responses", **more)


def row(name: str, mend: str, came: Events, gives: Events, **more: Any) -> Row:
    return Row(name, mend, came, gives, api="responses", **more)


RESPONSES = [
    untouched(
        "F1, F2: thinking and calls have one form here",
        "think_tag",
        answer(
            [*spoken(THOUGHT, 0, "H", "m"), *spoken(SAID, 1, "Hi"), *called(CALL, 2, "{}")],
            *(THOUGHT, SAID, CALL),
        ),
    ),
    row(
        "F3",
        "think_tag",
        answer(spoken(LONG, 0, "Done.\n</th", "ink>\n\nThe answer"), LONG),
        answer(
            [*spoken(MOVED[0], 0, "Done.\n"), *spoken(MOVED[1], 1, "The answer")],
            *MOVED,
        ),
    ),
    row(
        "F3 behind sent words, before another item",
        "think_tag",
        answer(
            [*spoken(LATE, 0, "Said.", "a</th", "ink>", "b"), *called(CALL, 1, '{"path": "a.py"}')],
            *(LATE, CALL),
        ),
        answer(
            [
                *spoken(APART[0], 0, "Said."),
                *spoken(APART[1], 1, "a"),
                *spoken(APART[2], 2, "b"),
                *called(CALL, 3, '{"path": "a.py"}'),
            ],
            *(*APART, CALL),
        ),
    ),
    untouched(
        "F3 what only looked like a tag",
        "think_tag",
        answer(spoken(message("m1", "a <b </thin"), 0, "a <", "b ", "</thin"), SAID),
    ),
    untouched("an empty text", "think_tag", answer(spoken(message("m1", ""), 0), SAID)),
    row(
        "F4",
        "answer_in_reasoning",
        answer(spoken(ANSWER, 0, "Ye", "s"), ANSWER),
        answer(spoken(AS_ANSWER, 0, "Ye", "s"), AS_ANSWER),
        request=NO_THINKING,
    ),
    row(
        "F4 where the API's own word turned thinking off",
        "answer_in_reasoning",
        answer(spoken(ANSWER, 0, "Yes"), ANSWER),
        answer(spoken(AS_ANSWER, 0, "Yes"), AS_ANSWER),
        request=EFFORT_NONE,
    ),
    untouched(
        "F4 with thinking on, thinking is thinking",
        "answer_in_reasoning",
        answer(spoken(THOUGHT, 0, "Hm"), THOUGHT),
    ),
    row(
        "F5",
        "tool_call_text",
        answer(
            spoken(
                message("m1", SPELT), 0, *[SPELT[at : at + 5] for at in range(0, len(SPELT), 5)]
            ),
            message("m1", SPELT),
        ),
        answer(called(FIRST, 0, FIRST["arguments"]), FIRST),
        request=TOOLS,
    ),
    row(
        "F5 with words, two calls and a number",
        "tool_call_text",
        answer(
            spoken(message("m1", "I look." + TWO), 0, "I look.", TWO[:40], TWO[40:]),
            message("m1", "I look." + TWO),
        ),
        answer(
            [
                *spoken(message("m1", "I look."), 0, "I look."),
                *called(CALLS[0], 1, CALLS[0]["arguments"]),
                *called(CALLS[1], 2, CALLS[1]["arguments"]),
            ],
            *(message("m1", "I look."), *CALLS),
        ),
        counted=2,
        request=TOOLS,
    ),
    untouched(
        "F5 of a tool that is not declared",
        "tool_call_text",
        answer(spoken(message("m1", SPELT.replace("read", "rm")), 0, "a", "b"), SAID),
        request=TOOLS,
    ),
    untouched(
        "F5 cut off",
        "tool_call_text",
        answer(spoken(message("m1", SPELT[:60]), 0, SPELT[:40], SPELT[40:60]), status="incomplete"),
        request=TOOLS,
    ),
    untouched("F6: no reason to mend here", "tool_arguments", ONLY_CALL),
    untouched(
        "F7",
        "tool_arguments",
        answer(called(BROKEN, 0, '{"p":'), BROKEN, status="incomplete"),
    ),
    untouched(
        "F7 cut off before the arguments",
        "tool_arguments",
        answer(called(EMPTY, 0, told=False), EMPTY, status="incomplete"),
    ),
    row(
        "doubled arguments",
        "tool_arguments",
        answer(called(DOUBLED, 0, '{"p":1}', "1}"), DOUBLED),
        answer(
            called(function_call("f1", '{"p":1}'), 0, '{"p":1}', ""),
            function_call("f1", '{"p":1}'),
        ),
    ),
    row(
        "two texts that are not the same",
        "tool_arguments",
        answer(called(OTHER, 0, '{"p":1}', '{"q":2}'), OTHER),
        answer(called(OTHER, 0, '{"p":1}', "", '{"q":2}'), OTHER),
        counted=0,
        malformed=1,
    ),
    row(
        "empty arguments",
        "tool_arguments",
        answer([*called(EMPTY, 0, told=False), *spoken(SAID, 1, "Hi")], EMPTY, SAID),
        answer(
            [
                *called(function_call("f1", "{}"), 0, "{}", told=False),
                *spoken(SAID, 1, "Hi"),
            ],
            *(function_call("f1", "{}"), SAID),
        ),
    ),
    row(
        "empty arguments that are told whole",
        "tool_arguments",
        answer(called(EMPTY, 0), EMPTY),
        answer(called(function_call("f1", "{}"), 0, "{}"), function_call("f1", "{}")),
    ),
    untouched(
        "corrupted arguments",
        "tool_arguments",
        answer(called(BROKEN, 0, '{"p":'), BROKEN),
        malformed=1,
    ),
    untouched(
        "F12",
        "think_tag",
        answer(spoken(message("m1", "several tokens"), 0, "several tokens"), SAID),
    ),
]
