"""Keeps what looks like a secret out of what is shown: a person may have written one by hand."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

HIDDEN = "(hidden)"

_PEM = re.compile(
    r"-----BEGIN (?P<what>[A-Z0-9 ]+)-----.*?(?:-----END (?P=what)-----|\Z)", re.DOTALL
)
_SECRETIVE = (
    r"[\w-]*(?:(?:key|secret|passw(?:or)?[dt]|passphrase|credential|signature|cookie|salt)s?|token|"
    r"(?<![\w-])tokens|(?:api|auth|access|hf|hub)[_-]tokens|"
    r"(?<=_)(?:pass|pwd|pw|pat)|(?<![a-z])auth)(?:[_-]?\d+)?"
)
# What parts words in a unit, where a line may go on in the next.
_SPACE = r"(?:[ \t]|\\\n)"
# `KEY=value`, `"api_key": "value"`, `--hf-token value`; a list of several behind one name.
_NAMED = re.compile(
    rf"""(?P<name> (?:--|\b){_SECRETIVE} )
        (?P<between> \\?["']? (?: \s*[=:]\s* | {_SPACE}+(?=[^-\s=:\\]) | ,\s*(?=\\?["'][^-]) ) )
        (?P<value> \[ [^\]\n]* \] | \\?"(?:[^"\\]|\\.)*\\?" | '[^'\n]*'
            | (?:[^\s"',;&]|,(?=[^\s"']))+ )
        (?P<more> (?:
            {_SPACE}+(?![\w-]+=)(?:"[^"\n]*"|'[^'\n]*'|[^\s"'\\-][^\s"']*)
            | ,\s*(?:\\?"(?!-)[^"\n]*"|'(?!-)[^'\n]*')
        )* )""",
    re.IGNORECASE | re.VERBOSE,
)
# systemd's `Environment="KEY=a value with spaces"`
_QUOTED = re.compile(
    rf"""(?P<head> (?P<quote>["']) (?P<name> {_SECRETIVE} ) = ) (?P<value> [^"'\n]+ ) (?P=quote)""",
    re.IGNORECASE | re.VERBOSE,
)
# Names that end like a secret and hold none.
_HARMLESS = re.compile(
    r"(?:config_key|(?:num|max|spec|draft|eos|bos|pad)\w*[_-]?token|(?:public|nvidia|signing)[_-]key|"
    r"keys?|pubkeys?|monkeys?|tokenizer.*|keyring|cache[_-]key|block[_-]key|nvidia_key|config-key)$",
    re.IGNORECASE,
)
_HEADER = re.compile(
    r"(?P<head>\b(?:proxy-)?authorization[\"']?\s*[:=]\s*[\"']?(?:[A-Za-z][\w-]*\s+)?)"
    r"(?P<value>[^\s\"',]+)",
    re.IGNORECASE,
)
_SCHEME = re.compile(r"\b(?P<head>(?:bearer|basic)\s+)(?P<value>[A-Za-z0-9+/=._~-]{6,})", re.I)
_KNOWN_TOKENS = re.compile(
    r"\b(?:hf_(?=[a-z]*[A-Z0-9])[A-Za-z0-9]{8,}|api_org_[A-Za-z0-9]{8,}|sk-[\w-]{8,}|gh[pousr]_\w{16,}|"
    r"github_pat_\w{16,}|glpat-[\w-]{12,}|xox[abprs]-[\w-]{8,}|AKIA[0-9A-Z]{12,}|"
    r"eyJ[\w-]{8,}\.[\w-]{4,}\.[\w-]*|nvapi-[\w-]{12,}|wandb_\w{12,})"
)
_CURL_USER = re.compile(r"(?P<head>\bcurl\b[^\n|;]*?\s(?:-u|--user)[ =]?)[^\s\"']+")
_IN_URL = re.compile(r"(?P<head>[a-z][\w+.-]*://)[^/\s@'\"]+@")
_COOKIE = re.compile(r"(?P<head>\b(?:set-)?cookie[\"']?\s*:\s*)[^\n]+", re.IGNORECASE)
_PLAIN = ("", "[]", "None", "null", "***", "True", "False", "true", "false")

Hide = Callable[[str], str]  # from what was found to what stands there instead


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """A command line whose secrets are hidden, word by word: `--api-key`, `(hidden)`.

    A flag may have several values: all up to the next flag are hidden. A word may be a whole line.
    """
    shown: list[str] = []
    within = False
    for word in words:
        name, equals, _ = word.partition("=")
        if word.startswith("--") or (equals and is_secretive(name)):
            hidden = is_secretive(name)
            within = hidden and word.startswith("--")
            shown.append(f"{name}={HIDDEN}" if hidden and equals else word)
        else:
            shown.append(HIDDEN if within else without_secrets(word) if " " in word else word)
    return shown


def is_secretive(name: str) -> bool:
    """Whether the name of a flag or a variable says that its value is a secret."""
    bare = name.lstrip("-")
    return bool(re.fullmatch(_SECRETIVE, bare, re.IGNORECASE)) and not _HARMLESS.fullmatch(bare)


def without_secrets(text: str) -> str:
    """The text with the values of tokens, keys and passwords hidden; rather too many than one."""
    return secrets_hidden(text, lambda _what: HIDDEN)


def secrets_hidden(text: str, hide: Hide) -> str:
    """The text with each secret replaced by what `hide` says to its kind."""
    steps: tuple[tuple[re.Pattern[str], Callable[[re.Match[str]], str]], ...] = (
        (_PEM, lambda found: hide(f"PEM block ({found['what'].lower()})")),
        (_COOKIE, lambda found: found["head"] + hide("cookie")),
        (_HEADER, lambda found: found["head"] + hide("authorization")),
        (_SCHEME, lambda found: found["head"] + hide("authorization")),
        (_CURL_USER, lambda found: found["head"] + hide("name and password")),
        (_IN_URL, lambda found: found["head"] + hide("password in a URL") + "@"),
        (_KNOWN_TOKENS, lambda _found: hide("token")),
        (_QUOTED, lambda found: _quoted(found, hide)),
        (_NAMED, lambda found: _named(found, hide)),
    )
    for pattern, replaced in steps:
        text = pattern.sub(replaced, text)
    return text


def _quoted(found: re.Match[str], hide: Hide) -> str:
    if found["value"].startswith("(hidden") or not is_secretive(found["name"]):
        return found[0]
    return found["head"] + hide("key or token") + found["quote"]


def _named(found: re.Match[str], hide: Hide) -> str:
    name, value = found["name"], found["value"].strip("\"'\\")
    if value in _PLAIN or value.startswith("(hidden") or _HARMLESS.fullmatch(name.lstrip("-")):
        return found[0]
    if found["between"].strip(" \t\\\n\"'") == "" and not name.startswith("--"):
        return found[0]  # "a token is": a sentence
    more = found["more"] if not name.startswith("--") else ""
    return f"{name}{found['between']}{hide('key or token')}{more}"
