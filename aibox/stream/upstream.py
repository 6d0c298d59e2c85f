"""One request to the model server, over a connection of its own.

Blocks of an answer go straight from the socket to who takes them: an answer of thousands of pieces
is what this costs most for.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools
from multidict import CIMultiDict

_CONNECT_S = 5
_MOST_WAITING = 1 << 17  # bytes that are kept while nobody takes them


class NotReachedError(Exception):
    """Nothing listens at the server's address."""


class BrokenError(Exception):
    """The server ended before its answer did, or what it said is no HTTP."""


class Upstream(asyncio.Protocol):
    """status and headers are there after `ask`, the body by `read` or `each`."""

    def __init__(self, method: str) -> None:
        loop = asyncio.get_running_loop()
        self._waiting: list[bytes] = []
        self.on_body = self._waiting.append  # called for each piece: a function of ours would cost
        self._parser = httptools.HttpResponseParser(self)
        self._bodiless = method == "HEAD"
        self._head: asyncio.Future[None] = loop.create_future()
        self._done: asyncio.Future[None] = loop.create_future()
        self._take: Callable[[bytes], None] | None = None
        self._news = asyncio.Event()
        self._transport: asyncio.Transport
        self.status = 0
        self.headers: CIMultiDict[str] = CIMultiDict()

    # --- what is called -------------------------------------------------------------------------

    async def answers(self, request: bytes) -> None:
        """Send the request, wait for status and headers. Raises BrokenError."""
        self._transport.write(request)
        try:
            await self._head
        except BaseException:
            self.close()
            raise

    async def read(self) -> bytes:
        """The next of the body; empty at its end. Raises BrokenError."""
        while not self._waiting and not self._done.done():
            self._news.clear()
            await self._news.wait()
        if not self._waiting:
            await self._done
            return b""
        self.resume()
        return self._taken()

    async def each(self, take: Callable[[bytes], None]) -> None:
        """Hand over each block of the body as it comes, until its end. Raises BrokenError."""
        self._take = take
        if self._waiting:
            take(self._taken())
        self.resume()
        await self._done

    def _taken(self) -> bytes:
        blocks = self._waiting
        taken = blocks[0] if len(blocks) == 1 else b"".join(blocks)
        blocks.clear()
        return taken

    def pause(self) -> None:
        """Take nothing more from the server for now: it will wait."""
        self._transport.pause_reading()

    def resume(self) -> None:
        if not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """The request is over; a server that still works on it sees that."""
        self._transport.abort()

    @property
    def content_type(self) -> str:
        return self.headers.get("Content-Type", "").partition(";")[0].strip().lower()

    # --- what the connection calls --------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._end(BrokenError(str(error)))
            self._transport.abort()
        if not self._waiting:
            return
        if self._take is not None:
            self._take(self._taken())
            return
        self._news.set()
        if sum(map(len, self._waiting)) > _MOST_WAITING:
            self.pause()

    def connection_lost(self, error: Exception | None) -> None:
        """An answer without a length ends with its connection, and no other."""
        untold = "Content-Length" not in self.headers and "Transfer-Encoding" not in self.headers
        ended = error is None and self._head.done() and untold
        self._end(None if ended else BrokenError(str(error or "the server hung up")))
        self._take = None  # what is over is let go of at once, without waiting to be looked for
        del self._parser

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.add(_text(name), _text(value))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status < 200:  # it goes on
            self.headers.clear()
            return
        if not self._head.done():
            self._head.set_result(None)
        if self._bodiless:
            self._end(None)

    def on_message_complete(self) -> None:
        if self.status >= 200:
            self._end(None)

    def _end(self, error: BrokenError | None) -> None:
        for future in (self._head, self._done):
            if future.done():
                continue
            if error is None:
                future.set_result(None)
            else:
                future.set_exception(error)
                future.exception()  # it is no fault if nobody waits
        self._news.set()


async def connected(address: str, method: str) -> Upstream:
    """A connection to http://HOST:PORT. Raises NotReachedError."""
    parts = urlsplit(address)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_S):
            _, upstream = await loop.create_connection(
                lambda: Upstream(method), str(parts.hostname), parts.port or 80
            )
    except OSError as error:  # TimeoutError is one
        raise NotReachedError(str(error)) from None
    return upstream


async def ask(
    address: str, method: str, path: str, headers: Mapping[str, str], body: bytes
) -> Upstream:
    """Send a request; status and headers are there. Raises NotReachedError, BrokenError."""
    upstream = await connected(address, method)
    lines = [f"{method} {path} HTTP/1.1", f"Host: {urlsplit(address).netloc}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    lines += [f"Content-Length: {len(body)}"] if body or method == "POST" else []
    head = "\r\n".join([*lines, "", ""]).encode("utf-8", "surrogateescape")
    await upstream.answers(head + body)
    return upstream


async def fetched(address: str, path: str, seconds: float) -> bytes | None:
    """What the server answers with 200 within this time."""
    with contextlib.suppress(NotReachedError, BrokenError, TimeoutError):
        async with asyncio.timeout(seconds):
            got = await ask(address, "GET", path, {}, b"")
            try:
                blocks: list[bytes] = []
                await got.each(blocks.append)
                return b"".join(blocks) if got.status == 200 else None
            finally:
                got.close()
    return None


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "surrogateescape")
