"""A command on a terminal of its own, watched and answered as a person would."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping
from pathlib import Path

COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


class Terminal:
    """Runs a command on a pseudo-terminal. `said` is what was shown so far, without colours."""

    def __init__(self, words: list[str], folder: Path, environment: Mapping[str, str]) -> None:
        self.shown = b""
        self.master, slave = pty.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 160, 0, 0))
        self.process = subprocess.Popen(
            words,
            cwd=folder,
            env={**environment, "TERM": "xterm"},
            stdin=slave,
            stdout=slave,
            stderr=slave,
            start_new_session=True,
            preexec_fn=own_terminal,  # noqa: PLW1509  (this process has no threads)
        )
        os.close(slave)

    def __enter__(self) -> Terminal:
        return self

    def __exit__(self, *error: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.master)

    @property
    def said(self) -> str:
        return COLOURS.sub("", self.shown.decode(errors="replace")).replace("\r", "")

    def wait_for(self, text: str, timeout_s: float = 600) -> None:
        """Read until the text stands there."""
        end = time.monotonic() + timeout_s
        while text not in self.said:
            assert time.monotonic() < end and self.read(), f"no {text!r} in:\n{self.said}"

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def interrupt(self, answered_by: str) -> None:
        """Press Ctrl-C until it is answered: one that comes just before Python reads is lost."""
        for _ in range(60):
            self.type("\x03")
            end = time.monotonic() + 1
            while answered_by not in self.said and time.monotonic() < end and self.read():
                pass
            if answered_by in self.said:
                return
        raise AssertionError(f"Ctrl-C has no effect: {self.said[-2000:]}")

    def ended(self, timeout_s: float = 600) -> int:
        """Read to the end; the exit code."""
        end = time.monotonic() + timeout_s
        while self.read():
            assert time.monotonic() < end, self.said
        return self.process.wait(60)

    def read(self) -> bool:
        """Take what is shown within a second; False when nothing will come any more."""
        ready, _, _ = select.select([self.master], [], [], 1)
        if not ready:
            return True
        with contextlib.suppress(OSError):  # what a terminal says when its last user has gone
            if piece := os.read(self.master, 65536):
                self.shown += piece
                return True
        return False


def own_terminal() -> None:
    """Makes standard input the controlling terminal: passwords are asked for there."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)
