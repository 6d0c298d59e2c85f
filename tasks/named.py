"""The boxes and gateways that an inventory and --limit name, as JSON: `python -m tasks.named`.

In a process of its own, for programs of ours that are no run of pyinfra: reading an inventory
changes the process that does it. Asks no box anything. Exit codes: 0, 1 refused.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path

from pyinfra.api import Config, State
from pyinfra.context import ctx_state

from aibox.decide.refusal import Refusal
from aibox.parser import Parser
from tasks import exit_codes, fleet, inventory_names, invocation, watching
from tasks.box import PROJECT


def main(words: list[str] | None = None) -> int:
    parser = Parser(prog="python -m tasks.named", description=__doc__)
    parser.add_argument("inventory")
    parser.add_argument("--limit", action="append", default=[])
    asked = parser.parse_args(words)
    with redirect_stdout(sys.stderr):  # an inventory may print; only the answer is to be there
        found = named(asked.inventory, asked.limit)
    if isinstance(found, Refusal):
        print(found, file=sys.stderr)
        return 1
    print(json.dumps(found))
    return 0


def named(inventory: str, limit: list[str]) -> dict[str, list[str]] | Refusal:
    """{"boxes": names within the limit, "gateways": all names, "every": of all hosts}, in the order
    of the inventory."""
    path = str(Path(inventory).absolute()) if Path(inventory).exists() else inventory
    invocation.remember({"inventory": path})
    state = State()
    with ctx_state.use(state):
        read = inventory_names.read(path, str(PROJECT))
        if isinstance(read, Refusal):
            return read
        state.init(read, Config())
        known = inventory_names.of(state.inventory, inventory)
        options = {"inventory": inventory, "limit": limit, "exclude": ()}
        refusal = exit_codes.judge_boxes(known, None, options)
        if refusal:
            return refusal
        wanted = {name for text in limit for name in exit_codes.meant(text, known)}
        boxes = [one.name for one in watching.boxes() if not limit or one.name in wanted]
        if not boxes:
            return only_monitors(limit)
        gateways = [one.name for one in fleet.gateways()]
        return {"boxes": boxes, "gateways": gateways, "every": list(known.every)}


def only_monitors(limit: list[str]) -> Refusal:
    where = " ".join(f"--limit {text}" for text in limit) or "the inventory"
    return Refusal(
        f"{where} names monitors, and no box",
        "at least one box",
        "name a box; a monitor is deployed to by itself: pyinfra inventory deploy.py --limit NAME",
    )


if __name__ == "__main__":
    sys.exit(main())
