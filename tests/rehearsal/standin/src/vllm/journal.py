"""Lines as vLLM 0.31.0 writes them: `(APIServer pid=N) INFO MM-DD HH:MM:SS [file.py:line] text`."""

from __future__ import annotations

import os
import sys
import threading
import time

API_SERVER = "APIServer"
ENGINE_CORE = "EngineCore"
_writing = threading.Lock()


def log(text: str, where: str, level: str = "INFO", process: str = API_SERVER) -> None:
    """One record; every line of a text of several gets the prefix. `where` is "file.py:line"."""
    stamp = time.strftime("%m-%d %H:%M:%S")
    prefix = f"({process} pid={os.getpid()}) {level} {stamp} [{where}] "
    _write("".join(f"{prefix}{line}\n" for line in text.splitlines() or [""]))


def raw(text: str, process: str | None = API_SERVER) -> None:
    """Lines that come from no logger (a traceback, the access log); process None: as they are."""
    prefix = f"({process} pid={os.getpid()}) " if process else ""
    _write("".join(f"{prefix}{line}\n" for line in text.splitlines()))


def traceback(error: str, process: str = API_SERVER) -> None:
    """The last traceback of a process that ends; `error` is its last line."""
    frames = (
        "Traceback (most recent call last):\n"
        '  File "vllm/entrypoints/cli/serve.py", line 122, in cmd\n'
        "    uvloop.run(run_server(args))\n"
    )
    raw(frames + error, process)


def engine_failure(error: str, where: str = "core.py:1433") -> None:
    """What the engine says before it ends: the record, its traceback, and the bare traceback."""
    frames = (
        "Traceback (most recent call last):\n"
        '  File "vllm/v1/engine/core.py", line 1402, in run_engine_core\n'
        "    engine_core = EngineCoreProc(*args, engine_index=dp_rank, **kwargs)\n"
    )
    log("EngineCore failed to start.", where, "ERROR", ENGINE_CORE)
    log(frames + error, where, "ERROR", ENGINE_CORE)
    raw("Process EngineCore:\n" + frames + error, ENGINE_CORE)


def _write(text: str) -> None:
    with _writing:
        sys.stdout.write(text)
        sys.stdout.flush()
