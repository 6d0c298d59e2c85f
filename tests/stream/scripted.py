"""A server that says what it is told to, with cuts, pauses and deaths; and the filter before it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from yarl import URL

from aibox.stream.config import Config, Keys
from aibox.stream.server import Filter

SSE = {"Content-Type": "text/event-stream; charset=utf-8"}
JSON = {"Content-Type": "application/json"}


class Die:
    """The server breaks the connection here."""


class Wait(float):
    """Seconds of silence."""


Step = bytes | Die | Wait | asyncio.Event  # an event: the server waits for it


@dataclass
class Script:
    """One answer. whole: the header tells the length, instead of chunks."""

    steps: Sequence[Step] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(SSE))
    before: float | asyncio.Event = 0  # the header; seconds, or an event as above
    whole: bool = False
    endless: bytes = b""  # said again and again, until who asked is gone


@dataclass
class Asked:
    line: str
    headers: dict[str, str]
    body: bytes


class Scripted:
    """The server. asked: what came; gone: how many hung up before the end."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.by_path: dict[str, Script] = {}
        self.asked: list[Asked] = []
        self.gone = 0
        self.sent = 0  # bytes of bodies
        self.port = 0
        self._listening: asyncio.Server | None = None

    async def start(self) -> None:
        self._listening = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = self._listening.sockets[0].getsockname()[1]

    def stop(self) -> None:
        if self._listening is not None:
            self._listening.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            asked = await _request(reader)
            self.asked.append(asked)
            path = asked.line.split()[1]
            await self._play(self.by_path.get(path, self.script), reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            self.gone += 1
        except asyncio.CancelledError:  # the test is over
            return
        finally:
            writer.close()

    async def _play(
        self, script: Script, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        if await self._silent(script.before, reader):
            raise ConnectionResetError
        headers = dict(script.headers)
        if script.whole:
            size = sum(len(step) for step in script.steps if isinstance(step, bytes))
            headers["Content-Length"] = str(size)
        else:
            headers["Transfer-Encoding"] = "chunked"
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        writer.write(f"HTTP/1.1 {script.status} Said\r\n{head}\r\n".encode())
        for step in script.steps:
            if isinstance(step, Die):
                await writer.drain()
                writer.transport.abort()
                return
            if isinstance(step, bytes):
                await self._say(step, script, writer)
            elif await self._silent(step, reader):
                raise ConnectionResetError
        while script.endless:
            await self._say(script.endless, script, writer)
        if not script.whole:
            writer.write(b"0\r\n\r\n")
        await writer.drain()

    async def _say(self, words: bytes, script: Script, writer: asyncio.StreamWriter) -> None:
        writer.write(words if script.whole else b"%x\r\n%b\r\n" % (len(words), words))
        self.sent += len(words)
        await writer.drain()

    async def _silent(self, seconds: float | asyncio.Event, reader: asyncio.StreamReader) -> bool:
        """Wait; True as soon as who asked hangs up. An event is waited for, whoever hangs up."""
        if isinstance(seconds, asyncio.Event):
            return not await seconds.wait()
        if not seconds:
            return False
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                return not await reader.read(1)
        return False


async def _request(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in head[1:] if line)
    named = {name.lower(): value for name, value in headers.items()}
    body = await reader.readexactly(int(named.get("content-length", 0)))
    return Asked(head[0], named, body)


@dataclass
class Doors:
    """The scripted server and the filter, both listening."""

    server: Scripted
    filter: Filter
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.filter.port}"

    def ask(self, path: str = "/v1/chat/completions", **more: Any) -> Any:
        more.setdefault("json", {"model": "m", "stream": True, "messages": []})
        return self.client.post(URL(self.url + path, encoded=True), **more)

    def value(self, name: str, **labels: str) -> float:
        """A counter's value, 0 where it was never counted."""
        return self.filter.metrics.registry.get_sample_value(f"aibox_stream_{name}", labels) or 0


@contextlib.asynccontextmanager
async def doors(
    script: Script | None = None, keys: Keys | None = None, **settings: Any
) -> AsyncIterator[Doors]:
    server = Scripted(script or Script())
    await server.start()
    upstream = f"http://127.0.0.1:{server.port}"
    told = {"address": "127.0.0.1", "port": 0, "upstream": upstream, **settings}
    running = Filter(Config.model_validate(told), keys or Keys({}))
    await running.start()
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as client:
        yield Doors(server, running, client)
    await running.stop()
    server.stop()


async def until(true: Any, seconds: float = 20) -> bool:
    """Whether it becomes true in this time."""
    end = asyncio.get_running_loop().time() + seconds
    while not true():
        if asyncio.get_running_loop().time() > end:
            return False
        await asyncio.sleep(0.01)
    return True
