"""What control's own ssh configuration makes of a host's name; other machines know nothing of it.

Read as pyinfra reads it before it connects.
"""

from __future__ import annotations

import ipaddress

from paramiko import SSHException
from pyinfra.api import Host
from pyinfra.connectors.sshuserclient.client import get_ssh_config

from aibox.decide.foreign import is_loopback


def address_of(one: Host) -> str:
    """The address that it stands for, where one is said; else the name as the inventory has it."""
    asked, told = asked_for(one), told_of(one)
    return told if told and reaches(told) else asked


def doubt_of(one: Host) -> str | None:
    """Why nobody else may know the name, in words."""
    told = told_of(one)
    if told is None or reaches(told):
        return None
    return f"your ssh configuration alone says that it is {told}: set box_address"


def asked_for(one: Host) -> str:
    return str(one.data.get("ssh_hostname") or one.name)


def told_of(one: Host) -> str | None:
    """Its HostName; None where it is no other than the name."""
    asked = asked_for(one)
    if asked.startswith("@"):
        return None
    try:
        config = get_ssh_config(one.data.get("ssh_config_file"))
        told = config.lookup(asked).get("hostname") if config else None
    except (OSError, SSHException, ValueError):  # pyinfra says it where it connects
        return None
    return told if told and told.lower() != asked.lower() else None


def reaches(told: str) -> bool:
    """Whether it leads other machines to the same host, as far as can be said here."""
    return is_address(told) and not is_loopback(told)


def is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
