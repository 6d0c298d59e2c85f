"""Users and groups, and which of their files can be ours too."""

import grp
import os
import pwd
import stat
from typing import Any

from aibox.box.probe.owners import group_name, user_name


def account(name: str) -> dict[str, Any] | None:
    """A user of the box: number and login shell; None when there is no such user."""
    try:
        found = pwd.getpwnam(name)
    except KeyError:
        return None
    return {"uid": found.pw_uid, "shell": found.pw_shell}


def groups_of(name: str) -> list[str]:
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        return []
    return sorted(group_name(gid) for gid in os.getgrouplist(name, user.pw_gid))


def members(name: str) -> list[str]:
    """Everybody in a group, by name or because it is their own."""
    try:
        group = grp.getgrnam(name)
    except KeyError:
        return []
    own = {one.pw_name for one in pwd.getpwall() if one.pw_gid == group.gr_gid}
    return sorted(own | set(group.gr_mem))


def can_be_shared(found: os.stat_result) -> bool:
    """Whether a person's file can be ours as well by a hard link, which shares owner and mode.

    The server must be able to read it, nobody but its owner may write to it. The group may, where
    it is the owner's alone: Ubuntu's logins have the umask 0002 for that.
    """
    bits = stat.S_IMODE(found.st_mode)
    fits = stat.S_ISREG(found.st_mode) and bits & 0o444 == 0o444 and not bits & 0o7002
    return fits and (not bits & 0o020 or is_owners_alone(found.st_uid, found.st_gid))


def is_owners_alone(uid: int, gid: int) -> bool:
    """Whether a group has its owner's name and no other member."""
    name = group_name(gid)
    return name == user_name(uid) and members(name) == [name]
