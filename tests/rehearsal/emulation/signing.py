"""The OpenPGP keys that stand in for NVIDIA's: made once per cache, used by gpg in passing.

Debian 13's apt takes no SHA-1, so everything here is SHA-512; rsa3072 is what it takes and what
NVIDIA's own key is like.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tests.rehearsal.machine import RehearsalError, cache_folder, command, locked

GPG = (
    *("gpg", "--batch", "--quiet", "--no-tty", "--pinentry-mode", "loopback", "--passphrase", ""),
    *("--cert-digest-algo", "SHA512", "--digest-algo", "SHA512"),
)


@dataclass(frozen=True)
class Signer:
    """A key that is ready to sign with: the start of every gpg command for it."""

    gpg: tuple[str, ...]

    def public(self) -> str:
        """The public half, armored."""
        return command(*self.gpg, "--armor", "--export")

    def keyring(self) -> bytes:
        """The public half as a keyring file for apt, not armored."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "keyring.gpg"
            command(*self.gpg, "--output", file, "--export")
            return file.read_bytes()

    def clear_signed(self, text: str) -> str:
        """The text with a signature around it, as InRelease is."""
        return command(*self.gpg, "--clearsign", text=text)

    def detached(self, text: str) -> str:
        """An armored signature of the text, as Release.gpg is."""
        return command(*self.gpg, "--armor", "--detach-sign", text=text)


@contextmanager
def signer(name: str) -> Iterator[Signer]:
    """The key of this name, for as long as the block lasts."""
    with _gpg_home() as gpg:
        command(*gpg, "--import", _secret(name))
        yield Signer(gpg)


@cache
def fingerprint(name: str) -> str:
    """The 40 hex digits of the key of this name."""
    secret = _secret(name)
    with _gpg_home() as gpg:
        only_look = ("--with-colons", "--import-options", "show-only", "--import")
        shown = command(*gpg, *only_look, secret)
    lines = [line.split(":") for line in shown.splitlines()]
    found = next((fields[9] for fields in lines if fields[0] == "fpr"), None)
    if found is None:
        raise RehearsalError(f"{secret} holds no key. Remove it: a new one is made.")
    return found


def _secret(name: str) -> Path:
    """The file of the secret half, armored, in the cache; made when there is none."""
    secret = cache_folder() / "keys" / f"{name}.asc"
    if not secret.exists():
        with locked(cache_folder() / "keys" / "lock"):
            if not secret.exists():
                _make(name, secret)
    return secret


def _make(name: str, secret: Path) -> None:
    with _gpg_home() as gpg:
        user = f"Rehearsal stand-in {name} <{name}@invalid>"
        command(*gpg, "--quick-generate-key", user, "rsa3072", "sign", "never")
        text = command(*gpg, "--armor", "--export-secret-keys")
    aside = secret.with_suffix(".new")
    aside.touch(mode=0o600)
    aside.write_text(text)
    aside.replace(secret)


@contextmanager
def _gpg_home() -> Iterator[tuple[str, ...]]:
    """gpg with a home of its own, whose agent ends with it; its socket wants a short path."""
    with tempfile.TemporaryDirectory(prefix="rehearsal-gpg-") as home:
        try:
            yield (*GPG, "--homedir", home)
        finally:
            command("gpgconf", "--homedir", home, "--kill", "all", check=False)
