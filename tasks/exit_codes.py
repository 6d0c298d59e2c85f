"""Exit codes that hold: 0 is done or in sync, and never "nothing was looked at".

pyinfra itself ends with 0 where the inventory is empty, where --limit matches nothing, where the
plan was declined and on Ctrl-C; and with a traceback where nobody is there to press Enter.
`watch`, called by config.py, mends the five. It uses click's and pyinfra's public interface only.

pyinfra reads config.py in the working directory: from elsewhere, `pyinfra --chdir FOLDER
inventory deploy.py` is the whole of this project; without --chdir these five are pyinfra's own.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import traceback
from collections.abc import Callable, Iterable, Sequence
from fnmatch import fnmatch
from functools import wraps
from types import FrameType
from typing import Any

import click
from pyinfra import logger, state
from pyinfra.api import Config, Host, Inventory, State
from pyinfra.api.state import StateStage

from aibox.decide.inventory import Named, judge
from aibox.decide.refusal import Refusal
from tasks import inventory_names, invocation, own_words, page, summary
from tasks.connection import ENGLISH, NoConnectionInWords


def watch() -> None:
    """Make this run end in words, and with 1, where pyinfra would not."""
    context = click.get_current_context()
    invocation.remember(context.params)
    os.environ.update(ENGLISH)  # of what `@local` runs
    initialise = state.init

    @wraps(initialise)
    def initialise_with_boxes(
        inventory: Inventory, config: Config | None, initial_limit: list[Host] | None = None
    ) -> None:
        named = inventory_names.of(inventory, context.params["inventory"])
        refusal = judge_boxes(named, initial_limit, context.params)
        if refusal:
            end(refusal)
        if state.should_raise_failed_hosts is not None:  # pyinfra would ask in the middle of it
            state.should_raise_failed_hosts = others_go_on
        initialise(inventory, config, initial_limit=initial_limit)
        state.add_callback_handler(NoConnectionInWords())  # init begins with none
        before_the_prompt(show_what_is_due)
        own_words.left_out()

    state.init = initialise_with_boxes  # type: ignore[method-assign]
    misread = inventory_names.misread(context.params["inventory"])
    if misread:
        end(misread)
    context.call_on_close(lambda: end_in_words(sys.exc_info()[1], context.params))
    context.call_on_close(summary.show)  # the last one is called first
    context.call_on_close(page.show_kept)
    signal.signal(signal.SIGINT, interrupted)


def show_what_is_due() -> None:
    page.show_kept()
    summary.show()


def before_the_prompt(say: Callable[[], None]) -> None:
    """pyinfra counts the warnings of a plan right before it asks, and at no other time."""
    count = state.get_warning_counter

    @wraps(count)
    def count_after_saying() -> int:
        say()
        return count()

    state.get_warning_counter = count_after_saying  # type: ignore[method-assign]


def others_go_on(state: State) -> bool:
    """Whether the run is to end because a box has failed: the others have nothing to do with it."""
    return False


def judge_boxes(
    named: Named, limited: Iterable[object] | None, options: dict[str, Any]
) -> Refusal | None:
    """What of the inventory can't be meant, why there is no box to work on, or a word that names
    none; None for neither.

    options: pyinfra's own.
    """
    refusal = judge(named)
    if refusal:
        return refusal
    expected = "at least one box to look at"
    if not named.every:
        return Refusal(
            f"no box in {options['inventory']!r}",
            expected,
            "name your box in the file `inventory`, and run `pyinfra inventory deploy.py`",
        )
    for key in ("limit", "exclude"):
        unknown = [text for text in options[key] or () if not meant(text, named)]
        if unknown:
            return Refusal(
                f"--{key} {shlex.quote(unknown[0])} names no box of the inventory",
                "the name of a box or a group, or a pattern of names",
                one_of(named),
            )
    if limited is not None and not list(limited):
        words = [f"--{key} {text}" for key in ("limit", "exclude") for text in options[key]]
        return Refusal(f"no box is left by {' '.join(words)}", expected, one_of(named))
    return None


def one_of(named: Named) -> str:
    groups = [name for name in named.groups if name not in named.of_all]
    also = f"; or a group: {', '.join(groups)}" if groups else ""
    return f"name one of: {', '.join(named.every)}{also}"


def meant(text: str, named: Named) -> Sequence[str]:
    """The boxes that a word of --limit or --exclude stands for."""
    return named.groups.get(text) or [name for name in named.every if fnmatch(name, text)]


def end_in_words(error: BaseException | None, options: dict[str, Any]) -> None:
    """At the end of a run: say what it was, where it would end with 0 or with a traceback."""
    if nobody_pressed_enter(error):
        end(
            Refusal(
                "no terminal to press Enter on, and no -y",
                "a word that the plan above is to be carried out",
                "look at it with --dry, then run with -y (or set PYINFRA_YES=1)",
            )
        )
    if error is not None and read_the_inventory(error):
        end(inventory_names.unreadable(options["inventory"], error))
    if isinstance(error, SystemExit) and not error.code and declined(options):
        logger.error("Nothing was carried out: Enter alone does it.")
        sys.exit(1)


def nobody_pressed_enter(error: BaseException | None) -> bool:
    """Whether pyinfra's prompt met the end of its input (a lost connection is an EOFError too)."""
    cause = getattr(error, "exception", None)
    frames = traceback.extract_tb(cause.__traceback__) if isinstance(cause, EOFError) else []
    return bool(frames) and frames[-1].name == "_do_confirm"


def read_the_inventory(error: BaseException) -> bool:
    """Whether a run ended while pyinfra was at that: it is a person's own code."""
    wrapped = (error, getattr(error, "exception", error))
    frames = [at for one in wrapped for at in traceback.extract_tb(one.__traceback__)]
    return any(at.name == "make_inventory" for at in frames)


def declined(options: dict[str, Any]) -> bool:
    """Whether a run stopped between the plan and the work that it was asked for."""
    only_looks = ("dry", "json_output", "debug_facts", "debug_operations")
    looks = any(options[name] for name in only_looks) or not options["operations"][0].endswith(
        ".py"
    )
    return state.initialised and state.current_stage is StateStage.Prepare and not looks


def interrupted(number: int, frame: FrameType | None) -> None:
    logger.error("Interrupted. Long work goes on over there; the next run finds it.")
    signal.signal(signal.SIGINT, lambda *_: os._exit(1))  # pressed again: at once, whatever is left
    sys.exit(1)


def end(refusal: Refusal) -> None:
    for line in str(refusal).splitlines():
        label, text = line[:9], line[10:]
        logger.error(f"{click.style(label, bold=True)} {text}")
    sys.exit(1)
