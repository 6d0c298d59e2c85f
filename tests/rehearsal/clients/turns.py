"""Turns of real clients through a door: OpenCode, the AI SDK, and the two Python SDKs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import struct
import subprocess
import tempfile
import zlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anthropic
import openai

from tests.rehearsal.machine import cache_folder, command, install, locked

HERE = Path(__file__).resolve().parent
FILES = ("package.json", "package-lock.json", "turn.mjs")
TOOL_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"path": {"type": "string", "maxLength": 8}},
    "required": ["path"],
    "additionalProperties": False,
}


@dataclass
class Turn:
    """What a client has understood of one answer. calls: (name, arguments as read)."""

    text: str = ""
    thinking: str = ""
    calls: list[tuple[str, Any]] = field(default_factory=list)
    finish: str | None = None
    tokens: int = 0


# --- from npm ------------------------------------------------------------------------------------


def installed() -> Path:
    """The folder with the locked packages of npm, made once for each lock."""
    key = hashlib.sha256(b"".join((HERE / name).read_bytes() for name in FILES)).hexdigest()[:10]
    folder = cache_folder() / "clients" / key
    with locked(cache_folder() / "clients" / "lock"):
        if not (folder / "complete").exists():
            if shutil.which("npm") is None:
                install(["nodejs", "npm"])
            shutil.rmtree(folder.parent / key, ignore_errors=True)
            folder.mkdir(parents=True)
            for name in FILES:
                shutil.copy(HERE / name, folder)
            command("npm", "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", folder)
            (folder / "complete").touch()
    return folder


def ai_sdk(url: str, key: str, model: str, *, forced: bool = False) -> dict[str, Any]:
    """One streamed turn with `ai` and @ai-sdk/openai-compatible, see turn.mjs."""
    asked = json.dumps({"url": url, "key": key, "model": model, "forced": forced})
    done = subprocess.run(
        ["node", "turn.mjs", asked],
        cwd=installed(),
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def opencode(configuration: str, key_variable: str, key: str, prompt: str) -> str:
    """What `opencode run` prints in a project with this opencode.json, in a home of its own."""
    program = installed() / "node_modules/opencode-linux-x64/bin/opencode"
    with tempfile.TemporaryDirectory() as folder:
        project = Path(folder, "project")
        project.mkdir()
        (project / "opencode.json").write_text(configuration)
        done = subprocess.run(
            [program, "run", prompt],
            cwd=project,
            env={"PATH": os.environ["PATH"], "HOME": folder, key_variable: key},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


# --- from Python ---------------------------------------------------------------------------------


def openai_sdk(
    url: str, key: str, model: str, *, forced: bool = False, image: bool = False, **more: Any
) -> Turn:
    """One streamed chat completion with `openai`."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, timeout=300)
    content: Any = "Read a.py"
    if image:
        picture = {"url": f"data:image/png;base64,{base64.b64encode(png()).decode()}"}
        content = [
            {"type": "text", "text": content},
            {"type": "image_url", "image_url": picture},
        ]
    if forced:
        function = {"name": "read", "parameters": TOOL_SCHEMA}
        more["tools"] = [{"type": "function", "function": function}]
        more["tool_choice"] = {"type": "function", "function": {"name": "read"}}
    stream = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": content}],
        max_tokens=64,
        stream=True,
        stream_options={"include_usage": True},
        **more,
    )
    return turn_of_chunks(stream)


def turn_of_chunks(stream: Any) -> Turn:
    turn, names, arguments = Turn(), dict[int, str](), dict[int, str]()
    for chunk in stream:
        turn.tokens = chunk.usage.completion_tokens if chunk.usage else turn.tokens
        for choice in chunk.choices:
            turn.text += choice.delta.content or ""
            turn.thinking += getattr(choice.delta, "reasoning_content", None) or ""
            turn.finish = choice.finish_reason or turn.finish
            for call in choice.delta.tool_calls or ():
                if call.function.name:
                    names[call.index] = call.function.name
                told = arguments.get(call.index, "")
                arguments[call.index] = told + (call.function.arguments or "")
    turn.calls = [(names[index], json.loads(arguments[index])) for index in sorted(names)]
    return turn


def anthropic_sdk(url: str, key: str, model: str, *, forced: bool = False, **more: Any) -> Turn:
    """One streamed message with `anthropic`, over /v1/messages."""
    client = anthropic.Anthropic(base_url=url, api_key=key, max_retries=0, timeout=300)
    if forced:
        more["tools"] = [{"name": "read", "description": "Reads", "input_schema": TOOL_SCHEMA}]
        more["tool_choice"] = {"type": "tool", "name": "read"}
    messages: Any = [{"role": "user", "content": "Read a.py"}]
    with client.messages.stream(model=model, max_tokens=64, messages=messages, **more) as stream:
        answer = stream.get_final_message()
    turn = Turn(finish=answer.stop_reason, tokens=answer.usage.output_tokens)
    for block in answer.content:
        if block.type == "text":
            turn.text += block.text
        elif block.type == "thinking":
            turn.thinking += block.thinking
        elif block.type == "tool_use":
            turn.calls.append((block.name, block.input))
    return turn


def png(size: int = 32) -> bytes:
    """A grey picture."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = (b"\0" + b"\x80" * size) * size
    head = struct.pack(">IIBBBBB", size, size, 8, 0, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", head)
        + chunk(b"IDAT", zlib.compress(rows))
        + chunk(b"IEND", b"")
    )
