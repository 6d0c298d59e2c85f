"""Rehearsal boxes from the command line: `python -m tests.rehearsal COMMAND`, as root.

To add a command, write one function that takes the parsed arguments and enter it in parser().
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Callable
from typing import Any

from aibox.parser import Parser
from tests.rehearsal import image, layer, machine, registry
from tests.rehearsal.box import Box
from tests.rehearsal.emulation import gpu
from tests.rehearsal.machine import CHECKOUT, RehearsalError
from tests.rehearsal.main_job import rehearse, stop_hub_if_unused

Command = Callable[[argparse.Namespace], int | None]


def up(arguments: argparse.Namespace) -> None:
    began = time.monotonic()
    refuse_twin(arguments.name)
    binds = dict(bind.split(":", 1) for bind in arguments.bind)
    box = Box.up(
        arguments.name,
        suite=arguments.suite,
        layer=arguments.layer,
        binds=binds,
        disk_limit_mb=arguments.disk_limit_mb,
    )
    print(f"{box.name} is up at {box.address} after {time.monotonic() - began:.1f} s")
    print(f"  python -m tests.rehearsal ssh {box.name}")
    print(f"  ssh -F {box.ssh_config} {box.name}")


def refuse_twin(name: str) -> None:
    machine.ready()
    if name in {box.name for box in Box.all()}:
        raise RehearsalError(
            f"There is a box {name!r} already. `reset {name}` makes it pristine, `start {name}`"
            f" switches it on, `down {name}` takes it away."
        )


def down(arguments: argparse.Namespace) -> None:
    if bool(arguments.name) == arguments.all:
        raise RehearsalError("Say which box to take down: a name, or --all for this checkout's.")
    for box in Box.all() if arguments.all else [Box.find(arguments.name)]:
        box.down()
        print(f"{box.name} is gone")
    stop_hub_if_unused()


def deploy(arguments: argparse.Namespace) -> int:
    return rehearse(arguments.name)


def reset(arguments: argparse.Namespace) -> None:
    Box.find(arguments.name).reset()
    print(f"{arguments.name} is up again, as it was made")


def power_cut(arguments: argparse.Namespace) -> None:
    Box.find(arguments.name).power_cut()
    print(f"{arguments.name} is off, its power was cut")


def start(arguments: argparse.Namespace) -> None:
    Box.find(arguments.name).start()
    print(f"{arguments.name} is up")


def shutdown(arguments: argparse.Namespace) -> None:
    Box.find(arguments.name).shutdown()
    print(f"{arguments.name} is off")


def reboot(arguments: argparse.Namespace) -> None:
    Box.find(arguments.name).reboot()
    print(f"{arguments.name} has rebooted")


def ssh(arguments: argparse.Namespace) -> None:
    words = Box.find(arguments.name).ssh(arguments.user)
    if arguments.command:
        words += ["--", *arguments.command]
    os.execvp(words[0], words)


def console(arguments: argparse.Namespace) -> None:
    print(Box.find(arguments.name).console, end="")


def snapshot(arguments: argparse.Namespace) -> None:
    box = Box.find(arguments.name)
    name = box.snapshot(arguments.layer)
    print(f"layer {name} is kept; {box.name} is off and goes on from it with `start {box.name}`")


def show(arguments: argparse.Namespace) -> None:
    with registry.opened() as record:
        entries = sorted(record.boxes.values(), key=lambda entry: (entry.checkout, entry.name))
    rows = [("NAME", "ADDRESS", "STATE", "SUITE", "LAYER", "CHECKOUT")]
    for entry in entries:
        if arguments.everywhere or entry.checkout == str(CHECKOUT):
            on = registry.is_running(entry)
            state = "running" if on else "off"
            top = entry.layers[0] if entry.layers else "-"
            rows.append((entry.name, entry.address, state, entry.suite, top, entry.checkout))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())
    if len(rows) == 1:
        print("no boxes; make one with `python -m tests.rehearsal up NAME`")


def layers(arguments: argparse.Namespace) -> None:
    for name in layer.all_of(image.ready(arguments.suite)):
        print(name)


def change_gpu(arguments: argparse.Namespace) -> None:
    box = Box.find(arguments.name)
    path = box.root / gpu.STATE_PATH.lstrip("/")
    state: Any = json.loads(path.read_text()) if path.exists() else None
    for change in arguments.change:
        state = changed_state(state, *change.split("=", 1))
    if arguments.change:
        gpu.write_state(box.run, state)
    print(json.dumps(state, indent=1) if state else "no card")


def changed_state(state: Any, key: str, value: str | None = None) -> Any:
    """The GPU's state with one key changed; a key that is no field of the state is the card's."""
    if value is None:
        raise RehearsalError(f"{key!r} is no change of the GPU; write key=value.")
    if key == "card":
        if value != "none" and value not in gpu.CARDS:
            raise RehearsalError(f"There is no card {value!r}; there are: none, {known_cards()}.")
        return None if value == "none" else json.loads(json.dumps(gpu.CARDS[value]))
    if state and key in gpu.State.__annotations__:
        state.setdefault(key, None)  # a fault that this state does not have yet
    for fields in (state, *(state or {}).get("cards", [])[:1]):
        if fields and key in fields:
            fields[key] = value if isinstance(fields[key], str) else json_or_text(value)
            return state
    raise RehearsalError(f"The emulated GPU, as it is, has no {key!r} to change.")


def json_or_text(value: str) -> Any:
    """The value as JSON; "13.0" is a version, as no field is a decimal fraction."""
    try:
        return json.loads(value, parse_float=str)
    except ValueError:
        return value


def known_cards() -> str:
    return ", ".join(sorted(gpu.CARDS))


def parser() -> argparse.ArgumentParser:
    top = Parser(
        prog="python -m tests.rehearsal",
        description="Throw-away Debian hosts on this machine, with real systemd and ssh.",
    )
    commands = top.add_subparsers(metavar="COMMAND", required=True)

    def add(name: str, do: Command, text: str, *, box: bool = True) -> argparse.ArgumentParser:
        one = commands.add_parser(name, help=text, description=text[0].upper() + text[1:] + ".")
        one.set_defaults(do=do)
        if box:
            one.add_argument("name", metavar="NAME", help="the box, by name within this checkout")
        return one

    one = add("up", up, "bring up a new box and wait until it answers")
    one.add_argument("--suite", default="bookworm", choices=image.SUITES, help="Debian release")
    one.add_argument("--layer", help="start from this snapshot instead of the pristine image")
    one.add_argument(
        "--bind", action="append", default=[], metavar="HERE:THERE", help="show a folder in it"
    )
    one.add_argument("--disk-limit-mb", type=int, metavar="MB", help="give it a disk this small")
    one = add("deploy", deploy, "build a bare box and deploy to it, as to a real one", box=False)
    one.add_argument("name", metavar="NAME", nargs="?", default="rehearsal", help="the box")
    one = add("down", down, "take a box away with its disk, or all of this checkout", box=False)
    one.add_argument("name", metavar="NAME", nargs="?", help="the box, by name")
    one.add_argument("--all", action="store_true", help="all boxes of this checkout")
    add("reset", reset, "throw away what a box has written and start it anew")
    add("power-cut", power_cut, "end a box at once, as pulling the plug does; its disk stays")
    add("shutdown", shutdown, "shut a box down in order")
    add("start", start, "switch on a box that is off")
    add("reboot", reboot, "restart a box in order and wait until it answers")
    one = add("ssh", ssh, "log in to a box, or run a command there")
    one.add_argument("--user", default="admin", help="admin (sudo), root or guest (no sudo)")
    one.add_argument("command", metavar="CMD", nargs=argparse.REMAINDER, help="command to run")
    add("console", console, "show what a box has printed at its boots")
    one = add("snapshot", snapshot, "shut a box down and keep its disk as a layer")
    one.add_argument("layer", metavar="LAYER", help="the layer's name")
    one = add("layers", layers, "list the layers there are for a suite", box=False)
    one.add_argument("--suite", default="bookworm", choices=image.SUITES, help="Debian release")
    one = add("list", show, "list this checkout's boxes", box=False)
    one.add_argument("--everywhere", action="store_true", help="those of other checkouts as well")
    one = add("gpu", change_gpu, "show or change the emulated GPU of a running box")
    one.add_argument(
        "change",
        metavar="KEY=VALUE",
        nargs="*",
        help=f"card={{none, {known_cards()}}} or one field, such as secure_boot=true",
    )
    return top


def main() -> int:
    arguments = parser().parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        machine.ready()
        return arguments.do(arguments) or 0
    except RehearsalError as refusal:
        print(refusal, file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 1


if __name__ == "__main__":
    sys.exit(main())
