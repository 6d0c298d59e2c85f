"""Fact pipelining: an answer from a batch is the plain answer, or there is none."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from pyinfra.api import HiddenValue, QuoteString, StringCommand
from pyinfra.connectors.base import BaseConnector
from pyinfra.connectors.util import (
    CommandOutput,
    OutputLine,
    extract_control_arguments,
    make_unix_command,
    run_local_process,
)

from tasks import fact_pipelining
from tasks.fact_pipelining import Memory, Pipelining, Ran, without_secrets

ARGUMENTS: dict[str, Any] = {"_shell_executable": "sh", "_success_exit_codes": [0], "_sudo": False}

AWKWARD = [
    "echo one; echo two",
    "printf 'no newline at the end'",
    "printf '\\n\\n'",
    "true",
    "echo said; echo complained >&2; exit 3",
    "exit 255",
    "printf 'a\\0b\\n'",
    "printf 'a\\rb\\r\\n'",
    "printf 'gr\\303\\274n\\n'",
    "head -c 3000000 /dev/zero | tr '\\0' x | fold -w 100",
    "head -c 300000 /dev/zero | tr '\\0' x",
    "cat; echo rest",
    "read -r line || echo nothing to read",
    "kill -9 $$",
    "kill -INT $$; echo survived",
    "kill -TERM $$; echo survived",
    "(sleep 0.3; echo late) & echo now",
    "(sleep 0.3; echo late >&2) & echo now",
    "sleep 0.1 >/dev/null 2>&1 & echo left behind",
    "no-such-program --at-all",
    "syntax ( error",
    "echo \"it's\" 'q\"uoted' $HOME `echo sub` \\\\",
    "cat <<'END'\nhere $HOME\nEND\n",
    "exec 1>&-; echo lost",
    "set -e; false; echo not reached",
    "umask; pwd; ulimit -n",
    "yes | head -n 1",
    "trap 'echo bye' EXIT; exit 4",
    "# nothing",
    "echo 'end of the answers'",
]


def run_here(_: object, command: StringCommand, *__: object, **arguments: Any) -> Ran:
    """What a connector does, on this machine."""
    control = extract_control_arguments(cast(Any, arguments))
    words = make_unix_command(command, **arguments).get_raw_value()
    code, output = run_local_process(words, stdin=control.get("_stdin"))
    return code in (control.get("_success_exit_codes") or [0]), output


@dataclass(eq=False)
class Machine:
    """A host and its connector, as far as they matter. `sent` is what went there."""

    name: str = "box"
    executing: bool = False
    planning: bool = True
    data: dict[str, Any] = field(default_factory=dict)
    sent: list[str] = field(default_factory=list)
    answer: Callable[..., Ran] = run_here
    client: object = None
    connector_data: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.host = SimpleNamespace(
            name=self.name, data=self.data, connector=self, connector_data=self.connector_data
        )
        self.state = SimpleNamespace(should_check_for_changes=lambda: self.planning)

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if "state" in self.__dict__:
            self.state.is_executing = self.executing

    def run(self, _: object, command: str | StringCommand, *words: Any, **arguments: Any) -> Ran:
        command = StringCommand(command) if isinstance(command, str) else command
        self.sent.append(command.get_raw_value())
        return self.answer(self, command, *words, **arguments)


class Session:
    """A run of pyinfra: facts and commands over machines, with a memory that outlives it."""

    def __init__(self, folder: Path) -> None:
        self.pipelining = Pipelining("pipelining", lambda host: Memory(folder / f"{host}.json"))

    def ask(self, machine: Machine, command: str | StringCommand, **arguments: Any) -> Ran:
        with self.pipelining.fact():
            return self.do(machine, command, **arguments)

    def do(self, machine: Machine, command: str | StringCommand, **arguments: Any) -> Ran:
        connector = cast(BaseConnector, machine)
        return self.pipelining.run(machine.run, connector, command, **{**ARGUMENTS, **arguments})

    def end(self) -> None:
        for memory in self.pipelining.memories.values():
            memory.keep()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def machine() -> Machine:
    made = Machine()
    made.executing = False
    return made


def learned(folder: Path, machine: Machine, *commands: str, **arguments: Any) -> Session:
    """A new session whose memory expects these commands."""
    before = Session(folder)
    for command in commands:
        before.ask(machine, command, **arguments)
    before.end()
    machine.sent.clear()
    return Session(folder)


def streams(output: CommandOutput) -> tuple[list[str], list[str]]:
    return output.stdout_lines, output.stderr_lines


# --- answers -----------------------------------------------------------------------------------


def test_every_awkward_command_answers_as_the_plain_one(folder: Path, machine: Machine) -> None:
    plain = {command: run_here(None, StringCommand(command), **ARGUMENTS) for command in AWKWARD}
    session = learned(folder, machine, *AWKWARD)
    for command in AWKWARD:
        ok, output = session.ask(machine, command)
        assert ok == plain[command][0], command
        assert streams(output) == streams(plain[command][1]), command
    counts = session.pipelining.counts
    assert counts.batches == 1
    assert counts.failed_batches == 0
    assert counts.answered >= len(AWKWARD) - 5  # what a signal or 255 ended is asked plainly


def test_what_is_no_text_is_asked_plainly(folder: Path, machine: Machine) -> None:
    binary = r"printf '\377\376\n'"
    machine.answer = lambda *words, **named: (
        run_here(*words, **named) if "377" not in machine.sent[-1] else (True, CommandOutput([]))
    )
    session = learned(folder, machine, binary, "echo text")
    session.ask(machine, "echo text")
    session.ask(machine, binary)
    assert machine.sent[1:] == [binary]


@pytest.mark.parametrize("signal", ["KILL", "TERM"])
def test_a_command_that_ends_the_batch_is_asked_plainly(
    folder: Path, machine: Machine, signal: str
) -> None:
    session = learned(folder, machine, "echo a", "echo b")
    killer = f"test $PPID = {os.getpid()} || kill -{signal} $PPID; echo done"
    assert session.ask(machine, killer)[1].stdout_lines in ([], ["done"])
    assert session.ask(machine, "echo b")[1].stdout_lines == ["b"]


def test_the_same_shell_environment_and_folder(folder: Path, machine: Machine) -> None:
    arguments = {"_shell_executable": "bash", "_env": {"A": "it's"}, "_chdir": "/usr"}
    command = 'echo "$A" "$PWD" "${BASH_VERSION:+bash}"'
    session = learned(folder, machine, command, "true", **arguments)
    assert session.ask(machine, command, **arguments)[1].stdout_lines == ["it's /usr bash"]
    assert len(machine.sent) == 1


def test_own_exit_codes_count(folder: Path, machine: Machine) -> None:
    session = learned(folder, machine, "exit 3", "true", _success_exit_codes=[3])
    assert session.ask(machine, "exit 3", _success_exit_codes=[3])[0]
    assert not session.ask(machine, "true", _success_exit_codes=[3])[0]
    assert len(machine.sent) == 1


def test_what_is_said_before_each_command_stands_before_each_answer(
    folder: Path, machine: Machine
) -> None:
    def greeted(*words: Any, **named: Any) -> Ran:
        ok, output = run_here(*words, **named)
        greeting = [OutputLine("stdout", "welcome"), OutputLine("stderr", "sudo: no such host")]
        return ok, CommandOutput(greeting + output.combined_lines)

    machine.answer = greeted
    session = learned(folder, machine, "echo a", "echo b")
    for word in ("a", "b"):
        found = streams(session.ask(machine, f"echo {word}")[1])
        assert found == (["welcome", word], ["sudo: no such host"])
    assert len(machine.sent) == 1


def test_a_sudo_that_wants_a_password_is_left_to_the_connector(
    folder: Path, machine: Machine
) -> None:
    command = "echo 'sudo: a password is required' >&2; exit 1"
    session = learned(folder, machine, command, "true")
    session.ask(machine, "true")
    session.ask(machine, command)
    assert machine.sent[1:] == [command]


# --- when an answer may be used ----------------------------------------------------------------


def test_one_command_answers_all(folder: Path, machine: Machine) -> None:
    session = learned(folder, machine, "echo a", "echo b", "echo c")
    for word in "abc":
        assert session.ask(machine, f"echo {word}")[1].stdout_lines == [word]
    assert len(machine.sent) == 1
    assert session.pipelining.counts.answered == 3


def test_an_unforeseen_question_is_foreseen_the_next_time(folder: Path, machine: Machine) -> None:
    session = learned(folder, machine, "echo a", "echo b")
    for word in "abc":
        session.ask(machine, f"echo {word}")
    assert machine.sent[1:] == ["echo c"]
    session.end()
    again = Session(folder)
    machine.sent.clear()
    for word in "abc":
        again.ask(machine, f"echo {word}")
    assert len(machine.sent) == 1


@pytest.mark.parametrize("other", [False, True], ids=["this host", "another host"])
def test_a_command_ends_all_answers(
    folder: Path, machine: Machine, tmp_path: Path, other: bool
) -> None:
    state = tmp_path / "state"
    state.write_text("old\n")
    session = learned(folder, machine, f"cat {state}", "echo b")
    session.ask(machine, "echo b")
    session.do(Machine("other") if other else machine, f"echo new >{state}")
    assert session.ask(machine, f"cat {state}")[1].stdout_lines == ["new"]
    session.ask(machine, "echo b")
    assert machine.sent[-2:] == [f"cat {state}", "echo b"]  # plain to the end
    assert session.pipelining.counts.batches == 1


def test_a_command_while_a_batch_is_under_way_ends_it(folder: Path, machine: Machine) -> None:
    session = learned(folder, machine, "echo a", "echo b")

    def meanwhile(*words: Any, **named: Any) -> Ran:
        found = run_here(*words, **named)
        session.pipelining.executed()  # another greenlet's
        return found

    machine.answer = meanwhile
    session.ask(machine, "echo a")
    assert machine.sent[1:] == ["echo a"]
    assert session.pipelining.counts.answered == 0


def test_executing_asks_anew(folder: Path, machine: Machine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("old\n")
    session = learned(folder, machine, f"cat {state}", "echo b")
    assert session.ask(machine, f"cat {state}")[1].stdout_lines == ["old"]
    state.write_text("new\n")
    machine.executing = True
    assert session.ask(machine, f"cat {state}")[1].stdout_lines == ["new"]
    session.ask(machine, "echo b")
    assert len(machine.sent) == 2  # what the plan asked is expected here too


def test_a_new_connection_asks_anew(folder: Path, machine: Machine) -> None:
    session = learned(folder, machine, "echo a", "echo b")
    session.ask(machine, "echo a")
    machine.client = object()
    session.ask(machine, "echo b")
    assert session.pipelining.counts.batches == 2


def test_an_old_answer_is_not_used(
    folder: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = learned(folder, machine, "echo a", "echo b")
    monkeypatch.setattr(fact_pipelining, "MAX_AGE_S", 0.0)
    session.ask(machine, "echo a")
    session.ask(machine, "echo b")
    assert machine.sent[1:] == ["echo a", "echo b"]


def test_who_asks_again_gets_a_fresh_answer(folder: Path, machine: Machine, tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.write_text("starting\n")
    session = learned(folder, machine, f"cat {state}", "echo b")
    session.ask(machine, f"cat {state}")
    state.write_text("ready\n")
    assert session.ask(machine, f"cat {state}")[1].stdout_lines == ["ready"]


def test_as_often_as_the_last_time_one_answer_is_enough(folder: Path, machine: Machine) -> None:
    session = learned(folder, machine, "echo a", "echo a", "echo b")
    for word in "aab":
        session.ask(machine, f"echo {word}")
    assert len(machine.sent) == 1


def test_other_arguments_have_a_batch_of_their_own(folder: Path, machine: Machine) -> None:
    one, two = {"_env": {"A": "1"}}, {"_env": {"A": "2"}}
    before = Session(folder)
    for arguments in (one, two):
        before.ask(machine, "echo $A", **arguments)
        before.ask(machine, "echo b", **arguments)
    before.end()
    session = Session(folder)
    machine.sent.clear()
    for arguments in (one, two, one, two):
        said = session.ask(machine, "echo $A", **arguments)[1].stdout_lines
        assert said == [arguments["_env"]["A"]]
    assert session.pipelining.counts.batches == 2


def root_and_login(session: Session, machine: Machine) -> None:
    for arguments in ({}, {"_sudo": True}):
        for word in ("a", "it's"):
            command = f'echo "{word}" $SUDO_USER'
            said = session.ask(machine, command, **arguments)[1].stdout_lines
            user = os.environ.get("USER", "root") if arguments else ""
            assert said == [f"{word} {user}".strip()]


@pytest.fixture
def sudo_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A sudo that needs no rights, and says that it was there."""
    program = tmp_path / "sudo-bin" / "sudo"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\nshift 2\nSUDO_USER=${USER:-root} exec "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    return program


def test_roots_batch_rides_on_the_login_users(
    folder: Path, machine: Machine, sudo_here: Path
) -> None:
    before = Session(folder)
    root_and_login(before, machine)
    before.end()
    machine.sent.clear()
    root_and_login(Session(folder), machine)
    assert len(machine.sent) == 1
    # a rider that is lost is asked for by itself
    sudo_here.write_text("#!/bin/sh\ntest $PPID != 1 && exit 1\n")
    session = Session(folder)
    session.ask(machine, 'echo "a" $SUDO_USER')
    sudo_here.write_text('#!/bin/sh\nshift 2\nSUDO_USER=${USER:-root} exec "$@"\n')
    root_and_login(session, machine)
    assert session.pipelining.counts.batches == 2
    assert session.pipelining.counts.failed_batches == 0


def test_nothing_rides_where_a_password_is_needed(
    folder: Path, machine: Machine, sudo_here: Path
) -> None:
    before = Session(folder)
    root_and_login(before, machine)
    before.end()
    assert sudo_here.exists()
    machine.connector_data["prompted_sudo_password"] = "secret"
    session = Session(folder)
    root_and_login(session, machine)
    assert session.pipelining.counts.batches == 2


@pytest.mark.parametrize(
    "arguments",
    [
        {"_timeout": 5},
        {"_stdin": "given"},
        {"_get_pty": True},
        {"_su_user": "root"},
        {"_doas": True},
        {"_use_sudo_login": True},
        {"_shell_executable": None},
        {"_env": {"A": HiddenValue("secret")}},
        {"print_output": True},
        {"print_input": True},
    ],
    ids=str,
)
def test_what_is_always_plain(folder: Path, machine: Machine, arguments: dict[str, Any]) -> None:
    machine.answer = silent
    session = learned(folder, machine, "echo a", "echo b", **arguments)
    session.ask(machine, "echo a", **arguments)
    session.ask(machine, "echo b", **arguments)
    assert machine.sent == ["echo a", "echo b"]


@pytest.mark.parametrize("value", [False, None, 0, "no"])
def test_it_can_be_turned_off(folder: Path, machine: Machine, value: object) -> None:
    session = learned(folder, machine, "echo a", "echo b")
    machine.data["pipelining"] = value
    session.ask(machine, "echo a")
    assert machine.sent == ["echo a"]


def test_the_askpass_script_is_part_of_a_fact(folder: Path, machine: Machine) -> None:
    session = learned(folder, machine, "echo a", "echo b")

    def with_askpass(*words: Any, **named: Any) -> Ran:
        if machine.sent[-1] != "mktemp":
            session.do(machine, "mktemp")
        return run_here(*words, **named) if machine.sent[-1] != "mktemp" else run_here(*words)

    machine.answer = with_askpass
    session.ask(machine, "echo a")
    assert not session.pipelining.over


# --- batches that fail -------------------------------------------------------------------------


def swapped(line: OutputLine) -> OutputLine:
    """The line with one character in the middle changed."""
    other = "A" if line.line[40] != "A" else "B"
    return OutputLine(line.buffer_name, line.line[:40] + other + line.line[41:])


BYE, ABC = OutputLine("stdout", "bye"), OutputLine("stdout", "QUJD")
DAMAGE: dict[str, Callable[[list[OutputLine]], list[OutputLine]]] = {
    "cut off": lambda lines: lines[:-1],
    "empty": lambda lines: [],  # noqa: ARG005
    "a line is missing": lambda lines: lines[:1] + lines[2:],
    "something behind": lambda lines: [*lines, BYE],
    "something between": lambda lines: [*lines[:-1], ABC, lines[-1]],
    "a character is wrong": lambda lines: [lines[0], swapped(lines[1]), *lines[2:]],
    "said twice": lambda lines: lines + lines,
}


@pytest.mark.parametrize("kind", ["failed", *DAMAGE])
def test_a_damaged_batch_leaves_plain_facts(folder: Path, machine: Machine, kind: str) -> None:
    session = learned(folder, machine, "echo a", "echo b")

    def damaged(*words: Any, **named: Any) -> Ran:
        ok, output = run_here(*words, **named)
        if len(machine.sent) > 1:
            return ok, output
        if kind == "failed":
            return False, output
        return ok, CommandOutput(DAMAGE[kind](output.combined_lines))

    machine.answer = damaged
    assert session.ask(machine, "echo a")[1].stdout_lines == ["a"]
    machine.executing = True
    assert session.ask(machine, "echo b")[1].stdout_lines == ["b"]
    assert machine.sent[1:] == ["echo a", "echo b"]  # and no second try
    assert session.pipelining.counts.failed_batches == 1


@pytest.mark.parametrize("error", [TimeoutError(), OSError("gone"), EOFError()])
def test_a_batch_that_raises_leaves_plain_facts(
    folder: Path, machine: Machine, error: Exception
) -> None:
    session = learned(folder, machine, "echo a", "echo b")

    def raising(*words: Any, **named: Any) -> Ran:
        if len(machine.sent) == 1:
            raise error
        return run_here(*words, **named)

    machine.answer = raising
    assert session.ask(machine, "echo a")[1].stdout_lines == ["a"]


def silent(*_: object, **__: object) -> Ran:
    """A host on which nothing is really run."""
    return True, CommandOutput([OutputLine("stdout", "said")])


BROKEN = [(name, code) for name in ("mktemp", "gzip", "base64", "tar") for code in (0, 1)]


@pytest.mark.parametrize(("program", "code"), [*BROKEN, ("cat", 1)])
def test_a_host_without_a_program_answers_plainly(
    folder: Path, machine: Machine, tmp_path: Path, program: str, code: int
) -> None:
    session = learned(folder, machine, "echo a", "echo b")
    broken = tmp_path / "bin" / program
    broken.parent.mkdir()
    broken.write_text(f"#!/bin/sh\nexit {code}\n")
    broken.chmod(0o755)
    machine.answer = lambda one, command, *_, **named: run_here(
        one, StringCommand(f"PATH={broken.parent}:$PATH;", command), **named
    )
    for word in "ab":
        assert session.ask(machine, f"echo {word}")[1].stdout_lines == [word]
    assert session.pipelining.counts.answered == 0


def test_nothing_is_left_on_the_host(folder: Path, machine: Machine) -> None:
    listed = "cd /dev/shm; ls -d tmp.*; true"
    session = learned(folder, machine, "echo a", listed)
    during = set(session.ask(machine, listed)[1].stdout_lines)
    after = {path.name for path in Path("/dev/shm").glob("tmp.*")}
    assert during - after
    assert machine.answer is run_here


# --- memory ------------------------------------------------------------------------------------


def test_the_memory_is_private_and_holds_no_secret(folder: Path, machine: Machine) -> None:
    machine.answer = silent
    session = Session(folder)
    hidden = StringCommand("login", QuoteString(HiddenValue("hunter2")))
    session.ask(machine, hidden)
    session.ask(machine, "echo a", _sudo=True, _sudo_password="hunter2")
    session.ask(machine, "echo b", _env={"TOKEN": "hunter2"})
    session.end()
    file = folder / "box.json"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    text = file.read_text()
    assert "hunter2" not in text
    assert "said" not in text  # questions only
    assert "echo a" in text
    assert "TOKEN" in text


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "null", '{"phases": 1}', '{"phases": {"plan": [[1]]}}', "\0", "[" * 100_000],
)
def test_a_damaged_memory_is_none(folder: Path, machine: Machine, text: str) -> None:
    session = learned(folder, machine, "echo a", "echo b")
    (folder / "box.json").write_text(text)
    assert session.ask(machine, "echo a")[1].stdout_lines == ["a"]
    session.end()
    assert json.loads((folder / "box.json").read_text())["phases"]["plan"]


def test_a_memory_that_others_may_write_is_none(folder: Path, machine: Machine) -> None:
    session = learned(folder, machine, "echo a", "echo b")
    (folder / "box.json").chmod(0o666)
    session.ask(machine, "echo a")
    assert session.pipelining.counts.batches == 0


def test_a_memory_that_cannot_be_kept_is_none(machine: Machine, tmp_path: Path) -> None:
    (tmp_path / "memory").write_text("a file")
    session = Session(tmp_path / "memory")
    session.ask(machine, "echo a")
    session.end()


def test_a_question_not_asked_in_two_runs_is_forgotten(folder: Path, machine: Machine) -> None:
    learned(folder, machine, "echo a", "echo old")
    for expected in (True, False):
        session = Session(folder)
        session.ask(machine, "echo a")
        session.end()
        assert ("echo old" in (folder / "box.json").read_text()) == expected


def test_a_memory_has_bounds(
    folder: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fact_pipelining, "MAX_QUESTIONS", 3)
    learned(folder, machine, *(f"echo {number}" for number in range(5)))
    assert len(json.loads((folder / "box.json").read_text())["phases"]["plan"]) == 3
    monkeypatch.setattr(fact_pipelining, "MAX_MEMORY_BYTES", 100)
    session = learned(folder, machine, "echo another")
    assert session.ask(machine, "echo 1")[0]
    assert len(machine.sent) == 1


def test_a_password_is_taken_out_of_a_question() -> None:
    arguments = {"_sudo": True, "_sudo_password": "a", "_env": {"A": "b"}, "_chdir": "/c"}
    question = fact_pipelining.question_of("echo", arguments)
    assert question is not None
    expected = {"_sudo": True, "_sudo_password": True, "_env": ["A"], "_chdir": "/c"}
    assert json.loads(without_secrets(question).arguments) == expected
