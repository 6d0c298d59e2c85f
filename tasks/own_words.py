"""After a refusal in our words pyinfra's own about the same say nothing more."""

from __future__ import annotations

import logging
import re

import click
from pyinfra import logger, state

from tasks.operations import SAID

# Of pyinfra 3.10, which config.py asks for; any other words are shown as ever.
OF_A_BOX = re.compile(r"\[(?P<box>[^]]+)\] Error: executed \d+ commands\s*")
OF_THE_RUN = re.compile(r"--> pyinfra error( in \S+ line \d+)?: No hosts remaining!\s*")


class AfterARefusal(logging.Filter):
    """Lets everything pass but a count of commands, and that no box is left."""

    def filter(self, record: logging.LogRecord) -> bool:
        text = click.unstyle(str(record.msg)).strip()
        of_a_box = OF_A_BOX.fullmatch(text)
        if of_a_box:
            return of_a_box["box"] not in refused_boxes()
        return not (OF_THE_RUN.fullmatch(text) and refused_boxes())


def refused_boxes() -> list[str]:
    """Those for which a refusal is the last that was said."""
    return [box.name for box in state.inventory if box.connector_data.get(SAID)]


def left_out() -> None:
    logger.addFilter(AfterARefusal())
