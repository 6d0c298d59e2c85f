"""The keys that open the doors: given on control, or for LiteLLM's first one, made on the box."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Collection
from pathlib import Path
from typing import Any

from pyinfra import host
from pyinfra.api import QuoteString, StringCommand, operation

from aibox.decide.doors import GATEWAY, GATEWAY_KEYS, MASTER_KEY, STREAM, STREAM_KEYS, Standing
from aibox.decide.refusal import Refusal
from aibox.gateway.door import MASTER, keys_in
from tasks import ledger
from tasks.box import PROJECT
from tasks.drift_report import because
from tasks.facts import Probe
from tasks.given_secrets import SecretError, in_file
from tasks.operations import Commands, written

MASTER_FILE = PROJECT / "secrets/litellm-master-key"
KEYS_FILE = PROJECT / "secrets/litellm-keys"
STREAM_FILE = PROJECT / "secrets/stream-keys"
LINES = "one `name: key` a line"
NO_KEYS = "none"  # as the only word of a file: there are to be none


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
    return lines_in(KEYS_FILE, forbidden=MASTER) or ""


def stream_keys() -> str:
    """The lines of the filter's keys; empty: it is open. Raises SecretError."""
    return lines_in(STREAM_FILE) or ""


def lines_in(path: os.PathLike[str], forbidden: str | None = None) -> str | None:
    """The keys as they are laid down; None where nothing is said: no file, or none with a key."""
    text = in_file(PROJECT / path, f"{LINES}, or the word {NO_KEYS}")
    lines = [line for line in (text or "").splitlines() if not line.lstrip().startswith("#")]
    if [line.strip() for line in lines if line.strip()] == [NO_KEYS]:
        return ""
    try:
        found = keys_in(text or "")
    except ValueError as error:
        raise SecretError(f"{path}: {error}", LINES, "correct it") from None
    if forbidden in found:
        raise SecretError(f"{path} names {forbidden}", "another name", "correct it")
    return "".join(f"{name}: {key}\n" for name, key in found.items()) or None


def refusals(standing: Standing, there: Collection[str]) -> list[Refusal]:
    """What is wrong with the keys on control, before anything is changed.

    there: the files of keys on the box that hold any.
    """
    found = []
    for read in (master_key, gateway_keys, stream_keys):
        try:
            read()
        except SecretError as error:
            found.append(error.refusal)
    return found or [
        not_said(path, source)
        for door, path, source in (
            (STREAM, STREAM_KEYS, STREAM_FILE),
            (GATEWAY, GATEWAY_KEYS, KEYS_FILE),
        )
        if standing.of(door).on and path in there and lines_in(source) is None
    ]


def not_said(path: str, source: Path) -> Refusal:
    """Another clone, or a file that came out empty, must not open a door without a word."""
    name = f"secrets/{source.name}"
    found = f"{name} names no key" if source.exists() else f"this project has no {name}"
    opens = ", and opens the filter to whoever reaches it" if path == STREAM_KEYS else ""
    return Refusal(
        f"the box has keys in {path}, and {found}",
        "the keys that the box is to have, or a word that there are to be none",
        f"put them into {name} (mode 600; `sudo cat {path}` on the box shows them), or the one "
        f"word {NO_KEYS}, which takes them away{opens}",
    )


# --- on the box ----------------------------------------------------------------------------------


@operation()
def given(path: str, content: str) -> Commands:
    """A file of keys as they were given on control. Only a salted sum of it comes back."""
    told(path)
    found = host.get_fact(Probe, "secret", json.dumps({"path": path}))
    if not found or found["sum"] != salted(found["salt"], content):
        because(host, f"{path} is not as it was given" if found else f"{path} is not there")
        yield written(path, content.encode(), mode="600")
    elif is_roots_own(found):
        host.noop(f"{path} is as it was given")
    else:
        yield roots_own(path, found)


@operation()
def made(path: str) -> Commands:
    """A key that is made on the box, once, and is known nowhere else."""
    told(path)
    found = host.get_fact(Probe, "secret", json.dumps({"path": path}))
    if is_roots_own(found) and not found["is_empty"]:
        host.noop(f"{path} is there")
        return
    if found and not found["is_empty"]:
        yield roots_own(path, found)
        return
    because(host, f"{path} is empty" if found else f"{path} is not there")
    yield StringCommand("sh -c", QuoteString(MAKE), "make", QuoteString(path))


# $1 path; the key goes from the generator into the file and is seen by nobody.
MAKE = """set -e
mkdir -p "$(dirname "$1")"
umask 077
python3 -c 'import secrets; print("sk-" + secrets.token_urlsafe(32))' >"$1.new"
sync "$1.new"
mv -fT "$1.new" "$1"
sync "$(dirname "$1")"
"""


def roots_own(path: str, found: dict[str, Any]) -> StringCommand:
    """A command for a file whose content is right: it stays, and no door is started anew."""
    because(host, f"{path} is {found['owner']} {found['mode']}, not root:root 600")
    quoted = QuoteString(path)
    return StringCommand("chown root:root", quoted, "&& chmod 600", quoted)


def salted(salt: str, content: str) -> str:
    return hashlib.sha256(f"{salt}{content}".encode()).hexdigest()


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
    given(name="LiteLLM's further keys", path=GATEWAY_KEYS, content=gateway_keys())


def of_stream() -> None:
    """An operation that lays down the filter's keys."""
    given(name="The filter's keys", path=STREAM_KEYS, content=stream_keys())
