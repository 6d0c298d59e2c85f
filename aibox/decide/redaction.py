"""What leaves the box in a report: without secrets, people and places.

Rather too much is hidden than one thing too little. The same name or address gets the same number,
so that a log can still be followed.
"""

from __future__ import annotations

import ipaddress
import re
from collections import Counter
from collections.abc import Callable, Iterable

from aibox.decide.secrecy import secrets_hidden

_HOME = re.compile(r"(?P<head>/(?:home|Users)/)(?P<name>[^/\s\"':;,)\]}]+)")
_MAIL = re.compile(r"(?<![\w.+-])[\w.+-]+@[\w-]+(?:\.[\w-]+)+")
_IPV4 = re.compile(r"(?<![\w.])(?<!==)(?:\d{1,3}\.){3}\d{1,3}(?![\w]|\.\d)")
_IPV6 = re.compile(r"(?<![\w:.])[0-9A-Fa-f:]*:[0-9A-Fa-f:]+(?:%\w+)?(?![\w:])")
_MAC = re.compile(r"(?<![\w:-])(?:[0-9A-Fa-f]{2}[:-]){5}[0-9A-Fa-f]{2}(?![\w:-])")
_LAN_NAME = re.compile(
    r"\b(?!localhost)[\w-]+(?:\.[\w-]+)*\.(?:local|lan|home|internal|intranet|fritz\.box|home\.arpa|"
    r"ts\.net)\b(?!/)",
    re.IGNORECASE,
)
_PROMPT = re.compile(r"(?P<head>\bprompt: )(?P<value>['\"].*)")


class Redactor:
    """Hides what a report must not hold, and counts what it hid."""

    def __init__(self, people: Iterable[str] = (), box: str = "") -> None:
        """people: names of the box's users, hidden wherever they stand. box: its host name."""
        self.counts: Counter[str] = Counter()
        self._numbers: dict[tuple[str, str], int] = {}
        self._box = box
        self._people = {name for name in people if len(name) > 1}

    def __call__(self, text: str) -> str:
        self._people |= {found["name"] for found in _HOME.finditer(text)} - {"linuxbrew"}
        text = secrets_hidden(text, self._hidden)
        for pattern, hide in self._steps():
            text = pattern.sub(hide, text)
        return self._names(text)

    def said(self) -> list[str]:
        """What was hidden, a line a kind."""
        return [f"{count} × {what}" for what, count in sorted(self.counts.items())]

    def _steps(self) -> list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]]:
        return [
            (_PROMPT, lambda found: found["head"] + self._hidden("prompt")),
            (_HOME, lambda found: found["head"] + self._numbered("user", found["name"])),
            (_MAIL, lambda _found: self._hidden("mail address")),
            (_MAC, lambda found: self._numbered("hardware address", found[0].lower())),
            (_IPV4, self._address),
            (_IPV6, self._address),
            (_LAN_NAME, lambda found: self._numbered("LAN name", found[0].lower())),
        ]

    def _hidden(self, what: str) -> str:
        self.counts[what] += 1
        return f"(hidden: {what})"

    def _numbered(self, what: str, value: str) -> str:
        self.counts[what] += 1
        number = self._numbers.setdefault((what, value), self._count(what) + 1)
        return f"({what} {number})"

    def _count(self, what: str) -> int:
        return sum(kind == what for kind, _ in self._numbers)

    def _address(self, found: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(found[0].partition("%")[0])
        except ValueError:  # a version, a time
            return found[0]
        if address.is_loopback or address.is_unspecified or str(address) == "255.255.255.255":
            return found[0]
        return self._numbered("address", str(address))

    def _names(self, text: str) -> str:
        for name in sorted(self._people, key=len, reverse=True):
            word = re.compile(rf"(?<![\w-]){re.escape(name)}(?![\w-])")
            text = word.sub(lambda _found, name=name: self._numbered("user", name), text)  # type: ignore[misc]  # mypy can't see the default
        if self._box:
            word = re.compile(rf"(?<![\w-]){re.escape(self._box)}(?![\w-])")
            text = word.sub(lambda _found: self._hidden("name of the box"), text)
        return text
