"""What changes a unit beside its own file."""

import re
import shlex
from pathlib import Path
from typing import Any

from aibox.box.probe.files import content, read_text
from aibox.box.probe.unit_files import UNIT_FOLDERS, drop_in_folders, is_a_persons
from aibox.box.probe.units import process, unit_properties


def surroundings(unit: str) -> dict[str, Any]:
    """What changes a unit beside its own file, loaded already or only lying there."""
    shown = unit_properties(unit)
    fragment = shown.get("FragmentPath", "")
    paths = {Path(path) for path in shown.get("DropInPaths", "").split()}
    for folder in UNIT_FOLDERS:
        for name in drop_in_folders(unit):
            paths |= set(Path(folder, name).glob("*.conf"))
    pid = int(shown.get("MainPID") or 0)
    running = process(pid, shown["ExecMainStartTimestamp"]) if pid else None
    return {
        "fragment": fragment,
        "theirs": is_a_persons(Path(fragment)),
        "given": given_by(Path(fragment), sorted(paths)),
        "drop_ins": {str(path): content(path) for path in sorted(paths)},
        "variables": sorted(running["environment"]) if running else [],
    }


def given_by(file: Path, drop_ins: list[Path]) -> list[str]:
    """The names of the variables that a unit's own file sets or lets through, and of those in the
    EnvironmentFile of it or of a drop-in; no value leaves the box."""
    names = set()
    for path in [file, *drop_ins]:
        text = re.sub(r"\\\n", " ", (read_text(path) if path.is_file() else None) or "")
        for key, value in re.findall(r"^\s*(\w*Environment\w*)\s*=(.*)$", text, re.MULTILINE):
            if key == "EnvironmentFile":
                names |= variables_in(value.strip().removeprefix("-"))
            elif path == file and key in ("Environment", "PassEnvironment"):
                names |= {word.partition("=")[0] for word in split(value)}
    return sorted(names)


def variables_in(pattern: str) -> set[str]:
    """The names that an EnvironmentFile= sets; its path may be a pattern."""
    if not pattern.startswith("/"):
        return set()
    texts = [read_text(path) or "" for path in Path("/").glob(pattern.lstrip("/"))]
    return set(re.findall(r"^\s*([A-Za-z_]\w*)\s*=", "\n".join(texts), re.MULTILINE))


def split(line: str) -> list[str]:
    """Words as systemd reads them; as good as can be where quotes do not close."""
    try:
        return shlex.split(line)
    except ValueError:
        return line.split()
