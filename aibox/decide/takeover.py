"""Weights that a person's box holds already: where they may lie, and whether they can be shared."""

import stat
from collections.abc import Mapping

from aibox.decide.weights import LockedFile


def patterns(repository: str, commit: str, path: str, file: LockedFile) -> list[str]:
    """Where a file may lie below a folder, best first, as patterns for pathlib's glob.

    The folder is HF_HOME, the hub's cache, one repository of the cache, or just holds the files.
    Another commit's snapshot counts as well: most files stay the same, and the sum decides.
    """
    cache = f"models--{repository.replace('/', '--')}"
    found = []
    for base in (f"hub/{cache}/", f"{cache}/", ""):
        found += [f"{base}snapshots/{commit}/{path}", f"{base}blobs/{file.sha256}"]
        found.append(f"{base}snapshots/*/{path}")
    return [*found, path]


def asked(
    repository: str, commit: str, files: Mapping[str, LockedFile]
) -> dict[str, tuple[int, list[str]]]:
    """path -> (size in bytes, patterns), for whoever looks below the folder."""
    return {
        path: (file.size, patterns(repository, commit, path, file)) for path, file in files.items()
    }


def can_be_shared(mode: int) -> bool:
    """Whether a person's file can be ours as well by a hard link, which shares owner and mode.

    mode: st_mode. The server must be able to read it, nobody but its owner may write to it.
    """
    bits = stat.S_IMODE(mode)
    return stat.S_ISREG(mode) and bits & 0o444 == 0o444 and not bits & 0o7022
