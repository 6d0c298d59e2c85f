"""Compile a release's Python once, when it is built: the server may not write into it.

Timestamps and not hashes make the bytecode valid: reading and hashing every source again would
cost what it saves, and unchecked bytecode would hide an edited source from whoever looks for it.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

from aibox.box.job import Progress
from aibox.box.wheels import site_of


def compile_all(venv: Path, named: Path, progress: Progress) -> int:
    """Compile all of site-packages on every core; returns how many files.

    named: the folder that the venv will have, which tracebacks show. Files that are no Python of
    this version (templates, tests) are passed over: importing them would fail in the same way.
    """
    progress.step("compiling bytecode")
    site = site_of(venv)
    total = sum(1 for _ in site.rglob("*.py"))
    command = [str(venv / "bin/python"), "-IB", "-m", "compileall", "-j", "0"]
    command += ["-s", str(venv), "-p", str(named), str(site)]
    done = 0
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, errors="replace"
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("Compiling "):
                done += 1
                if done % 250 == 0:
                    progress.say(done, total, "files")
    return done
