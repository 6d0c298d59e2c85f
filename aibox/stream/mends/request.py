"""Requests: what they ask for, and what clients of this API get wrong in them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from aibox.stream.mends import Mode
from aibox.stream.mends.arguments import is_object, sanitised

Request = dict[str, Any]
SYSTEM = ("system", "developer")


@dataclass(frozen=True)
class Asked:
    """What an answer is mended by. tools: parameter schemas by name."""

    stream: bool = False
    thinking_off: bool = False
    choices: int = 1
    tools: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


def read(
    api: str, body: bytes, modes: Mapping[str, Mode], *, thinking: bool = True
) -> tuple[bytes, Asked, Counter[str]]:
    """(the body for the server, what is asked, mends by name).

    A body that no mend concerns, or that is no JSON object, stays as it is. thinking: whether the
    server thinks where a request does not say.
    """
    counts: Counter[str] = Counter()
    try:
        request = orjson.loads(body)
    except ValueError:
        return body, Asked(), counts
    if not isinstance(request, dict):
        return body, Asked(), counts
    mended = request
    for name, mend in MENDS.get(api, {}).items():
        after = mend(mended)
        if after is mended or modes[name] == "off":
            continue
        counts[name] += 1
        if modes[name] == "on":
            mended = after
    body = body if mended is request else orjson.dumps(mended)
    return body, asked(request, thinking), counts


def asked(request: Request, thinking: bool) -> Asked:
    choices = request.get("n")
    return Asked(
        stream=request.get("stream") is True,
        thinking_off=thinks(request, thinking) is False,
        choices=choices if isinstance(choices, int) and choices > 0 else 1,
        tools=tools_of(request),
    )


def thinks(request: Request, otherwise: bool) -> bool:
    """What the chat template is told: by its own name, of which there are two, or by the API's."""
    told = request.get("chat_template_kwargs")
    if isinstance(told, dict):
        for name in ("enable_thinking", "thinking"):
            if isinstance(told.get(name), bool):
                return bool(told[name])
    efforts = [request.get("reasoning_effort"), *_named(request, "reasoning", "effort")]
    efforts += _named(request, "output_config", "effort")
    kinds = _named(request, "thinking", "type")
    if "none" in efforts or "disabled" in kinds:
        return False
    return otherwise or any(isinstance(effort, str) for effort in efforts) or "enabled" in kinds


def _named(request: Request, key: str, name: str) -> list[Any]:
    holder = request.get(key)
    return [holder.get(name)] if isinstance(holder, dict) else []


def tools_of(request: Request) -> dict[str, Mapping[str, Any]]:
    """{name: parameter schema} of the tools declared, in either API's form."""
    found: dict[str, Mapping[str, Any]] = {}
    for tool in _dicts(request.get("tools")):
        function = tool.get("function") if isinstance(tool.get("function"), dict) else tool
        assert isinstance(function, dict)
        schema = function.get("parameters") or function.get("input_schema")
        if isinstance(function.get("name"), str):
            found[function["name"]] = schema if isinstance(schema, dict) else {}
    return found


# --- the names of thinking ----------------------------------------------------------------------


def reasoning_names(request: Request) -> Request:
    """History with thinking under the server's own name, `reasoning`, once."""
    return _each(request, "messages", _one_reasoning)


def _one_reasoning(message: Request) -> Request:
    if "reasoning_content" not in message:
        return message
    text = message.get("reasoning") or message["reasoning_content"]
    rest = {key: value for key, value in message.items() if key != "reasoning_content"}
    return rest if text is None else {**rest, "reasoning": text}


# --- the order of roles -------------------------------------------------------------------------


def role_order(request: Request) -> Request:
    """One system message in front, with the parts of all of them in order."""
    messages = _dicts(request.get("messages"))
    found = [message for message in messages if message.get("role") in SYSTEM]
    if not found or (messages[0] is found[0] and found[0]["role"] == "system" and len(found) == 1):
        return request
    content = _merged([message.get("content") for message in found])
    first = {**found[0], "role": "system", "content": content}
    return {**request, "messages": [first, *_others(request["messages"])]}


def role_order_messages(request: Request) -> Request:
    """The same where the system's text stands beside the messages."""
    return _hoisted(request, "messages", "system")


def role_order_responses(request: Request) -> Request:
    """Only text can go into the instructions; other content stays where it is."""
    found = [item for item in _dicts(request.get("input")) if item.get("role") in SYSTEM]
    if any(_text_of(item.get("content")) is None for item in found):
        return request
    if len(found) == 1 and request["input"][0] is found[0] and not request.get("instructions"):
        first, *rest = request["input"]
        system = first["role"] == "system"
        return request if system else {**request, "input": [{**first, "role": "system"}, *rest]}
    return _hoisted(request, "input", "instructions")


def _hoisted(request: Request, where: str, target: str) -> Request:
    found = [message for message in _dicts(request.get(where)) if message.get("role") in SYSTEM]
    if not found:
        return request
    said = [request[target]] if request.get(target) else []
    said += [message.get("content") for message in found]
    if target == "instructions":
        said = [_text_of(content) for content in said]
    elif len(said) > 1:  # the server drops a text by how it begins, so each stays one of its own
        said = [[{"type": "text", "text": one}] if isinstance(one, str) else one for one in said]
    return {**request, target: _merged(said), where: _others(request[where])}


def _others(messages: list[Any]) -> list[Any]:
    return [m for m in messages if not (isinstance(m, dict) and m.get("role") in SYSTEM)]


def _merged(contents: list[Any]) -> Any:
    """Texts stay a text; as soon as one has parts, all become parts."""
    contents = [content for content in contents if content]
    if all(isinstance(content, str) for content in contents):
        return "\n\n".join(contents)
    parts: list[Any] = []
    for content in contents:
        parts += content if isinstance(content, list) else [{"type": "text", "text": content}]
    return parts


def _text_of(content: Any) -> str | None:
    """The text of a content that has nothing else; None otherwise."""
    if isinstance(content, str):
        return content
    texts = [part.get("text") for part in _dicts(content)]
    whole = [text for text in texts if isinstance(text, str)]
    return "\n\n".join(whole) if isinstance(content, list) and len(whole) == len(content) else None


# --- invalid arguments in the history -----------------------------------------------------------


def history_arguments(request: Request) -> Request:
    return _each(request, "messages", _valid_calls)


def _valid_calls(message: Request) -> Request:
    return _each(message, "tool_calls", _valid_call)


def _valid_call(call: Request) -> Request:
    function = call.get("function")
    if not isinstance(function, dict):
        return call
    mended = _valid_arguments(function)
    return call if mended is function else {**call, "function": mended}


def _valid_arguments(function: Request) -> Request:
    text = function.get("arguments")
    if not isinstance(text, str) or not text or is_object(text):
        return function
    return {**function, "arguments": json.dumps(sanitised(text), ensure_ascii=False)}


def history_arguments_messages(request: Request) -> Request:
    return _each(request, "messages", lambda message: _each(message, "content", _valid_input))


def _valid_input(block: Request) -> Request:
    if block.get("type") != "tool_use" or not isinstance(block.get("input"), str):
        return block
    return {**block, "input": sanitised(block["input"]) if block["input"] else {}}


def history_arguments_responses(request: Request) -> Request:
    def valid(item: Request) -> Request:
        return _valid_arguments(item) if item.get("type") == "function_call" else item

    return _each(request, "input", valid)


MENDS: dict[str, dict[str, Callable[[Request], Request]]] = {
    "chat": {
        "reasoning_names": reasoning_names,
        "role_order": role_order,
        "history_arguments": history_arguments,
    },
    "messages": {
        "role_order": role_order_messages,
        "history_arguments": history_arguments_messages,
    },
    "responses": {
        "role_order": role_order_responses,
        "history_arguments": history_arguments_responses,
    },
}
MENDS["count_tokens"] = MENDS["messages"]


def _each(holder: Request, key: str, mend: Callable[[Request], Request]) -> Request:
    """The holder with each dictionary of a list mended; the same one where none needs it."""
    items = holder.get(key)
    if not isinstance(items, list):
        return holder
    mended = [mend(item) if isinstance(item, dict) else item for item in items]
    same = all(after is before for after, before in zip(mended, items, strict=True))
    return holder if same else {**holder, key: mended}


def _dicts(items: Any) -> list[dict[str, Any]]:
    return [item for item in items if isinstance(item, dict)] if isinstance(items, list) else []
