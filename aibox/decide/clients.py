"""Ready configuration for the clients that people use, by what a box serves and through which door.

Nothing in it tells whether MTP is on: turning it on or off changes no client.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

KEY_VARIABLE = "AI_BOX_KEY"
ANY_KEY = "none"  # where a door asks for none, the SDKs still want one
OUTPUT_SHARE = 4  # an answer may take this part of the context, thinking included
OUTPUT_MOST = 65536  # tokens


@dataclass(frozen=True)
class Door:
    """A way in. url: without /v1. key_place: where its key lies, None where it asks for none."""

    name: str
    url: str
    key_place: str | None


@dataclass(frozen=True)
class Offer:
    """What is served. models: every name. context: tokens of prompt and answer. vision: whether it
    takes images."""

    box: str
    models: Sequence[str]
    context: int
    vision: bool
    doors: Sequence[Door]


def page(offer: Offer) -> str:
    """Everything, as text to copy from; nothing to offer is said in words."""
    if not offer.doors:
        return "no door is open: the server answers on this box alone\n"
    first = offer.doors[0]
    parts = [doors_told(offer), *(part for _, part in every(offer, first))]
    return "\n\n".join(parts) + "\n"


def every(offer: Offer, door: Door) -> list[tuple[str, str]]:
    """(client, its configuration with a heading) through one door."""
    configured = [
        ("OpenCode: opencode.json in the project's folder", opencode(offer, door)),
        ("openai for Python", openai_python(offer, door)),
        ("anthropic for Python", anthropic_python(offer, door)),
        ("Claude Code", claude_code(offer, door)),
        ("curl", curl(offer, door)),
    ]
    return [(head, f"# {head}\n{text}") for head, text in configured]


def doors_told(offer: Offer) -> str:
    rows = [f"# {offer.box} serves {', '.join(offer.models)}, {offer.context:,} tokens of context"]
    for door in offer.doors:
        key = f"its key: {door.key_place}" if door.key_place else "it asks for no key"
        rows.append(f"# {door.name:<8} {door.url}/v1    {key}")
    if any(door.key_place for door in offer.doors[:1]):
        rows.append(f"export {KEY_VARIABLE}=...")
    return "\n".join(rows)


def opencode(offer: Offer, door: Door) -> str:
    """For `opencode` with the provider @ai-sdk/openai-compatible."""
    limit = {"context": offer.context, "output": answer_limit(offer.context)}
    inputs = ["text", "image"] if offer.vision else ["text"]
    model = {
        "attachment": offer.vision,
        "reasoning": True,
        "tool_call": True,
        "limit": limit,
        "modalities": {"input": inputs, "output": ["text"]},
    }
    key = f"{{env:{KEY_VARIABLE}}}" if door.key_place else ANY_KEY
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": offer.box,
        "options": {"baseURL": f"{door.url}/v1", "apiKey": key},
        "models": {name: {"name": name, **model} for name in offer.models},
    }
    whole = {
        "$schema": "https://opencode.ai/config.json",
        "provider": {offer.box: provider},
        "model": f"{offer.box}/{offer.models[0]}",
        "autoupdate": False,
        "share": "disabled",
    }
    return json.dumps(whole, indent=2)


def answer_limit(context: int) -> int:
    """Tokens of an answer that a client may ask for, of a context in tokens."""
    return min(OUTPUT_MOST, max(1, context // OUTPUT_SHARE))


def openai_python(offer: Offer, door: Door) -> str:
    return f"""\
import os
from openai import OpenAI

client = OpenAI(base_url="{door.url}/v1", api_key={python_key(door)})
answer = client.chat.completions.create(
    model="{offer.models[0]}", messages=[{{"role": "user", "content": "Hello"}}]
)
print(answer.choices[0].message.content)"""


def anthropic_python(offer: Offer, door: Door) -> str:
    return f"""\
import os
from anthropic import Anthropic

client = Anthropic(base_url="{door.url}", api_key={python_key(door)})
answer = client.messages.create(
    model="{offer.models[0]}",
    max_tokens=1024,
    messages=[{{"role": "user", "content": "Hello"}}],
)
print(answer.content)"""


def python_key(door: Door) -> str:
    return f'os.environ["{KEY_VARIABLE}"]' if door.key_place else f'"{ANY_KEY}"'


def claude_code(offer: Offer, door: Door) -> str:
    """Its tiers all become the one model; its own calls home would only wait."""
    name = offer.models[0]
    values = {
        "ANTHROPIC_BASE_URL": door.url,
        "ANTHROPIC_AUTH_TOKEN": shell_key(door),
        "ANTHROPIC_MODEL": name,
        "ANTHROPIC_DEFAULT_OPUS_MODEL": name,
        "ANTHROPIC_DEFAULT_SONNET_MODEL": name,
        "ANTHROPIC_DEFAULT_HAIKU_MODEL": name,
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    }
    return "\n".join([*(f"export {key}={value}" for key, value in values.items()), "claude"])


def curl(offer: Offer, door: Door) -> str:
    asked = {"model": offer.models[0], "messages": [{"role": "user", "content": "Hello"}]}
    key = f' -H "Authorization: Bearer {shell_key(door)}"' if door.key_place else ""
    return (
        f"curl -s {door.url}/v1/chat/completions{key} -H 'Content-Type: application/json' "
        f"-d '{json.dumps(asked)}'"
    )


def shell_key(door: Door) -> str:
    return f"${KEY_VARIABLE}" if door.key_place else ANY_KEY
