"""Whose a file is."""

import grp
import os
import pwd
from pathlib import Path
from typing import Any


def owners(asked: dict[str, Any]) -> dict[str, list[str]]:
    """{path: ["user:group", octal mode]} of the paths that are there; links are followed."""
    found = {}
    for path in asked["paths"]:
        try:
            status = Path(path).stat()
        except OSError:
            continue
        found[path] = list(owner_and_mode(status))
    return found


def owner_and_mode(status: os.stat_result) -> tuple[str, str]:
    """("user:group", octal mode)."""
    owner = f"{user_name(status.st_uid)}:{group_name(status.st_gid)}"
    return owner, f"{status.st_mode & 0o7777:o}"


def user_name(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)


QUESTIONS = {"owners": owners}
