"""Fact pipelining: all facts of a run answered from one remote command, operations untouched.

    from tasks import fact_pipelining      # in config.py
    fact_pipelining.enable()

The problem
-----------
An operation compares what is wanted with facts, and each fact is a remote command of its own: a
channel, a login shell, sudo, a shell. Operations ask two or three each, an interactive run asks all
of them twice. On a local host a command takes about 50 ms, on a link with a 50 ms round trip three
times that, so a run that changes nothing spends nearly all its time asking.

The mechanism
-------------
What a run asks hardly differs from what the last one asked. So the *questions* of a run (never the
answers) are remembered on control. At the first fact of a phase, all remembered questions with the
same connector arguments (sudo, user, shell, directory, environment) travel to the host together, in
one command, and run there side by side; facts are answered from what came back. Where that command
is one of the login user's, the batches for other arguments ride along: a deploy that first asks as
the login user, then as root, still sends one command. A question that was not foreseen is asked
plainly, as without this module, and is foreseen the next time.

`enable` wraps `Host.get_fact` (to know what is a fact), `run_shell_command`, `put_file`, `get_file`
and `rsync` of the ssh and local connectors, and `FunctionCommand.execute`. Facts, operations and
deploy code stay as they are, and so do pyinfra's handling of errors, sudo passwords and logs: a
batch is itself an ordinary `run_shell_command` of the connector.

A batch is a POSIX shell script, compressed, sent on standard input (as an argument it would meet
the kernel's limit of 128 KiB; compression makes the same long script in ten questions count once).
It runs each question with the shell that a plain command would use, at most `WORKERS` at once, each
with pipes of its own for output and errors, keeps what they say in a folder that only this user can
read, in memory where there is /dev/shm, and sends the folder back as one compressed tar.

Invariants
----------
A fact that says "in sync" from old knowledge is the one bug that must not be. Hence:

* An answer is used only for the same command, byte for byte, with the same connector arguments,
  over the same connection, in the same phase of the same run. Nothing that a host said is ever
  written down on control.
* Everything known of every host is thrown away *before* the first command that is not a fact: a
  command of an operation, a transfer, a Python callback, whatever calls a connector outside
  `get_fact`. Other hosts count too, for two names may be one machine. What is already under way
  then is thrown away when it arrives.
* From there on, to the end of the run, facts are asked plainly. A run that changes something spends
  its time on the change, and its facts must see it; a new batch after each command would ask
  everything for the few facts up to the next one.
* Everything is thrown away when the run goes from preparing to executing: a person may have read
  the plan for an hour. Each phase has a batch of its own, made when its first fact is asked.
* An answer is at most `MAX_AGE_S` old, and is given at most as often as the question came in the
  last run: code that asks again and again until something has happened gets fresh answers.
* An answer is what the plain command would have said, or it is not used. Exit code and output go
  through a tar bit by bit, and come in lines as the connectors make them. What the login shell or
  sudo say before each command (they say it once before a batch) is put before each answer.
* A batch fails as a whole (no base64, gzip, tar or mktemp, no room, a lost connection, too slow,
  cut off, anything unexpected in between) or a question in it does: then plain facts, silently, and
  counted. A host whose batch failed gets no other one in this run.

Left plain, always: facts with a timeout, standard input, a terminal, su, doas, dzdo or a sudo login
shell; commands that hold a hidden value; output that is not UTF-8 (the connectors stumble over it,
each in its own way); a sudo in the command that wants a password; runs that print commands or
output (-vv); other connectors.

Limits
------
* What reaches a host past its connector (the paramiko client itself, an API of the cloud) is not
  seen. Such code calls `forget`.
* Facts are expected to read. They run side by side, in any order, and one that is no longer asked
  may run two times more.
* A command can tell a batch from a plain one when it looks at its parents, at /dev/stdin (empty in
  both; a closed pipe in one, /dev/null in the other) or at the shell's own $_ and SHLVL.
* The first run against a host has learned nothing. So have, in part, the ones after a change of
  what is asked. Preparing and executing learn from each other.
* Remembered questions of root's facts are run as root: the memory is this user's own file, 0600 in
  a folder with 0700, and is not read when it belongs to anybody else or others may write to it.

`pipelining = False` in the data of a host, of a group or in `--data` leaves a host plain. With
--debug the counts are logged at the end of a run.
"""

from __future__ import annotations

import atexit
import base64
import binascii
import gzip
import hashlib
import io
import json
import os
import secrets
import shlex
import stat
import tarfile
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from functools import wraps
from pathlib import Path
from typing import Any

import click
from gevent.local import local  # type: ignore[import-untyped]
from paramiko import SSHException
from pyinfra import logger
from pyinfra.api import FunctionCommand, Host, StringCommand
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.local import LocalConnector
from pyinfra.connectors.ssh import SSHConnector
from pyinfra.connectors.util import (
    SUDO_PASSWORD_REQUIRED_LINES,
    CommandOutput,
    OutputLine,
    extract_control_arguments,
    make_unix_command,
)

WORKERS = 8  # questions that run at once on a host
MAX_AGE_S = 20.0  # of an answer, counted from when its question was sent
BATCH_TIMEOUT_S = 60  # a batch that takes longer is given up
MAX_QUESTIONS = 1000  # of one phase, that are remembered
MAX_MEMORY_BYTES = 8 * 1024 * 1024  # of one host's remembered questions
FORGOTTEN_AFTER = 2  # runs in a row that did not ask

# Connector arguments that make a fact one of its own.
PLAIN_ARGUMENTS = (
    *("_timeout", "_stdin", "_get_pty", "_retry_until"),
    *("_su_user", "_doas", "_dzdo", "_use_sudo_login"),
)
PASSWORDS = {"_sudo_password", "_su_password"}
# With any of these a command runs elsewhere, or as somebody else, than the connection itself.
ELSEWHERE = {"_sudo", "_dzdo", "_env", "_chdir"}
CONNECTORS: tuple[type[BaseConnector], ...] = (SSHConnector, LocalConnector)

Ran = tuple[bool, CommandOutput]
Run = Callable[..., Ran]


class BatchError(Exception):
    """A batch that did not bring what it should have brought."""


# --- questions ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Question:
    """A fact's command and the connector arguments that it runs with, both as text."""

    arguments: str
    command: str


def question_of(command: str | StringCommand, arguments: Mapping[str, Any]) -> Question | None:
    """The question that a fact's command is; None for one that must be asked plainly."""
    if any(arguments.get(name) for name in PLAIN_ARGUMENTS):
        return None
    if not isinstance(arguments.get("_shell_executable", "sh"), str):
        return None
    text = command if isinstance(command, str) else command.get_raw_value()
    if not isinstance(command, str) and command.get_masked_value() != text:
        return None  # it holds a secret
    try:
        return Question(json.dumps(given(arguments), sort_keys=True), text)
    except (TypeError, ValueError):  # a hidden value among them, a callback
        return None


def given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value}


def without_secrets(question: Question) -> Question:
    """The question as it may be written down: what is in the environment, and passwords, is not."""
    arguments = json.loads(question.arguments)
    for name in PASSWORDS & set(arguments):
        arguments[name] = True
    if "_env" in arguments:
        arguments["_env"] = sorted(arguments["_env"])
    return Question(json.dumps(arguments, sort_keys=True), question.command)


# --- the batch on the host ---------------------------------------------------------------------

UNPACK_AND_RUN = "base64 -d | gzip -dc | sh"

# Workers are the members of a pipeline, through which nothing flows: a shell ignores SIGINT for
# jobs in the background, and what they start would inherit that. A worker takes the next question
# that nobody has taken: with `set -C` only one of them can create the file. Output goes through
# pipes: a question is answered when the last process that can write has ended, as over ssh. A `cat`
# that fails had no room: without an exit code the answer does not count.
SCRIPT = """\
exec 2>/dev/null
d=$(mktemp -d -p /dev/shm || mktemp -d) || exit 1
trap 'rm -rf "$d"' EXIT
trap 'exit 1' HUP INT TERM
{questions}
ask() {{
  {{
    {{
      (q$1) 2>&3 3>&- </dev/null
      echo $? >"$d/$1.code"
    }} | cat >"$d/$1.out" 3>&- || rm -f "$d/$1.code"
  }} 3>&1 | cat >"$d/$1.err" || rm -f "$d/$1.code"
}}
work() {{
  set -C
  n=0
  while [ $n -lt {count} ]; do
    command true >"$d/$n.taken" && ask $n
    n=$((n + 1))
  done
}}
{workers}
rm -f "$d"/*.taken
echo {count} >"$d/complete"
echo 'answers {token}'
tar -C "$d" -cf - . | gzip -1c | base64 -w 4096
echo 'end {token}'
"""


@dataclass(frozen=True)
class Batch:
    """Commands with the same arguments, asked at once. token: what marks this batch's answers."""

    arguments: str
    times: Times
    token: str = field(default_factory=lambda: secrets.token_hex(8))

    def script(self, *riders: str) -> str:
        """The shell script that asks all the questions. riders: commands asked beside them."""
        shell = json.loads(self.arguments).get("_shell_executable", "sh")
        commands = [f"exec {shell} -c {shlex.quote(command)}" for command in self.times]
        commands += riders  # not an argument of anything: the kernel takes 128 KiB there at most
        functions = [f"q{number}() {{ {text}; }}" for number, text in enumerate(commands)]
        return SCRIPT.format(
            questions="\n".join(functions),
            count=len(commands),
            workers=" | ".join(["work"] * min(WORKERS, len(commands))),
            token=self.token,
        )

    def as_rider(self) -> str:
        """A command that asks this batch from within another one."""
        arguments = json.loads(self.arguments)
        extract_control_arguments(arguments)
        command = make_unix_command(StringCommand(UNPACK_AND_RUN), **arguments)
        return f"printf %s {shlex.quote(packed(self.script()))} | {command.get_raw_value()}"


def packed(text: str) -> str:
    return base64.encodebytes(gzip.compress(text.encode(), 6)).decode()


# --- answers -----------------------------------------------------------------------------------


@dataclass
class Answer:
    """What a command said, how it ended, and for how long and how often that may be told."""

    code: int
    lines: tuple[tuple[str, str], ...]  # (stream, line)
    until: float  # by the monotonic clock
    times: int

    def told(self, success_exit_codes: Sequence[int] | None) -> Ran:
        self.times -= 1
        output = CommandOutput([OutputLine(stream, line) for stream, line in self.lines])
        return self.code in (success_exit_codes or (0,)), output


def answers_in(
    output: CommandOutput, batch: Batch, riders: Sequence[Batch], until: float
) -> dict[Question, Answer]:
    """The answers that came back. What is missing is to be asked again, plainly.

    Raises BatchError when anything is not as the script would have made it.
    """
    files, before = framed(output, batch.token, len(batch.times) + len(riders))
    answers = {}
    for number, (command, times) in enumerate(batch.times.items()):
        answer = answer_from(files, str(number), before, until, times)
        if answer:
            answers[Question(batch.arguments, command)] = answer
    for number, rider in enumerate(riders, len(batch.times)):
        answer = answer_from(files, str(number), before, until)
        if answer and answer.code == 0:
            with suppress(BatchError):
                answers |= answers_in(answer.told(None)[1], rider, (), until)
    return answers


def framed(
    output: CommandOutput, token: str, count: int
) -> tuple[dict[str, bytes], list[tuple[str, str]]]:
    """The files that a batch sent, and what was said before it."""
    said = output.stdout_lines
    try:
        begin, end = said.index(f"answers {token}"), said.index(f"end {token}")
    except ValueError:
        raise BatchError("no answers, or not all of them") from None
    if end != len(said) - 1:
        raise BatchError("something behind the answers")
    files = unpacked("".join(said[begin + 1 : end]))
    if files.get("complete", b"").strip() != str(count).encode():
        raise BatchError("answers without their mark")
    before = [("stdout", line) for line in said[:begin]]
    return files, before + [("stderr", line) for line in output.stderr_lines]


def unpacked(text: str) -> dict[str, bytes]:
    """The files of a compressed tar in base64. gzip's own checksum shows what is damaged."""
    try:
        tar = gzip.decompress(base64.b64decode(text, validate=True))
        with tarfile.open(fileobj=io.BytesIO(tar), mode="r:") as files:
            return {
                Path(member.name).name: content.read()
                for member in files
                if (content := files.extractfile(member))
            }
    except (binascii.Error, zlib.error, tarfile.TarError, EOFError, OSError) as error:
        raise BatchError(f"damaged answers: {error}") from None


def answer_from(
    files: Mapping[str, bytes],
    name: str,
    before: Sequence[tuple[str, str]],
    until: float,
    times: int = 1,
) -> Answer | None:
    try:
        code = int(files[f"{name}.code"])
        out, err = lines_of(files[f"{name}.out"]), lines_of(files[f"{name}.err"])
    except (KeyError, ValueError):  # UnicodeDecodeError is one of the latter
        return None
    lines = [*before, *(("stdout", line) for line in out), *(("stderr", line) for line in err)]
    if code > 128:
        return None  # a signal ended it, or so it looks; each connector has its own word for that
    if code and any(line.strip() in SUDO_PASSWORD_REQUIRED_LINES for _, line in lines):
        return None  # the connector would ask the person
    return Answer(code, tuple(lines), until, times)


def lines_of(output: bytes) -> list[str]:
    """Output in lines, as `pyinfra.connectors.util.read_buffer` makes them."""
    lines = output.split(b"\n")
    if not lines[-1]:
        lines.pop()
    return [line.decode() for line in lines]


# --- what was asked in earlier runs ------------------------------------------------------------


@dataclass
class Noted:
    """How often a question was asked in a phase, and how many runs ago that was."""

    times: int = 0
    missed: int = 0


Phase = dict[Question, Noted]
Times = dict[str, int]  # commands, and how often each is expected


def memory_folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "pyinfra-fact-pipelining"


@dataclass
class Memory:
    """The questions of one host: those of earlier runs, and those of this one.

    path: None for a memory that is not kept. A memory that cannot be read is an empty one, and one
    that cannot be written is none: that costs time, nothing else.
    """

    path: Path | None = None
    known: dict[str, Phase] = field(default_factory=dict)
    asked: dict[str, Phase] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.path is not None:
            with suppress(OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
                self.known = questions_in(self.path)

    def note(self, phase: str, question: Question) -> None:
        self.asked.setdefault(phase, {}).setdefault(without_secrets(question), Noted()).times += 1

    def foreseen(self, phase: str) -> dict[str, Times]:
        """The commands to be expected: by their arguments (without secrets), and how often."""
        lender = {"plan": "execute", "execute": "plan"}.get(phase, phase)
        expected: dict[str, Times] = {}
        for question, noted in (self.known.get(phase) or self.known.get(lender) or {}).items():
            expected.setdefault(question.arguments, {})[question.command] = noted.times
        return expected

    def keep(self) -> None:
        """Write down what was asked, and what earlier runs asked that may come again."""
        if self.path is None or not self.asked:
            return
        phases = {**self.known}
        for name, asked in self.asked.items():
            missed = {
                question: Noted(noted.times, noted.missed + 1)
                for question, noted in self.known.get(name, {}).items()
                if question not in asked and noted.missed + 1 < FORGOTTEN_AFTER
            }
            phases[name] = {**asked, **missed}
        if phases != self.known:
            with suppress(OSError, ValueError):  # a command may hold what is no UTF-8
                write_questions(self.path, phases)


def questions_in(path: Path) -> dict[str, Phase]:
    """Read a memory. Raises one of many errors when it is not one of ours, whole and private."""
    with path.open("rb") as file:
        found = os.fstat(file.fileno())
        others_may_write = stat.S_IMODE(found.st_mode) & 0o077
        if found.st_uid != os.getuid() or others_may_write or found.st_size > MAX_MEMORY_BYTES:
            raise ValueError(f"{path} is not private, or too large")
        written = json.loads(file.read())
    return {
        str(name): {
            Question(str(arguments), str(command)): Noted(int(times), int(missed))
            for arguments, command, times, missed in rows
        }
        for name, rows in written["phases"].items()
    }


def write_questions(path: Path, phases: Mapping[str, Phase]) -> None:
    rows = {
        name: [
            [question.arguments, question.command, noted.times, noted.missed]
            for question, noted in list(phase.items())[:MAX_QUESTIONS]
        ]
        for name, phase in phases.items()
    }
    text = json.dumps({"phases": rows}).encode()
    if len(text) > MAX_MEMORY_BYTES:
        return
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    number, aside = tempfile.mkstemp(dir=path.parent)  # 0600
    try:
        with os.fdopen(number, "wb") as file:
            file.write(text)
        Path(aside).replace(path)
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise


# --- a run -------------------------------------------------------------------------------------


@dataclass
class Counts:
    """Of one run, over all hosts. commands: everything that went to a host, transfers too."""

    commands: int = 0
    batches: int = 0
    failed_batches: int = 0
    answered: int = 0
    plain_facts: int = 0


@dataclass
class Known:
    """What one connection has said in one phase."""

    phase: str
    client: object  # the connection itself
    answers: dict[Question, Answer] = field(default_factory=dict)
    batched: set[str] = field(default_factory=set)  # arguments that had their batch


class Inside(local):  # type: ignore[misc]
    """What this greenlet is in the middle of."""

    facts = 0
    command = False


class Pipelining:
    """One run: what is known of its hosts, and whether that may still be used.

    setting: the name in a host's data that turns it off. memory_of: the memory for a host's name.
    """

    def __init__(self, setting: str, memory_of: Callable[[str], Memory]) -> None:
        self.setting = setting
        self.memory_of = memory_of
        self.memories: dict[str, Memory] = {}
        self.known: dict[BaseConnector, Known] = {}
        self.failed: set[BaseConnector] = set()
        self.counts = Counts()
        self.over = False  # since the first command that was no fact
        self.inside = Inside()

    @contextmanager
    def fact(self) -> Iterator[None]:
        """Commands of this greenlet, in here, are a fact's."""
        self.inside.facts += 1
        try:
            yield
        finally:
            self.inside.facts -= 1

    def drop(self) -> None:
        """Forget every answer of every host, those under way included."""
        self.known.clear()

    def executed(self) -> None:
        """Something is about to happen that is no fact."""
        self.drop()
        self.over = True

    def run(
        self,
        run: Run,
        connector: BaseConnector,
        command: str | StringCommand,
        print_output: bool = False,
        print_input: bool = False,
        **arguments: Any,
    ) -> Ran:
        """A connector's `run_shell_command`; `run` is the connector's own."""

        def plainly() -> Ran:
            self.counts.commands += 1
            return run(connector, command, print_output, print_input, **arguments)

        if self.inside.command:
            return plainly()  # the connector's own way to a fact: it lays down its askpass script
        if not self.inside.facts:
            self.executed()
            return plainly()
        self.inside.command = True
        try:
            prints = print_output or print_input
            question = None if prints else question_of(command, arguments)
            answer = self.answer(run, connector, question, arguments) if question else None
            if answer:
                self.counts.answered += 1
                return answer.told(arguments.get("_success_exit_codes"))
            self.counts.plain_facts += 1
            return plainly()
        finally:
            self.inside.command = False

    def answer(
        self, run: Run, connector: BaseConnector, question: Question, arguments: Mapping[str, Any]
    ) -> Answer | None:
        """The answer to a fact's question, from a batch; None when it must be asked plainly."""
        host = connector.host
        if host.data.get(self.setting, True) is not True or host.connector is not connector:
            return None
        memory, phase = self.memory(host.name), phase_of(connector)
        memory.note(phase, question)
        if self.over or connector in self.failed:
            return None
        if question.arguments not in self.known_of(connector, phase).batched:
            self.batch(run, connector, question, memory.foreseen(phase), arguments)
        answer = self.known_of(connector, phase).answers.get(question)
        usable = answer and answer.times > 0 and time.monotonic() < answer.until
        return answer if usable else None

    def memory(self, host: str) -> Memory:
        if host not in self.memories:
            self.memories[host] = self.memory_of(host)
        return self.memories[host]

    def known_of(self, connector: BaseConnector, phase: str) -> Known:
        """What is known over this very connection in this very phase."""
        client = getattr(connector, "client", None)
        known = self.known.get(connector)
        if known is None or known.phase != phase or known.client is not client:
            known = self.known[connector] = Known(phase, client)
        return known

    def batch(
        self,
        run: Run,
        connector: BaseConnector,
        asked: Question,
        foreseen: dict[str, Times],
        arguments: Mapping[str, Any],
    ) -> None:
        """Ask what is foreseen together with what is asked now, and keep the answers."""
        known = self.known_of(connector, phase_of(connector))
        known.batched.add(asked.arguments)
        own = foreseen.pop(without_secrets(asked).arguments, {})
        batch = Batch(asked.arguments, {asked.command: 1, **own})
        riders = [
            Batch(words, times)
            for words, times in foreseen.items()
            if words not in known.batched and may_ride(words, asked, connector)
        ]
        if len(batch.times) + len(riders) < 2:
            return
        self.counts.commands += 1
        self.counts.batches += 1
        try:
            answers = ask(run, connector, batch, riders, arguments)
        except (BatchError, OSError, EOFError, SSHException) as error:
            logger.debug("Facts are asked plainly on %s: %s", connector.host.name, error)
            self.counts.failed_batches += 1
            self.failed.add(connector)
            return
        if self.known.get(connector) is known:  # else: dropped while it was under way
            known.answers |= answers
            known.batched |= {question.arguments for question in answers}


def may_ride(words: str, asked: Question, connector: BaseConnector) -> bool:
    """Whether a batch with these arguments can be asked from within the one of `asked`.

    It must start from where the connection starts, and must need no password and no environment,
    which are not remembered.
    """
    arguments = json.loads(words)
    prompted = connector.host.connector_data.get("prompted_sudo_password")
    return not (
        ELSEWHERE & set(json.loads(asked.arguments))
        or (PASSWORDS | {"_env"}) & set(arguments)
        or (prompted and arguments.get("_sudo"))
    )


def ask(
    run: Run,
    connector: BaseConnector,
    batch: Batch,
    riders: Sequence[Batch],
    arguments: Mapping[str, Any],
) -> dict[Question, Answer]:
    """Send a batch, and others within it, through the connector's own `run_shell_command`."""
    until = time.monotonic() + MAX_AGE_S
    own = {
        "_stdin": packed(batch.script(*(rider.as_rider() for rider in riders))),
        "_timeout": BATCH_TIMEOUT_S,
        "_success_exit_codes": [0],
    }
    ok, output = run(connector, StringCommand(UNPACK_AND_RUN), False, False, **{**arguments, **own})
    if not ok:
        raise BatchError("the batch failed")
    return answers_in(output, batch, riders, until)


def phase_of(connector: BaseConnector) -> str:
    """Where the run is: "execute"; "plan"; or "order", which is preparing without a plan (-y)."""
    if connector.state.is_executing:
        return "execute"
    return "plan" if connector.state.should_check_for_changes() else "order"


# --- in pyinfra --------------------------------------------------------------------------------

_running: Pipelining | None = None


def enable(setting: str = "pipelining") -> Pipelining:
    """Pipeline the facts of this process. To be called once, from config.py or before a deploy."""
    global _running  # noqa: PLW0603  pyinfra's classes are this process's too
    if _running is None:
        # click knows it here, but not in the greenlets that read deploy files
        context = click.get_current_context(silent=True)
        deploys = context.params.get("operations", ()) if context else ()
        _running = Pipelining(setting, lambda host: Memory(memory_file(host, deploys)))
        wrap(_running)
        atexit.register(finish, _running)
    return _running


def forget() -> None:
    """For code that reaches a host past its connector: nothing known before this is used."""
    if _running is not None:
        _running.drop()


def finish(pipelining: Pipelining) -> None:
    for memory in pipelining.memories.values():
        memory.keep()
    logger.debug("Fact pipelining: %s", json.dumps(asdict(pipelining.counts)))


def memory_file(host: str, deploys: Sequence[str]) -> Path:
    """One file for a host in a project: the working directory and the deploy files named."""
    key = json.dumps([str(Path.cwd()), list(deploys), host])
    return memory_folder() / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.json"


def wrap(pipelining: Pipelining) -> None:
    """Put ourselves between facts, operations and connectors."""
    get_fact = Host.get_fact

    @wraps(get_fact)
    def get_fact_noticed(host: Host, *words: Any, **named: Any) -> Any:
        with pipelining.fact():
            return get_fact(host, *words, **named)

    Host.get_fact = get_fact_noticed  # type: ignore[method-assign,assignment]
    for connector in CONNECTORS:
        wrap_run(pipelining, connector)
        for name in ("put_file", "get_file", "rsync"):
            wrap_execution(pipelining, connector, name, transfers=1)
    wrap_execution(pipelining, FunctionCommand, "execute", transfers=0)


def wrap_run(pipelining: Pipelining, connector: type[BaseConnector]) -> None:
    run: Run = connector.run_shell_command

    @wraps(run)
    def pipelined(self: BaseConnector, *words: Any, **named: Any) -> Ran:
        return pipelining.run(run, self, *words, **named)

    connector.run_shell_command = pipelined  # type: ignore[method-assign]


def wrap_execution(pipelining: Pipelining, owner: type, name: str, transfers: int) -> None:
    act = getattr(owner, name)

    @wraps(act)
    def noticed(*words: Any, **named: Any) -> Any:
        pipelining.executed()
        pipelining.counts.commands += transfers
        return act(*words, **named)

    setattr(owner, name, noticed)
