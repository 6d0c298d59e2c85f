"""The model hub and file server of the rehearsal: one process on an address of this machine.

python -m tests.rehearsal.emulation.hub --listen ADDRESS --port 0 --models DIR --files DIR

with Hub(models, files=files) as hub:      a child of a test, gone with it
    hub.ctl(truncate_after=1_000_000, truncate_times=1)
    … hub.url …
    hub.log()

start_detached(pid_file, …), stop_detached(pid_file)    outlives the command that started it
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import Any

MODULE = "tests.rehearsal.emulation.hub"
PROJECT = Path(__file__).resolve().parents[3]
MODELS = Path(__file__).with_name("models")
START_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 5.0
# Straight to the hub, whatever proxy the environment names.
_DIRECT = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class HubError(Exception):
    """The hub did not start, or did not take what `ctl` asked for."""


def usual_port(address: str, use: str) -> int:
    """The port that this checkout's hub has whenever it can; 0 (any other) while it is taken.

    A deployed box names the hub in its apt sources: at another port it would seem to have drifted.
    """
    digest = hashlib.sha256(f"{Path(__file__).resolve()} {use}".encode()).hexdigest()
    port = 20_000 + int(digest[:8], 16) % 10_000
    try:
        with socket.create_server((address, port)):
            return port
    except OSError:
        return 0


class Hub:
    """A hub as a child process. `url` is there once it is started."""

    def __init__(
        self,
        models: Path = MODELS,
        files: Path | None = None,
        address: str = "127.0.0.1",
        port: int = 0,
    ) -> None:
        self.url = ""
        self._arguments = _arguments(models, files, address, port)
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> Hub:
        with tempfile.TemporaryDirectory() as folder:
            state = Path(folder) / "hub.json"
            log = Path(folder) / "log"
            self._process = _launch([*self._arguments, "--state-file", str(state)], log)
            self.url = _await_state(state, self._process, log)["url"]
        return self

    def stop(self) -> None:
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def ctl(self, **faults: Any) -> dict[str, Any]:
        """Switch faults: fields of hub_server.Faults, reset=True, clear_log=True."""
        return control(self.url, **faults)

    def log(self) -> list[dict[str, Any]]:
        """Every request so far: method, path, range, status, bytes, authorized, agent, at."""
        return request_log(self.url)

    def __enter__(self) -> Hub:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def control(url: str, **faults: Any) -> dict[str, Any]:
    """Switch faults of the hub at `url`; raises HubError for one that does not exist."""
    body = json.dumps(faults).encode()
    request = urllib.request.Request(
        f"{url}/ctl", body, {"Content-Type": "application/json"}, method="POST"
    )
    try:
        with _DIRECT.open(request, timeout=60) as answer:
            found: dict[str, Any] = json.load(answer)
    except urllib.error.HTTPError as error:
        raise HubError(json.load(error)["error"]) from None
    return found


def request_log(url: str) -> list[dict[str, Any]]:
    with _DIRECT.open(f"{url}/ctl/log", timeout=60) as answer:
        found: list[dict[str, Any]] = json.load(answer)
    return found


def start_detached(
    pid_file: Path,
    models: Path = MODELS,
    files: Path | None = None,
    address: str = "127.0.0.1",
    port: int = 0,
) -> str:
    """Start a hub that outlives this process, or find the one of `pid_file`; its url."""
    running = detached(pid_file)
    if running:
        return str(running["url"])
    pid_file.parent.mkdir(parents=True, exist_ok=True)
    pid_file.unlink(missing_ok=True)
    log = pid_file.with_suffix(".log")
    arguments = [*_arguments(models, files, address, port), "--state-file", str(pid_file)]
    process = _launch(arguments, log, detached=True)
    return str(_await_state(pid_file, process, log)["url"])


def stop_detached(pid_file: Path) -> bool:
    """End the hub of `pid_file`; False when none runs. Nothing else is ever ended."""
    running = detached(pid_file)
    if running:
        pid = int(running["pid"])
        os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + STOP_TIMEOUT_S
        while detached(pid_file) and time.monotonic() < deadline:
            time.sleep(0.05)
        if detached(pid_file):
            os.kill(pid, signal.SIGKILL)
    pid_file.unlink(missing_ok=True)
    return running is not None


def detached(pid_file: Path) -> dict[str, Any] | None:
    """What `pid_file` says of a hub that runs: {"pid", "url", "port", "address"}; else None."""
    try:
        state: dict[str, Any] = json.loads(pid_file.read_text())
        process = Path(f"/proc/{state['pid']}")
        alive = process.joinpath("stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        words = process.joinpath("cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, KeyError):
        return None
    # The pid may have gone to another process: its command line must name this module and file.
    mine = MODULE.encode() in words and str(pid_file).encode() in words
    return state if alive and mine else None


def _arguments(models: Path, files: Path | None, address: str, port: int) -> list[str]:
    words = ["--listen", address, "--port", str(port), "--models", str(models.resolve())]
    return words + (["--files", str(files.resolve())] if files else [])


def _launch(arguments: list[str], log: Path, *, detached: bool = False) -> subprocess.Popen[bytes]:
    with log.open("wb") as stream:
        return subprocess.Popen(
            [sys.executable, "-m", MODULE, *arguments],
            cwd=PROJECT,
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            start_new_session=detached,
        )


def _await_state(state: Path, process: subprocess.Popen[bytes], log: Path) -> dict[str, Any]:
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError):
            found: dict[str, Any] = json.loads(state.read_text())
            return found
        if process.poll() is not None:
            break
        time.sleep(0.02)
    process.kill()
    process.wait()
    raise HubError(f"the hub did not start: {log.read_text(errors='replace').strip()[-800:]}")


def main() -> int:
    """Bind, say where, serve until SIGTERM."""
    parser = argparse.ArgumentParser(prog=f"python -m {MODULE}", description=__doc__)
    parser.add_argument("--listen", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=0, help="0 takes a free one")
    parser.add_argument("--models", type=Path, default=MODELS, help="folder of <org>/<name>/")
    parser.add_argument("--files", type=Path, help="folder served below /files/")
    parser.add_argument("--state-file", type=Path, help="where pid, url and port are written")
    given = parser.parse_args()
    from tests.rehearsal.emulation import hub_server  # noqa: PLC0415  (only the process needs it)

    try:
        listener = socket.create_server((given.listen, given.port))
    except OSError as error:
        print(f"can't listen on {given.listen} port {given.port}: {error.strerror}")
        return 1
    port = listener.getsockname()[1]
    state = {"pid": os.getpid(), "url": f"http://{given.listen}:{port}", "port": port}
    text = json.dumps(state | {"address": given.listen})
    print(text, flush=True)
    if given.state_file:
        new = given.state_file.with_name(given.state_file.name + ".new")
        new.write_text(text)
        new.replace(given.state_file)
    hub_server.serve(hub_server.Server(given.models, given.files), listener)
    return 0


if __name__ == "__main__":
    sys.exit(main())
