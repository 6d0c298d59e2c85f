"""The model folder, looked at as vLLM looks at it, with the errors that vLLM raises."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"


class ConfigError(Exception):
    """Seen by the API server, before an engine is started; the text is the last line."""


class WeightsError(Exception):
    """Seen by the engine while it loads; the text is the last line."""


@dataclass(frozen=True)
class Model:
    folder: Path
    config: dict[str, Any]

    @property
    def context(self) -> int:
        """Tokens, as the config derives them."""
        text = self.config.get("text_config", self.config)
        return int(text.get("max_position_embeddings", 2048))


def read(name: str) -> Model:
    """The model's config; raises ConfigError where vLLM finds no model."""
    folder = Path(name)
    try:
        config = json.loads((folder / "config.json").read_text())
    except (OSError, ValueError):
        raise ConfigError(
            f"ValueError: Invalid repository ID or local directory specified: '{name}'.\n"
            "Please verify the following requirements:\n"
            "1. Provide a valid Hugging Face repository ID.\n"
            "2. Specify a local directory that contains a recognized configuration file.\n"
            "   - For Hugging Face models: ensure the presence of a 'config.json'.\n"
            "   - For Mistral models: ensure the presence of a 'params.json'."
        ) from None
    return Model(folder, config)


def load(model: Model, *, with_head: bool) -> int:
    """Look at every shard; the number of tensors. Raises WeightsError as the loader would."""
    shards = sorted(model.folder.glob("*.safetensors"))
    if (model.folder / INDEX).is_file():
        index = json.loads((model.folder / INDEX).read_text())
        wanted = {model.folder / name for name in index["weight_map"].values()}
        missing = {str(path) for path in wanted - set(shards)}
        if missing:
            raise WeightsError(
                f"FileNotFoundError: Weight files referenced in index but missing: {missing}"
            )
        shards = sorted(wanted)
    if not shards:
        raise WeightsError(f"RuntimeError: Cannot find any model weights with `{model.folder}`")
    names = [name for shard in shards for name in _tensors(shard)]
    if with_head and not any(name.startswith("mtp.") for name in names):
        raise WeightsError(
            "ValueError: Following weights were not initialized from checkpoint: "
            "{'model.fc.weight', 'model.pre_fc_norm_hidden.weight', "
            "'model.pre_fc_norm_embedding.weight', 'model.norm.weight'}"
        )
    return len(names)


def _tensors(shard: Path) -> list[str]:
    """Names in a safetensors file, whose header must fit its size."""
    broken = "safetensors_rust.SafetensorError: Error while deserializing header: "
    try:
        with shard.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if length > 100_000_000:
                raise WeightsError(broken + "header too large")
            header = json.loads(stream.read(length))
    except OSError:
        # safetensors says so for a file that its user can't read, too
        raise WeightsError(f'FileNotFoundError: No such file or directory: "{shard}"') from None
    except ValueError:
        raise WeightsError(broken + "invalid JSON in header") from None
    header.pop("__metadata__", None)
    end = max((tensor["data_offsets"][1] for tensor in header.values()), default=0)
    if shard.stat().st_size != 8 + length + end:
        raise WeightsError(broken + "MetadataIncompleteBuffer")
    return list(header)
