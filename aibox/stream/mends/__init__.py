"""What is wrong with a request or an answer, and how it is put right: one small thing each.

A mend looks at parsed requests or pieces of an answer and gives new ones, or the same where it
does not apply. It knows nothing of bytes, sockets and modes.
"""

from __future__ import annotations

from typing import Literal

Mode = Literal["on", "count", "off"]

# Those that rewrite what the model said only count, until a person asks for them.
DEFAULTS: dict[str, Mode] = {
    "reasoning_names": "on",  # thinking under both of its names
    "null_fields": "on",  # later pieces of a tool call without null name, id and type
    "finish_reason": "on",  # "tool_calls" after tool calls, not "stop"
    "role_order": "on",  # one system message, in front
    "keep_alive": "on",  # a sign of life in silence
    "error_event": "on",  # a broken answer ends with an error
    "cancel": "on",  # who hangs up ends the work for him
    "think_tag": "count",  # </think> in the text
    "answer_in_reasoning": "count",  # the answer under thinking's name, with thinking off
    "tool_call_text": "count",  # a tool call spelt out in the text
    "late_name": "count",  # a tool's name after its arguments
    "tool_arguments": "count",  # doubled or empty arguments of a tool call
    "history_arguments": "count",  # invalid arguments in the messages sent along
}
