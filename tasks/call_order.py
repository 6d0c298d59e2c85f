"""pyinfra orders operations by the lines that called them; this makes it read the lines only."""

from __future__ import annotations

import inspect
from functools import partial

from pyinfra.api import util


def quick() -> None:
    """Leave the source code out when pyinfra looks at the stack: it uses names and numbers only.

    For every frame `inspect.stack()` searches all loaded modules for the one that holds it: about
    10 ms an operation, a second for a hundred of them.
    """
    util.stack = partial(inspect.stack, 0)
    util.getframeinfo = partial(inspect.getframeinfo, context=0)
