"""The EngineCore process: a real child with the real one's name, that can be killed."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from .. import journal

TITLE = "VLLM::EngineCore"
_PR_SET_PDEATHSIG = 1
_PR_SET_NAME = 15


def start(load: Callable[[], int]) -> tuple[int, int]:
    """Fork the engine, which runs `load` and then waits.

    Gives (its pid, a descriptor): a byte comes when the engine is ready, the end of the file
    without one means that it failed. Called before any thread exists.
    """
    read_end, write_end = os.pipe()
    sys.stdout.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid:
        os.close(write_end)
        return pid, read_end
    os.close(read_end)
    _become_engine(parent)
    code = load()
    if code == 0:
        os.write(write_end, b"1")
        while True:
            signal.pause()
    os._exit(code)


def wait_ready(descriptor: int) -> bool:
    """Wait for the engine to be ready or gone."""
    ready = os.read(descriptor, 1) == b"1"
    os.close(descriptor)
    return ready


def stop(pid: int) -> None:
    """End the engine and wait for it."""
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(pid, signal.SIGTERM)
        os.waitpid(pid, 0)


def _become_engine(parent: int) -> None:
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_NAME, TITLE[:15].encode(), 0, 0, 0)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)
    # Some systems hide where the arguments lie; the name alone then has to do.
    with contextlib.suppress(OSError, ValueError, IndexError):
        _set_command_line(TITLE.encode())


def _set_command_line(title: bytes) -> None:
    """Write over the arguments in memory, as setproctitle does, for /proc/PID/cmdline."""
    words = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()
    start, end = int(words[45]), int(words[46])  # arg_start and arg_end: fields 48 and 49
    if 0 < start < end and end - start > len(title):
        ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def loading(seconds: float, held: Callable[[], bool]) -> None:
    """Take as long as told, and say that weights are being loaded."""
    where = "gpu_model_runner.py:5104"
    journal.log("Starting to load model...", where, process=journal.ENGINE_CORE)
    time.sleep(seconds)
    while held():
        time.sleep(0.05)
