"""The filter as the service starts it: a process of its own."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

PROJECT = Path(__file__).resolve().parents[2]


@dataclass
class Running:
    """lines: what it logged."""

    process: asyncio.subprocess.Process
    notified: socket.socket
    port: int = 0
    lines: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def state(self) -> str:
        """What it last told systemd; empty when nothing."""
        try:
            return self.notified.recv(100).decode()
        except BlockingIOError:
            return ""

    def memory(self) -> int:
        """Resident bytes."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        found = re.search(r"VmRSS:\s+(\d+) kB", status)
        assert found
        return int(found.group(1)) * 1024

    def open_files(self) -> int:
        return len(list(Path(f"/proc/{self.process.pid}/fd").iterdir()))

    async def ended(self, by: signal.Signals = signal.SIGTERM) -> int:
        with contextlib.suppress(ProcessLookupError):
            self.process.send_signal(by)
        return await asyncio.wait_for(self.process.wait(), 60)


@contextlib.asynccontextmanager
async def running(folder: Path, upstream: int, **settings: Any) -> AsyncIterator[Running]:
    config, address = folder / "stream.json", folder / "notify"
    told = {"address": "127.0.0.1", "port": 0, "upstream": f"http://127.0.0.1:{upstream}"}
    config.write_text(json.dumps({**told, **settings}))
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(address))
    notified.setblocking(False)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "aibox.stream", "--config", str(config)),
        cwd=PROJECT,
        env={"NOTIFY_SOCKET": str(address)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    one = Running(process, notified)
    reading = asyncio.create_task(_read(one))
    try:
        while not one.port and not reading.done():
            await asyncio.sleep(0.05)
        yield one
    finally:
        await one.ended()
        await reading
        notified.close()


async def _read(one: Running) -> None:
    assert one.process.stdout is not None
    async for line in one.process.stdout:
        one.lines.append(line.decode().rstrip())
        found = re.search(r"listening on .* port (\d+)", one.lines[-1])
        if found:
            one.port = int(found.group(1))
