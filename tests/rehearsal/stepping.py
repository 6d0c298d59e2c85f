"""A deploy that tells of every operation and goes on only when it is told to.

    with stepping(box, data) as run:
        while step := run.next():       an operation begins, has ended or has failed
            …                           the run waits meanwhile; jobs on the box do not
            run.go_on()

`python -m tests.rehearsal.stepping …` is `python -m pyinfra …` with one callback more.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tests.rehearsal.box import Box
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import Deploy, HostData, command_line, environment

PIPES = "STEPPING_PIPES"  # two file descriptors: where the run tells, where it is told to go on


@dataclass(frozen=True)
class Step:
    """A point of a run: `state` is "begins", "ended" or "failed"."""

    state: str
    operation: str  # as pyinfra shows it


class Stepped:
    """A run that waits at each step."""

    def __init__(
        self, process: subprocess.Popen[str], tells: IO[str], told: IO[str], log: Path
    ) -> None:
        self.process, self.tells, self.told, self.log = process, tells, told, log

    def next(self) -> Step | None:
        """Where the run waits now; None at its end."""
        line = self.tells.readline()
        return Step(**json.loads(line)) if line else None

    def go_on(self) -> None:
        self.told.write("\n")
        self.told.flush()

    def go_on_to(self, operation: str) -> None:
        """Go on until an operation begins, by how its name begins, and let that begin."""
        while step := self.next():
            self.go_on()
            if step.state == "begins" and step.operation.startswith(operation):
                return
        raise AssertionError(f"the run ended before {operation!r}:\n{self.log.read_text()}")

    def kill(self) -> None:
        """SIGKILL: no word to the box, nothing tidied."""
        self.process.kill()
        self.process.wait()

    def ended(self, timeout_s: float = 600) -> Deploy:
        """Let the run go on without waiting, to its own end."""
        self.told.close()
        code = self.process.wait(timeout_s)
        return Deploy(code, self.log.read_text(), "")

    def has_ended(self, operation: str) -> bool:
        """Whether the ended run had come to the end of an operation, after what was read of it."""
        steps = iter(self.next, None)
        return any(one.state == "ended" and one.operation.startswith(operation) for one in steps)


@contextmanager
def stepping(box: Box, data: HostData) -> Iterator[Stepped]:
    """Start such a deploy; what still runs of it at the end is killed."""
    tells, tell = os.pipe()
    told, go_on = os.pipe()
    with tempfile.TemporaryDirectory() as folder, os.fdopen(tells) as reader:
        log = Path(folder, "log")
        words = [word.replace("pyinfra", __name__) for word in command_line("-y")[:3]]
        with log.open("w") as stream:
            process = subprocess.Popen(
                [*words, *command_line("-y")[3:]],
                cwd=CHECKOUT,
                env=environment({box: data}, Path(folder)) | {PIPES: f"{tell} {told}"},
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                text=True,
                pass_fds=(tell, told),
            )
        os.close(tell)
        os.close(told)
        run = Stepped(process, reader, os.fdopen(go_on, "w"), log)
        try:
            yield run
        finally:
            run.kill()
            run.told.close()


def main() -> None:
    """pyinfra's command line, watched. Runs in the child."""
    from pyinfra.api import Host, State  # noqa: PLC0415  the tests' side needs none of it
    from pyinfra.api.state import BaseStateCallback  # noqa: PLC0415
    from pyinfra_cli.main import main as pyinfra  # type: ignore[import-untyped]  # noqa: PLC0415

    tell, told = (int(word) for word in os.environ.pop(PIPES).split())

    def say(state: State, operation: str, word: str) -> None:
        name = ", ".join(state.get_op_meta(operation).names).rpartition(" | ")[2]
        os.write(tell, json.dumps({"state": word, "operation": name}).encode() + b"\n")
        os.read(told, 1)  # nothing comes any more when nobody steps us: go on then

    class Telling(BaseStateCallback):
        @staticmethod
        def operation_host_start(state: State, host: Host, op_hash: str) -> None:  # noqa: ARG004
            say(state, op_hash, "begins")

        @staticmethod
        def operation_host_success(
            state: State,
            host: Host,  # noqa: ARG004
            op_hash: str,
            retry_count: int = 0,  # noqa: ARG004
        ) -> None:
            say(state, op_hash, "ended")

        @staticmethod
        def operation_host_error(
            state: State,
            host: Host,  # noqa: ARG004
            op_hash: str,
            retry_count: int = 0,  # noqa: ARG004
            max_retries: int = 0,  # noqa: ARG004
        ) -> None:
            say(state, op_hash, "failed")

    initialise = State.init

    def watched(self: State, *arguments: Any, **named: Any) -> None:
        initialise(self, *arguments, **named)
        self.add_callback_handler(Telling())

    State.init = watched  # type: ignore[method-assign]
    sys.argv[0] = "pyinfra"
    pyinfra()


if __name__ == "__main__":
    main()
