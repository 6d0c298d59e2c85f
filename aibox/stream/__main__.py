"""The stream filter: `python -m aibox.stream --config /etc/aibox/stream.json`.

Exit codes: 0 stopped by a signal, 1 refused: a bad setting, a bad keys file, a taken port.
SIGTERM and SIGINT let answers end; SIGHUP reads the keys anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
import socket
import sys
from pathlib import Path

import uvloop

from aibox.parser import Parser
from aibox.stream.config import Config, ConfigError, Keys, load, load_keys
from aibox.stream.server import Filter

log = logging.getLogger("aibox.stream")


def main(words: list[str] | None = None) -> int:
    parser = Parser(prog="python -m aibox.stream", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, metavar="FILE.json")
    asked = parser.parse_args(words)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    try:
        config = load(asked.config)
        keys = load_keys(Path(config.keys_file) if config.keys_file else None)
        allow_connections()
        gc.freeze()  # what is loaded stays: it need not be looked through again and again
        uvloop.run(serve(config, keys))
    except ConfigError as error:
        sys.stderr.write(f"{error.refusal}\n")
        return 1
    return 0


def allow_connections() -> None:
    """Two open files a stream: as many as the system lets us have."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def serve(config: Config, keys: Keys) -> None:
    """Serve until a signal comes. Raises ConfigError."""
    stream = Filter(config, keys)
    try:
        await stream.start()
    except OSError as error:
        raise ConfigError(
            f"{config.address} port {config.port}: {error.strerror or error}",
            "an address of this machine, and a port that no other program has",
            f"see who has it: sudo ss -tlnp 'sport = :{config.port}'",
        ) from None
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    loop.add_signal_handler(signal.SIGHUP, stream.read_keys_again)
    notify("READY=1")
    log.info("listening on %s port %d, asking %s", config.address, stream.port, config.upstream)
    await stopped.wait()
    notify("STOPPING=1")
    await stream.stop()


def notify(state: str) -> None:
    """Tell systemd, where it listens."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    address = "\0" + address[1:] if address.startswith("@") else address
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as contact, contextlib.suppress(OSError):
        contact.sendto(state.encode(), address)


if __name__ == "__main__":
    sys.exit(main())
