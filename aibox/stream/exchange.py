"""One request, from the client to the server and back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp import web
from multidict import CIMultiDict

from aibox.stream.client import Client
from aibox.stream.config import Config
from aibox.stream.errors import error_body
from aibox.stream.mends import body as bodies
from aibox.stream.mends import request as requests
from aibox.stream.mends.answer import Answer
from aibox.stream.mends.request import Asked
from aibox.stream.metrics import Metrics
from aibox.stream.record import Record
from aibox.stream.upstream import BrokenError, NotReachedError, Upstream, ask

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
_LENGTH = frozenset(("content-length",))
STARTING = f"The model server does not answer: it is starting or stopped. Retry in {RETRY_S} s."
BROKEN = "The model server broke off before it answered. Send the request again."
STOPPING = "The filter is being stopped. Send the request again."


class RequestError(Exception):
    """A request that gets an error from the filter itself."""

    def __init__(self, status: int, words: str) -> None:
        super().__init__(words)
        self.status = status
        self.words = words


@dataclass(frozen=True)
class Door:
    """What all requests share."""

    config: Config
    metrics: Metrics

    @property
    def passes_keys(self) -> bool:
        """Where no key is asked for here, the server may ask for one itself."""
        return self.config.keys_file is None


class Exchange:
    """One request. It is this client's: nothing of it outlives it."""

    def __init__(self, door: Door, request: web.BaseRequest, record: Record) -> None:
        self.client = Client(door.config, request, record)
        self._door = door
        self._request = request
        self._record = record
        self._modes = door.config.modes
        self._answer: Answer | None = None
        self._task = asyncio.current_task()
        self._stopping = False
        self._held: asyncio.Task[None] | None = None

    async def answer(self, path: str) -> web.StreamResponse:
        """Ask the server, give its answer on. Raises RequestError; CancelledError if he hung up."""
        try:
            response = await self._through(path)
        except asyncio.CancelledError:
            if self._stopping and self._task is not None:
                self._task.uncancel()
                return await self._stopped()
            self._see_whether_gone()
            raise
        self._see_whether_gone()
        return response

    def stop(self) -> None:
        """End the answer now, with an error event: the filter is being stopped."""
        self._stopping = True
        if self._task is not None:
            self._task.cancel()

    async def _stopped(self) -> web.StreamResponse:
        if not self.client.begun:
            raise RequestError(503, STOPPING)
        self._record.ending = "filter stopped"
        if self._answer is not None and self._answer.between:
            await self.client.write(self._answer.broken_off(STOPPING))
        elif self._answer is None and self._record.streamed:
            await self.client.error(STOPPING)
        else:
            self.client.cut_off()
        return self.client.response

    def _see_whether_gone(self) -> None:
        if self.client.gone:
            self._record.ending = "client hung up"
            self._record.counts["cancel"] = 1

    async def _through(self, path: str) -> web.StreamResponse:
        body, asked = await self._body(), Asked()
        if body:
            told = {"thinking": self._door.config.thinking}
            body, asked, counts = requests.read(self._record.api, body, self._modes, **told)
            self._record.counts += counts
        got = await self._server_answers(path, body, asked)
        try:
            return await self._give_on(got, asked)
        finally:
            got.close()

    # --- to the server --------------------------------------------------------------------------

    async def _body(self) -> bytes:
        limits, request = self._door.config.limits, self._request
        too_large = RequestError(413, f"A request may have {limits.body_bytes} bytes here.")
        if (request.content_length or 0) > limits.body_bytes:
            raise too_large
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        blocks, size = [], 0
        try:
            async with asyncio.timeout(limits.body_s):
                while block := await request.content.readany():
                    size += len(block)
                    if size > limits.body_bytes:
                        raise too_large
                    blocks.append(block)
        except TimeoutError:
            words = f"The request did not come within {limits.body_s:g} s."
            raise RequestError(408, words) from None
        except aiohttp.ClientPayloadError:
            raise RequestError(400, "The request's body broke off.") from None
        return b"".join(blocks)

    async def _server_answers(self, path: str, body: bytes, asked: Asked) -> Upstream:
        """The server's answer, as far as its header. The client gets signs of life meanwhile."""
        query = self._request.rel_url.raw_query_string
        path = f"{path}?{query}" if query else path
        without = _NOT_ASKED_ON | (frozenset() if self._door.passes_keys else _KEYS)
        headers = end_to_end(self._request.headers, without)
        address = self._door.config.upstream
        pending = asyncio.ensure_future(ask(address, self._request.method, path, headers, body))
        try:
            while not pending.done():
                interval = self._door.config.keepalive_s if asked.stream else None
                await asyncio.wait({pending}, timeout=interval)
                if not pending.done():
                    await self.client.wait_for_answer()
            return pending.result()
        except NotReachedError:
            raise RequestError(503, STARTING) from None
        except BrokenError:
            raise RequestError(502, BROKEN) from None
        finally:
            pending.cancel()

    # --- to the client --------------------------------------------------------------------------

    async def _give_on(self, got: Upstream, asked: Asked) -> web.StreamResponse:
        encoded = got.headers.get("Content-Encoding", "identity") != "identity"
        if got.status == 200 and got.content_type == "text/event-stream" and not encoded:
            return await self._stream(got, asked)
        if self.client.begun:  # with signs of life: its status can't change any more
            return await self._late_error(got)
        if got.status == 200 and got.content_type == "application/json" and not encoded:
            return await self._in_one_body(got, asked)
        return await self._untouched(got, [])

    async def _stream(self, got: Upstream, asked: Asked) -> web.StreamResponse:
        limit = self._door.config.limits.event_bytes
        answer = self._answer = Answer(self._record.api, asked, self._modes, limit)
        self._record.streamed = True
        if not self.client.begun:
            await self.client.start(got.status, end_to_end(got.headers, _LENGTH))
        self.client.watch(lambda: answer.between)
        broken = False
        try:
            await self._blocks(got, answer)
        except BrokenError:
            broken = True
        finally:
            self.client.unwatch()
            self._record.counts += answer.counts
        ending = answer.end()
        self._door.metrics.count_answer(answer)
        if answer.cut:
            self._record.ending = "server broke off"
            self._record.counts["error_event"] += 1
        await self.client.write(ending)
        if broken and answer.cut and self._modes["error_event"] != "on":
            self.client.cut_off()  # as the server did
        return self.client.response

    async def _blocks(self, got: Upstream, answer: Answer) -> None:
        observe, client = self._door.metrics.added.observe, self.client

        def pass_on(block: bytes) -> None:
            began = time.perf_counter()
            if self._record.first_s is None:
                self._record.see_first()
            out = answer.feed(block)
            if out and client.send(out):
                self._hold_back(got)
            observe(time.perf_counter() - began)

        await got.each(pass_on)

    def _hold_back(self, got: Upstream) -> None:
        """The server waits as long as the client is slow."""
        got.pause()
        if self._held is None or self._held.done():
            self._held = asyncio.create_task(self.client.drained())
            self._held.add_done_callback(lambda _: got.resume())

    async def _in_one_body(self, got: Upstream, asked: Asked) -> web.StreamResponse:
        blocks, size = [], 0
        try:
            while block := await got.read():
                blocks.append(block)
                size += len(block)
                if size > LONGEST_BODY:
                    return await self._untouched(got, blocks)
        except BrokenError:
            raise RequestError(502, BROKEN) from None
        answer = Answer(self._record.api, asked, self._modes)
        body = bodies.mended(answer, b"".join(blocks))
        self._record.counts += answer.counts
        self._door.metrics.count_answer(answer)
        self._record.see_first()
        self._record.sent, self._record.status = len(body), got.status
        return web.Response(status=got.status, headers=end_to_end(got.headers, _LENGTH), body=body)

    async def _untouched(self, got: Upstream, begun: list[bytes]) -> web.StreamResponse:
        await self.client.start(got.status, end_to_end(got.headers))
        try:
            await self.client.write(b"".join(begun))
            while block := await got.read():
                self._record.see_first()
                await self.client.write(block)
        except BrokenError:
            self._record.ending = "server broke off"
            self.client.cut_off()
        return self.client.response

    async def _late_error(self, got: Upstream) -> web.StreamResponse:
        """An error that came when the client had signs of life already."""
        try:
            body = (await got.read())[: 1 << 16]
        except BrokenError:
            body = b""
        self._record.ending = f"server answered {got.status}"
        words = f"The model server answered {got.status}. "
        await self.client.error(words + body.decode(errors="replace")[:2000])
        return self.client.response


def end_to_end(
    headers: Mapping[str, str], without: frozenset[str] = frozenset()
) -> CIMultiDict[str]:
    """The headers that go on: not those about one connection, nor those it names."""
    named = {name.strip().lower() for name in headers.get("Connection", "").split(",")}
    gone = _HOP_BY_HOP | named | without
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in gone)


def error_response(api: str, status: int, words: str) -> web.Response:
    """An error of the filter's own, in the API's form."""
    headers = {"Retry-After": str(RETRY_S)} if status in (429, 502, 503) else {}
    return web.Response(
        status=status,
        headers=headers,
        body=error_body(api, status, words),
        content_type="application/json",
    )
