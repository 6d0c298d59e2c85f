"""A reboot within a run: from the box's state, at most once, proven by a new boot id."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import click
from paramiko import SSHException
from pyinfra import host
from pyinfra.api import FunctionCommand, Host, State
from pyinfra.api.exceptions import ConnectError
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.util import clear_askpass_cache

from aibox.decide.figures import duration
from aibox.decide.refusal import Refusal
from tasks import connection, deploy_lock, fact_pipelining
from tasks.operations import Commands, connector_arguments, refused, say_refusal
from tasks.progress import WITHOUT_TERMINAL_S

BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
# Detached: the command must end well before the connection does.
REBOOT = (
    "systemd-run --quiet --collect --on-active=1 --timer-property=AccuracySec=100ms "
    "systemctl reboot"
)
ASK_EVERY_S = 1.0
LONG_S = 180  # a server with much memory takes minutes to its boot loader


def rebooted(reasons: Sequence[str], timeout_s: int) -> Commands:
    """Commands that reboot the box and go on when it is up again; for a generator of its own.

    reasons: from the box's state, told to the person. Whoever asks for it looks at the state again
    then: one that a reboot has not mended is a failure, never a second reboot.
    """
    if isinstance(host.connector, LocalConnector):
        yield refused(reboot_it_yourself(reasons))
    else:
        yield FunctionCommand(reboot, (list(reasons), timeout_s), {})


def reboot_it_yourself(reasons: Sequence[str]) -> Refusal:
    return Refusal(
        "; ".join(reasons),
        "a reboot, which this run cannot do: it runs on the box itself",
        "reboot, then run again: what was done is kept",
    )


def useless(before: Sequence[str], now: Sequence[str]) -> Refusal:
    return Refusal(
        f"after the reboot of this run: {'; '.join(now)}",
        f"a reboot that mends it (it was done because {'; '.join(before)})",
        "find the cause with `dmesg | grep -iE 'nvrm|nouveau'` on the box; no second reboot here",
    )


def reboot(state: State, host: Host, reasons: Sequence[str], timeout_s: int) -> bool:
    """Reboot the box and wait for another boot id. Says what it does; False after a refusal."""
    for reason in reasons:
        host.log(f"rebooting: {reason}")
    before = said(host, BOOT_ID)
    if not before or said(host, REBOOT) is None:
        return fail(host, "the box does not take the order to reboot", "`systemctl reboot` on it")
    began = time.monotonic()
    if not came_back(host, before, began + timeout_s):
        remedy = (
            "look at its console (a disk passphrase? a boot menu?), raise reboot_timeout_s if it "
            "is only slow, and run the deploy again: it goes on from there"
        )
        return fail(host, f"no new boot after {duration(timeout_s)}", remedy)
    host.log(f"up again after {duration(time.monotonic() - began)}, with a new boot id")
    fact_pipelining.forget()
    refusal = deploy_lock.take(host)
    if refusal is not None:
        say_refusal(host, refusal)
    return refusal is None


def fail(host: Host, found: str, remedy: str) -> bool:
    say_refusal(host, Refusal(found, "a box that comes up again by itself", remedy))
    return False


def came_back(host: Host, before: str, end: float) -> bool:
    """Wait until the box answers with another boot id than before."""
    waiting = Waiting(host.log, time.monotonic)
    while time.monotonic() < end:
        waiting.show()
        time.sleep(ASK_EVERY_S)
        if connected_anew(host):
            boot = said(host, BOOT_ID)
            if boot and boot != before:
                return True
    return False


class Waiting:
    """A line every ten seconds while a box is away, and what may keep it when that grows long.

    say: shows a line; clock: seconds, as time.monotonic counts them.
    """

    def __init__(self, say: Callable[[str], None], clock: Callable[[], float]) -> None:
        self.say, self.clock = say, clock
        self.began, self.next = clock(), WITHOUT_TERMINAL_S

    def show(self) -> None:
        seconds = self.clock() - self.began
        if seconds >= self.next:
            doubt = " (waiting for a disk passphrase?)" if seconds >= LONG_S else ""
            self.say(f"away for {duration(seconds)}{doubt}")
            self.next = seconds + WITHOUT_TERMINAL_S


def connected_anew(host: Host) -> bool:
    """A new connection in the place of the old one, without pyinfra's words on each failed try."""
    connector = host.connector
    if not isinstance(connector, SSHConnector):
        return False
    clear_askpass_cache(host)  # sudo's helper lay in the box's /tmp
    if connector.client is not None:
        connector.client.close()
    connector.get_file_transfer_connection.cache.clear()
    try:
        connector.connect()
    except ConnectError:
        return False
    if connector.client is not None:
        connection.watch(host, connector, connector.client)
    return True


def said(host: Host, command: str) -> str | None:
    """What a command says on the box; None when it fails or the box is away."""
    arguments: dict[str, Any] = {**connector_arguments(host), "_timeout": 15}
    try:
        ok, output = host.run_shell_command(command, **arguments)
    except (OSError, EOFError, SSHException):
        return None
    return click.unstyle(output.stdout.strip()) if ok else None
