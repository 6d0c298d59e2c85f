"""The stand-in release behaves as vLLM 0.31.0 does, as a process, from its own wheel."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.emulation import hub
from tests.rehearsal.standin import build

TINY = hub.MODELS / "rehearsal/tiny-qwen3.5-mtp"
MTP = ["--speculative-config", '{"method":"mtp","num_speculative_tokens":2}']
NO_THINKING = {"chat_template_kwargs": {"enable_thinking": False}}
HELLO = [{"role": "user", "content": "hello"}]
LOADING = "Starting to load model..."  # the engine is there and takes its time
CAUSE = "RuntimeError: Engine core initialization failed. See root cause above. "


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.build(tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="session")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder that holds what the wheel installs, metadata included."""
    folder = tmp_path_factory.mktemp("site-packages")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


class Server:
    """A stand-in that serves the tiny model on a port of its own."""

    def __init__(self, installed: Path, folder: Path, *words: str, model: Path = TINY) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            self.port = free.getsockname()[1]
        self.script = folder / "script.json"
        self.log = folder / "journal"
        self._command = [sys.executable, "-m", "vllm.cli", "serve", str(model)]
        self._command += ["--host", "127.0.0.1", "--port", str(self.port), *words]
        self._environment = os.environ | {
            "PYTHONPATH": str(installed),
            "VLLM_STANDIN_SCRIPT": str(self.script),
            "VLLM_LOG_STATS_INTERVAL": "0.5",
        }

    def write(self, **script: Any) -> None:
        aside = self.script.with_suffix(".new")
        aside.write_text(json.dumps(script))
        aside.replace(self.script)

    def start(self) -> Server:
        with self.log.open("wb") as stream:
            self.process = subprocess.Popen(
                self._command, env=self._environment, stdout=stream, stderr=stream
            )
        return self

    def ready(self, within: float = 60) -> Server:
        deadline = time.monotonic() + within
        while time.monotonic() < deadline and self.process.poll() is None:
            with contextlib.suppress(OSError):
                if self.get("/health")[0] == 200:
                    return self
            time.sleep(0.03)
        raise AssertionError(self.journal())

    def code(self, within: float = 120) -> int:
        return self.process.wait(within)

    def journal(self) -> str:
        return self.log.read_text()

    def request(self, path: str, body: object = None, **headers: str) -> http.client.HTTPResponse:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        data = None if body is None else json.dumps(body)
        connection.request("GET" if data is None else "POST", path, data, headers)
        return connection.getresponse()

    def get(self, path: str, **headers: str) -> tuple[int, str]:
        answer = self.request(path, **headers)
        return answer.status, answer.read().decode()

    def post(self, path: str, **body: Any) -> tuple[int, dict[str, Any]]:
        answer = self.request(path, body)
        found: dict[str, Any] = json.loads(answer.read())
        return answer.status, found

    def chat(self, **body: Any) -> dict[str, Any]:
        status, found = self.post("/v1/chat/completions", messages=HELLO, **body)
        assert status == 200, found
        return found

    def events(self, **body: Any) -> list[dict[str, Any]]:
        """The events of a stream, which must end with [DONE]."""
        answer = self.request("/v1/chat/completions", {"messages": HELLO, "stream": True} | body)
        texts = [part.removeprefix("data: ") for part in answer.read().decode().split("\n\n")]
        assert texts[-2:] == ["[DONE]", ""]
        return [json.loads(text) for text in texts[:-2]]

    def metric(self, name: str, label: str = "") -> float | None:
        for line in self.get("/metrics")[1].splitlines():
            if line.startswith(f"vllm:{name}{{") and label in line:
                return float(line.rsplit(" ", 1)[1])
        return None

    def engine(self) -> int:
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return int(children.split()[0])

    def end(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()


@pytest.fixture
def server(installed: Path, tmp_path: Path) -> Iterator[Server]:
    """A server with MTP, not started."""
    made = Server(installed, tmp_path, *MTP, "--reasoning-parser", "qwen3")
    yield made
    if hasattr(made, "process"):
        made.end()


def eventually(holds: Callable[[], object], within: float = 120) -> None:
    """Wait until something holds."""
    deadline = time.monotonic() + within
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.03)


def has_ended(pid: int) -> bool:
    """A zombie has ended too: whose child it is now may leave it so."""
    try:
        return ") Z " in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return True


def refused(installed: Path, folder: Path, *words: str, model: Path = TINY) -> tuple[int, str]:
    """Exit code and journal of a start that must fail."""
    made = Server(installed, folder, *words, model=model).start()
    try:
        return made.code(), made.journal()
    finally:
        made.end()


# -- the wheel --------------------------------------------------------------------------------


def test_the_wheels_are_the_same_bytes_again(wheel: Path, tmp_path: Path) -> None:
    assert build.build(tmp_path).read_bytes() == wheel.read_bytes()
    assert build.lock_text(tmp_path / build.WHEEL) == build.lock_text(wheel)


def test_the_release_wants_a_cuda_that_a_580_driver_runs() -> None:
    lock = build.lock_files()[0].read_text()
    assert re.search(r"^nvidia-cuda-runtime==13\.0\.", lock, re.MULTILINE)


def test_the_committed_locks_name_the_wheels_that_are_built(wheel: Path) -> None:
    assert build.stale_locks(wheel) == []


def test_the_wheel_needs_nothing_and_brings_the_command(installed: Path) -> None:
    info = installed / f"vllm-{build.VERSION}.dist-info"
    assert "Requires-Dist" not in (info / "METADATA").read_text()
    assert "vllm = vllm.cli:main" in (info / "entry_points.txt").read_text()


# -- serving ----------------------------------------------------------------------------------


def test_a_server_answers_on_the_paths_of_the_real_one(server: Server) -> None:
    server.start().ready()
    assert server.get("/ping") == (200, "")
    assert json.loads(server.get("/version")[1]) == {"version": build.VERSION}
    models = json.loads(server.get("/v1/models")[1])["data"]
    assert [(m["id"], m["max_model_len"]) for m in models] == [(str(TINY), 262_144)]
    assert server.get("/none")[0] == 404


def test_it_serves_within_seconds(server: Server) -> None:
    started = time.monotonic()
    server.start().ready()
    assert time.monotonic() - started < 20  # half a second on an idle machine


def test_an_answer_has_as_many_tokens_as_asked_for_and_is_always_the_same(server: Server) -> None:
    server.start().ready()
    first, second = (server.chat(max_tokens=12, **NO_THINKING) for _ in range(2))
    assert first["usage"] == second["usage"]
    assert first["usage"]["completion_tokens"] == 12
    assert first["choices"] == second["choices"]
    choice = first["choices"][0]
    assert choice["message"]["content"] == "[\n" * 6
    assert (choice["finish_reason"], choice["message"]["reasoning"]) == ("length", None)


def test_a_prompt_has_the_tokens_that_the_tiny_tokenizer_gives_it(server: Server) -> None:
    server.start().ready()
    question = [{"role": "user", "content": "What is 2+2?"}]
    counts = []
    for more in ({}, NO_THINKING):
        body = {"messages": question, "max_tokens": 1, **more}
        counts.append(server.post("/v1/chat/completions", **body)[1]["usage"]["prompt_tokens"])
    assert counts == [33, 37]  # seen with transformers


def test_thinking_comes_in_a_field_of_its_own(server: Server) -> None:
    server.start().ready()
    message = server.chat(max_tokens=12)["choices"][0]["message"]
    assert message["reasoning"] == message["content"] == "[\n" * 3
    deltas = [event["choices"][0]["delta"] for event in server.events(max_tokens=12)]
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "[\n" * 3


def test_a_stream_holds_the_same_text_and_ends_with_usage_and_done(server: Server) -> None:
    server.start().ready()
    events = server.events(max_tokens=12, stream_options={"include_usage": True}, **NO_THINKING)
    choices = [event["choices"][0] for event in events if event["choices"]]
    assert "".join(choice["delta"].get("content", "") for choice in choices) == "[\n" * 6
    assert choices[-1]["finish_reason"] == "length"
    assert events[-1]["usage"]["completion_tokens"] == 12
    assert "usage" not in server.events(max_tokens=4)[-1]


def test_plain_completions_answer_too(server: Server) -> None:
    server.start().ready()
    _, found = server.post("/v1/completions", prompt="hello", max_tokens=4)
    assert (found["object"], found["choices"][0]["text"]) == ("text_completion", "[\n[\n")


def test_what_can_not_be_answered_is_refused_in_the_api_s_own_words(server: Server) -> None:
    server.start().ready()
    status, found = server.post("/v1/chat/completions", messages=HELLO, model="other")
    assert (status, found["error"]["message"]) == (404, "The model `other` does not exist.")
    status, found = server.post("/v1/chat/completions", messages=HELLO, max_tokens=10**6)
    assert status == 400
    assert "maximum context length is 262144 tokens" in found["error"]["message"]


def test_drafts_are_counted_and_written_to_the_journal(server: Server) -> None:
    server.start().ready()
    server.chat(max_tokens=240)
    drafts, drafted = (
        server.metric("spec_decode_num_drafts_total"),
        server.metric("spec_decode_num_draft_tokens_total"),
    )
    accepted = server.metric("spec_decode_num_accepted_tokens_total")
    assert drafts and drafted == 2 * drafts and accepted == 240 - drafts
    positions = [
        server.metric("spec_decode_num_accepted_tokens_per_pos_total", f'position="{i}"')
        for i in (0, 1)
    ]
    assert sum(p or 0 for p in positions) == accepted
    assert server.metric("generation_tokens_total") == 240
    assert server.metric("request_success_total", 'finished_reason="length"') == 1
    assert server.metric("time_to_first_token_seconds_count") == 1
    line = (
        r"\(APIServer pid=\d+\) INFO \d\d-\d\d [\d:]{8} \[metrics.py:\d+\] SpecDecoding metrics: "
        r"Mean acceptance length: \d\.\d\d, Accepted throughput: "
    )
    eventually(lambda: re.search(line, server.journal()))


def test_without_a_speculative_config_there_are_no_drafts(installed: Path, tmp_path: Path) -> None:
    server = Server(installed, tmp_path).start().ready()
    try:
        server.chat(max_tokens=9)
        assert server.metric("spec_decode_num_drafts_total") is None
        assert server.metric("generation_tokens_total") == 9
    finally:
        server.end()


def test_a_client_that_hangs_up_ends_its_request(server: Server) -> None:
    server.write(step_s=0.05)
    server.start().ready()
    with socket.create_connection(("127.0.0.1", server.port)) as client:
        body = json.dumps({"messages": HELLO, "max_tokens": 2000, "stream": True}).encode()
        head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n"
        client.sendall(head % len(body) + body)
        assert b"200 OK" in client.recv(4096)
        eventually(lambda: server.metric("num_requests_running") == 1)
    eventually(lambda: server.metric("request_success_total", 'finished_reason="abort"') == 1)
    assert server.metric("num_requests_running") == 0


def test_an_api_key_guards_v1_and_nothing_else(installed: Path, tmp_path: Path) -> None:
    server = Server(installed, tmp_path, "--api-key", "sk-one").start().ready()
    try:
        assert server.get("/v1/models")[0] == 401
        assert server.get("/v1/models", Authorization="Bearer sk-one")[0] == 200
        assert server.get("/metrics")[0] == 200
        assert "sk-one" not in server.journal()
    finally:
        server.end()


# -- its end ----------------------------------------------------------------------------------


def test_sigterm_ends_it_with_0_at_once(server: Server) -> None:
    server.start().ready()
    engine = server.engine()
    started = time.monotonic()
    server.process.send_signal(signal.SIGTERM)
    assert server.code() == 0
    assert time.monotonic() - started < 60  # a tenth of a second on an idle machine
    eventually(lambda: has_ended(engine))


def test_it_exits_with_0_when_its_engine_is_killed(server: Server) -> None:
    server.start().ready()
    engine = server.engine()
    title = Path(f"/proc/{engine}/cmdline").read_bytes().rstrip(b"\0")
    assert title == b"VLLM::EngineCore"
    os.kill(engine, signal.SIGKILL)
    assert server.code() == 0
    assert "engine core exited unexpectedly" in server.journal()


def test_the_engine_does_not_outlive_a_killed_server(server: Server) -> None:
    server.start().ready()
    engine = server.engine()
    server.process.kill()
    server.process.wait()
    eventually(lambda: has_ended(engine))


# -- starts that fail -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--max-num-sequences", "4"], "unrecognized arguments: --max-num-sequences 4"),
        (["--port", "many"], "argument --port: invalid int value: 'many'"),
        (["--kv-cache-dtype", "fp9"], "argument --kv-cache-dtype: invalid choice: 'fp9'"),
        (["--num-gpu-blocks-override", "x"], "Value x cannot be converted to <class 'int'>."),
        (["--speculative-config", "{"], "argument --speculative-config/-sc: Value { cannot"),
    ],
)
def test_a_wrong_flag_ends_it_with_2_and_argparse_s_words(
    installed: Path, tmp_path: Path, words: list[str], text: str
) -> None:
    code, journal = refused(installed, tmp_path, *words)
    assert code == 2
    assert text in journal
    assert "vllm serve: error:" in journal


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--reasoning-parser", "qwen9"], "invalid reasoning parser: qwen9"),
        (["--enable-auto-tool-choice", "--tool-call-parser", "x"], "invalid tool call parser: x"),
        (["--attention-backend", "FLASHY"], "Unknown attention backend: 'FLASHY'"),
        (["--max-model-len", "300k"], "max_model_len (300000) is greater than the derived"),
        (["--speculative-config.method", "mtq"], "validation error for SpeculativeConfig"),
        (["--speculative-config", "3"], "Input should be a valid dictionary"),
    ],
)
def test_what_only_the_server_knows_to_be_wrong_ends_it_with_1(
    installed: Path, tmp_path: Path, words: list[str], text: str
) -> None:
    code, journal = refused(installed, tmp_path, *words)
    assert code == 1
    assert text in journal


def test_the_reference_flags_are_taken(installed: Path, tmp_path: Path) -> None:
    words = ["--gpu_memory_utilization", "0.87", "--max-num-seqs=480", "--kv-cache-dtype", "fp8"]
    words += ["--attention-backend", "FLASHINFER", "--enable-prefix-caching", "-O3"]
    words += ["--allowed-origins", "[]", "--default-chat-template-kwargs", '{"a": true}']
    words += ["--served-model-name", "one", "two", "--speculative-config.method", "mtp"]
    words += ["--speculative-config.num_speculative_tokens", "2"]
    server = Server(installed, tmp_path, *words).start().ready()
    try:
        names = [m["id"] for m in json.loads(server.get("/v1/models")[1])["data"]]
        assert names == ["one", "two"]
        assert server.metric("cache_config_info", 'gpu_memory_utilization="0.87"') == 1
    finally:
        server.end()


def test_a_port_with_an_owner_is_an_oserror_98(server: Server) -> None:
    with socket.create_server(("127.0.0.1", server.port)):
        assert server.start().code() == 1
    assert server.journal().endswith("OSError: [Errno 98] Address already in use\n")


def copy_of_tiny(folder: Path) -> Path:
    target = folder / "model"
    target.mkdir()
    for file in TINY.iterdir():
        (target / file.name).write_bytes(file.read_bytes())
    return target


@pytest.mark.parametrize(
    ("damage", "text"),
    [
        ("config.json", "ValueError: Invalid repository ID or local directory specified: "),
        ("model-00001-of-00001.safetensors", "Weight files referenced in index but missing: {"),
        ("every weight", "RuntimeError: Cannot find any model weights with `"),
        ("cut", "SafetensorError: Error while deserializing header: MetadataIncompleteBuffer"),
        ("head", "Following weights were not initialized from checkpoint: {'model.fc.weight'"),
    ],
)
def test_a_damaged_model_fails_as_it_does_in_vllm(
    installed: Path, tmp_path: Path, damage: str, text: str
) -> None:
    model = copy_of_tiny(tmp_path)
    shard = model / "model-00001-of-00001.safetensors"
    if damage == "cut":
        shard.write_bytes(shard.read_bytes()[:-1000])
    elif damage == "every weight":
        shard.unlink()
        (model / "model.safetensors.index.json").unlink()
    elif damage == "head":
        shard.write_bytes(shard.read_bytes().replace(b'"mtp.', b'"mtq.'))
    else:
        (model / damage).unlink()
    code, journal = refused(installed, tmp_path, *MTP, model=model)
    assert code == 1
    assert text in journal
    if damage != "config.json":
        assert re.search(r"\(EngineCore pid=\d+\) ERROR [\d-]+ [\d:]+ \[core.py:\d+\] ", journal)
        assert journal.rstrip().endswith(CAUSE + "Failed core proc(s): {}")


# -- the script -------------------------------------------------------------------------------


def test_a_start_fault_is_printed_as_the_engine_would(server: Server) -> None:
    line = "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (501)."
    server.write(fail={"lines": [line]})
    assert server.start().code() == 1
    journal = server.journal()
    assert re.search(r"\(EngineCore pid=\d+\) ERROR .*\] " + re.escape(line), journal)
    assert journal.rstrip().endswith(CAUSE + "Failed core proc(s): {}")


def test_lines_can_be_printed_as_they_are_with_another_exit_code(server: Server) -> None:
    server.write(fail={"lines": ["one", "two"], "raw": True, "code": 7})
    assert server.start().code() == 7
    assert server.journal().endswith("one\ntwo\n")


def test_readiness_can_come_later_and_connections_are_refused_until_then(server: Server) -> None:
    server.write(hold=True)
    server.start()
    eventually(lambda: LOADING in server.journal())
    with pytest.raises(ConnectionRefusedError):
        server.get("/health")
    server.write()
    server.ready()


def test_a_start_that_takes_long_can_be_stopped(server: Server) -> None:
    server.write(ready_after_s=600)
    server.start()
    eventually(lambda: LOADING in server.journal())
    engine = server.engine()
    server.process.send_signal(signal.SIGTERM)
    assert server.code() == 0
    eventually(lambda: has_ended(engine))


def test_it_can_die_after_a_while_under_the_lines_of_a_fault(server: Server) -> None:
    line = "CUDA error: an illegal memory access was encountered"
    server.write(die_after_s=0.2, die_lines=[line])
    assert server.start().code() == 0
    assert line in server.journal()


def test_a_running_server_can_be_told_to_misbehave(server: Server) -> None:
    server.start().ready()
    server.write(health=503)
    assert server.get("/health")[0] == 503
    server.write(text="all wrong", accepted=0)
    answer = server.chat(max_tokens=4, **NO_THINKING)
    assert answer["choices"][0]["message"]["content"] == "all wrong all wrong "
    assert server.metric("spec_decode_num_draft_tokens_total") == 8
    assert server.metric("spec_decode_num_accepted_tokens_total") == 0
    server.write(empty=True)
    answer = server.chat(max_tokens=4, **NO_THINKING)
    assert answer["choices"][0] | {"message": None} == answer["choices"][0] | {
        "message": None,
        "finish_reason": "stop",
    }
    assert answer["usage"]["completion_tokens"] == 1
    server.write(fail_requests=500)
    assert server.post("/v1/chat/completions", messages=HELLO)[0] == 500


def test_a_slow_server_takes_its_time_for_each_step(server: Server) -> None:
    server.write(step_s=0.2, accepted=0)
    server.start().ready()
    started = time.monotonic()
    server.chat(max_tokens=3)
    assert 0.6 <= time.monotonic() - started < 20


def test_a_script_with_an_unknown_word_is_a_mistake_of_the_test_and_said_so(
    server: Server,
) -> None:
    server.write(heath=503)
    assert server.start().code() == 3
    assert "the stand-in can't follow its script" in server.journal()
