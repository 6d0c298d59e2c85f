"""Which box LiteLLM asks: of those that serve a model now, the least busy one that is healthy and
that nobody has taken out.

This file is laid beside door.py and needs nothing of ours. Requests are counted where they come in
and go: LiteLLM's own counts (least-busy) were wrong after errors and clients that hung up, and sent
7 of the next 8 requests to one of two idle boxes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, MutableMapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

FLEET = "fleet.json"  # beside this file: the boxes, laid down by the deploy
EVERY_S = 2  # a box is asked how it is, and has as long to say it
NAMES_EVERY_S = 10  # what it serves; each such question is a line in its journal
BY = ("hand", "roll")  # who takes boxes out; where it is not said, the first
LATEST = 253_402_300_799  # seconds since 1970: the end of the year 9999
FAILURES = 2  # in a row, and it is not healthy
# A connection ends when nothing is confirmed for 25 s, after a question or within a long silence.
WATCHFUL = {
    socket.TCP_KEEPIDLE: 10,  # seconds
    socket.TCP_KEEPINTVL: 5,
    socket.TCP_KEEPCNT: 3,
    socket.TCP_USER_TIMEOUT: 25_000,  # milliseconds
}
log = logging.getLogger("uvicorn.error")  # the one that is shown


@dataclass
class Box:
    """models: every name that it is configured for; serves: those that it has named itself, asked
    at `names` with `key`. health: URL that answers 200 where requests are answered. found: what was
    met instead."""

    name: str
    models: list[str]
    health: str
    names: str
    key: str
    serves: frozenset[str] = frozenset()
    named_at: float = -math.inf  # of the clock that only goes on
    failures: int = FAILURES
    found: str | None = "not asked yet"

    @property
    def is_healthy(self) -> bool:
        return self.failures < FAILURES

    @property
    def missing(self) -> list[str]:
        """Names that it is configured for and does not serve: a change has not come to it yet."""
        return [one for one in self.models if self.is_healthy and one not in self.serves]

    def are_names_old(self, now: float) -> bool:
        """Whoever was away may have come back with others."""
        return bool(self.failures) or now - self.named_at >= NAMES_EVERY_S

    def named(self, names: Iterable[str], now: float) -> None:
        self.serves, self.named_at = frozenset(names), now

    def saw(self, found: str | None) -> None:
        """None: it answers. What changes is said in the log."""
        before = self.is_healthy
        self.failures, self.found = (0 if found is None else self.failures + 1), found
        if self.is_healthy != before:
            log.warning("%s is %s", self.name, found or "healthy")


@dataclass
class Request:
    """A client's request as long as it is here. tried: boxes; at: the one that is asked now."""

    tried: list[str] = field(default_factory=list)
    at: str | None = None


NOW: ContextVar[Request | None] = ContextVar("request", default=None)


# --- what was laid down --------------------------------------------------------------------------


def out_in(text: str) -> dict[str, dict[str, Any]]:
    """{box: {"why": text, "since": seconds since 1970, "by": one of BY}} of a rotation.json.

    Raises ValueError.
    """
    try:
        whole = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    out = whole.get("out") if isinstance(whole, dict) else None
    if not isinstance(out, dict):
        raise ValueError("it has no mapping `out`")
    for box, one in out.items():
        judge_one(box, one)
    return out


def judge_one(box: str, one: object) -> None:
    """What is told of a box that is out, with `by` where that was not said. Raises ValueError."""
    told = one if isinstance(one, dict) else {}
    if not is_moment(told.get("since")) or not isinstance(told.get("why"), str):
        raise ValueError(f"{box} has no `why` and `since`")
    if told.setdefault("by", BY[0]) not in BY:
        raise ValueError(f"{box} is out, and `by` is none of {', '.join(BY)}")


def is_moment(value: object) -> bool:
    """A time that a calendar has."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and 0 <= float(str(value)) <= LATEST


def boxes_in(told: object) -> dict[str, dict[str, Any]]:
    """What a gateway answers of its boxes, see Rotation.shown, whoever has answered.

    Raises ValueError where it is no such thing, as of another version.
    """
    if not isinstance(told, dict):
        raise ValueError("it names no boxes")
    for name, of in told.items():
        if not is_one(of):
            raise ValueError(f"it says of {name} what no gateway of this version does")
        if of["out"] is not None:
            judge_one(name, of["out"])
    return told


def is_one(of: object) -> bool:
    """Whether this is told of a box, but for what is said of one that is out."""
    if not isinstance(of, dict) or not {"out", "healthy", "found"} <= of.keys():
        return False
    names = [of.get("models"), of.get("missing", [])]
    named = all(isinstance(some, list) for some in names) and all(
        isinstance(name, str) for some in names for name in some
    )
    known = of["healthy"] is None or isinstance(of["healthy"], bool)
    said = of["found"] is None or isinstance(of["found"], str)
    requests = of.get("requests", 0)
    return named and known and said and isinstance(requests, int) and requests >= 0


class Out:
    """What `aibox rotation` has taken out, read anew when its file has changed. A broken one takes
    nothing out; one that can't be read just now changes nothing."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._stamp: object = None
        self._out: dict[str, dict[str, Any]] = {}

    def now(self) -> dict[str, dict[str, Any]]:
        try:
            found = self._path.stat()
            stamp = (found.st_mtime_ns, found.st_size, found.st_ino)
            if stamp != self._stamp:
                self._out = self._read()
                self._stamp = stamp
        except FileNotFoundError:
            self._stamp, self._out = None, {}
        except OSError as error:
            log.error("%s can't be read, what was out stays out: %s", self._path, error)
        return self._out

    def _read(self) -> dict[str, dict[str, Any]]:
        try:
            return out_in(self._path.read_text())
        except ValueError as error:
            log.error("%s is broken, every box is asked: %s", self._path, error)
            return {}


# --- the choice ----------------------------------------------------------------------------------


class NobodyServesError(Exception):
    """No box of a model can be asked; in words, why."""


class Rotation:
    def __init__(self, boxes: Iterable[Box], out: Out) -> None:
        self.boxes = {one.name: one for one in boxes}
        self._out = out
        self._busy = dict.fromkeys(self.boxes, 0)
        self._turn = dict.fromkeys(self.boxes, 0)  # when each was chosen last
        self._turns = 0

    def chosen(self, names: Iterable[str], request: Request | None, model: str) -> str:
        """The box to ask for a model, of these; one after the other where they are equally busy.

        A request that comes again has failed where it was: it goes to another one. Raises
        NobodyServesError, also where every one has failed.
        """
        names, out = list(names), self._out.now()
        tried = request.tried if request else []
        whys = {one: self._why_not(one, model, tried, out) for one in names}
        may = [one for one, why in whys.items() if why is None]
        if not may:
            raise NobodyServesError("; ".join(str(why) for why in whys.values()))
        box = min(may, key=lambda one: (self._busy[one], self._turn[one]))
        self._turns += 1
        self._turn[box] = self._turns
        if request:
            self.left(request)
            request.tried.append(box)
            request.at = box
            self._busy[box] += 1
        return box

    def left(self, request: Request) -> None:
        """The request is not at its box any more; twice is once."""
        if request.at:
            self._busy[request.at] -= 1
            request.at = None

    def _why_not(
        self, name: str, model: str, tried: Iterable[str], out: Mapping[str, Any]
    ) -> str | None:
        """Why a box is not asked, in words."""
        box = self.boxes[name]
        if name in tried:
            return f"{name} has failed"
        if name in out:
            return f"{name} was taken out: {out[name]['why']}"
        if not box.is_healthy:
            return f"{name} is not healthy: {box.found}"
        if model not in box.serves:
            return f"{name} serves {', '.join(sorted(box.serves)) or 'nothing'}"
        return None

    def shown(self) -> dict[str, Any]:
        """What GET /rotation answers. models: the names that a box is asked for, now."""
        out = self._out.now()
        return {
            one.name: {
                "models": [name for name in one.models if name not in one.missing],
                "missing": one.missing,
                "out": out.get(one.name),
                "healthy": one.is_healthy,
                "found": one.found,
                "requests": self._busy[one.name],
            }
            for one in self.boxes.values()
        }


# --- how the boxes are ---------------------------------------------------------------------------


@contextlib.asynccontextmanager
async def watched(boxes: Iterable[Box]) -> AsyncIterator[None]:
    """They are asked for as long as this lasts."""
    tasks = [asyncio.create_task(watch(one)) for one in boxes]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()


async def watch(box: Box) -> None:
    import aiohttp  # noqa: PLC0415  LiteLLM's venv has it

    limit = aiohttp.ClientTimeout(total=EVERY_S)
    connector = aiohttp.TCPConnector(force_close=True, ttl_dns_cache=0, use_dns_cache=False)
    async with aiohttp.ClientSession(connector=connector, timeout=limit) as session:
        while True:
            try:
                await looked_at(session, box, time.monotonic())
                box.saw(None)
            except NotWellError as error:
                box.saw(str(error))
            await asyncio.sleep(EVERY_S)


class NotWellError(Exception):
    """What a box answered in place of what is expected of a healthy one, in words."""


async def looked_at(session: Any, box: Box, now: float) -> None:
    """Raises NotWellError."""
    await answered(session, box.health, box.key)
    if box.are_names_old(now):
        box.named(names_in(await answered(session, box.names, box.key), box.names), now)


async def answered(session: Any, url: str, key: str) -> bytes:
    """The body, where the status is 200. Raises NotWellError."""
    headers = {"Authorization": f"Bearer {key}"}
    try:
        async with session.get(url, headers=headers, allow_redirects=False) as answer:
            status, body = answer.status, await answer.read()
    except TimeoutError:
        raise NotWellError(f"{url} does not answer within {EVERY_S} s") from None
    except Exception as error:  # whatever it is, the watch goes on
        number = getattr(error, "errno", None)
        why = os.strerror(number) if number else str(error) or type(error).__name__
        raise NotWellError(f"{url} is not reached: {why}") from None
    if status != 200:
        raise NotWellError(f"{url} answers {status}")
    return bytes(body)


def names_in(body: bytes, url: str) -> list[str]:
    """What a server names at /v1/models. Raises NotWellError."""
    try:
        return [str(one["id"]) for one in json.loads(body)["data"]]
    except (ValueError, LookupError, TypeError, RecursionError):
        raise NotWellError(f"{url} names no models") from None


# --- around and inside LiteLLM -------------------------------------------------------------------


def around(whole: Application, rotation: Rotation) -> Application:
    """LiteLLM's application, each request counted until it is answered or its client is gone."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            async with watched(rotation.boxes.values()):
                await whole(scope, receive, send)
            return
        request = Request()
        token = NOW.set(request)
        try:
            await whole(scope, receive, send)
        finally:
            NOW.reset(token)
            rotation.left(request)

    return app


def begun(fleet: str, key: str) -> Rotation | None:
    """Before LiteLLM reads its configuration. None where it asks one box alone. fleet: the file.
    key: of the filters."""
    told = json.loads(fleet)
    boxes = [
        Box(name, one["models"], one["health"], one["names"], key if one["keyed"] else "none")
        for name, one in told["boxes"].items()
    ]
    if not boxes:
        return None
    rotation = Rotation(boxes, Out(told["out"]))
    hooked(rotation)
    given_up_when_silent()
    return rotation


def hooked(rotation: Rotation) -> None:
    """LiteLLM asks `rotation` for each try of a request, and Prometheus how the boxes are."""
    import litellm  # noqa: PLC0415  only there, where LiteLLM is
    from litellm.integrations.custom_logger import CustomLogger  # noqa: PLC0415
    from prometheus_client import REGISTRY  # noqa: PLC0415

    class Hook(CustomLogger):  # type: ignore[misc]
        async def async_filter_deployments(
            self, model: str, healthy_deployments: list[dict[str, Any]], **more: Any
        ) -> list[dict[str, Any]]:
            by_box = {one["model_info"]["box"]: one for one in healthy_deployments}
            asked = more.get("request_kwargs") or {}
            holds = holder(by_box, asked)
            try:
                return [by_box[rotation.chosen(holds or by_box, NOW.get(), model)]]
            except NobodyServesError as error:
                words = f"{nobody(model, bool(holds))}: {error}{last_error(asked)}"
                raise litellm.ServiceUnavailableError(words, llm_provider="", model=model) from None

    litellm.callbacks.append(Hook())
    REGISTRY.register(Gauges(rotation))


def nobody(model: str, holds: bool) -> str:
    """Whom a request would need. holds: a box that has the answer which it goes on from."""
    if holds:
        return f"only one box of {model} has the answer that this goes on from"
    return f"no box serves {model} now"


def last_error(request: Mapping[str, Any]) -> str:
    """What LiteLLM has written down of this request's last failed try, if there was one."""
    told = request.get("litellm_metadata") or request.get("metadata") or {}
    tries = told.get("previous_models") or ()
    return f"; last: {tries[-1].get('exception_string')}" if tries else ""


def holder(by_box: Mapping[str, Any], request: Mapping[str, Any]) -> list[str]:
    """The box that holds the answer which a request goes on from; none where that can't be told."""
    response = request.get("previous_response_id")
    if not response:
        return []
    from litellm.responses.utils import ResponsesAPIRequestUtils  # noqa: PLC0415

    told = ResponsesAPIRequestUtils.decode_responses_api_response_id(response)
    return [name for name, one in by_box.items() if one["model_info"]["id"] == told["model_id"]]


class Gauges:
    """For Prometheus, made when it asks."""

    def __init__(self, rotation: Rotation) -> None:
        self._rotation = rotation

    def collect(self) -> Iterable[Any]:
        from prometheus_client.core import GaugeMetricFamily  # noqa: PLC0415

        told = {
            "healthy": "Whether a box answers this gateway.",
            "in_rotation": "0 where somebody has taken a box out.",
            "requests": "Requests of this gateway that a box answers now.",
        }
        gauges = {
            name: GaugeMetricFamily(f"aibox_gateway_box_{name}", words, labels=["of"])
            for name, words in told.items()
        }
        for name, of in self._rotation.shown().items():
            values = {"healthy": of["healthy"], "in_rotation": of["out"] is None, **of}
            for gauge in told:
                gauges[gauge].add_metric([name], float(values[gauge]))
        return list(gauges.values())


def given_up_when_silent() -> None:
    """LiteLLM's connections end when a box confirms nothing any more, as one without power.

    LiteLLM's own setting for it (AIOHTTP_SO_KEEPALIVE) leaves out a question that never arrived.
    """
    from litellm.llms.custom_httpx import http_handler  # noqa: PLC0415

    if not callable(http_handler.build_aiohttp_keepalive_socket_factory):
        raise TypeError("this LiteLLM makes its connections in another way")
    http_handler.build_aiohttp_keepalive_socket_factory = lambda: watchful_socket


def watchful_socket(address: tuple[Any, ...]) -> socket.socket:
    """address: as getaddrinfo has it."""
    family, kind, protocol = address[:3]
    one = socket.socket(family, kind, protocol)
    one.setblocking(False)
    one.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in WATCHFUL.items():
        one.setsockopt(socket.IPPROTO_TCP, option, value)
    return one
