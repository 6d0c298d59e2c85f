"""What is said of a box that cannot be reached."""

from __future__ import annotations

from pyinfra.api import Host, State
from pyinfra.api.exceptions import ConnectError
from pyinfra.api.state import BaseStateCallback

from aibox.decide.access import no_connection
from tasks.operations import say_refusal


class NoConnectionInWords(BaseStateCallback):
    """Adds to pyinfra's own line what was expected and what to do next."""

    @staticmethod
    def host_connect_error(state: State, host: Host, error: ConnectError) -> None:  # noqa: ARG004
        data = host.data
        address = data.get("ssh_hostname") or host.name
        refusal = no_connection(str(error), data.get("ssh_user"), address, data.get("ssh_port"))
        say_refusal(host, refusal)
