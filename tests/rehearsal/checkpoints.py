"""Checkpoints made from the tiny model, for the emulated hub, with their cards and locks."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

from tests.rehearsal.emulation import repository
from tests.rehearsal.emulation.hub import MODELS
from tests.rehearsal.provision import HERE

TINY = "tiny-qwen3.5-mtp"
SHARD = "model-00001-of-00001.safetensors"
INDEX = "model.safetensors.index.json"

Tensors: TypeAlias = dict[str, tuple[dict[str, Any], bytes]]


def copy(models: Path, name: str) -> Path:
    """A copy of the tiny model as the repository rehearsal/<name>."""
    folder = models / "rehearsal" / name
    shutil.copytree(MODELS / "rehearsal" / TINY, folder)
    return folder


def without_head(models: Path, name: str) -> None:
    """As a fine-tune leaves it: config.json still claims the head, its tensors are gone."""
    folder = copy(models, name)
    rewrite(folder / SHARD, lambda found: {key: found[key] for key in found if "mtp." not in key})
    index = json.loads((folder / INDEX).read_text())
    kept = {key: shard for key, shard in index["weight_map"].items() if "mtp." not in key}
    (folder / INDEX).write_text(json.dumps(index | {"weight_map": kept}))


def quantised(models: Path, name: str) -> None:
    """The matrices in FP8, one byte for each parameter."""
    folder = copy(models, name)

    def narrow(found: Tensors) -> Tensors:
        return {
            key: ({**entry, "dtype": "F8_E4M3"}, data[: len(data) // 2])
            if len(entry["shape"]) > 1
            else (entry, data)
            for key, (entry, data) in found.items()
        }

    rewrite(folder / SHARD, narrow)


def rewrite(file: Path, change: Callable[[Tensors], Tensors]) -> None:
    """Change the tensors of a safetensors file: an 8-byte length, a JSON header, the data."""
    content = file.read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    metadata = header.pop("__metadata__", {})
    tensors: Tensors = {}
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        tensors[name] = entry, content[start + begin : start + end]
    new, data = {"__metadata__": metadata}, b""
    for name, (entry, piece) in change(tensors).items():
        new[name] = entry | {"data_offsets": [len(data), len(data) + len(piece)]}
        data += piece
    packed = json.dumps(new).encode()
    file.write_bytes(len(packed).to_bytes(8, "little") + packed + data)


def write_card(models: Path, name: str, cards: Path) -> None:
    """The card of the tiny model for another repository, and its lock."""
    found = repository.load(models, f"rehearsal/{name}")
    assert found is not None
    card = (HERE / f"group_data/models/{TINY}.yml").read_text()
    (cards / f"{name}.yml").write_text(card.replace(f"rehearsal/{TINY}", f"rehearsal/{name}"))
    files = {
        path: {"size": entry.size, "sha256": entry.sha256} for path, entry in found.entries.items()
    }
    lock = {"repository": found.name, "commit": found.commit, "files": files}
    (cards / f"{name}.lock.json").write_text(json.dumps(lock))
