"""The filter over sockets: what goes through, who may ask, and what happens when one breaks off."""

from __future__ import annotations

import asyncio
import functools
import gzip
import json
import logging
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import openai
import pytest
import uvloop

from aibox.stream.config import Keys
from tests.stream import responses
from tests.stream.rows import (
    DONE,
    MESSAGE,
    STOP,
    block_stop,
    chunk,
    message,
    read_back,
    said,
    stop_for,
    stream,
    text,
    text_start,
)
from tests.stream.scripted import JSON, SSE, Die, Doors, Script, Step, Wait, doors, until

HELLO = stream([*said("Hello"), STOP])
FLOOD = (b": " + b"more" * 2000 + b"\n\n") * 10
KEYS = Keys({"laptop": "sk-laptop-1", "desk": "sk-desk-2"})
PATHS = ("chat/completions", "completions", "responses", "messages", "messages/count_tokens")


def in_a_loop(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(asyncio.wait_for(test(*args, **named), 180))

    return run


def error_of(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(body)["error"]
    return found


# --- what goes through --------------------------------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@in_a_loop
async def test_a_body_passes_untouched(path: str) -> None:
    reply = b'{"answer":   "\xc3\xa9"}'
    headers = {**JSON, "X-Request-Id": "7", "Connection": "close, X-Hop", "X-Hop": "1"}
    body = b'{"model":"m",  "prompt":"\xff"}'
    async with doors(Script([reply], headers=headers, whole=True)) as d:
        sent = {**JSON, "X-Mine": "yes", "Connection": "X-Own", "X-Own": "1"}
        async with d.ask(f"/v1/{path}?a=%2Fb&c", json=None, data=body, headers=sent) as got:
            assert (got.status, await got.read()) == (200, reply)
            assert got.headers["X-Request-Id"] == "7"
            assert "X-Hop" not in got.headers
        asked = d.server.asked[0]
        assert asked.line == f"POST /v1/{path}?a=%2Fb&c HTTP/1.1"
        assert asked.body == body
        assert asked.headers["x-mine"] == "yes"
        assert "x-own" not in asked.headers
        assert asked.headers["host"] == f"127.0.0.1:{d.server.port}"


@in_a_loop
async def test_a_stream_passes_as_it_comes() -> None:
    end = HELLO.index(b"\n\n") + 2
    go = asyncio.Event()
    steps: list[Step] = [HELLO[:40], HELLO[40:end], go, HELLO[end:]]
    async with doors(Script(steps)) as d, d.ask() as got:
        assert got.headers["Content-Type"] == SSE["Content-Type"]
        assert await got.content.readuntil(b"\n\n") == HELLO[:end]
        go.set()
        assert await got.read() == HELLO[end:]


@in_a_loop
async def test_an_image_passes_and_so_does_a_list_of_models() -> None:
    image = "data:image/png;base64," + "iVBO" * 500_000
    asked = {"messages": [{"role": "user", "content": [{"image_url": {"url": image}}]}]}
    async with doors(Script([b'{"data":[]}'], headers=JSON, whole=True)) as d:
        body = json.dumps(asked).encode()
        async with d.ask(json=None, data=body) as got:
            assert got.status == 200
        assert d.server.asked[0].body == body
        async with d.client.get(d.url + "/v1/models") as got:
            assert await got.read() == b'{"data":[]}'
        async with d.client.get(d.url + "/v1/responses/resp_1") as got:
            assert got.status == 200
        async with d.client.post(d.url + "/v1/responses/resp_1/cancel") as got:
            assert got.status == 200
        assert [one.line.split()[1] for one in d.server.asked[1:]] == [
            "/v1/models",
            "/v1/responses/resp_1",
            "/v1/responses/resp_1/cancel",
        ]


@pytest.mark.parametrize("status", [400, 404, 422, 500, 503])
@in_a_loop
async def test_the_servers_own_errors_pass(status: int) -> None:
    said_ = b'{"error":{"message":"no"}}'
    async with doors(Script([said_], status, JSON, whole=True)) as d, d.ask() as got:
        assert (got.status, await got.read()) == (status, said_)


@in_a_loop
async def test_another_encoding_passes_unread() -> None:
    headers = {**SSE, "Content-Encoding": "gzip"}
    packed = gzip.compress(stream([chunk({"reasoning": "Hm"}), *said("x"), STOP]))
    async with doors(Script([packed], headers=headers)) as d, d.ask() as got:
        assert b"reasoning_content" not in await got.read()


@in_a_loop
async def test_mends_work_over_sockets_and_are_counted(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "aibox.stream")
    came = stream([chunk({"reasoning": "secret words"}), *said("x"), STOP])
    pieces = [came[at : at + 30] for at in range(0, len(came), 30)]
    async with doors(Script(pieces)) as d:
        async with d.ask(headers={"Authorization": "Bearer sk-secret"}) as got:
            assert read_back(await got.read())[0]["choices"][0]["delta"] == {
                "reasoning": "secret words",
                "reasoning_content": "secret words",
            }
        assert await until(lambda: "key=" in caplog.text)
        assert d.value("mends_total", mend="reasoning_names", mode="on") == 1
        asked = {"path": "/v1/chat/completions", "status": "200"}
        assert d.value("requests_total", **asked) == 1
        assert d.value("active_streams") == 0
    (line,) = [record.message for record in caplog.records if "key=" in record.message]
    assert "POST /v1/chat/completions 200 stream" in line
    assert "mends=reasoning_names:1 end=whole" in line
    assert "secret" not in caplog.text


@in_a_loop
async def test_a_response_is_mended_over_sockets_streamed_and_in_one_body() -> None:
    came = responses.answer(
        responses.spoken(responses.LONG, 0, "Done.\n</th", "ink>\n\nThe answer")
    )
    sent = stream(came, "responses")
    script = Script([sent[at : at + 50] for at in range(0, len(sent), 50)])
    async with doors(script, mends={"think_tag": "on"}) as d:
        async with d.ask("/v1/responses", json={"stream": True, "input": "Hi"}) as got:
            last = read_back(await got.read())[-1]
        assert last["response"]["output"] == responses.MOVED
        assert last["response"]["usage"] == responses.USAGE
        d.server.script = Script([json.dumps(responses.body(responses.LONG)).encode()], 200, JSON)
        async with d.ask("/v1/responses", json={"input": "Hi"}) as got:
            assert await got.json() == responses.body(*responses.MOVED)
        assert await until(lambda: d.value("mends_total", mend="think_tag", mode="on") == 2)


@in_a_loop
async def test_openais_own_client_reads_a_mended_response() -> None:
    """It builds items up from their pieces, and is strict about their order."""
    words = "I look." + responses.TWO
    came = responses.answer(
        responses.spoken(responses.message("m1", words), 0, "I look.", words[7:])
    )
    script = Script([stream(came, "responses")])
    async with doors(script, mends={"tool_call_text": "on"}) as d:
        client = openai.AsyncOpenAI(base_url=d.url + "/v1", api_key="none", max_retries=0)
        tools: Any = responses.TOOLS["tools"]
        async with client.responses.stream(model="m", input="Hi", tools=tools) as talk:
            kinds = [event.type async for event in talk]
            whole = await talk.get_final_response()
        await client.close()
    assert whole.output_text == "I look."
    called = [item.arguments for item in whole.output if item.type == "function_call"]
    assert called == ['{"path": "a.py"}', '{"lines": 7}']
    assert kinds.count("response.function_call_arguments.done") == 2


@in_a_loop
async def test_an_answer_in_one_body_is_mended() -> None:
    reply = {"choices": [{"message": {"reasoning": "Hm", "content": "x"}}]}
    async with doors(Script([json.dumps(reply).encode()], headers=JSON)) as d, d.ask() as got:
        found = (await got.json())["choices"][0]["message"]
        assert found == {"reasoning": "Hm", "content": "x", "reasoning_content": "Hm"}


@in_a_loop
async def test_a_stream_whose_length_is_told_may_grow() -> None:
    came = stream([chunk({"reasoning": "Hm"}), *said("x"), STOP])
    async with doors(Script([came], whole=True)) as d, d.ask() as got:
        assert b"reasoning_content" in await got.read()


@in_a_loop
async def test_who_waits_to_send_his_body_is_told_to_go_on() -> None:
    async with doors(Script([b"{}"], headers=JSON, whole=True)) as d:
        reader, writer = await asyncio.open_connection("127.0.0.1", d.filter.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n"
        writer.write(head + b"Expect: 100-continue\r\n\r\n")
        assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
        writer.write(b"{}")
        assert b" 200 " in await reader.readline()
        assert "expect" not in d.server.asked[0].headers
        writer.close()


# --- who may ask --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "status", "name"),
    [
        ({"Authorization": "Bearer sk-laptop-1"}, 200, "laptop"),
        ({"Authorization": "bearer  sk-desk-2"}, 200, "desk"),
        ({"x-api-key": "sk-desk-2"}, 200, "desk"),
        ({"x-api-key": "wrong", "Authorization": "Bearer sk-desk-2"}, 200, "desk"),
        ({"Authorization": "Bearer sk-laptop-"}, 401, "-"),
        ({"Authorization": "Basic sk-laptop-1"}, 401, "-"),
        ({"Authorization": "Bearer "}, 401, "-"),
        ({"x-api-key": "ké"}, 401, "-"),
        ({}, 401, "-"),
    ],
)
@in_a_loop
async def test_a_key_is_asked_and_goes_no_further(
    headers: dict[str, str], status: int, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "aibox.stream")
    settings = {"keys_file": "/keys"}
    async with doors(Script([HELLO]), KEYS, **settings) as d:
        async with d.ask(headers=headers) as got:
            body = await got.read()
            assert got.status == status
        assert await until(lambda: "key=" in caplog.text)
        if status == 401:
            assert error_of(body)["type"] == "authentication_error"
            assert not d.server.asked
        else:
            assert not {"authorization", "x-api-key"} & set(d.server.asked[0].headers)
    assert f"key={name} " in caplog.text
    assert "sk-" not in caplog.text


@in_a_loop
async def test_errors_come_in_the_apis_own_form() -> None:
    async with doors(Script([HELLO]), KEYS) as d:
        async with d.ask("/v1/messages") as got:
            assert await got.json() == {
                "type": "error",
                "error": {
                    "type": "authentication_error",
                    "message": "A key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`.",
                },
            }
        async with d.client.get(
            d.url + "/v1/embeddings", headers={"x-api-key": "sk-desk-2"}
        ) as got:
            assert got.status == 404
            assert "/v1/chat/completions" in error_of(await got.read())["message"]
        assert not d.server.asked


@pytest.mark.parametrize("path", ["/v1/models/../../metrics", "/v1//models", "/v1/models/", "/"])
@in_a_loop
async def test_a_path_that_only_looks_known_goes_nowhere(path: str) -> None:
    async with doors(Script([HELLO])) as d:
        reader, writer = await asyncio.open_connection("127.0.0.1", d.filter.port)
        writer.write(f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        assert b" 404 " in await reader.readline()
        assert not d.server.asked
        writer.close()


@in_a_loop
async def test_without_keys_the_servers_own_key_can_be_given() -> None:
    async with doors(Script([HELLO])) as d:
        async with d.ask(headers={"Authorization": "Bearer theirs"}) as got:
            await got.read()
        assert d.server.asked[0].headers["authorization"] == "Bearer theirs"


# --- limits -------------------------------------------------------------------------------------


@in_a_loop
async def test_a_body_over_the_limit_is_refused() -> None:
    async with doors(limits={"body_bytes": 1000}) as d:
        for body in (b"x" * 1001, _in_pieces(b"x" * 600, b"x" * 600)):
            async with d.ask(json=None, data=body) as got:
                assert got.status == 413
                assert "1000 bytes" in error_of(await got.read())["message"]
        assert not d.server.asked


async def _in_pieces(*pieces: bytes) -> Any:
    for piece in pieces:
        yield piece


@in_a_loop
async def test_a_header_that_comes_in_drops_ends_too() -> None:
    async with doors(limits={"header_s": 0.3}) as d:
        reader, writer = await asyncio.open_connection("127.0.0.1", d.filter.port)
        began = time.monotonic()
        for letter in b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nX-Slow: 1" * 9:
            writer.write(bytes([letter]))
            if reader.at_eof() or reader.exception():  # reset, where a letter came after the end
                break
            await asyncio.sleep(0.05)
        assert time.monotonic() - began < 3
        writer.close()


@in_a_loop
async def test_a_slow_header_and_a_slow_body_end() -> None:
    async with doors(limits={"header_s": 0.3}) as d:
        reader, writer = await asyncio.open_connection("127.0.0.1", d.filter.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        assert await asyncio.wait_for(reader.read(), 20) == b""
        writer.close()
    async with doors(limits={"body_s": 0.3}) as d:
        reader, writer = await asyncio.open_connection("127.0.0.1", d.filter.port)
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{"
        writer.write(head)
        assert b" 408 " in await asyncio.wait_for(reader.readline(), 20)
        writer.close()


@pytest.mark.parametrize("path", ["chat/completions", "completions", "responses", "messages"])
@in_a_loop
async def test_too_many_at_a_time_are_told_to_wait(path: str) -> None:
    go = asyncio.Event()
    async with doors(Script([go, HELLO]), limits={"streams": 2}) as d:
        async with d.ask() as one, d.ask() as two, d.ask(f"/v1/{path}") as three:
            assert (one.status, two.status, three.status) == (200, 200, 429)
            assert int(three.headers["Retry-After"]) > 0
            found = await three.json()
            go.set()
        assert found["error"]["type"] == "rate_limit_error"
        assert (found.get("type") == "error") is (path == "messages")
        async with d.client.get(d.url + "/health") as got:
            assert got.status == 200


# --- the server does not answer, or breaks off --------------------------------------------------


@pytest.mark.parametrize("path", PATHS)
@in_a_loop
async def test_while_the_server_starts_clients_are_told_when_to_ask_again(path: str) -> None:
    async with doors() as d:
        d.server.stop()
        async with d.ask(f"/v1/{path}") as got:
            assert got.status == 503
            assert int(got.headers["Retry-After"]) > 0
            found = await got.json()
        kind = "overloaded_error" if "messages" in path else "server_error"
        assert found["error"]["type"] == kind
        assert ("type" in found) == ("messages" in path)
        async with d.client.get(d.url + "/health") as got:
            assert got.status == 503


@in_a_loop
async def test_a_server_that_dies_before_it_answers_is_a_bad_gateway() -> None:
    for before, headers in ((b"", SSE), (b"{", JSON)):
        async with doors(Script([before, Die()] if before else [], headers=headers)) as d:
            if not before:
                d.server.script.headers = {"broken": "\x00"}
            async with d.ask() as got:
                assert got.status == 502
                assert got.headers["Retry-After"]


@pytest.mark.parametrize(
    ("path", "begun"),
    [
        ("chat/completions", stream(said("Hi"))[: -len(DONE)]),
        ("completions", b'data: {"choices":[{"text":"Hi"}]}\n\n'),
        ("responses", b'data: {"type":"response.created"}\n\n'),
        ("messages", stream([MESSAGE, text_start(0), text(0, "Hi")], "messages")),
    ],
)
@pytest.mark.parametrize("last", [[Wait(0.05), Die()], []])
@in_a_loop
async def test_f11_a_server_that_dies_in_the_middle(
    path: str, begun: bytes, last: list[Any]
) -> None:
    async with doors(Script([begun, b"data: {", *last])) as d:
        async with d.ask(f"/v1/{path}") as got:
            body = await got.read()
        assert body.startswith(begun)
        assert "error" in json.dumps(read_back(body)[-1])
        assert await until(lambda: d.value("faults_total", kind="cut_answer") == 1)
        assert d.value("mends_total", mend="error_event", mode="on") == 1


@in_a_loop
async def test_f11_counted_the_connection_breaks_as_the_servers_did() -> None:
    begun = stream(said("Hi"))[: -len(DONE)]
    async with doors(Script([begun, Wait(0.1), Die()]), mends={"error_event": "count"}) as d:
        with pytest.raises(aiohttp.ClientError):
            async with d.ask() as got:
                await got.read()
        assert await until(lambda: d.value("mends_total", mend="error_event", mode="count") == 1)


# --- silence ------------------------------------------------------------------------------------


@pytest.mark.parametrize("silence", ["before the header", "before the first", "in between"])
@pytest.mark.parametrize(
    ("path", "answer", "sign"),
    [
        ("chat/completions", HELLO, b": keep-alive\n\n"),
        ("completions", HELLO, b": keep-alive\n\n"),
        ("responses", b'data: {"type":"response.completed"}\n\n', b": keep-alive\n\n"),
        (
            "messages",
            stream(message(text_start(0), text(0, "Hi"), block_stop(0)), "messages"),
            b'event: ping\ndata: {"type": "ping"}\n\n',
        ),
    ],
)
@in_a_loop
async def test_f8_a_sign_of_life_in_silence(
    path: str, answer: bytes, sign: bytes, silence: str
) -> None:
    go, interval, body = asyncio.Event(), 0.05, b""
    script = Script([answer], before=go) if silence == "before the header" else Script()
    if silence == "before the first":
        script.steps = [go, answer]
    elif silence == "in between":
        script.steps = [answer[:20], go, answer[20:]]
    began = time.monotonic()
    async with doors(script, keepalive_s=interval) as d, d.ask(f"/v1/{path}") as got:
        while body.count(sign) < 2:
            assert not got.content.at_eof(), body
            body += await got.content.readany()
        go.set()
        body += await got.read()
    assert body.count(sign) <= 1 + (time.monotonic() - began) / interval
    assert body.replace(sign, b"") == answer
    go.clear()
    async with doors(script, keepalive_s=interval, mends={"keep_alive": "count"}) as d:
        asking = asyncio.create_task(whole(d, path))
        assert await until(lambda: counted(d) >= 2)
        go.set()
        assert await asking == answer
        asked = {"mend": "keep_alive", "mode": "count"}
        assert await until(lambda: d.value("mends_total", **asked) >= 2)


async def whole(d: Doors, path: str) -> bytes:
    async with d.ask(f"/v1/{path}") as got:
        body: bytes = await got.read()
    return body


def counted(d: Doors) -> int:
    """Signs of life so far for whoever is being answered."""
    return sum(one._record.counts["keep_alive"] for one in d.filter._active)


@in_a_loop
async def test_an_answer_in_one_body_gets_no_signs_of_life() -> None:
    script = Script([b"{}"], headers=JSON, before=0.4)
    async with doors(script, keepalive_s=0.1) as d, d.ask(json={"messages": []}) as got:
        assert await got.read() == b"{}"


@in_a_loop
async def test_an_error_after_signs_of_life_is_an_error_event() -> None:
    script = Script([b'{"error":{"message":"too long"}}'], 400, JSON, before=0.3)
    async with doors(script, keepalive_s=0.1) as d:
        async with d.ask("/v1/messages") as got:
            assert got.status == 200
            last = read_back(await got.read())[-1]
        assert last["type"] == "error"
        assert "too long" in last["error"]["message"]


@in_a_loop
async def test_a_server_that_dies_after_signs_of_life_is_an_error_event() -> None:
    async with doors(Script(before=0.3), keepalive_s=0.1) as d:
        asking = asyncio.create_task(d.ask().__aenter__())
        got = await asking
        d.server.script.steps = [Die()]
        d.server.script.headers = {"broken": "\x00"}
        assert "error" in read_back(await got.read())[-1]


# --- clients that hang up, or are slow ----------------------------------------------------------


@pytest.mark.parametrize(
    ("when", "path"),
    [
        ("before the header", "chat/completions"),
        ("in silence", "chat/completions"),
        ("in the middle", "chat/completions"),
        ("in the middle", "completions"),
        ("in the middle", "responses"),
        ("in the middle", "messages"),
        ("before the header", "responses"),
    ],
)
@in_a_loop
async def test_f13_who_hangs_up_ends_the_work(when: str, path: str) -> None:
    script = Script([Wait(30), HELLO])
    if when == "before the header":
        script = Script([HELLO], before=30)
    elif when == "in the middle":
        script = Script([HELLO[:60]], endless=FLOOD)
    async with doors(script) as d:
        asking = asyncio.create_task(d.ask(f"/v1/{path}").__aenter__())
        assert await until(lambda: d.server.asked)
        await asyncio.sleep(0.2)
        asking.cancel()
        if asking.done():
            (await asking).close()
        await d.client.close()
        assert await until(lambda: d.server.gone == 1)  # long before the 30 s are over
        assert await until(lambda: d.value("mends_total", mend="cancel", mode="on") == 1)
        assert d.value("active_streams") == 0


@pytest.mark.parametrize("reply", ["stream", "body"])
@in_a_loop
async def test_f13_counted_the_server_answers_to_the_end(reply: str) -> None:
    go = asyncio.Event()
    script = Script([HELLO[:60], go, b": more\n\n", Wait(0.3), HELLO[60:]])
    if reply == "body":
        script = Script([b"{", go, b"}"], headers=JSON)
    async with doors(script, mends={"cancel": "count"}) as d:
        asking = asyncio.create_task(d.ask().__aenter__())
        assert await until(lambda: d.server.sent)
        if reply == "stream":
            await asking
        asking.cancel()
        await d.client.close()
        assert await until(lambda: all(one.client.gone for one in d.filter._active))
        go.set()
        assert await until(lambda: d.value("mends_total", mend="cancel", mode="count") == 1)
        assert d.server.gone == 0


@in_a_loop
async def test_a_slow_client_holds_the_server_back() -> None:
    async with doors(Script([HELLO[:60]], endless=FLOOD)) as d:
        sock = socket.create_connection(("127.0.0.1", d.filter.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 14)
        body = b'{"stream":true}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        sock.sendall(head % len(body) + body)
        before = -1
        for _ in range(20):
            if before == d.server.sent:
                break
            before = d.server.sent
            await asyncio.sleep(0.5)
        assert d.server.sent == before < 50_000_000  # what the sockets hold, and a bounded rest
        sock.close()
        assert await until(lambda: d.server.gone == 1)


@in_a_loop
async def test_a_client_that_takes_nothing_is_left() -> None:
    script = Script([HELLO[:60]], endless=FLOOD)
    async with doors(script, keepalive_s=0.1, limits={"stall_s": 0.5}) as d:
        sock = socket.create_connection(("127.0.0.1", d.filter.port))
        body = b'{"stream":true}'
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        sock.sendall(head % len(body) + body)
        assert await until(lambda: d.server.gone == 1, 10)
        sock.close()


@in_a_loop
async def test_an_endless_line_takes_no_memory() -> None:
    script = Script([b"data: "] + [b"x" * 100_000] * 300)
    async with doors(script, limits={"event_bytes": 10_000}) as d:
        async with d.ask() as got:
            size, end = 0, b""
            async for block in got.content.iter_any():
                size, end = size + len(block), (end + block)[-300:]
        assert read_back(end.lstrip(b"x"))[0]["error"]
        assert 30_000_006 < size < 30_000_300


# --- the filter's own pages ---------------------------------------------------------------------

VLLM = b"""vllm:spec_decode_num_drafts_total{engine="0"} 10
vllm:spec_decode_num_draft_tokens_total{engine="0"} %d
vllm:spec_decode_num_accepted_tokens_total{engine="0"} 90
"""


@in_a_loop
async def test_metrics_and_the_servers_metrics() -> None:
    async with doors() as d:
        d.server.by_path["/metrics"] = Script([VLLM % 100], headers={"Content-Type": "text/plain"})
        async with d.client.get(d.url + "/metrics/vllm") as got:
            assert await got.read() == VLLM % 100
        for drafted in (100, 250, 350):
            d.server.by_path["/metrics"].steps = [VLLM % drafted]
            async with d.client.get(d.url + "/metrics") as got:
                text_ = await got.text()
        assert "aibox_stream_draft_tokens_since_accepted 250.0" in text_
        assert "aibox_stream_zero_acceptance_streaks_total 1.0" in text_
        assert "aibox_stream_active_streams 0.0" in text_
        assert "aibox_stream_added_latency_seconds_bucket" in text_


@in_a_loop
async def test_an_address_that_may_not_reads_nobodys_metrics() -> None:
    async with doors() as d:
        d.server.by_path["/metrics"] = Script([VLLM % 100], headers={"Content-Type": "text/plain"})
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(d.filter, "_may_see_metrics", lambda _: False)
            for page in ("/metrics", "/metrics/vllm"):
                async with d.client.get(d.url + page) as got:
                    assert got.status == 403
                    assert b"vllm:" not in await got.read()
        assert not d.server.asked


@pytest.mark.parametrize("stream_", [True, False])
@pytest.mark.parametrize(
    ("path", "streamed", "body"),
    [
        (
            "chat/completions",
            stream([STOP, {"choices": [], "usage": {"completion_tokens": 1}}]),
            {
                "choices": [{"message": {"content": ""}, "finish_reason": "stop"}],
                "usage": {"completion_tokens": 1},
            },
        ),
        (
            "messages",
            stream([MESSAGE, {**stop_for("end_turn"), "usage": {"output_tokens": 1}}], "messages"),
            {
                "type": "message",
                "content": [],
                "stop_reason": "end_turn",
                "usage": {"output_tokens": 1},
            },
        ),
        (
            "responses",
            stream(
                [
                    {
                        "type": "response.completed",
                        "response": {**responses.body(), "usage": {"output_tokens": 1}},
                    }
                ],
                "responses",
            ),
            {**responses.body(), "usage": {"output_tokens": 1}},
        ),
    ],
)
@in_a_loop
async def test_an_empty_answer_of_one_token_is_counted_and_passed_on(
    path: str, streamed: bytes, body: dict[str, Any], stream_: bool
) -> None:
    sent = streamed if stream_ else json.dumps(body).encode()
    async with doors(Script([sent], headers=SSE if stream_ else JSON)) as d:
        async with d.ask(f"/v1/{path}", json={"stream": stream_}) as got:
            assert (await got.read()).startswith(sent)
        assert await until(lambda: d.value("empty_answers_total", tokens="one") == 1)


@pytest.mark.parametrize(
    ("remote", "allowed"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("192.168.1.9", True),
        ("::ffff:192.168.1.9", True),
        ("192.168.2.9", False),
        ("10.0.0.1", False),
        (None, False),
    ],
)
@in_a_loop
async def test_metrics_go_to_the_monitor_only(remote: str | None, allowed: bool) -> None:
    async with doors(metrics_allowed=["192.168.1.0/24"]) as d:
        assert d.filter._may_see_metrics(remote) is allowed


# --- its end ------------------------------------------------------------------------------------


@in_a_loop
async def test_answers_may_end_when_the_filter_is_stopped() -> None:
    async with doors(Script([HELLO[:60], Wait(0.5), HELLO[60:]])) as d, d.ask() as got:
        stopping = asyncio.create_task(d.filter.stop())
        assert await got.read() == HELLO
        await stopping
        with pytest.raises(aiohttp.ClientError):
            await d.ask()


@in_a_loop
async def test_an_answer_that_does_not_end_in_time_ends_with_an_error() -> None:
    script = Script([HELLO[: HELLO.index(b"\n\n") + 2], Wait(30)])
    async with doors(script, limits={"drain_s": 0.3}) as d, d.ask() as got:
        await asyncio.sleep(0.2)
        began = time.monotonic()
        await d.filter.stop()
        assert time.monotonic() - began < 15
        assert "stopped" in read_back(await got.read())[-1]["error"]["message"]


@in_a_loop
async def test_who_has_nothing_yet_when_it_is_stopped_is_told_to_ask_again() -> None:
    async with doors(Script([HELLO], before=30), limits={"drain_s": 0}) as d:
        asking = asyncio.create_task(d.ask().__aenter__())
        assert await until(lambda: d.server.asked)
        await d.filter.stop()
        got = await asking
        assert got.status == 503
        assert got.headers["Retry-After"]
