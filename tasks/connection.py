"""The way to a box: in English, and what is said when it cannot be reached, or no longer."""

from __future__ import annotations

import time
from functools import wraps
from typing import Any

from gevent.hub import Hub  # type: ignore[import-untyped]
from paramiko import SSHClient, SSHException
from pyinfra.api import Host, State
from pyinfra.api.exceptions import ConnectError, PyinfraError
from pyinfra.api.state import BaseStateCallback
from pyinfra.connectors.ssh import SSHConnector

from aibox.decide.access import no_connection
from aibox.decide.refusal import Refusal
from tasks.operations import AT, SAID, say_refusal

# A box that lost its power says no goodbye: asked this often, a rebooted one denies to know us.
KEEPALIVE_S = 15

# sudo, apt and their like are understood in English only, whatever the box or its person speaks.
ENGLISH = {"LC_ALL": "C.UTF-8", "LANGUAGE": ""}

# Raised where a fact fails on the last box; pyinfra says it in a line, gevent a traceback before.
Hub.NOT_ERROR = (*Hub.NOT_ERROR, PyinfraError)


class NoConnectionInWords(BaseStateCallback):
    """Adds to pyinfra's own lines what was expected and what to do next."""

    @staticmethod
    def host_connect_error(state: State, host: Host, error: ConnectError) -> None:  # noqa: ARG004
        data = host.data
        address = data.get("ssh_hostname") or host.name
        refusal = no_connection(str(error), data.get("ssh_user"), address, data.get("ssh_port"))
        say_refusal(host, refusal)

    @staticmethod
    def host_connect(state: State, host: Host) -> None:  # noqa: ARG004
        if isinstance(host.connector, SSHConnector) and host.connector.client is not None:
            watch(host, host.connector, host.connector.client)

    @staticmethod
    def operation_host_start(state: State, host: Host, op_hash: str) -> None:  # noqa: ARG004
        host.connector_data.pop(SAID, None)
        host.connector_data[AT] = op_hash

    @staticmethod
    def operation_host_error(
        state: State,  # noqa: ARG004
        host: Host,
        op_hash: str,  # noqa: ARG004
        retry_count: int = 0,  # noqa: ARG004
        max_retries: int = 0,  # noqa: ARG004
    ) -> None:
        """pyinfra only counts commands, where a connection ends under one."""
        if is_lost(host):
            say_lost(host)


def watch(host: Host, connector: SSHConnector, client: SSHClient) -> None:
    """Notice a connection that ends, under an operation or under a fact."""
    transport, execute, disconnect = (
        client.get_transport(),
        client.exec_command,
        connector.disconnect,
    )
    if transport is not None:
        transport.set_keepalive(KEEPALIVE_S)

    @wraps(execute)
    def execute_or_tell(command: str, *words: Any, **named: Any) -> Any:
        try:
            return execute(f"{in_english()} {command}", *words, **named)
        except EOFError:  # pyinfra would take it for a fault of its own
            raise SSHException("the connection ended") from None

    @wraps(disconnect)
    def tell_and_disconnect() -> None:
        if is_lost(host):
            say_lost(host)
        disconnect()

    client.exec_command = execute_or_tell  # type: ignore[method-assign]
    connector.disconnect = tell_and_disconnect  # type: ignore[method-assign]


def in_english() -> str:
    """What a command begins with; `env`, because a login shell need not be a sh."""
    return " ".join(["env", *(f"{name}={text}" for name, text in ENGLISH.items())])


def say_lost(host: Host) -> None:
    if not host.connector_data.get(SAID):
        found = "the connection to the box ended in the middle of the work"
        remedy = "see that the box is up, then run the deploy again: it goes on from there"
        say_refusal(host, Refusal(found, "a connection to the end of it", remedy))


def is_lost(host: Host) -> bool:
    if not isinstance(host.connector, SSHConnector) or host.connector.client is None:
        return False
    time.sleep(0.1)  # paramiko closes the command first, and itself a moment later
    transport = host.connector.client.get_transport()
    return transport is None or not transport.is_active()
