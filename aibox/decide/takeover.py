"""Weights that a person's box holds already: where they may lie."""

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
