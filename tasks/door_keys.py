"""The keys that open the doors: given on control, or for LiteLLM's first one, made on the box."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from aibox.decide.doors import GATEWAY_KEYS, MASTER_KEY, STREAM_KEYS
from aibox.decide.refusal import Refusal
from aibox.gateway.door import MASTER, keys_in
from tasks import ledger
from tasks.box import PROJECT
from tasks.drift_report import because
from tasks.facts import Probe
from tasks.given_secrets import SecretError, in_file
from tasks.operations import Commands, refused, written

MASTER_FILE = PROJECT / "secrets/litellm-master-key"
KEYS_FILE = PROJECT / "secrets/litellm-keys"
STREAM_FILE = PROJECT / "secrets/stream-keys"
LINES = "one `name: key` a line"


def master_key() -> str | None:
    """LITELLM_MASTER_KEY, or what stands in its file; None without either. Raises SecretError."""
    given = os.environ.get("LITELLM_MASTER_KEY", "").strip()
    key = given or in_file(MASTER_FILE, "a key on one line")
    if key and not (key.startswith("sk-") and len(keys_or_none(f"{MASTER}: {key}")) == 1):
        raise SecretError(
            "a master key for LiteLLM that it would not take",
            "one word of 8 characters or more that begins with sk-",
            f"correct LITELLM_MASTER_KEY or {MASTER_FILE}",
        )
    return key or None


def keys_or_none(text: str) -> dict[str, str]:
    try:
        return keys_in(text)
    except ValueError:
        return {}


def gateway_keys() -> str:
    """The lines of further keys; empty without any. Raises SecretError."""
    return lines_in(KEYS_FILE, forbidden=MASTER)


def stream_keys() -> str:
    """The lines of the filter's keys; empty: it is open. Raises SecretError."""
    return lines_in(STREAM_FILE)


def lines_in(path: os.PathLike[str], forbidden: str | None = None) -> str:
    text = in_file(PROJECT / path, LINES)
    if text is None:
        return ""
    try:
        found = keys_in(text)
    except ValueError as error:
        raise SecretError(f"{path}: {error}", LINES, "correct it") from None
    if forbidden in found:
        raise SecretError(f"{path} names {forbidden}", "another name", "correct it")
    return "".join(f"{name}: {key}\n" for name, key in found.items())


def refusals() -> list[Refusal]:
    """What is wrong with the keys on control, before anything is changed."""
    found = []
    for read in (master_key, gateway_keys, stream_keys):
        try:
            read()
        except SecretError as error:
            found.append(error.refusal)
    return found


# --- on the box ----------------------------------------------------------------------------------


@operation()
def given(path: str, content: str, source: Path | None = None) -> Commands:
    """A file of keys as they were given on control. Only a salted sum of it comes back.

    source: the file on control. Another clone that lacks it must not open a door without a word.
    """
    told(path)
    found = host.get_fact(Probe, "secret", json.dumps({"path": path}))
    if source and not source.exists() and found and not found["is_empty"]:
        yield refused(without_keys(path, source))
        return
    right = is_roots_own(found)
    if right and found["sum"] == hashlib.sha256(f"{found['salt']}{content}".encode()).hexdigest():
        host.noop(f"{path} is as it was given")
        return
    because(host, f"{path} is not as it was given" if found else f"{path} is not there")
    yield written(path, content.encode(), mode="600")


def without_keys(path: str, source: Path) -> Refusal:
    name = source.relative_to(PROJECT)
    return Refusal(
        f"the box has keys in {path}, and this project has no {name}",
        "the keys that the box is to have, or a word that there are to be none",
        f"put them into {name} (mode 600; `sudo cat {path}` on the box shows them), or make it an "
        "empty file, which takes them away",
    )


@operation()
def made(path: str) -> Commands:
    """A key that is made on the box, once, and is known nowhere else."""
    told(path)
    found = host.get_fact(Probe, "secret", json.dumps({"path": path}))
    if is_roots_own(found) and not found["is_empty"]:
        host.noop(f"{path} is there")
        return
    quoted = QuoteString(path)
    if found and not found["is_empty"]:
        because(host, f"{path} is {found['owner']} {found['mode']}, not root:root 600")
        yield StringCommand("chown root:root", quoted, "&& chmod 600", quoted)
        return
    because(host, f"{path} is empty" if found else f"{path} is not there")
    yield StringCommand("sh -c", QuoteString(MAKE), "make", quoted)


# $1 path; the key goes from the generator into the file and is seen by nobody.
MAKE = """set -e
mkdir -p "$(dirname "$1")"
umask 077
python3 -c 'import secrets; print("sk-" + secrets.token_urlsafe(32))' >"$1.new"
sync "$1.new"
mv -fT "$1.new" "$1"
sync "$(dirname "$1")"
"""


def told(path: str) -> None:
    secret = {"user": "root", "group": "root", "mode": "600", "sha256": None}
    ledger.of(host).files[path] = secret


def is_roots_own(found: dict[str, Any] | None) -> bool:
    return found is not None and (found["owner"], found["mode"]) == ("root:root", "600")


def of_gateway() -> None:
    """Operations that lay down LiteLLM's keys."""
    key = master_key()
    if key is None:
        made(name="LiteLLM's master key", path=MASTER_KEY)
    else:
        given(name="LiteLLM's master key", path=MASTER_KEY, content=f"{key}\n")
    given(
        name="LiteLLM's further keys", path=GATEWAY_KEYS, content=gateway_keys(), source=KEYS_FILE
    )


def of_stream() -> None:
    """An operation that lays down the filter's keys."""
    given(name="The filter's keys", path=STREAM_KEYS, content=stream_keys(), source=STREAM_FILE)
