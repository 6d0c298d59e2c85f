"""The filter as a service: it says when it is ready, ends in time, and stays small."""

from __future__ import annotations

import asyncio
import random
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aibox.stream.mends import DEFAULTS
from aibox.stream.mends.answer import Answer
from aibox.stream.mends.request import asked
from tests.stream.process import Running, running
from tests.stream.responses import RESPONSES
from tests.stream.rows import CHAT, MESSAGES, STOP, Row, chunk, said, stream
from tests.stream.scripted import Script, Scripted, Step, Wait, until
from tests.stream.test_server import HELLO, in_a_loop

MOST_GROWTH = 8 << 20  # bytes, over a whole soak
PATHS = {
    "chat": "/v1/chat/completions",
    "messages": "/v1/messages",
    "responses": "/v1/responses",
}
ROWS = CHAT + MESSAGES + RESPONSES


async def server_with(*steps: Step) -> Scripted:
    server = Scripted(Script(steps))
    await server.start()
    return server


@in_a_loop
async def test_it_says_when_it_is_ready_and_lets_answers_end(tmp_path: Path) -> None:
    server = await server_with(HELLO[:60], Wait(1), HELLO[60:])
    async with running(tmp_path, server.port) as one, aiohttp.ClientSession() as client:
        assert one.state() == "READY=1"
        async with client.post(one.url + PATHS["chat"], json={"stream": True}) as got:
            one.process.send_signal(signal.SIGTERM)
            assert await got.read() == HELLO
        assert await asyncio.wait_for(one.process.wait(), 30) == 0
        assert one.state() == "STOPPING=1"
    server.stop()


@in_a_loop
async def test_keys_are_read_anew_on_a_signal(tmp_path: Path) -> None:
    server = await server_with(HELLO)
    keys = tmp_path / "keys"
    keys.write_text("a: one")
    keys.chmod(0o600)

    async def status(client: aiohttp.ClientSession, key: str) -> int:
        async with client.post(one.url + PATHS["chat"], headers={"x-api-key": key}) as got:
            return got.status

    async with (
        running(tmp_path, server.port, keys_file=str(keys)) as one,
        aiohttp.ClientSession() as client,
    ):
        assert [await status(client, key) for key in ("one", "two")] == [200, 401]
        keys.write_text("a: two")
        one.process.send_signal(signal.SIGHUP)
        assert await until(lambda: any("read anew" in line for line in one.lines))
        assert [await status(client, key) for key in ("one", "two")] == [401, 200]
        keys.write_text("nonsense")
        one.process.send_signal(signal.SIGHUP)
        assert await until(lambda: any("stay as they were" in line for line in one.lines))
        assert await status(client, "two") == 200
    server.stop()


@in_a_loop
async def test_a_taken_port_is_refused_in_words(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with running(tmp_path, 1, port=port) as one:
            assert await asyncio.wait_for(one.process.wait(), 60) == 1
    said_ = "\n".join(one.lines)
    assert f"found     127.0.0.1 port {port}" in said_
    assert "Traceback" not in said_


# --- a soak: memory is flat, every byte is accounted for ----------------------------------------

LONG = Row("a long answer", "", [*said(*["word "] * 150), STOP], [])
THOUGHT = Row("a long thought", "", [*[chunk({"reasoning": "hm "})] * 150, *said("x"), STOP], [])


class Talk:
    """What a stream asks for and must get, one after the other."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def __iter__(self) -> Iterator[tuple[Row, Script, bytes]]:
        while True:
            row = self._random.choice([*ROWS, LONG, THOUGHT])
            came = stream(row.came, row.api)
            answer = Answer(row.api, asked(row.request, True), DEFAULTS)
            expected = answer.feed(came) + answer.end()
            yield row, Script(list(self._cut(came))), expected

    def _cut(self, came: bytes) -> Iterator[Step]:
        at = 0
        while at < len(came):
            size = self._random.randint(1, 400)
            yield came[at : at + size]
            yield Wait(self._random.random() / 30)
            at += size


async def talk(one: Running, server: Scripted, number: int, end: float) -> tuple[int, int]:
    """(bytes, answers) of one stream until this time."""
    sent = answers = 0
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(force_close=True)) as client:
        for row, script, expected in Talk(number):
            if time.monotonic() > end:
                return sent, answers
            path = f"{PATHS[row.api]}?{number}"
            server.by_path[path] = script
            request: dict[str, Any] = {"stream": True, **row.request}
            async with client.post(one.url + path, json=request) as got:
                body = await got.read()
            assert body == expected
            sent, answers = sent + len(body), answers + 1
    raise AssertionError("a talk has no end of its own")


async def soaked(folder: Path, seconds: float, streams: int = 64) -> None:
    server = await server_with()
    async with running(folder, server.port) as one:
        warm = time.monotonic() + min(10, seconds / 3)
        first = await asyncio.gather(*(talk(one, server, n, warm) for n in range(streams)))
        memory, files = one.memory(), one.open_files()
        end = time.monotonic() + seconds
        rest = await asyncio.gather(*(talk(one, server, n, end) for n in range(streams)))
        growth = one.memory() - memory
        assert growth < MOST_GROWTH
        print(f"memory grew by {growth >> 10} KiB of {memory >> 10}")
        assert await until(lambda: one.open_files() <= files)
        sent, answers = (sum(numbers) for numbers in zip(*first, *rest, strict=True))
        assert await until(lambda: len([line for line in one.lines if " key=" in line]) == answers)
    lines = [line for line in one.lines if " key=" in line]
    assert sum(int(line.split(" bytes=")[1].split()[0]) for line in lines) == sent
    assert all(" 200 stream " in line and line.endswith("end=whole") for line in lines)
    assert answers > streams
    server.stop()


@pytest.mark.long
def test_a_soak_of_half_a_minute(tmp_path: Path) -> None:
    asyncio.run(soaked(tmp_path, 23))


@pytest.mark.long
def test_a_soak_of_ten_minutes(tmp_path: Path) -> None:
    asyncio.run(soaked(tmp_path, 600))
