"""What a patch touches, read from the unified diff itself."""

from __future__ import annotations

import re

PAIR = re.compile(r"^--- (?P<old>[^\t\n]+).*\n\+\+\+ (?P<new>[^\t\n]+)", re.MULTILINE)


def touched(text: str) -> list[str]:
    """The files that a diff of git's form changes or adds, relative to site-packages.

    Raises ValueError, in words, for a diff without files, one that takes a file away, and for a
    path that leaves the folder.
    """
    paths = []
    for pair in PAIR.finditer(text):
        new = pair["new"].strip()
        if new == "/dev/null":
            raise ValueError(f"it takes {pair['old']} away; a patch may only change and add files")
        head, _, path = new.partition("/")
        if head != "b" or not path or {"", ".", ".."} & set(path.split("/")):
            raise ValueError(f"it names {new!r}; expected a path as git writes it: b/vllm/…")
        paths.append(path)
    if not paths:
        raise ValueError("it names no file; expected a unified diff as `git diff` writes it")
    return sorted(set(paths))
