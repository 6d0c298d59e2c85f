"""What the filter is told: one JSON file, and the keys beside it."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from aibox.decide.nearest import did_you_mean
from aibox.decide.refusal import Refusal
from aibox.faults import faults_of
from aibox.stream.mends import DEFAULTS, Mode

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class ConfigError(Exception):
    """The filter cannot start with what it was given."""

    def __init__(self, found: str, expected: str, remedy: str) -> None:
        super().__init__(found)
        self.refusal = Refusal(found, expected, remedy)


def _is_address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError("expected an IP address of this machine, or 0.0.0.0 for all") from None
    return text


def _is_network(text: str) -> str:
    try:
        ipaddress.ip_network(text)
    except ValueError:
        raise ValueError("expected an IP address or network, such as 192.168.1.0/24") from None
    return text


def _is_upstream(text: str) -> str:
    parts = urlsplit(text)
    if parts.scheme != "http" or not parts.hostname or parts.path.strip("/") or parts.query:
        raise ValueError("expected the server's address, such as http://127.0.0.1:8000")
    return text.rstrip("/")


class _Told(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class Limits(_Told):
    body_bytes: int = Field(default=64 << 20, gt=0, description="bytes a request may have, over 0")
    event_bytes: int = Field(
        default=8 << 20, ge=1024, description="bytes of an event that is looked at"
    )
    header_s: float = Field(
        default=60, gt=0, description="seconds for a request's header, and between two"
    )
    body_s: float = Field(default=120, gt=0, description="seconds for a request's body, over 0")
    stall_s: float = Field(
        default=600, gt=0, description="seconds a client may take nothing, over 0"
    )
    drain_s: float = Field(
        default=30, ge=0, description="seconds that answers have to end in, 0 or more"
    )
    streams: int = Field(
        default=256, gt=0, description="requests that are answered at a time, over 0"
    )


class Config(_Told):
    """Each key with its unit and default; the description is what a refusal says is expected."""

    address: Annotated[str, AfterValidator(_is_address)] = Field(
        default="0.0.0.0",  # noqa: S104  the LAN
        description="an IP address of this machine",
    )
    port: int = Field(
        default=4000, ge=0, le=65535, description="a TCP port, 1 to 65535; 0: any free one"
    )
    upstream: Annotated[str, AfterValidator(_is_upstream)] = Field(
        default="http://127.0.0.1:8000",
        description="the server's address, such as http://127.0.0.1:8000",
    )
    mends: dict[str, Mode] = Field(
        default_factory=dict, description='"on", "count" or "off" for a mend\'s name'
    )
    thinking: bool = Field(
        default=True,
        description="true or false: whether the server thinks where a request does not say",
    )
    keepalive_s: float = Field(default=15, gt=0, description="seconds of silence, over 0")
    keys_file: str | None = Field(
        default=None, description="an absolute path, or null: no key is asked"
    )
    metrics_allowed: list[Annotated[str, AfterValidator(_is_network)]] = Field(
        default_factory=list, description="a list of IP addresses or networks"
    )
    limits: Limits = Field(default=Limits(), description="a mapping of limits")

    @model_validator(mode="after")
    def _known_mends(self) -> Config:
        for name in self.mends:
            if name not in DEFAULTS:
                raise ValueError(f"no mend is named {name}{did_you_mean(name, DEFAULTS)}")
        return self

    @property
    def modes(self) -> dict[str, Mode]:
        return {**DEFAULTS, **self.mends}

    @property
    def networks(self) -> list[Network]:
        return [ipaddress.ip_network(text) for text in self.metrics_allowed]


def load(path: Path) -> Config:
    """Raises ConfigError, with all faults at once."""
    remedy = f"mend {path}; the deploy writes it anew from the settings"
    try:
        told: Any = json.loads(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "a file that can be read", remedy) from None
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is no JSON: {error}", "a JSON object", remedy) from None
    try:
        return Config.model_validate(told)
    except ValidationError as error:
        faults = [f"{key}: {fault}".removeprefix(": ") for key, fault in faults_of(error, Config)]
        raise ConfigError("; ".join(faults), "settings as documented", remedy) from None


class Keys:
    """Who may ask, by the digest of his key. None of them: everyone."""

    def __init__(self, keys: Mapping[str, str]) -> None:
        self._digests = {name: _digest(key) for name, key in keys.items()}

    @property
    def open(self) -> bool:
        return not self._digests

    def name_of(self, key: str) -> str | None:
        """Whose key it is. Takes the same time for each key, right or wrong."""
        asked, found = _digest(key), None
        for name, digest in self._digests.items():
            if hmac.compare_digest(asked, digest):
                found = name
        return found


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def load_keys(path: Path | None) -> Keys:
    """From lines `name: key`; # begins a comment. Raises ConfigError, never with a key in it."""
    if path is None:
        return Keys({})
    remedy = f"mend {path}: one `name: key` a line, chmod 600"
    try:
        if path.stat().st_mode & 0o007:
            raise ConfigError(f"{path} is open to everyone", "a file of mode 0600", remedy)
        lines = path.read_text().splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is no text", "lines `name: key`", remedy) from None
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror}", "a file of keys", remedy) from None
    keys: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        name, _, key = (part.strip() for part in line.partition(":"))
        if not _NAME.fullmatch(name) or not key or name in keys:
            raise ConfigError(f"{path}, line {number}", "`name: key`, each name once", remedy)
        keys[name] = key
    if not keys:
        raise ConfigError(f"{path} has no key", "at least one line `name: key`", remedy)
    return Keys(keys)
