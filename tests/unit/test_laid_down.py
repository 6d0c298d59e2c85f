"""The command that lays a file down, run by a shell of this machine."""

from __future__ import annotations

import base64
import os
import pwd
import subprocess
from pathlib import Path

import pytest

from tasks.operations import write_command

CONTENT = b"[Service]\nNice=1\n" * 6


def write(path: Path, given: str) -> int:
    me = pwd.getpwuid(os.getuid()).pw_name
    command = write_command(str(path), me, str(os.getgid()), "640", len(CONTENT))
    words = ["sh", "-c", command.get_raw_value()]
    return subprocess.run(words, input=given.encode(), check=False).returncode


@pytest.mark.parametrize("size", [0, 4, 40])
def test_content_that_breaks_off_replaces_nothing(tmp_path: Path, size: int) -> None:
    path = tmp_path / "unit"
    path.write_bytes(b"the old one")
    whole = base64.b64encode(CONTENT).decode()
    assert write(path, whole[:size]) != 0
    assert path.read_bytes() == b"the old one"
    assert write(path, whole) == 0
    assert path.read_bytes() == CONTENT
    assert path.stat().st_mode & 0o777 == 0o640
    assert list(tmp_path.iterdir()) == [path]
