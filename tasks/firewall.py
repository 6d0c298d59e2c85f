"""Who may use the doors: a table of our own in nftables, tried before it is kept."""

from __future__ import annotations

import json
from typing import Any

from paramiko import SSHException
from pyinfra import host
from pyinfra.api import (
    FactBase,
    FunctionCommand,
    Host,
    QuoteString,
    State,
    StringCommand,
    deploy,
    operation,
)
from pyinfra.api.exceptions import ConnectError

from aibox.decide import firewall
from aibox.decide.firewall import RULES, UNIT, UNIT_FILE, Firewall
from tasks import fleet, monitor, watching
from tasks.box import Box
from tasks.doors import asked
from tasks.drift_report import because
from tasks.operations import (
    Commands,
    connector_arguments,
    gone,
    laid_down,
    packages,
    refused,
    say_refusal,
    starts_at_boot,
)

REVERT = "aibox-firewall-revert"
REVERT_S = 30  # until rules that nobody has confirmed are gone again


@deploy("Firewall")
def in_force(box: Box) -> None:
    if not box.settings.firewall:
        gone(name="No firewall of ours", path=UNIT_FILE, unit=UNIT)
        gone(name="No rules of ours", path=RULES)
        return
    packages(name="nftables", names=["nftables"])
    tried(name="The rules are in force", box=box)
    rules_laid(name="The rules on the disk", box=box)
    laid_down(name="What lays them at boot", path=UNIT_FILE, content=firewall.unit_text().encode())
    starts_at_boot(name="They are laid at boot", unit=UNIT)
    followed(name="systemd knows that they are in force")


class Interfaces(FactBase[list[dict[str, Any]]]):
    """What `ip -j address` tells of each interface."""

    def command(self) -> str:
        return "ip -j address show up"

    @staticmethod
    def default() -> list[dict[str, Any]]:
        return []

    def process(self, output: list[str]) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads("".join(output) or "[]")
        return found


class InForce(FactBase[str]):
    """ "same", "different" or "absent": our table against wanted rules, as the kernel lists both.

    "on trial" where a run that was cut off has laid rules that go by themselves. The wanted ones
    are loaded where they rule nothing: in a network of their own.
    """

    def command(self, rules: str) -> StringCommand:
        listed = f"nft -s list table {firewall.TABLE}"
        apart = QuoteString(f"nft -f - && {listed}")
        return StringCommand(
            *("PATH=$PATH:/usr/sbin; there=$(", listed, "2>/dev/null); wanted=$("),
            *("unshare -n sh -c", apart, "<<'END_OF_RULES'\n" + rules + "END_OF_RULES\n"),
            f"); if systemctl is-active -q {REVERT}.timer; then echo on trial;",
            'elif test -z "$there"; then echo absent;',
            'elif test "$there" = "$wanted"; then echo same; else echo different; fi',
        )

    def process(self, output: list[str]) -> str:
        return output[-1]


class Followed(FactBase["str | None"]):
    """Why systemd does not go by a unit as it lies there; None where it does."""

    def command(self, unit: str) -> StringCommand:
        asked = "systemctl show -p ActiveState -p NeedDaemonReload"
        return StringCommand(asked, QuoteString(unit))

    def process(self, output: list[str]) -> str | None:
        found = dict(line.partition("=")[::2] for line in output)
        if found.get("NeedDaemonReload") == "yes":
            return "has not been read as it lies there"
        return None if found.get("ActiveState") == "active" else "is not active"


def rules_of(box: Box) -> str | None:
    """The rules for this box; None where its LAN is neither told nor found."""
    settings = box.settings
    interfaces = host.get_fact(Interfaces)
    lan = firewall.lan(interfaces, settings.firewall_lan)
    if not lan and settings.firewall_lan is None:
        return None
    wanted = Firewall(
        doors=[one.port for one in asked(settings) if box.doors.of(one.service).on],
        pages=monitor.pages(settings),
        metrics=[one.port for one in watching.asked(settings) if box.watched.of(one.service).on],
        closed=(settings.server_port,),
        lan=lan,
        monitors=firewall.networks(box.watched.readers),
        gateways=firewall.networks(fleet.networks()),
    )
    return firewall.ruleset(wanted)


FOUND = {
    "absent": "there is no table of ours",
    "different": "our table is another one",
    "on trial": "the rules were tried by a run that was cut off: they go by themselves",
}


@operation()
def tried(box: Box) -> Commands:
    """Rules that replace those in force, and stay only when a new connection comes through."""
    rules = rules_of(box)
    if rules is None:
        yield refused(firewall.no_lan())
        return
    found = host.get_fact(InForce, rules=rules)
    if found == "same":
        host.noop("the kernel has these rules")
        return
    because(host, FOUND[found])
    yield FunctionCommand(try_rules, (rules,), {})


def try_rules(state: State, host: Host, rules: str) -> bool:
    """Lay them for REVERT_S, and for good when the box can still be reached from here."""
    arguments = connector_arguments(host)
    try:
        laying = StringCommand("sh -ec", QuoteString(TRY))
        ok, output = host.run_shell_command(laying, **{**arguments, "_stdin": rules})
        if not ok:
            raise ConnectionError(output.stderr.strip() or "nft refused the rules")
        if not confirmed(state, host, arguments):
            say_refusal(host, firewall.not_confirmed(REVERT_S))
            return False
    except (OSError, EOFError, SSHException) as error:
        say_refusal(host, firewall.not_laid(str(error)))
        return False
    return True


def confirmed(state: State, host: Host, arguments: dict[str, Any]) -> bool:
    """Whether a new connection comes through; it calls the way back off."""
    fresh = type(host.connector)(state, host)
    try:
        fresh.connect()
    except ConnectError:
        return False
    try:
        off = StringCommand(f"systemctl stop {REVERT}.timer")
        return bool(fresh.run_shell_command(off, **arguments)[0])
    finally:
        fresh.disconnect()


# Rules on standard input. What a cut-off run had laid goes back first: it was never confirmed.
TRY = f"""
PATH=$PATH:/usr/sbin
umask 077
mkdir -p /run/aibox
cd /run/aibox
cat >firewall.nft
nft -c -f firewall.nft
if systemctl is-active -q {REVERT}.timer; then
  systemctl stop {REVERT}.timer
  nft -f firewall.before
fi
printf 'table {firewall.TABLE}\\ndelete table {firewall.TABLE}\\n' >firewall.before
nft -s list table {firewall.TABLE} >>firewall.before 2>/dev/null || true
systemctl reset-failed {REVERT}.service 2>/dev/null || true
systemd-run -q --unit={REVERT} --on-active={REVERT_S} --timer-property=AccuracySec=1s \\
  nft -f /run/aibox/firewall.before
nft -f firewall.nft
"""


@operation()
def rules_laid(box: Box) -> Commands:
    """What was tried, for the next boot."""
    rules = rules_of(box)
    if rules is not None:  # else it was refused above
        yield from laid_down._inner(path=RULES, content=rules.encode())


@operation()
def followed() -> Commands:
    """The unit is up, so that it takes the rules along when it is stopped."""
    missing = host.get_fact(Followed, unit=UNIT)
    if missing is None:
        host.noop(f"{UNIT} is active")
        return
    because(host, f"{UNIT} {missing}")
    yield f"systemctl daemon-reload && systemctl start {UNIT}"
