"""A unit that no deploy has written, where one of ours would stand."""

import re
from pathlib import Path
from typing import Any

from aibox.box.probe.containers import joined, starts_container
from aibox.box.probe.files import content, named, path_of, read_text
from aibox.box.probe.processes import is_vllm, name_of, pids_of_unit, words_of
from aibox.box.probe.unit_files import FIRST_WORDS, PLACES_OF_UNITS, unit_file

_VLLM = re.compile(r"(^|[\s/'\"])vllm['\"]?\s+serve\b|\bvllm[./]entrypoints[./]", re.MULTILINE)
MOST_OF_A_SCRIPT = 100_000  # bytes


def foreign_unit(name: str) -> dict[str, Any] | None:
    """A unit that a person would lose, for no deploy has written it.

    {"path", "starts_container", "starts_vllm"}. Ours say so in their first line, also where it was
    changed by hand. A masked unit has none.
    """
    path = unit_file(name)
    text = (read_text(path) if path else None) or ""
    is_ours = text.startswith(FIRST_WORDS)
    if path is None or not text.strip() or is_ours:
        return None
    return {
        "path": named(path),
        "starts_container": starts_container(text),
        "starts_vllm": starts_vllm(name, text),
    }


def starts_vllm(name: str, text: str) -> bool:
    """Whether a unit serves vLLM, by its file, its drop-ins, a script that they run, or by the
    processes that it has now."""
    folders = [path_of(folder) / f"{name}.d" for folder in PLACES_OF_UNITS]
    texts = [text, *(content(one) for folder in folders for one in folder.glob("*.conf"))]
    starts = re.findall(r"^ExecStart\s*=.*", joined("\n".join(texts)), re.MULTILINE)
    words = [word for line in starts for word in re.findall(r"(?<![\w.-])/[\w./@+-]+", line)]
    texts += [script for word in words if (script := script_in(path_of(word)))]
    if any(_VLLM.search(joined(one)) for one in texts):
        return True
    own = pids_of_unit(name)
    return any(is_vllm(words_of(pid)) or name_of(pid).startswith("VLLM") for pid in own)


def script_in(path: Path) -> str | None:
    """The text of a program that an interpreter runs; None for anything else."""
    try:
        if not path.is_file() or path.stat().st_size > MOST_OF_A_SCRIPT:
            return None
        text = path.read_text(errors="replace")
    except OSError:
        return None
    return text if text.startswith("#!") else None
