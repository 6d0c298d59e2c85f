"""Apply pinned patches to a new release, all of each or none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

from aibox.box.contents import sha256
from aibox.box.job import JobError
from aibox.decide.patches import touched

# No fuzz: a patch was made for these very lines. Files are replaced, never written in place, which
# would reach through uv's hard links into its cache.
APPLY = ["patch", "--batch", "--forward", "-p1", "--fuzz=0", "--no-backup-if-mismatch", "-r", "-"]


def apply(site: Path, patch: dict[str, str]) -> dict[str, Any]:
    """Apply one patch in site-packages.

    patch: {"file", "sha256", "upstream", "text"}. Returns what the release's record says of it:
    {"sha256", "upstream", "files": {path: sha256 of what it is now}}. Raises JobError.
    """
    try:
        paths = touched(patch["text"])
    except ValueError as error:
        raise refused(patch, str(error)) from None
    for further in (["--dry-run"], []):
        done = subprocess.run(
            [*APPLY, *further, "-d", str(site)],
            input=patch["text"].encode(),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            said = (done.stdout + done.stderr).decode(errors="replace").strip()
            print(said, file=sys.stderr)
            raise refused(patch, "\n".join(said.splitlines()[:6]))
    return {
        "sha256": patch["sha256"],
        "upstream": patch["upstream"],
        "files": {path: sha256(site / path) for path in paths},
    }


def refused(patch: dict[str, str], said: str) -> JobError:
    return JobError(
        f"{patch['file']} does not apply: {said}",
        "a patch made for this very version of vLLM",
        f"see {patch['upstream']}: make the patch anew for this version, or take it out of "
        "release_patches when the change is in",
    )
