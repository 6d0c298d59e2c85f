"""One deploy at a time for each box: a lock on it, held by an open connection for the whole run."""

from __future__ import annotations

import getpass
import json
import os
import socket
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

from paramiko import SSHException
from pyinfra import host, state
from pyinfra.api import Host, QuoteString, StringCommand, operation
from pyinfra.api.arguments import ConnectorArguments
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.util import extract_control_arguments, make_unix_command_for_host

from aibox.box import deploy_lock
from aibox.decide.figures import duration
from aibox.decide.refusal import Refusal
from tasks import fact_pipelining
from tasks.operations import Commands, connector_arguments, refused

SOURCE = Path(deploy_lock.__file__).read_text()
ANSWER_TIMEOUT_S = 30


@operation()
def held() -> Commands:
    """Holds the box's lock until this process ends, however it ends; changes nothing on the box."""
    # Taken when the run begins to work, not while it plans: whoever only looks (--dry), or still
    # reads the plan, keeps nobody waiting. What follows judges the box anew, under the lock. A
    # generator that yields nothing shows no change; it yields only the refusal.
    if state.is_executing:
        refusal = take(host)
        if refusal is not None:
            yield refused(refusal)


@dataclass
class Connection:
    """The holder's streams (paramiko's or a process's); it lets go when they are closed."""

    stdin: Any
    stdout: Any
    stderr: Any
    process: subprocess.Popen[bytes] | None = None


def take(box: Host) -> Refusal | None:
    """Take the lock for the rest of this process; why not, when another run has it.

    After a reboot of the box in the middle of a run, it is to be taken again.
    """
    try:
        connection = opened(box, holder_command(box))
        line = connection.stdout.readline()
        if not line:
            return no_lock(words(connection))
        answer = json.loads(line)
    except (OSError, EOFError, SSHException, ValueError) as error:
        return no_lock(str(error) or type(error).__name__)
    if not answer["held"]:
        return busy(answer["by"])
    box.connector_data["deploy_lock"] = connection  # closed with this process, not before
    fact_pipelining.forget()  # what the box was before the lock, another run may have changed
    return None


def holder_command(box: Host) -> str:
    """The holder as the operation at work runs commands: with sudo, its password and so on."""
    who = {"who": f"{user()}@{socket.gethostname()}", "pid": os.getpid()}
    command = StringCommand("exec python3 -c", QuoteString(SOURCE), QuoteString(json.dumps(who)))
    arguments = cast(ConnectorArguments, connector_arguments(box))
    extract_control_arguments(arguments)
    return make_unix_command_for_host(state, box, command, **arguments).get_raw_value()


def user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError):  # a user without a name
        return str(os.getuid())


def opened(box: Host, command: str) -> Connection:
    """Start a command whose input stays open: over the run's own ssh connection, or here."""
    connector = box.connector
    if isinstance(connector, SSHConnector) and connector.client is not None:
        stdin, stdout, stderr = connector.client.exec_command(command)
        stdout.channel.settimeout(ANSWER_TIMEOUT_S)
        return Connection(stdin, stdout, stderr)
    if isinstance(connector, LocalConnector):
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, shell=True, stdin=pipe, stdout=pipe, stderr=pipe)  # noqa: S602
        return Connection(process.stdin, process.stdout, process.stderr, process)
    raise OSError(f"no lock over a connection of the kind {type(connector).__name__}")


def words(connection: Connection) -> str:
    said = connection.stderr.read()
    return (said.decode(errors="replace") if isinstance(said, bytes) else said).strip()


def busy(by: dict[str, Any]) -> Refusal:
    """by: who, pid, since, seconds, holder; empty when the holder has said nothing yet."""
    if not by:
        found = "another deploy of this box, begun this very moment"
        return Refusal(found, "one deploy at a time", "run again when it has ended")
    began = datetime.fromtimestamp(by["since"], UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return Refusal(
        f"a deploy of this box by {by['who']}, process {by['pid']} there, since {began} "
        f"({duration(by['seconds'])})",
        "one deploy at a time",
        f"wait for its end; if that machine is gone: `sudo kill {by['holder']}` on the box",
    )


def no_lock(error: str) -> Refusal:
    return Refusal(
        f"the lock of this box cannot be taken ({error})",
        "one deploy at a time, kept by a lock on the box",
        "mend this and run again; nothing was changed",
    )
