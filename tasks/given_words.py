"""What `--data` says is judged before any box is asked: pyinfra takes any word for some data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from pyinfra.connectors.ssh import connector_data_meta

from aibox.decide import bench_plan, given_words
from aibox.decide.refusal import Refusal
from tasks import exit_codes
from tasks.box import PROJECT

# Words of our own programs, beside the settings.
OWN: Mapping[str, Sequence[str]] = {
    "tasks/bench.py": ("mode", *bench_plan.WORDS),
    "tasks/rollback.py": ("to",),
    "tasks/teardown.py": ("remove_weights", "remove_driver"),
}


def judge() -> None:
    """End the run, in words, where `--data` names what the program that is to run does not know."""
    refusal = refusal_of(click.get_current_context().params)
    if refusal is not None:
        exit_codes.end(refusal)


def refusal_of(options: Mapping[str, Any]) -> Refusal | None:
    """options: pyinfra's own. A person's own deploy file may have words of its own."""
    given = options.get("data") or ()
    programs = [ours(str(name)) for name in options.get("operations") or ()]
    if not given or not programs or None in programs:
        return None
    from aibox.settings import RENAMED, Settings  # noqa: PLC0415  only runs with words need it

    own = [word for program in programs for word in OWN.get(str(program), ())]
    return given_words.refusal_of(given, own, Settings.model_fields, RENAMED, connector_data_meta)


def ours(name: str) -> str | None:
    """A program of this project, by its path in it; None for anything else."""
    path = Path(name).resolve()
    is_ours = path.suffix == ".py" and path.parent in (PROJECT, PROJECT / "tasks")
    return str(path.relative_to(PROJECT)) if is_ours else None
