"""The client's side of a request: what he gets, signs of life in silence, an end if he is stuck."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from aiohttp import web
from aiohttp.http_writer import StreamWriter

from aibox.stream.config import Config
from aibox.stream.errors import error_event, keep_alive
from aibox.stream.record import Record

_MOST_WAITING = 1 << 16  # bytes that he has not taken yet
_STREAM = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}


class Client:
    """Who asked. Gets his answer through here alone."""

    def __init__(self, config: Config, request: web.BaseRequest, record: Record) -> None:
        self._config = config
        self._mode = config.modes["keep_alive"]
        self._request = request
        self._record = record
        self._response: web.StreamResponse | None = None
        self._loop = asyncio.get_running_loop()
        self._last_sent = self._loop.time()
        self._draining = False
        self._cut_off = False
        self._in_chunks = False
        self._transport = request.transport
        self._timer: asyncio.TimerHandle | None = None

    @property
    def begun(self) -> bool:
        """Whether he got a status already."""
        return self._response is not None

    @property
    def response(self) -> web.StreamResponse:
        assert self._response is not None
        return self._response

    @property
    def gone(self) -> bool:
        """Whether he hung up."""
        return self._request.transport is None and not self._cut_off

    async def start(self, status: int, headers: Mapping[str, str]) -> None:
        self._response = web.StreamResponse(status=status, headers=headers)
        self._record.status = status
        writer = await self._response.prepare(self._request)
        self._in_chunks = isinstance(writer, StreamWriter) and writer.chunked

    def send(self, data: bytes) -> bool:
        """Whether he has to be waited for now. One who hung up gets nothing, and is no error."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return False
        self._record.sent += len(data)
        self._last_sent = self._loop.time()
        transport.write(b"%x\r\n%b\r\n" % (len(data), data) if self._in_chunks else data)
        return transport.get_write_buffer_size() > _MOST_WAITING

    async def drained(self) -> None:
        """Wait while he is slow."""
        self._draining = True
        try:
            await self._request.writer.drain()
        except ConnectionError:
            return
        finally:
            self._draining = False

    async def write(self, data: bytes) -> None:
        if data and self.send(data):
            await self.drained()

    async def error(self, words: str) -> None:
        """The error as the last event of an answer that has begun."""
        await self.write(error_event(self._record.api, words))

    def cut_off(self) -> None:
        """Break the connection: the answer must not look finished."""
        self._cut_off = True
        if self._request.transport is not None:
            self._request.transport.abort()

    # --- silence --------------------------------------------------------------------------------

    async def wait_for_answer(self) -> None:
        """A sign of life before the server answered: from now on the status is 200."""
        if self._counted() and not self.begun:
            self._record.streamed = True
            await self.start(200, _STREAM)
        if self.begun:
            await self.write(keep_alive(self._record.api))

    def watch(self, between: Callable[[], bool]) -> None:
        """Look after him from now on. between: whether an event of ours may be put in."""
        self._timer = self._loop.call_later(self._config.keepalive_s, self._look_after, between)

    def unwatch(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look_after(self, between: Callable[[], bool]) -> None:
        silent = self._loop.time() - self._last_sent
        if self._draining and silent > self._config.limits.stall_s:
            self._record.ending = "client took nothing"
            self.cut_off()
            return
        if silent >= self._config.keepalive_s:
            silent = 0
            if between() and not self._draining and self._counted():
                self.send(keep_alive(self._record.api))
        wait = self._config.keepalive_s - silent
        self._timer = self._loop.call_later(wait, self._look_after, between)

    def _counted(self) -> bool:
        """Count a sign of life; whether it is to be sent."""
        if self._mode != "off":
            self._record.counts["keep_alive"] += 1
        return self._mode == "on"
