"""Remove releases that nobody asks for any more, none of which a process still uses."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from aibox.box.job import JobError, Progress, Spec
from aibox.decide.releases import HALF

REMOVING = ".removing-"


def releases(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Remove folders of releases. spec: {"folder", "names"}. Returns {"removed": names}.

    Each is renamed first, so that one that is half gone is never taken for a release. Raises
    JobError when a process uses one of them; nothing is removed then.
    """
    folder = Path(spec["folder"])
    there = [name for name in spec["names"] if (folder / name).is_dir()]
    for name in there:
        user = next(users_of(folder / name), None)
        if user is not None:
            raise JobError(
                f"{folder / name} is to be removed, and {user} uses it",
                "an old release that nothing runs from",
                "end that process when it may end, then run the deploy again",
            )
    for at, name in enumerate(there):
        progress.step(f"removing {name.removeprefix(REMOVING)}")
        progress.say(at, len(there), "releases")
        aside = folder / name
        if not name.startswith(HALF):
            aside = (folder / name).rename(folder / f"{REMOVING}{name}")
        shutil.rmtree(aside)
    return {"removed": there}


def users_of(folder: Path) -> Iterator[str]:
    """Processes that have files of a folder in memory or on their command line, in words."""
    ours = f"{folder}/".encode()
    for process in Path("/proc").glob("[0-9]*"):
        if process.name == str(os.getpid()):
            continue
        try:
            command = (process / "cmdline").read_bytes()
            uses = ours in command or ours in (process / "maps").read_bytes()
        except OSError:  # it has ended meanwhile
            continue
        if uses:
            words = command.replace(b"\0", b" ").decode(errors="replace").strip()
            yield f"process {process.name} ({words[:80]})"
