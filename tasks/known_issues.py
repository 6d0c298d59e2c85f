"""Known issues of what a box is to serve: shown in the plan, never a change."""

from __future__ import annotations

import click
from pyinfra import host, state

from aibox.decide.known_issues import known_issues, rows
from tasks.box import Box


def show(box: Box) -> None:
    """Log them once for each box, while the plan is made; the run itself does not repeat them."""
    if state.is_executing:
        return
    settings = box.settings
    for issue in known_issues(settings.vllm_version, settings.flags, settings.card):
        head, *rest = rows(issue, settings.card_file)
        host.log(click.style(head, fg="yellow"))
        for line in rest:
            host.log(line)
