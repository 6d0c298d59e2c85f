"""`vllm serve MODEL …`: start, serve, and end with the exit codes of vLLM 0.31.0."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import socket
import sys
import threading
import time
from types import FrameType

from . import __version__, engine, flags, journal, memory, model, options, script
from .model import Model
from .options import Options
from .script import Script
from .server import Server
from .service import Service

DRAIN_S = 0.3  # between the engine's death and the server's own end


def main() -> None:
    """The console script."""
    words = sys.argv[1:]
    if words[:1] == ["serve"]:
        sys.exit(_serve_or_explain(words[1:]))
    if words[:1] in (["--version"], ["-v"]):
        # The real one builds all its parsers first, and those want a device.
        journal.raw("RuntimeError: Failed to infer device type", process=None)
        sys.exit(1)
    journal.raw("usage: vllm [-h] [-v] {serve}", process=None)
    sys.exit(2 if words and words[0] not in ("-h", "--help") else 0)


def _serve_or_explain(words: list[str]) -> int:
    if words[:1] and words[0].startswith("-") and any("served" in w[:10] for w in words):
        journal.raw(
            "ValueError: `model` should be provided as the first positional argument when using "
            "`vllm serve`. i.e. `vllm serve <model> --<arg> <value>`.",
            process=None,
        )
        return 1
    parsed = flags.parse(words)
    try:
        return serve(options.read(parsed), script.read())
    except script.ScriptError as error:
        journal.raw(f"the stand-in can't follow its script: {error}", process=None)
        return 3
    except (options.OptionError, model.ConfigError) as error:
        journal.traceback(str(error))
        return 1


def serve(given: Options, wanted: Script) -> int:
    """Take the port, start the engine, serve until something ends it; the exit code."""
    events: queue.SimpleQueue[str] = queue.SimpleQueue()
    signal.signal(signal.SIGTERM, _end_start_up)
    _announce(given)
    options.check_parsers(given)
    try:
        listener = _bind(given)
    except OSError as error:
        journal.traceback(f"OSError: {error}")
        return 1
    found = model.read(given.model)
    options.check_engine(given, found.context)
    if given.draft_length > 1:
        journal.log(
            "Enabling num_speculative_tokens > 1 will run multiple times of forward on same MTP "
            "layer,which may result in lower acceptance rate",
            "speculative.py:622",
            "WARNING",
        )
    pid, ready = engine.start(lambda: _load(given, found, wanted))
    try:
        came_up = engine.wait_ready(ready)
    except SystemExit:
        engine.stop(pid)
        raise
    if not came_up:
        return _not_started(wanted)
    service = Service(given, found.context, wanted.mamba_blocks)
    service.engine = pid
    code = _run(Server(listener, service), pid, wanted, events)
    listener.close()
    return code


def _announce(given: Options) -> None:
    journal.log(
        f"vLLM API server version {__version__}, serving model {given.model}",
        "api_utils.py:286",
    )
    shown = {k: "***" if k in ("api_key", "hf_token") else v for k, v in given.given.items()}
    journal.log(f"non-default args: {shown}", "api_utils.py:286")


def _end_start_up(_signal: int, _frame: FrameType | None) -> None:
    journal.log("[shutdown] API server: shutdown triggered", "launcher.py:130")
    sys.exit(0)


def _bind(given: Options) -> socket.socket:
    """Bound and not yet listening: connections are refused until the engine is ready."""
    family = socket.AF_INET6 if ":" in given.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((given.host, given.port))
    return listener


def _load(given: Options, found: Model, wanted: Script) -> int:
    """What the engine does at start, in its own process; its exit code, 0 for ready."""
    core = journal.ENGINE_CORE
    journal.log(
        f"Initializing a V1 LLM engine (v{__version__}) with config: model={given.model!r}, "
        f"speculative_config={given.speculative or None}, max_seq_len={found.context}",
        "core.py:130",
        process=core,
    )
    engine.loading(wanted.ready_after_s, lambda: script.read().hold)
    if wanted.fail:
        return _fail_as_told(wanted)
    try:
        started = time.monotonic()
        tensors = model.load(found, with_head=given.draft_length > 0)
    except model.WeightsError as error:
        journal.engine_failure(str(error))
        return 1
    memory.account(given, found.context, time.monotonic() - started, tensors)
    try:
        memory.check_blocks(given, wanted.mamba_blocks)
    except memory.BlocksError as error:
        journal.engine_failure(str(error))
        return 1
    memory.captured(given)
    return 0


def _fail_as_told(wanted: Script) -> int:
    lines = "\n".join(wanted.fail.get("lines", []))
    if wanted.fail.get("raw"):
        journal.raw(lines, process=None)
    else:
        journal.engine_failure(lines)
    return 1


def _not_started(wanted: Script) -> int:
    if not wanted.fail.get("raw"):
        journal.traceback(
            "RuntimeError: Engine core initialization failed. "
            "See root cause above. Failed core proc(s): {}"
        )
    return int(wanted.fail.get("code", 1))


def _run(server: Server, pid: int, wanted: Script, events: queue.SimpleQueue[str]) -> int:
    """Serve until SIGTERM, the engine's death or the script's; the exit code."""
    service = server.service
    signal.signal(signal.SIGTERM, lambda *_: events.put("signal"))
    signal.signal(signal.SIGINT, lambda *_: events.put("signal"))
    _background(server.serve_forever)
    gone = _background(lambda: _watch(pid, service, events))
    if service.options.log_stats:
        _background(service.log_forever)
    if wanted.die_after_s is not None:
        _background(lambda: _die_later(wanted, pid, events))
    _announce_ready(service.options)
    event = events.get()
    if event == "signal":
        journal.log("[shutdown] API server: shutdown triggered", "launcher.py:130")
    else:
        time.sleep(DRAIN_S)
    service.dead.set()
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGTERM)
    gone.join(0.5)
    journal.log("[shutdown] API server: shutting down FastAPI HTTP server", "launcher.py:176")
    journal.raw("INFO:     Application shutdown complete.")
    # The server ends with 0 when its engine died, as vLLM's does.
    return 0 if event == "signal" else wanted.die_code


def _announce_ready(given: Options) -> None:
    address = f"http://{given.host or '0.0.0.0'}:{given.port}"
    journal.log(f"Starting vLLM server on {address}", "entry.py:136")
    journal.raw(f"INFO:     Started server process [{os.getpid()}]")
    journal.raw("INFO:     Waiting for application startup.")
    journal.raw("INFO:     Application startup complete.")


def _background(work: object) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)  # type: ignore[arg-type]
    thread.start()
    return thread


def _watch(pid: int, service: Service, events: queue.SimpleQueue[str]) -> None:
    """Notice the engine's end."""
    os.waitpid(pid, 0)
    if not service.dead.is_set():
        service.dead.set()
        journal.log(
            "[shutdown] MPClient: engine core exited unexpectedly; starting cleanup",
            "core_client.py:809",
            "WARNING",
        )
        events.put("engine")


def _die_later(wanted: Script, pid: int, events: queue.SimpleQueue[str]) -> None:
    time.sleep(wanted.die_after_s or 0.0)
    if wanted.die_lines:
        where = "core.py:1435"
        text = "EngineCore encountered a fatal error.\n" + "\n".join(wanted.die_lines)
        journal.log(text, where, "ERROR", journal.ENGINE_CORE)
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)
    events.put("script")


if __name__ == "__main__":
    main()
