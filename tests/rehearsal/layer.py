"""Layers: what a box had written when it was snapshotted, read-only, for others to start from.

A layer stands on an image and perhaps on other layers, so it lies under the image's name:
layers/<image>/<layer>/{upper,layer.json}. It is whole or absent.
"""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from tests.rehearsal import registry
from tests.rehearsal.machine import RehearsalError, cache_folder, command


def folder_of(image: str, layer: str) -> Path:
    return cache_folder() / "layers" / image / layer


def exists(image: str, layer: str, bridge_address: str) -> bool:
    """Whether the layer can be used: it is whole, and what it stands on and its network are too.

    A box knows the stand-in servers by the bridge's address; a layer of another one is useless.
    """
    try:
        record = json.loads((folder_of(image, layer) / "layer.json").read_text())
    except FileNotFoundError:
        return False
    parents = (folder_of(image, parent) for parent in record["parents"])
    return record["bridge_address"] == bridge_address and all(one.is_dir() for one in parents)


def all_of(image: str) -> list[str]:
    """The layers of an image, by full name."""
    found = (cache_folder() / "layers" / image).glob("[!.]*/layer.json")
    return sorted(file.parent.name for file in found)


def chain(image: str, layer: str) -> tuple[str, ...]:
    """The layer and all it stands on, topmost first."""
    record = json.loads((folder_of(image, layer) / "layer.json").read_text())
    return (layer, *record["parents"])


def keep(
    upper: Path, image: str, *, name: str, key: str, below: tuple[str, ...], bridge: str
) -> None:
    """Make the layer `name-key` of the disk of a stopped box; `upper` moves into it.

    When another process was faster with the same layer, its one stays and ours is removed.
    """
    final = folder_of(image, full_name(name, key))
    aside = final.with_name(f".{final.name}.making-{os.getpid()}")
    command("rm", "-rf", "--one-file-system", aside)
    aside.mkdir(parents=True)
    record = {"name": name, "parents": below, "bridge_address": bridge, "made": time.time()}
    (aside / "layer.json").write_text(json.dumps(record, indent=1))
    upper.rename(aside / "upper")
    command("sync", "-f", aside)
    try:
        aside.rename(final)
    except OSError:
        if not final.is_dir():
            raise
        command("rm", "-rf", "--one-file-system", aside)


def drop(image: str, name: str, keep_key: str) -> list[str]:
    """Remove the layers of this name but that of `keep_key`; returns those removed.

    Layers that a box or another layer stands on stay.
    """
    folder = cache_folder() / "layers" / image
    with registry.opened() as record:
        layers = all_of(image)
        doomed = {one for one in layers if name_of(image, one) == name}
        doomed -= {full_name(name, keep_key)}
        for entry in record.boxes.values():
            doomed -= set(entry.layers) if entry.image == image else set()
        for one in layers:
            if one not in doomed:
                doomed -= set(chain(image, one))
        for one in doomed:
            folder_of(image, one).rename(folder / f".{one}.dropped-{os.getpid()}")
    for left in (*folder.glob(".*.dropped-*"), *folder.glob(".*.making-*")):
        whose = left.name.rpartition("-")[2]
        if whose == str(os.getpid()) or not Path("/proc", whose).exists():
            command("rm", "-rf", "--one-file-system", left)
    return sorted(doomed)


def name_of(image: str, layer: str) -> str:
    """The layer's name without its key."""
    record = json.loads((folder_of(image, layer) / "layer.json").read_text())
    return str(record["name"])


def full_name(name: str, key: str) -> str:
    text = f"{name}-{key}" if key else name
    if not text.replace("-", "").replace(".", "").replace("_", "").isalnum():
        raise RehearsalError(
            f"{text!r} is no name for a layer; letters, digits, '-', '_' and '.' are allowed."
        )
    return text
