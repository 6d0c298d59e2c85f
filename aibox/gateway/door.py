"""What stands around LiteLLM: which paths answer, who may ask, and who may read the metrics.

This file is laid beside LiteLLM's configuration, and rotation.py beside it. uvicorn asks `made` for
the application, LiteLLM itself `key_checked` for each request. LiteLLM alone answers a wrong key
with 400, and serves its admin pages to everybody.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping, MutableMapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MASTER = "master"  # the first key's name
METRICS_FROM = "AIBOX_METRICS_FROM"  # in the environment: networks, with commas between
KEY_HEADERS = (b"authorization", b"x-api-key")
UPSTREAM_KEY = "AIBOX_UPSTREAM_KEY"  # in the environment that LiteLLM reads

PATHS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
}
OPEN = ("/health/liveliness", "/health/readiness")  # nobody needs a key for these
BELOW = ("/v1/models/", "/v1/responses/")
METRICS = ("/metrics", "/metrics/")
ROTATION = "/rotation"  # how the boxes are, where there are several
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # the filter takes the same
_KEY = re.compile(r"[!-~]{8,512}")


# --- keys ----------------------------------------------------------------------------------------


def keys_in(text: str) -> dict[str, str]:
    """{name: key} of lines `name: key`; blank lines and those that begin with # are passed over.

    Raises ValueError, in words that hold no key.
    """
    keys: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, colon, key = (part.strip() for part in line.partition(":"))
        if not (colon and _NAME.fullmatch(name) and _KEY.fullmatch(key)):
            raise ValueError(f"line {number} is no `name: key` (a key: 8 characters or more)")
        if name in keys:
            raise ValueError(f"line {number} names {name} again")
        keys[name] = key
    return keys


def name_of(given: str, keys: Mapping[str, str]) -> str | None:
    """The name of a key; None for one that is not known, or where none was given.

    Every key is compared to its end.
    """
    scheme, _, rest = given.partition(" ")
    text = rest if scheme.lower() == "bearer" else given
    wanted, found = text.strip().encode(), None
    for name, key in keys.items():
        if wanted and hmac.compare_digest(wanted, key.encode()):
            found = name
    return found


def credential(name: str) -> str:
    """What systemd has handed over under this name; empty without it."""
    path = Path(os.environ.get("CREDENTIALS_DIRECTORY", ""), name)
    return path.read_text() if path.is_file() else ""


@cache
def keys() -> dict[str, str]:
    """The master key and those beside it. Raises ValueError: without a master key nobody serves."""
    return keys_in(f"{MASTER}: {credential('master-key').strip()}\n{credential('keys')}")


def name_in(headers: Iterable[tuple[bytes, bytes]]) -> str | None:
    """The name of the first good key of a request, by `Authorization` or `x-api-key`."""
    given = [text.decode("latin-1") for name, text in headers if name.lower() in KEY_HEADERS]
    return next((name for text in given if (name := name_of(text, keys()))), None)


async def key_checked(request: Any, api_key: str) -> Any:  # noqa: ARG001  LiteLLM passes it by name
    """What LiteLLM asks of each request: whose key it is. None comes so far without a good one."""
    from litellm.proxy._types import (  # noqa: PLC0415  only there, where LiteLLM is
        LitellmUserRoles,
        ProxyException,
        UserAPIKeyAuth,
    )

    name = name_in(request.headers.raw)
    if name is None:
        raise ProxyException(message=SAID[401], type="authentication_error", param="key", code=401)
    user = LitellmUserRoles.INTERNAL_USER
    return UserAPIKeyAuth(api_key=name, key_alias=name, user_id=name, user_role=user)


# --- paths ---------------------------------------------------------------------------------------


def status_of(path: str, client: str, metrics_from: str, here: str = "") -> int:
    """200 for a path that is to be answered, else the status that is answered in its place.

    client: its address. metrics_from: networks beside the box itself, with commas between. here:
    the box's own address, at which it was asked.
    """
    if path in (*METRICS, ROTATION):
        is_here = bool(here) and client == here
        return 200 if is_here or may_read_metrics(client, metrics_from) else 403
    return 200 if path in (*PATHS, *OPEN) or path.startswith(BELOW) else 404


def may_read_metrics(client: str, metrics_from: str) -> bool:
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    networks = [ipaddress.ip_network(text) for text in metrics_from.split(",") if text]
    return address.is_loopback or any(address in network for network in networks)


SAID = {
    401: "the key is missing or not known: send `Authorization: Bearer KEY` or `x-api-key: KEY`",
    403: "metrics are for the box itself and for metrics_from",
    404: "no such path",
}
KINDS = {401: "authentication_error", 403: "permission_error", 404: "not_found_error"}


def error_body(path: str, status: int) -> bytes:
    """An error as OpenAI's or Anthropic's clients know it."""
    error = {"type": KINDS[status], "message": SAID[status]}
    if path.startswith("/v1/messages"):
        return json.dumps({"type": "error", "error": error}).encode()
    return json.dumps({"error": {**error, "param": None, "code": status}}).encode()


def guarded(
    whole: Application, metrics_from: str, boxes: Callable[[], Any] | None = None
) -> Application:
    """LiteLLM's application without what is nobody's business: admin pages, sockets, strangers.

    boxes: how they are, where there are several.
    """

    def judged(scope: Scope) -> int:
        path, client = scope["path"], (scope.get("client") or ("",))[0]
        if path == ROTATION and boxes is None:
            return 404
        here = str((scope.get("server") or ("",))[0])
        status = status_of(path, client, metrics_from, here)
        asks_first = scope["method"] == "OPTIONS"  # as a browser does, without a key
        if status != 200 or asks_first or path in (*OPEN, *METRICS, ROTATION):
            return status
        return 200 if name_in(scope["headers"]) else 401

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        status = judged(scope) if scope["type"] == "http" else 200
        if status != 200:
            await answered(send, status, error_body(scope["path"], status))
        elif boxes and scope.get("path") == ROTATION:
            await answered(send, 200, json.dumps({"boxes": boxes()}).encode())
        else:
            await whole(scope, receive, send)

    return app


async def answered(send: Send, status: int, body: bytes) -> None:
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def made() -> Application:
    """The application. What LiteLLM reads of secrets it finds in this process only."""
    os.environ["LITELLM_MASTER_KEY"] = keys()[MASTER]
    upstream = keys_in(credential("upstream-keys"))
    os.environ[UPSTREAM_KEY] = next(iter(upstream.values()), "none")
    from litellm.proxy.proxy_server import app  # noqa: PLC0415  it reads the environment

    rotation = import_module("rotation")  # laid beside this file
    metrics_from = os.environ.get(METRICS_FROM, "")
    fleet = Path(__file__).with_name(rotation.FLEET).read_text()
    turns = rotation.begun(fleet, os.environ[UPSTREAM_KEY])
    if turns is None:
        return guarded(app, metrics_from)
    return guarded(rotation.around(app, turns), metrics_from, turns.shown)
