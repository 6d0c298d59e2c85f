"""Unit files from templates/."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jinja2

from aibox.decide.unit import systemd_assignment
from tasks.box import AIBOX, PROJECT


def rendered(template: str, environment: Mapping[str, str], **values: Any) -> str:
    """environment: the variables that the unit sets."""
    templates = jinja2.Environment(
        loader=jinja2.FileSystemLoader(PROJECT / "templates"),
        undefined=jinja2.StrictUndefined,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701  a unit file is no web page
    )
    return templates.get_template(template).render(
        aibox=AIBOX,
        environment=[systemd_assignment(name, value) for name, value in environment.items()],
        **values,
    )
