"""Making a weights lock: which files it holds, its text, and what a new one changes."""

import json
from collections.abc import Iterable
from pathlib import PurePosixPath

from aibox.decide.figures import size
from aibox.decide.refusal import Refusal
from aibox.decide.weights import WeightsLock, inside

# What vLLM reads: configurations, weights, chat templates, tokenizers. A pickle (.bin, .pt, .pth)
# runs code when it is loaded, and so does a .py: neither is ever taken. Texts about the model and
# pictures serve nothing.
ENDINGS = frozenset({".json", ".safetensors", ".jinja", ".txt", ".model", ".tiktoken"})


def read_by_vllm(path: str) -> bool:
    """Whether a file of the repository belongs into the lock.

    Weights count in the top folder only: vLLM looks nowhere else, and a folder such as original/
    holds them a second time.
    """
    file = PurePosixPath(path)
    if file.suffix == ".safetensors" and "/" in path:
        return False
    return file.suffix in ENDINGS and not file.name.startswith(".")


def judge_paths(paths: Iterable[str]) -> Refusal | None:
    """Why these files (those of `read_by_vllm`) make no lock; None when they do."""
    paths = sorted(paths)
    outside = [path for path in paths if not inside(path)]
    if outside:
        return Refusal(
            f"a path that cannot be laid down: {outside[0]!r}",
            "relative paths of letters, digits, space and . _ + @ -, without '..'",
            "do not use this repository: its paths would leave the weights' folder",
        )
    if not any(path.endswith(".safetensors") for path in paths):
        return Refusal(
            "no .safetensors file in the repository's top folder",
            "weights as safetensors (pickles such as .bin and .pt are not taken: they run code)",
            "name a repository with safetensors in the model's card",
        )
    if "config.json" not in paths:
        return Refusal(
            "no config.json in the repository",
            "a model that vLLM can read",
            "correct `repository` in the model's card",
        )
    return None


def lock_text(lock: WeightsLock) -> str:
    """The lock as its file holds it: sorted, so that two locks can be compared line by line."""
    files = {
        path: {"size": lock.files[path].size, "sha256": lock.files[path].sha256}
        for path in sorted(lock.files)
    }
    document = {"repository": lock.repository, "commit": lock.commit, "files": files}
    return json.dumps(document, indent=2) + "\n"


def changes(old: WeightsLock, new: WeightsLock) -> list[str]:
    """What the new lock changes, a line each; empty when nothing."""
    lines = []
    if old.repository != new.repository:
        lines.append(f"repository {old.repository} -> {new.repository}")
    if old.commit != new.commit:
        lines.append(f"commit     {old.commit} -> {new.commit}")
    for path in sorted(old.files.keys() | new.files.keys()):
        before, after = old.files.get(path), new.files.get(path)
        if before is None and after is not None:
            lines.append(f"added      {path} ({after.size} bytes)")
        elif after is None and before is not None:
            lines.append(f"removed    {path} ({before.size} bytes)")
        elif before != after and before is not None and after is not None:
            sizes = f"{before.size} -> {after.size} bytes"
            same = before.size == after.size
            lines.append(f"changed    {path} ({'same size' if same else sizes})")
    return lines


def summed_up(lock: WeightsLock) -> str:
    return f"{lock.commit[:12]}, {len(lock.files)} files, {size(lock.total_bytes)}"
