"""What a deploy brought that was not on the box before: /var/lib/aibox/brought.json, only added to.

It is written before it happens, so that a run that is killed in between has told already; a
teardown takes away, or leaves behind, by it. Control sends this file's text along as well and the
box's python3 runs it, its task on standard input: standard library only.

{"packages", "driver_packages": names that apt installed, "replaced": {name: version that was there
before the driver's packages}, "held": [names], "users", "groups": [names], "enabled": [units],
"sources": {path: [a person's own apt source before it was cleaned, and after; null: put aside]},
"nouveau_was_on": bool, "places": {setting: [its values so far]}, "folders": {path: whether it was
there before}, "late": true where deploys had been here before this record was kept}
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

RECORD = Path("/var/lib/aibox/brought.json")
DEPLOYED = RECORD.with_name("deployed.json")
LOCK = Path("/run/aibox-brought.lock")
CACHE = "/var/cache/aibox"

Brought = dict[str, Any]


def known() -> Brought:
    """The record; empty where there is none. Raises ValueError where it is damaged."""
    try:
        found = json.loads(RECORD.read_text())
    except FileNotFoundError:
        return {}
    if not isinstance(found, dict):
        raise ValueError(f"{RECORD} holds {type(found).__name__}")
    return found


def merged(before: Mapping[str, Any], more: Mapping[str, Any]) -> Brought:
    """Lists grow, and what was told of a thing first stays."""
    both = dict(before)
    for key, value in more.items():
        old = before.get(key)
        if isinstance(old, list):
            both[key] = list(dict.fromkeys([*old, *value]))
        elif isinstance(old, dict):
            both[key] = merged(old, value)
        elif old is None:
            both[key] = value
    return both


def add(more: Mapping[str, Any]) -> None:
    """Write down what is about to be brought. Raises OSError, and ValueError: a damaged record."""
    with alone():
        before = known()
        after = merged(before, more)
        if after != before:
            write(after)


@contextmanager
def alone() -> Iterator[None]:
    with LOCK.open("a") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def write(record: Brought) -> None:
    """Whole, for root alone, and on the disk when it returns."""
    RECORD.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    aside = RECORD.with_name(f".{RECORD.name}.new")
    aside.unlink(missing_ok=True)
    with os.fdopen(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(record, file, indent=1, sort_keys=True)
        file.flush()
        os.fsync(file.fileno())
    aside.replace(RECORD)
    folder = os.open(RECORD.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- what a deploy asks of it ------------------------------------------------------------------


def begin(asked: Mapping[str, Any]) -> None:
    """Before anything is laid down. asked: {"places": {setting: value}, "folders": [paths]}.

    On a box that was deployed to before this record was kept, folders count as there before, but
    for those that only a deploy makes.
    """
    late = not RECORD.exists() and DEPLOYED.exists()
    own = own_folders(asked["places"]) if late else set()
    new = above(asked["folders"]) - known().get("folders", {}).keys()
    folders = {path: Path(path).exists() and path not in own for path in new}
    places = {name: [value] for name, value in asked["places"].items()}
    more = {"places": places, "folders": folders, **({"late": True} if late else {})}
    add({**more, "nouveau_was_on": Path("/sys/module/nouveau").is_dir()})


def own_folders(places: Mapping[str, str]) -> set[str]:
    """What is ours by its name: the cache where no setting moves it, the server's own folders."""
    unit = places["server_unit"]
    return {CACHE, f"/var/lib/{unit}", f"/var/cache/{unit}"}


def above(folders: Iterable[str]) -> set[str]:
    """Folders and all above them, but the root."""
    paths = [Path(folder) for folder in folders]
    return {str(one) for path in paths for one in (path, *path.parents) if len(one.parts) > 1}


def install(names: list[str]) -> None:
    """What apt is about to install anew with these packages."""
    command = ["apt-get", "-s", "-y", "-q", "--no-install-recommends", "install", *names]
    environment = {**os.environ, "LC_ALL": "C", "DEBIAN_FRONTEND": "noninteractive"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    add({"packages": new_packages(done.stdout)})  # where it fails, apt itself will say why


def new_packages(said: str) -> list[str]:
    """Names from `apt-get -s` of what is not there yet: no old version stands in brackets."""
    return re.findall(r"^Inst (\S+) \(", said, re.MULTILINE)


VERBS: dict[str, Callable[[Any], None]] = {"add": add, "begin": begin, "install": install}


def main(verb: str) -> int:
    try:
        VERBS[verb](json.load(sys.stdin))
    except ValueError as error:
        print(f"{RECORD} can't be read ({error}): move it aside", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{RECORD} can't be written: {error.strerror}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
