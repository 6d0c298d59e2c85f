"""The lock of one commit's files, and what of it is still to be fetched or hashed."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from aibox.decide.refusal import Refusal, some
from aibox.decide.report import json_value


@dataclass(frozen=True)
class LockedFile:
    """Size in bytes and sha256 (64 hex) of one file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class WeightsLock:
    """Every file of one commit of a repository on the hub."""

    repository: str
    commit: str
    files: Mapping[str, LockedFile]

    @property
    def total_bytes(self) -> int:
        """What the files take on the disk."""
        return sum(file.size for file in self.files.values())

    @property
    def loaded_bytes(self) -> int:
        """What of them is read as weights, as far as the names tell."""
        return sum(file.size for path, file in self.files.items() if is_loaded(path))

    @classmethod
    def parse(cls, text: str) -> "WeightsLock":
        """The lock's JSON. Raises ValueError that names the key and what stands there."""
        document = json_value(text)
        if not isinstance(document, dict) or set(document) != {"repository", "commit", "files"}:
            raise ValueError("expected an object with repository, commit and files, nothing else")
        repository, commit, files = (document[key] for key in ("repository", "commit", "files"))
        if not isinstance(repository, str) or not REPOSITORY.fullmatch(repository):
            raise ValueError("repository: expected OWNER/NAME")
        if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
            raise ValueError("commit: expected 40 hex digits")
        if not isinstance(files, dict) or not files:
            raise ValueError("files: expected an object with at least one file")
        return cls(repository, commit, {path: _locked(path, files[path]) for path in files})


REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")

# A path inside a folder: no way out of it, nothing a command could take for an option.
_INSIDE = re.compile(r"(?!-)[A-Za-z0-9._+@ -]+(?:/(?!-)[A-Za-z0-9._+@ -]+)*")


def inside(path: str) -> bool:
    """Whether a path is relative, without "..", and plain enough to stand on a command line."""
    parts = path.split("/")
    return bool(_INSIDE.fullmatch(path)) and not {".", ".."} & set(parts)


def _locked(path: str, value: object) -> LockedFile:
    where = f"files[{path!r}]"
    if not inside(path):
        raise ValueError(f"{where}: expected a relative path without '..'")
    if not isinstance(value, dict) or set(value) != {"size", "sha256"}:
        raise ValueError(f"{where}: expected size and sha256, nothing else")
    size, sha256 = value["size"], value["sha256"]
    if isinstance(size, bool) or not isinstance(size, int) or size < 0:
        raise ValueError(f"{where}.size: expected bytes, a whole number")
    if not isinstance(sha256, str) or not re.fullmatch(r"[0-9a-f]{64}", sha256):
        raise ValueError(f"{where}.sha256: expected 64 hex digits")
    return LockedFile(size, sha256)


@dataclass(frozen=True)
class FileStamp:
    """What a file shows without being read; any write or replacement changes it."""

    size: int
    mtime_ns: int
    inode: int


@dataclass(frozen=True)
class WeightsPlan:
    """Sorted paths: to fetch, to hash (right size, but not verified as it lies), and not ours.

    listed: whether the folder's own list of its content says what the lock says.
    """

    fetch: tuple[str, ...]
    hash_again: tuple[str, ...]
    foreign: tuple[str, ...]
    listed: bool = True

    @property
    def complete(self) -> bool:
        """Whether nothing is left to fetch, to hash, to write down or to refuse."""
        return not self.fetch and not self.hash_again and self.listed and not self.strays

    @property
    def strays(self) -> tuple[str, ...]:
        """Weights that the lock does not know: vLLM might load them with the others."""
        return tuple(path for path in self.foreign if is_stray(path))


def is_loaded(path: str) -> bool:
    """Whether vLLM reads a file as weights. Some repositories hold them a second time."""
    return is_stray(path) and not path.startswith("consolidated")


def is_stray(path: str) -> bool:
    """Whether a file that is not the lock's endangers what is served; vLLM reads no subfolder."""
    return path.endswith(".safetensors") and "/" not in path


def strays_refusal(folder: str, strays: Collection[str]) -> Refusal | None:
    """Why weights beside those of the lock are not left alone."""
    if not strays:
        return None
    names = sorted(strays)
    return Refusal(
        f"{some(names)} in {folder}: no file of this commit",
        "the weights of the lock alone: vLLM may load whatever .safetensors lies there",
        f"move it away: mv {folder}/{names[0]} /srv/",
    )


def content(lock: Mapping[str, LockedFile], commit: str) -> dict[str, object]:
    """The list of a complete folder's content, the same on every box."""
    files = {path: {"size": lock[path].size, "sha256": lock[path].sha256} for path in sorted(lock)}
    return {"commit": commit, "files": files}


def plan(
    files: Mapping[str, LockedFile],
    seen: Mapping[str, FileStamp],
    recorded: Mapping[str, tuple[FileStamp, str]],
    *,
    listed: bool = True,
) -> WeightsPlan:
    """What is to be done so that every file of a lock lies there, verified.

    files: those of the lock. seen: the files in the folder. recorded: stamp and sha256 from the
    last verification; a file that still shows that stamp is not read again. listed: whether the
    folder's list of its content is there, and says the same as the lock.
    """
    fetch, hash_again = [], []
    for path, wanted in files.items():
        stamp = seen.get(path)
        if stamp is None or stamp.size != wanted.size:
            fetch.append(path)
        elif recorded.get(path) == (stamp, wanted.sha256):
            continue
        elif path in recorded and recorded[path][0] == stamp:
            fetch.append(path)  # read as it lies there, and found to be something else
        else:
            hash_again.append(path)
    foreign = [path for path in seen if path not in files]
    return WeightsPlan(
        tuple(sorted(fetch)), tuple(sorted(hash_again)), tuple(sorted(foreign)), listed
    )


def index_complete(index: Mapping[str, object], files: Collection[str]) -> Refusal | None:
    """Whether the lock holds every shard that model.safetensors.index.json names.

    files: the paths of the lock.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping) or not weight_map:
        return Refusal(
            "model.safetensors.index.json without a weight_map",
            "the shard of every tensor",
            "make the lock anew from another commit of the weights",
        )
    missing = sorted({str(shard) for shard in weight_map.values()} - set(files))
    if not missing:
        return None
    return Refusal(
        f"the index names shards that the lock lacks: {some(missing)}",
        "every shard of the index in the lock",
        "make the lock anew; an engine would load a part of the model without a word",
    )


# --- commits that are no longer served -----------------------------------------------------------

_COMMIT = r"[0-9a-f]{40}"
_UNFINISHED = re.compile(rf"\.(?:partial|removed)-({_COMMIT})")


@dataclass(frozen=True)
class CommitFolder:
    """A folder beside the served commit. finished: when it was complete (epoch s), None: never."""

    name: str
    finished: float | None


def superseded(
    found: Collection[CommitFolder], current: str, served_before: str | None
) -> tuple[str, ...]:
    """Names of the folders that can go once `current` has proven itself, sorted.

    One other commit is kept: the one served before, or the newest. Downloads of other commits that
    never ended go too, and so does what a killed removal left. Names of another kind are not ours.
    """
    commits = {one.name: one.finished or 0.0 for one in found if re.fullmatch(_COMMIT, one.name)}
    others = sorted(commits.keys() - {current}, key=lambda name: (commits[name], name))
    kept = served_before if served_before in others else (others[-1] if others else None)
    unfinished = {one.name for one in found if _UNFINISHED.fullmatch(one.name)}
    if current not in commits:
        unfinished.discard(f".partial-{current}")
    return tuple(sorted({*(name for name in others if name != kept), *unfinished}))
