"""Keeps what looks like a secret out of what is shown: a person may have written one by hand."""

import re
from collections.abc import Sequence

HIDDEN = "(hidden)"

# The name ends with the word: `--max-num-batched-tokens 8192` and `tokenizer` are no secrets.
_NAMED = re.compile(
    r"""(?P<name> [\w-]*(?:token|api[_-]?key|secret|passw(?:or)?d|credential) )
        (?P<between> ["']? (?: [ \t]*[=:][ \t]* | (?:[ \t]|\\\n)+ ) ["']? )
        (?P<value> [^"'\n]+(?=["']) | [^\s"']+ )""",
    re.IGNORECASE | re.VERBOSE,
)
_SECRET_FLAG = re.compile(
    r"--[\w-]*(?:token|api[_-]?key|secret|passw(?:or)?d|credential)", re.IGNORECASE
)
_BEARER = re.compile(r"\b(bearer[ \t]+)[^\s\"']+", re.IGNORECASE)
_IN_URL = re.compile(r"(://)[^/\s@]+@")


def words_without_secrets(words: Sequence[str]) -> list[str]:
    """A command line whose secrets are hidden, word by word: `--api-key`, `(hidden)`."""
    shown: list[str] = []
    for word in words:
        named = bool(shown) and _SECRET_FLAG.fullmatch(shown[-1]) is not None
        name, equals, _ = word.partition("=")
        if named and not word.startswith("--"):
            shown.append(HIDDEN)
        elif equals and _SECRET_FLAG.fullmatch(name):
            shown.append(f"{name}={HIDDEN}")
        else:
            shown.append(word)
    return shown


def without_secrets(text: str) -> str:
    """The text with the values of tokens, keys and passwords hidden; rather too many than one."""
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    return _NAMED.sub(rf"\g<name>\g<between>{HIDDEN}", text)
