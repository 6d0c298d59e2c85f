"""What a run said when it refused, as a person reads it, and what a box was like beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.rehearsal import fingerprint
from tests.rehearsal.box import Box
from tests.rehearsal.machine import command
from tests.rehearsal.provision import Deploy, HostData, deploy

LINE = re.compile(r"^ *\[(?P<box>[^]]+)\] (?P<label>found|expected|do|) +(?P<text>\S.*)$")


@dataclass
class Said:
    """One refusal of the log, its lines joined by a blank."""

    box: str
    found: str = ""
    expected: str = ""
    do: str = ""


def refusals_in(ended: Deploy) -> list[Said]:
    """Every refusal of a run, in order, read from the run's own log."""
    said: list[Said] = []
    label = ""
    for line in ended.log.splitlines():
        match = LINE.match(line)
        if match is None:
            label = ""
        elif match["label"] == "found":
            label = "found"
            said.append(Said(match["box"], found=match["text"]))
        elif match["label"]:
            label = match["label"]
            setattr(said[-1], label, match["text"])
        elif label:  # a further line of the same part
            setattr(said[-1], label, f"{getattr(said[-1], label)} {match['text']}")
    return said


def unwrapped(ended: Deploy) -> str:
    """What a run said, with a page's long lines in one."""
    return re.sub(r"\n *\[[^]]+\] +", " ", ended.said)


def the_one_refusal(ended: Deploy) -> Said:
    """The only refusal of a run that ended with 1, in words, with all its three parts."""
    refusals = refusals_in(ended)
    assert ended.code == 1, ended.said
    assert "Traceback" not in ended.said, ended.said
    assert len(refusals) == 1, ended.said
    assert refusals[0].found and refusals[0].expected and refusals[0].do, ended.said
    return refusals[0]


def settings_faults(ended: Deploy) -> list[str]:
    """The faults of a run that was ended by its settings, without their bullets."""
    assert ended.code == 1, ended.said
    assert "Traceback" not in ended.said, ended.said
    assert refusals_in(ended) == [], ended.said
    return [
        line.strip().removeprefix("- ") for line in ended.log.splitlines() if line[:4] == "  - "
    ]


def run_refused(box: Box, data: HostData) -> Said:
    """One run with -y, refused, that left the box as it was."""
    with untouched(box):
        ended = deploy({box: data}, "-y")
    return the_one_refusal(ended)


def run_planned(box: Box, data: HostData) -> Deploy:
    """One run with --dry that gets past the checks and plans the work."""
    with untouched(box):
        ended = deploy({box: data}, "--dry")
    assert_planned(ended)
    return ended


def assert_planned(ended: Deploy) -> None:
    assert ended.code == 0, ended.said
    assert refusals_in(ended) == [], ended.said
    assert "aibox in its own venv" in ended.said, ended.said


def enlarge_disk(box: Box, size_mb: int) -> None:
    """A larger disk in the place of the one that `disk_limit_mb` made."""
    disk = Path(box.entry.folder, "disk")
    command("mount", "-o", f"remount,size={size_mb}m", disk)


@contextmanager
def untouched(*boxes: Box) -> Iterator[None]:
    """Sees that each box is in the end exactly what it was in the beginning."""
    before = {box: fingerprint.taken(box) for box in boxes}
    yield
    for box in boxes:
        changes = before[box].changes(fingerprint.taken(box))
        assert not changes, "\n".join([f"{box.name} is not as it was:", *changes])
