"""Keeps what looks like a secret out of what is shown: a person may have written one by hand."""

import re

HIDDEN = "(hidden)"

# The name ends with the word: `--max-num-batched-tokens 8192` and `tokenizer` are no secrets.
_NAMED = re.compile(
    r"""(?P<name> [\w-]*(?:token|api[_-]?key|secret|passw(?:or)?d|credential) )
        (?P<between> ["']? (?: [ \t]*[=:][ \t]* | (?:[ \t]|\\\n)+ ) ["']? )
        (?P<value> [^"'\n]+(?=["']) | [^\s"']+ )""",
    re.IGNORECASE | re.VERBOSE,
)
_BEARER = re.compile(r"\b(bearer[ \t]+)[^\s\"']+", re.IGNORECASE)
_IN_URL = re.compile(r"(://)[^/\s@]+@")


def without_secrets(text: str) -> str:
    """The text with the values of tokens, keys and passwords hidden; rather too many than one."""
    text = _BEARER.sub(rf"\1{HIDDEN}", text)
    text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
    return _NAMED.sub(rf"\g<name>\g<between>{HIDDEN}", text)
