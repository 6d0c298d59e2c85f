"""Where weights may lie on the box already, and what of them need not be copied."""

import pwd
import subprocess
from pathlib import Path
from typing import Any

from aibox.box.probe.accounts import can_be_shared
from aibox.box.probe.processes import servers_of_vllm

HUB_CACHE = ".cache/huggingface/hub"  # below a home; the client's own default
# How a process says where its hub cache is, and what of that place comes below it.
HUB_VARIABLES = {
    "HF_HUB_CACHE": "",
    "HUGGINGFACE_HUB_CACHE": "",
    "HF_HOME": "hub",
    "XDG_CACHE_HOME": "huggingface/hub",
    "HOME": HUB_CACHE,
}
FIRST_PERSON = 1000  # Debian and Ubuntu give people's logins numbers from here on
FOLDER_ANSWERS_S = 3.0


def weights_places(repository: str) -> list[str]:
    """Folders that may hold a repository's weights, best first, each once, only those there are.

    What a running vLLM uses, by its environment and its command line, then the hub caches of root
    and of each person. A hub cache comes whole, whatever it holds; a folder of a command line only
    with a config.json in it, and where it is not one of ours. A place that does not answer, as a
    home on a file server that is off, is passed over.
    """
    cached = f"models--{repository.replace('/', '--')}"
    found = [place for pid, words in servers_of_vllm() for place in places_of(pid, words)]
    people = [one for one in pwd.getpwall() if one.pw_uid == 0 or one.pw_uid >= FIRST_PERSON]
    found += [Path(one.pw_dir, HUB_CACHE) for one in people]
    there: dict[str, Path] = {}
    from concurrent.futures import ThreadPoolExecutor  # noqa: PLC0415  slow to import

    with ThreadPoolExecutor(8) as pool:
        for place, answers in zip(found, pool.map(answering, found), strict=True):
            if answers:
                there.setdefault(str(place.resolve()), place)
    return sorted(map(str, there.values()), key=lambda one: not Path(one, cached).is_dir())


def answering(folder: Path) -> bool:
    """Whether a folder is there and can be looked at; on a dead file server that never ends.

    A process of its own asks. One that hangs is killed and not waited for.
    """
    try:
        asking = subprocess.Popen(
            ["test", "-r", f"{folder}/."], stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except (OSError, ValueError):
        return False
    try:
        return asking.wait(FOLDER_ANSWERS_S) == 0
    except subprocess.TimeoutExpired:
        asking.kill()
        return False


def places_of(pid: int, words: list[str]) -> list[Path]:
    """Where a server's weights come from: a folder that it was given, its own hub cache."""
    try:
        here = Path(f"/proc/{pid}/cwd").readlink()
        pairs = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []
    variables = dict(pair.decode(errors="replace").partition("=")[::2] for pair in pairs)
    given = [here / word.partition("=")[2] for word in words if word.startswith("--model=")]
    given += [here / word for word in words if not word.startswith("-") and len(word) < 1000]
    folders = [folder for folder in given if is_model(folder)]
    hubs = [
        Path(variables[name], rest) for name, rest in HUB_VARIABLES.items() if variables.get(name)
    ]
    return folders + [hub for hub in hubs if hub.is_absolute()]


def is_model(folder: Path) -> bool:
    """A model's folder that is a person's: ours has a list of its content in it."""
    if not answering(folder):
        return False
    try:
        ours = (folder / ".manifest.json").exists()
        return not ours and (folder / "config.json").is_file()
    except OSError:
        return False


def linkable(asked: dict[str, Any] | None) -> int:
    """Bytes that need no room, because a hard link to what is there already will do.

    asked: {"from": folder or null for the usual places, "repository", "to": folders that may hold
    the file already, "files": {path: [size in bytes, patterns below a place]}}.
    """
    if asked is None:
        return 0
    missing = [
        path
        for path in asked["files"]
        if not any((Path(folder) / path).exists() for folder in asked["to"])
    ]
    if not missing:
        return 0
    named = asked["from"]
    places = [Path(one) for one in ([named] if named else weights_places(asked["repository"]))]
    target = Path(asked["to"][0])
    while not target.exists():
        target = target.parent
    device, total = target.stat().st_dev, 0
    for path in missing:
        size, patterns = asked["files"][path]
        names = (name for place in places for one in patterns for name in place.glob(one))
        if any(is_linkable(name, size, device) for name in names):
            total += size
    return total


def is_linkable(name: Path, size: int, device: int) -> bool:
    try:
        found = name.stat()
    except OSError:
        return False
    return can_be_shared(found) and (found.st_size, found.st_dev) == (size, device)
