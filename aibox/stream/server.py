"""The filter's port: who may ask, what for, and how many at a time."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import re
import time
from pathlib import Path

from aiohttp import web

from aibox.decide.acceptance import parse_metrics
from aibox.stream.config import Config, ConfigError, Keys, Network, load_keys
from aibox.stream.exchange import (
    RETRY_S,
    STARTING,
    Door,
    Exchange,
    RequestError,
    error_response,
)
from aibox.stream.metrics import CONTENT_TYPE, Metrics
from aibox.stream.record import Record
from aibox.stream.upstream import fetched

log = logging.getLogger("aibox.stream")

PATHS = {
    "/v1/chat/completions": "chat",
    "/v1/completions": "completions",
    "/v1/responses": "responses",
    "/v1/models": "models",
    "/v1/messages": "messages",
    "/v1/messages/count_tokens": "count_tokens",
}
_STORED = re.compile(r"/v1/responses/[A-Za-z0-9_-]+(/cancel)?")
_ANSWERS = ("chat", "completions", "responses", "messages")
_SHOWN = {api: path for path, api in PATHS.items()}
_PATIENCE_S = 5  # for the server's own /health and /metrics
_BACKLOG = 2048


class Filter:
    """The filter, between `start` and `stop`."""

    def __init__(self, config: Config, keys: Keys) -> None:
        self.config = config
        self.keys = keys
        self.metrics = Metrics()
        self.metrics.expect(self.config.modes)
        self.port = config.port
        self._networks: list[Network] = config.networks
        self._active: set[Exchange] = set()
        self._stopping = False
        self._door: Door
        self._listening: asyncio.Server
        self._web: web.Server

    async def start(self) -> None:
        """Raises OSError where the address can't be listened on."""
        limits = self.config.limits
        self._web = web.Server(
            self._handle,
            handler_cancellation=self.config.modes["cancel"] == "on",
            keepalive_timeout=limits.header_s,
            access_log=None,
            auto_decompress=False,
        )
        loop = asyncio.get_running_loop()
        self._listening = await loop.create_server(
            self._web, self.config.address, self.config.port, backlog=_BACKLOG
        )
        self.port = self._listening.sockets[0].getsockname()[1]
        self._door = Door(self.config, self.metrics)

    async def stop(self) -> None:
        """Take no more requests, let the answers end in the time they have, cut off the rest."""
        self._stopping = True
        self._listening.close()
        self._web.pre_shutdown()
        end = time.monotonic() + self.config.limits.drain_s
        while self._active and time.monotonic() < end:
            await asyncio.sleep(0.05)
        for exchange in list(self._active):
            exchange.stop()
        await self._web.shutdown(1.0)

    def read_keys_again(self) -> None:
        """The keys as they are now. Keys that can't be read leave those that were."""
        path = self.config.keys_file
        try:
            self.keys = load_keys(Path(path) if path else None)
        except ConfigError as error:
            log.error("the keys stay as they were\n%s", error.refusal)
            return
        log.info("keys read anew")

    # --- requests -------------------------------------------------------------------------------

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        path = request.rel_url.raw_path
        if path in ("/health", "/metrics", "/metrics/vllm"):
            return await self._own(request, path)
        api = PATHS.get(path) or ("stored" if _STORED.fullmatch(path) else "other")
        shown = "/v1/responses/…" if api == "stored" else _SHOWN.get(api, "other")
        api = "responses" if api == "stored" else api
        record = Record(api, shown, request.method, request.remote)
        exchange = Exchange(self._door, request, record)
        try:
            return await self._answered(exchange, request, record, path)
        except RequestError as error:
            record.ending = "refused" if error.status < 500 else "server does not answer"
            return await self._refused(exchange, record, error)
        finally:
            self._write_down(record)

    async def _answered(
        self, exchange: Exchange, request: web.BaseRequest, record: Record, path: str
    ) -> web.StreamResponse:
        record.key = self._who(request)
        if record.api == "other":
            known = ", ".join(PATHS)
            raise RequestError(404, f"There is nothing at this path. There is: {known}.")
        if request.method != "POST" or record.api not in _ANSWERS:
            return await exchange.answer(path)
        if len(self._active) >= self.config.limits.streams:
            raise RequestError(
                429, f"{len(self._active)} requests are being answered: try again later."
            )
        self._active.add(exchange)
        self.metrics.active.set(len(self._active))
        try:
            return await exchange.answer(path)
        finally:
            self._active.discard(exchange)
            self.metrics.active.set(len(self._active))

    async def _refused(
        self, exchange: Exchange, record: Record, error: RequestError
    ) -> web.StreamResponse:
        if exchange.client.begun:
            await exchange.client.error(error.words)
            return exchange.client.response
        record.status = error.status
        return error_response(record.api, error.status, error.words)

    def _who(self, request: web.BaseRequest) -> str:
        """The name of the key that came along. Raises RequestError without a good one."""
        if self.keys.open:
            return "-"
        scheme, _, bearer = request.headers.get("Authorization", "").partition(" ")
        given = [request.headers.get("x-api-key", "")]
        given += [bearer.strip()] if scheme.lower() == "bearer" else []
        names = [self.keys.name_of(key) for key in given if key]
        name = next((name for name in names if name), None)
        if name is None:
            raise RequestError(
                401, "A key is needed: `Authorization: Bearer KEY` or `x-api-key: KEY`."
            )
        return name

    def _write_down(self, record: Record) -> None:
        modes = self.config.modes
        for name in [name for name in record.counts if modes[name] == "off"]:
            del record.counts[name]
        record.status = record.status or 499  # gone before he was answered
        self.metrics.count_mends(record.counts, modes)
        self.metrics.requests.labels(record.path, str(record.status)).inc()
        log.info("%s", record.line())

    # --- the filter's own pages -----------------------------------------------------------------

    async def _own(self, request: web.BaseRequest, path: str) -> web.StreamResponse:
        if path == "/health":
            return await self._health()
        if not self._may_see_metrics(request.remote):
            return error_response("other", 403, "This address may not read metrics.")
        theirs = await fetched(self.config.upstream, "/metrics", _PATIENCE_S)
        if path == "/metrics/vllm":
            if theirs is None:
                return error_response("other", 503, STARTING)
            return web.Response(body=theirs, headers={"Content-Type": CONTENT_TYPE})
        if theirs is not None:
            self.metrics.see_drafts(parse_metrics(theirs.decode(errors="replace")))
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    async def _health(self) -> web.StreamResponse:
        """200 when a request would be answered."""
        words = "stopping" if self._stopping else "the model server does not answer"
        if (
            not self._stopping
            and await fetched(self.config.upstream, "/health", _PATIENCE_S) is not None
        ):
            return web.json_response({"status": "ok"})
        headers = {"Retry-After": str(RETRY_S)}
        return web.json_response({"status": words}, status=503, headers=headers)

    def _may_see_metrics(self, remote: str | None) -> bool:
        """This machine, and those that are named."""
        try:
            address = ipaddress.ip_address(remote or "")
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
            address = address.ipv4_mapped
        return address.is_loopback or any(address in network for network in self._networks)
