"""A thousand clients at once, of every kind: none is lost, and none gets what is another's."""

from __future__ import annotations

import asyncio
import json
import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from aibox.stream.config import Limits
from tests.stream.process import PROJECT, Running, running
from tests.stream.rows import chunk, said, stream
from tests.stream.scripted import Script, Scripted, Step
from tests.stream.test_server import HELLO, in_a_loop

IDLE, SLOW, STREAMING = 250, 250, 500
PATHS = {
    "chat": "/v1/chat/completions",
    "responses": "/v1/responses",
    "messages": "/v1/messages",
}
MOST_MEMORY = 200 << 20  # bytes of the filter
HEAD = "POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 15\r\n%s\r\n" + '{"stream":true}'


@pytest.fixture(autouse=True)
def enough_files() -> Iterator[None]:
    """Three open files a client here: its own, and both ends of the server's."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_the_unit_may_open_enough_files() -> None:
    """Two a request that is answered, one an idle client."""
    unit = (PROJECT / "templates/door-sandbox.j2").read_text()
    found = re.search(r"^LimitNOFILE=(\d+)$", unit, re.MULTILINE)
    assert found
    assert int(found.group(1)) > 2 * Limits().streams + 10_000


@dataclass
class Heard:
    head: str
    body: bytes

    @property
    def status(self) -> int:
        return int(self.head.split()[1])


class Talker:
    """One client on a connection of its own."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    @classmethod
    async def connected(cls, port: int) -> Talker:
        return cls(*await asyncio.open_connection("127.0.0.1", port))

    def ask(self, path: str, more: str = "Connection: close\r\n") -> None:
        self.writer.write((HEAD % (path, more)).encode())

    async def begun(self) -> str:
        return (await self.reader.readuntil(b"\r\n\r\n")).decode()

    async def heard(self, pause: float = 0) -> Heard:
        """The whole answer. pause: seconds between two reads of little."""
        head = await self.begun()
        found = []
        while data := await self.reader.read(2048 if pause else 1 << 16):
            found.append(data)
            await asyncio.sleep(pause)
        self.writer.close()
        body = b"".join(found)
        return Heard(head, unchunked(body) if "chunked" in head.lower() else body)


def unchunked(body: bytes) -> bytes:
    found = []
    while body:
        size, _, body = body.partition(b"\r\n")
        found.append(body[: int(size, 16)])
        body = body[int(size, 16) + 2 :]
    assert found.pop() == b""  # it was ended, not cut off
    return b"".join(found)


def words_of(number: int, times: int) -> bytes:
    """An answer that nobody else gets, a part of it thought."""
    names = [f"client {number} word {word}" for word in range(times)]
    thought = [chunk({"reasoning": name, "reasoning_content": name}) for name in names]
    return stream([*thought, *said(*names), chunk({}, "stop")])


def script_of(words: bytes, go: asyncio.Event) -> Script:
    """The first events at once, the rest in uneven pieces when they may."""
    begun = words.index(b"\n\n") + 2
    rest = words[begun:]
    steps: list[Step] = [words[:begun], go]
    return Script([*steps, *[rest[at : at + 777] for at in range(0, len(rest), 777)]])


async def asked(
    one: Running, server: Scripted, number: int, words: bytes, go: asyncio.Event
) -> Talker:
    path = f"{PATHS['chat']}?{number}"
    server.by_path[path] = script_of(words, go)
    talker = await Talker.connected(one.port)
    talker.ask(path)
    return talker


async def refused_as_the_api_does(one: Running, api: str) -> None:
    talker = await Talker.connected(one.port)
    talker.ask(PATHS[api])
    got = await talker.heard()
    assert got.status == 429
    assert "\r\nRetry-After: " in got.head
    found = json.loads(got.body)
    assert found["error"]["type"] == "rate_limit_error"
    assert (found.get("type") == "error") is (api == "messages")


@in_a_loop
async def test_a_thousand_clients_of_every_kind(tmp_path: Path) -> None:
    server, go = Scripted(Script()), asyncio.Event()
    await server.start()
    limits = {"streams": SLOW + STREAMING}
    # no sign of life while all of them are made: what they get is compared with what was said
    async with running(tmp_path, server.port, limits=limits, keepalive_s=600) as one:
        idle = [await Talker.connected(one.port) for _ in range(IDLE)]
        words = [words_of(n, 150 if n < SLOW else 15) for n in range(SLOW + STREAMING)]
        talking = [await asked(one, server, n, said_, go) for n, said_ in enumerate(words)]
        hearing = [
            asyncio.create_task(talker.heard(0.002 if n < SLOW else 0))
            for n, talker in enumerate(talking)
        ]
        while len(server.asked) < len(words):
            await asyncio.sleep(0.05)
        for api in [*PATHS] * 5:
            await refused_as_the_api_does(one, api)
        go.set()
        heard = await asyncio.gather(*hearing)
        assert all(got.status == 200 for got in heard)
        assert [got.body for got in heard] == words
        server.script = Script([HELLO])
        for talker in idle:  # they were forgotten by nobody
            talker.ask(PATHS["chat"], "")
        assert all([" 200 " in await talker.begun() for talker in idle])
        assert one.memory() < MOST_MEMORY
    server.stop()
    whole = [line for line in one.lines if " 200 stream " in line and line.endswith("end=whole")]
    assert len(whole) == len(words) + IDLE
    assert not any("Traceback" in line for line in one.lines)
