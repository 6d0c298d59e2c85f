"""One request, from the client to the server and back."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from aibox.stream.config import Config
from aibox.stream.errors import error_body, error_event, keep_alive
from aibox.stream.mends import request as requests
from aibox.stream.mends.answer import Answer
from aibox.stream.mends.request import Asked
from aibox.stream.metrics import Metrics

RETRY_S = 10  # what a client is told to wait while the server starts
LONGEST_BODY = 32 << 20  # bytes of an answer in one body that is looked at; a longer one passes
_HOP_BY_HOP = frozenset(
    (
        *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "te"),
        *("trailer", "transfer-encoding", "upgrade", "proxy-connection"),
    )
)
_NOT_ASKED_ON = frozenset(("host", "content-length", "accept-encoding", "expect"))
_KEYS = frozenset(("authorization", "x-api-key"))
STARTING = f"The model server does not answer: it is starting or stopped. Retry in {RETRY_S} s."
BROKEN = "The model server broke off before it answered. Send the request again."


class RequestError(Exception):
    """A request that gets an error from the filter itself."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


@dataclass
class Record:
    """What the log says of a request."""

    api: str
    began: float = field(default_factory=time.monotonic)
    status: int = 0
    key: str = "-"
    streamed: bool = False
    first_s: float | None = None  # seconds until the first block of the answer
    sent: int = 0  # bytes
    counts: Counter[str] = field(default_factory=Counter)
    ending: str = "whole"


@dataclass(frozen=True)
class Door:
    """What all requests share."""

    config: Config
    metrics: Metrics
    session: aiohttp.ClientSession

    @property
    def passes_keys(self) -> bool:
        """Where no key is asked for here, the server may ask for one itself."""
        return self.config.keys_file is None


class Exchange:
    """One request. It is this client's: nothing of it outlives it."""

    def __init__(self, door: Door, request: web.BaseRequest, record: Record) -> None:
        self._door = door
        self._request = request
        self._record = record
        self._modes = door.config.modes
        self._response: web.StreamResponse | None = None
        self._answer: Answer | None = None
        self._task = asyncio.current_task()
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._writing = False
        self._gone = False
        self._stopping = False
        self._sign_of_life: asyncio.Task[None] | None = None

    # --- from the client to the server ----------------------------------------------------------

    async def answer(self, path: str) -> web.StreamResponse:
        """Ask the server, give its answer on. Raises RequestError while nothing was sent."""
        try:
            return await self._through(path)
        except asyncio.CancelledError:
            if self._stopping and self._task is not None and self._response is not None:
                self._task.uncancel()
                return await self._stopped()
            if self._record.ending == "whole":  # not our doing
                self._record.ending = "client hung up"
                self._record.counts["cancel"] = 1
            raise

    def stop(self) -> None:
        """End the answer now, with an error event: the filter is being stopped."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    async def _through(self, path: str) -> web.StreamResponse:
        body = await self._body()
        asked = Asked()
        if body:
            thinking = self._door.config.thinking
            body, asked, counts = requests.read(
                self._record.api, body, self._modes, thinking=thinking
            )
            self._record.counts += counts
        answered = await self._server_answers(path, body, asked)
        try:
            return await self._give_on(answered, asked)
        finally:
            answered.close()

    async def _body(self) -> bytes:
        limits, request = self._door.config.limits, self._request
        too_large = RequestError(413, f"A request may have {limits.body_bytes} bytes here.")
        if (request.content_length or 0) > limits.body_bytes:
            raise too_large
        blocks, size = [], 0
        try:
            async with asyncio.timeout(limits.body_s):
                while block := await request.content.readany():
                    size += len(block)
                    if size > limits.body_bytes:
                        raise too_large
                    blocks.append(block)
        except TimeoutError:
            raise RequestError(
                408, f"The request did not come within {limits.body_s:g} s."
            ) from None
        except aiohttp.ClientPayloadError:
            raise RequestError(400, "The request's body broke off.") from None
        return b"".join(blocks)

    async def _server_answers(self, path: str, body: bytes, asked: Asked) -> aiohttp.ClientResponse:
        """The server's answer, as far as its header. The client gets signs of life meanwhile."""
        query = self._request.rel_url.raw_query_string
        path = f"{path}?{query}" if query else path
        pending = asyncio.ensure_future(
            self._door.session.request(
                self._request.method,
                URL(self._door.config.upstream + path, encoded=True),
                data=body or None,
                headers=self._asked_on(),
                allow_redirects=False,
            )
        )
        try:
            while not pending.done():
                interval = self._door.config.keepalive_s if asked.stream else None
                await asyncio.wait({pending}, timeout=interval)
                if not pending.done():
                    await self._alive_before_answer()
            return pending.result()
        except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
            raise RequestError(503, STARTING) from None
        except (aiohttp.ClientError, OSError):
            raise RequestError(502, BROKEN) from None
        finally:
            pending.cancel()

    def _asked_on(self) -> CIMultiDict[str]:
        without = _NOT_ASKED_ON | (frozenset() if self._door.passes_keys else _KEYS)
        return end_to_end(self._request.headers, without)

    # --- from the server to the client ----------------------------------------------------------

    async def _give_on(self, got: aiohttp.ClientResponse, asked: Asked) -> web.StreamResponse:
        encoded = got.headers.get("Content-Encoding", "identity") != "identity"
        if got.status == 200 and got.content_type == "text/event-stream" and not encoded:
            return await self._stream(got, asked)
        if self._response is not None:  # it began with signs of life; its status can't change
            return await self._late_error(got)
        if got.status == 200 and got.content_type == "application/json" and not encoded:
            return await self._in_one_body(got, asked)
        return await self._untouched(got, b"")

    async def _stream(self, got: aiohttp.ClientResponse, asked: Asked) -> web.StreamResponse:
        limit = self._door.config.limits.event_bytes
        answer = self._answer = Answer(self._record.api, asked, self._modes, limit)
        self._record.streamed = True
        response = self._response or await self._start(got.status, end_to_end(got.headers))
        self._timer = self._loop.call_later(self._door.config.keepalive_s, self._look_after)
        broken = False
        try:
            await self._blocks(got, answer)
        except (aiohttp.ClientError, OSError):
            broken = True
        finally:
            self._timer.cancel()
            self._record.counts += answer.counts
        ending = answer.end()
        self._door.metrics.count_answer(answer)
        if answer.cut:
            self._record.ending = "server broke off"
            self._record.counts["error_event"] += 1
        await self._write(ending)
        if broken and answer.cut and self._modes["error_event"] != "on":
            self._abort()  # as the server did
        return response

    async def _blocks(self, got: aiohttp.ClientResponse, answer: Answer) -> None:
        observe = self._door.metrics.added.observe
        while block := await got.content.readany():
            began = time.perf_counter()
            out = answer.feed(block)
            if out:
                await self._write(out)
            observe(time.perf_counter() - began)

    async def _in_one_body(self, got: aiohttp.ClientResponse, asked: Asked) -> web.StreamResponse:
        body = b""
        try:
            while block := await got.content.readany():
                body += block
                if len(body) > LONGEST_BODY:
                    return await self._untouched(got, body)
        except (aiohttp.ClientError, OSError):
            raise RequestError(502, BROKEN) from None
        answer = Answer(self._record.api, asked, self._modes)
        body = answer.whole(body)
        self._record.counts += answer.counts
        self._door.metrics.count_answer(answer)
        headers = end_to_end(got.headers, frozenset(("content-length",)))
        self._see_first(len(body))
        self._record.status = got.status
        return web.Response(status=got.status, headers=headers, body=body)

    async def _untouched(self, got: aiohttp.ClientResponse, begun: bytes) -> web.StreamResponse:
        response = await self._start(got.status, end_to_end(got.headers))
        try:
            await self._write(begun)
            while block := await got.content.readany():
                await self._write(block)
        except (aiohttp.ClientError, OSError):
            self._record.ending = "server broke off"
            self._abort()
        return response

    async def _late_error(self, got: aiohttp.ClientResponse) -> web.StreamResponse:
        """An error that came when the client had signs of life already."""
        try:
            body = await got.content.read(1 << 16)
        except (aiohttp.ClientError, OSError):
            body = b""
        self._record.ending = f"server answered {got.status}"
        words = f"The model server answered {got.status}. "
        return await self.late(words + body.decode(errors="replace")[:2000])

    async def late(self, words: str) -> web.StreamResponse:
        """The error as the last event of an answer that has begun."""
        assert self._response is not None
        await self._write(error_event(self._record.api, words))
        return self._response

    async def _stopped(self) -> web.StreamResponse:
        self._record.ending = "filter stopped"
        if self._record.streamed and (self._answer is None or self._answer.between):
            return await self.late("The filter is being stopped. Send the request again.")
        self._abort()
        assert self._response is not None
        return self._response

    # --- the client -----------------------------------------------------------------------------

    @property
    def begun(self) -> bool:
        """Whether the client got a status already."""
        return self._response is not None

    async def _start(self, status: int, headers: Mapping[str, str]) -> web.StreamResponse:
        response = web.StreamResponse(status=status, headers=headers)
        self._response = response
        self._record.status = status
        await response.prepare(self._request)
        return response

    async def _write(self, data: bytes) -> None:
        """To the client; waits while he is slow. One who is gone gets no more."""
        if not data or self._gone or self._response is None:
            return
        if not self._record.sent:
            self._see_first(0)
        self._record.sent += len(data)
        self._last_sent = self._loop.time()
        self._writing = True
        try:
            await self._response.write(data)
        except ConnectionError:  # only where a hang-up does not cancel: the answer goes on
            self._gone = True
            self._record.counts["cancel"] = 1
        finally:
            self._writing = False

    def _see_first(self, size: int) -> None:
        self._record.first_s = time.monotonic() - self._record.began
        self._record.sent += size

    def _look_after(self) -> None:
        """From time to time: a sign of life in silence, an end to one who takes nothing."""
        config = self._door.config
        silent = self._loop.time() - self._last_sent
        if self._writing and silent > config.limits.stall_s:
            self._record.ending = "client took nothing"
            self._abort()
            return
        if silent >= config.keepalive_s:
            self._alive()
            silent = 0
        self._timer = self._loop.call_later(config.keepalive_s - silent, self._look_after)

    def _alive(self) -> None:
        may = self._answer is not None and self._answer.between and not self._writing
        if self._modes["keep_alive"] == "off" or not may:
            return
        self._record.counts["keep_alive"] += 1
        if self._modes["keep_alive"] == "on":
            sign = self._write(keep_alive(self._record.api))
            self._sign_of_life = self._loop.create_task(sign)

    async def _alive_before_answer(self) -> None:
        if self._modes["keep_alive"] == "off":
            return
        self._record.counts["keep_alive"] += 1
        if self._modes["keep_alive"] == "count":
            return
        if self._response is None:
            self._record.streamed = True
            kind = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
            await self._start(200, kind)
        await self._write(keep_alive(self._record.api))

    def _abort(self) -> None:
        """Break the connection: the answer must not look finished."""
        if self._request.transport is not None:
            self._request.transport.abort()


def end_to_end(
    headers: Mapping[str, str], without: frozenset[str] = frozenset()
) -> CIMultiDict[str]:
    """The headers that go on: not those about one connection, nor those it names."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    gone = _HOP_BY_HOP | named | without
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in gone)


def error_response(api: str, status: int, words: str) -> web.Response:
    headers = {"Retry-After": str(RETRY_S)} if status in (429, 502, 503) else {}
    return web.Response(
        status=status,
        headers=headers,
        body=error_body(api, status, words),
        content_type="application/json",
    )
