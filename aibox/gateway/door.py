"""What stands around LiteLLM: which paths answer, who may ask, and who may read the metrics.

This file is laid beside LiteLLM's configuration. uvicorn asks `made` for the application, LiteLLM
itself `key_checked` for each request. LiteLLM alone answers a wrong key with 400, and serves its
admin pages to everybody.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
import os
import re
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from functools import cache
from pathlib import Path
from typing import Any

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

MASTER = "master"  # the first key's name
METRICS_FROM = "AIBOX_METRICS_FROM"  # in the environment: networks, with commas between
UPSTREAM_KEY = "AIBOX_UPSTREAM_KEY"  # in the environment that LiteLLM reads

PATHS = {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v1/models",
    "/health/liveliness",
    "/health/readiness",
}
BELOW = ("/v1/models/", "/v1/responses/")
METRICS = ("/metrics", "/metrics/")
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")
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
    wanted, found = given.removeprefix("Bearer ").strip().encode(), None
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


async def key_checked(request: Any, api_key: str) -> Any:  # noqa: ARG001  LiteLLM passes it by name
    """What LiteLLM asks of each request: whose key it is. A missing or wrong one is a 401."""
    from litellm.proxy._types import (  # noqa: PLC0415  only there, where LiteLLM is
        LitellmUserRoles,
        ProxyException,
        UserAPIKeyAuth,
    )

    name = name_of(api_key or "", keys())
    if name is None:
        said = "the key is missing or not known: send `Authorization: Bearer KEY` or `x-api-key`"
        raise ProxyException(message=said, type="authentication_error", param="key", code=401)
    user = LitellmUserRoles.INTERNAL_USER
    return UserAPIKeyAuth(api_key=name, key_alias=name, user_id=name, user_role=user)


# --- paths ---------------------------------------------------------------------------------------


def status_of(path: str, client: str, metrics_from: str) -> int:
    """200 for a path that LiteLLM is to answer, else the status that is answered in its place.

    client: its address. metrics_from: networks beside the box itself, with commas between.
    """
    if path in METRICS:
        return 200 if may_read_metrics(client, metrics_from) else 403
    return 200 if path in PATHS or path.startswith(BELOW) else 404


def may_read_metrics(client: str, metrics_from: str) -> bool:
    try:
        address = ipaddress.ip_address(client)
    except ValueError:
        return False
    address = getattr(address, "ipv4_mapped", None) or address
    networks = [ipaddress.ip_network(text) for text in metrics_from.split(",") if text]
    return address.is_loopback or any(address in network for network in networks)


SAID = {403: "metrics are for the box itself and for metrics_from", 404: "no such path"}


def guarded(whole: Application, metrics_from: str) -> Application:
    """LiteLLM's application without what is nobody's business: admin pages, sockets."""

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        client = (scope.get("client") or ("",))[0]
        status = 200
        if scope["type"] == "http":
            status = status_of(scope["path"], client, metrics_from)
        if status == 200:
            await whole(scope, receive, send)
            return
        error = {"message": SAID[status], "type": "invalid_request_error", "code": str(status)}
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"error": error}).encode()})

    return app


def made() -> Application:
    """The application. What LiteLLM reads of secrets it finds in this process only."""
    os.environ["LITELLM_MASTER_KEY"] = keys()[MASTER]
    upstream = keys_in(credential("upstream-keys"))
    os.environ[UPSTREAM_KEY] = next(iter(upstream.values()), "none")
    from litellm.proxy.proxy_server import app  # noqa: PLC0415  it reads the environment

    return guarded(app, os.environ.get(METRICS_FROM, ""))
