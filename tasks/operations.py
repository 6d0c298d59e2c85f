"""What pyinfra lacks: whole files, jobs that outlive a connection, checks, refusals in words."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Generator, Sequence
from pathlib import PurePosixPath
from typing import Any

import click
from paramiko import SSHException
from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, Host, QuoteString, State, StringCommand, operation
from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS
from pyinfra.api.command import PyinfraCommand
from pyinfra.facts import deb
from pyinfra.operations import apt, systemd

from aibox.decide.drift import Reason
from aibox.decide.refusal import Refusal
from tasks import ledger
from tasks.brought import record, told
from tasks.drift_report import because, difference
from tasks.facts import Account, LaidFile, Probe
from tasks.progress import ProgressLine

Commands = Generator[PyinfraCommand | str, None, None]
NO_LOGIN = "/usr/sbin/nologin"
Secret = Callable[[], "str | Refusal | None"]


# In a box's connector data:
SAID = "refusals_said"  # all of this operation
AT = "operation_at_work"  # the hash of the one that was begun last
UNDER_WAY = "jobs_under_way"  # the names of jobs that this run started and has not waited for


def say_refusal(box: Host, refusal: Refusal) -> None:
    """Show a refusal under the box's name."""
    box.connector_data.setdefault(SAID, []).append(refusal)
    labels = ("found", refusal.found), ("expected", refusal.expected), ("do", refusal.remedy)
    for label, text in labels:
        head, *rest = text.splitlines() or [""]
        box.log(f"{click.style(f'{label:<9}', bold=True)} {head}", logger.error)
        for line in rest:
            box.log(f"{'':<9} {line}", logger.error)


def refused(refusal: Refusal) -> FunctionCommand:
    """A command that shows a refusal and fails: for checks that only the run itself can make."""
    return FunctionCommand(fail_with, (refusal,), {})


def fail_with(state: State, host: Host, refusal: Refusal) -> bool:
    say_refusal(host, refusal)
    return False


# --- files ------------------------------------------------------------------------------------


@operation()
def laid_down(
    path: str,
    content: bytes,
    user: str = "root",
    group: str = "root",
    mode: str = "644",
    secret: bool = False,
) -> Commands:
    """A file with exactly this content, owner and mode, replaced in one step.

    The new file is written beside the old one, owner and mode first, and renamed over it when it
    is on the disk. The content travels on standard input: it is in no argument and no log.
    """
    ledger.of(host).files[path] = ledger.file_of(content, user, group, mode, secret=secret)
    yield from file_in_place(path, content, user, group, mode, shown=not secret)


def file_in_place(
    path: str,
    content: bytes,
    user: str = "root",
    group: str = "root",
    mode: str = "644",
    *,
    shown: bool = False,
) -> Commands:
    """What `laid_down` does, for a file that the ledger does not hold; --diff shows it if asked."""
    found = host.get_fact(LaidFile, path=path)
    wanted = {"user": user, "group": group, "mode": mode, "content": content}
    if found == wanted:
        host.noop(f"{path} is as it should be")
        return
    differs = difference(path, found["content"] if found else b"", content) if shown else []
    if state.config.DIFF and not state.is_executing:
        show_difference(differs)
    for reason in reasons_to_replace(path, found, wanted, differs):
        because(host, reason.text, reason.diff)
    yield written(path, content, user, group, mode)


def written(
    path: str, content: bytes, user: str = "root", group: str = "root", mode: str = "644"
) -> StringCommand:
    """A command that puts a file in its place in one step; the content is in no argument."""
    return StringCommand(
        write_command(path, user, group, mode, len(content)),
        _stdin=base64.b64encode(content).decode(),
    )


def write_command(path: str, user: str, group: str, mode: str, size: int) -> StringCommand:
    """size, in bytes, is that of the content on standard input.

    A run that is killed here ends the input early, which base64 takes for the whole of it.
    """
    target = PurePosixPath(path)
    aside = QuoteString(str(target.with_name(f".{target.name}.new")))
    folder, quoted = QuoteString(str(target.parent)), QuoteString(path)
    owner = QuoteString(f"{user}:{group}")
    return StringCommand(
        *("set -e; (umask 022; mkdir -p", folder, "); umask 077; : >", aside, ";"),
        *("chown", owner, aside, "; chmod", QuoteString(mode), aside, ";"),
        *("base64 -d >", aside, "; test $(stat -c %s", aside, f") = {size};"),
        *("sync", aside, ";"),
        *("mv -fT", aside, quoted, "; sync", folder),
    )


def reasons_to_replace(
    path: str, found: dict[str, Any] | None, wanted: dict[str, Any], differs: Sequence[str]
) -> list[Reason]:
    """differs: how the content differs, where that may be shown."""
    if found is None:
        return [Reason(f"{path} is not there as a file")]
    owner, owner_wanted = (f"{file['user']}:{file['group']}" for file in (found, wanted))
    reasons = []
    if found["content"] != wanted["content"]:
        reasons.append(Reason(f"{path} has another content", tuple(differs)))
    if owner != owner_wanted:
        reasons.append(Reason(f"{path} belongs to {owner}, not {owner_wanted}"))
    if found["mode"] != wanted["mode"]:
        reasons.append(Reason(f"{path} has mode {found['mode']}, not {wanted['mode']}"))
    return reasons


def show_difference(lines: list[str]) -> None:
    colours = {"+": "green", "-": "red"}
    for line in lines:
        host.log(click.style(line, fg=colours.get(line[:1])))


@operation()
def gone(path: str, unit: str | None = None) -> Commands:
    """A file of ours that is no longer wanted; a unit is stopped and disabled first."""
    if host.get_fact(LaidFile, path=path) is None:
        host.noop(f"{path} is not there")
        return
    because(host, f"{path} is no longer wanted")
    if unit is not None:
        yield StringCommand("systemctl disable --now", QuoteString(unit))
    yield StringCommand("rm -f", QuoteString(path))
    if unit is not None:
        yield "systemctl daemon-reload"


@operation()
def roots_own(folders: Sequence[str] = (), files: Sequence[str] = ()) -> Commands:
    """What is there of these belongs to root and only root may write to it: 755 and 644."""
    paths = {**dict.fromkeys(folders, "755"), **dict.fromkeys(files, "644")}
    found = host.get_fact(Probe, "owners", json.dumps({"paths": list(paths)}))
    wrong = []
    for path, (owner, mode) in found.items():
        if owner != "root:root" or mode != paths[path]:
            because(host, f"{path} is {owner} {mode}, not root:root {paths[path]}")
            wrong.append(path)
    if not wrong:
        host.noop("all of it is root's own")
    for path in wrong:
        yield StringCommand("chown root:root", QuoteString(path))
        yield StringCommand("chmod", paths[path], QuoteString(path))


# --- packages ----------------------------------------------------------------------------------


@operation()
def packages(names: list[str]) -> Commands:
    """Packages of the distribution; the lists are renewed first, where they are stale.

    A name may ask for a version: "name=version".
    """
    for name, _, version in (name.partition("=") for name in names):
        ledger.of(host).packages[name] = version or None
    installing = list(apt.packages._inner(packages=names, no_recommends=True))
    if installing:
        there = host.get_fact(deb.DebPackages)
        absent = [name for name in names if name.partition("=")[0] not in there]
        because(host, f"to be installed: {', '.join(absent or names)}")
    if installing:  # lists that are too old end in a 404, and their age can't be told for sure
        yield "apt-get update -q"
        yield told("install", names)
    yield from installing


# --- users and units ---------------------------------------------------------------------------


@operation()
def service_user(user: str, home: str) -> Commands:
    """A user that a service runs as: no login, and alone in a group of its own name.

    One that was there before us is a person's and stays as it is, for it may run a server of
    theirs; ours has its home from its unit, and only needs a group of that name. The group is
    asked for by itself: useradd writes it after the user, and may be stopped between.
    """
    found, wanted = host.get_fact(Account, user=user), {"home": home, "shell": NO_LOGIN}
    is_theirs = found["user"] is not None and user not in record().get("users", ())
    if not is_theirs:
        ledger.of(host).users[user] = wanted
        ledger.of(host).groups[user] = [user]
    if not found["group"]:
        because(host, "the group is not there")
        yield told("add", {"groups": [user]})
        yield StringCommand("groupadd --system", QuoteString(user))
    settings = "-d", QuoteString(home), "-s", NO_LOGIN, QuoteString(user)
    if found["user"] is None:
        because(host, "the user is not there")
        yield told("add", {"users": [user]})
        yield StringCommand("useradd --system --no-create-home --gid", QuoteString(user), *settings)
    elif not is_theirs and found["user"] != wanted:
        because(host, f"the user's home is not {home}, or its shell not {NO_LOGIN}")
        yield StringCommand("usermod", *settings)


@operation()
def starts_at_boot(unit: str) -> Commands:
    """A unit that is enabled; whether it runs now is not this operation's matter."""
    ledger.of(host).units[unit] = {"enabled": True}
    for command in systemd.service._inner(service=unit, running=None, enabled=True):
        because(host, f"{unit} is disabled or masked")
        yield told("add", {"enabled": [unit]})
        yield command


# --- long work ---------------------------------------------------------------------------------


def call_aibox(
    box: Host, program: str, words: list[str], given: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run the box's aibox and return its JSON answer. What it is given travels on stdin.

    Raises ConnectionError when the box gives no answer.
    """
    command = StringCommand(QuoteString(program), *(QuoteString(word) for word in words))
    arguments = connector_arguments(box)
    if given is not None:
        arguments["_stdin"] = json.dumps(given)
    try:
        ok, output = box.run_shell_command(command, **arguments)
    except (OSError, EOFError, SSHException) as error:
        raise ConnectionError(str(error) or type(error).__name__) from None
    lines = output.stdout_lines
    if not ok or not lines:
        said = output.stderr.strip() or "no answer"
        raise ConnectionError(said.splitlines()[-1])  # the last line says it, a traceback's too
    try:
        answer: dict[str, Any] = json.loads(lines[-1])
    except ValueError:
        raise ConnectionError(f"aibox said {lines[-1]!r}") from None
    return answer


def connector_arguments(box: Host) -> dict[str, Any]:
    """How the operation at work runs its commands (sudo and its like)."""
    arguments: dict[str, Any] = dict(box.current_op_global_arguments or {})
    return {key: value for key, value in arguments.items() if key in CONNECTOR_ARGUMENT_KEYS}


def start_job(box: Host, program: str, name: str, verb: str, spec: dict[str, Any]) -> bool:
    """Start a job on the box, or find it running; False after a refusal was shown."""
    answer = call_aibox(box, program, ["job", "start", name], {"verb": verb, **spec})
    if not answer["ok"]:
        say_refusal(box, Refusal(**answer["refusal"]))
        return False
    if answer["how"] == "attached":
        box.log(f"{name}: already under way on the box, following it")
    return True


def is_under_way(box: Host, name: str) -> bool:
    """Whether this run has started a job that it has not waited for yet."""
    return name in box.connector_data.get(UNDER_WAY, ())


def is_known(box: Host, program: str, name: str) -> bool:
    """Whether the box still knows of a job; after a restart it does not."""
    return bool(call_aibox(box, program, ["job", "look", name])["state"] != "none")


def follow_job(box: Host, program: str, name: str) -> bool:
    """Show a job's progress until it ends; True when it ended well."""
    line = ProgressLine(box, name)
    try:
        while (found := call_aibox(box, program, ["job", "look", name]))["state"] == "running":
            line.show(found["progress"])
    finally:
        line.end()
    result = found["result"]
    if result is None:
        remedy = "run the deploy again: what was done of it is kept"
        say_refusal(box, Refusal(f"no trace of the job {name}", "a result of it", remedy))
    elif not result["ok"]:
        say_refusal(box, Refusal(**result["refusal"]))
    said = result or {}
    for note in [*said.get("warnings", ()), *said.get("notes", ())]:
        box.log(f"{name}: {note}")
    return bool(result and result["ok"])


def job_command(
    name: str,
    program: str,
    verb: str,
    spec: dict[str, Any],
    *,
    wait: bool = True,
    secret: Secret | None = None,
) -> FunctionCommand:
    """A command that does a job on the box; without `wait` it goes on beside what follows.

    One that this run has started so is only followed when it comes with `wait`: what failed beside
    is not tried again. secret: asked for when the job is started, so that no plan holds it; it may
    answer with a refusal.
    """
    return FunctionCommand(run_job, (name, program, verb, spec, wait, secret), {})


def run_job(
    state: State,
    host: Host,
    name: str,
    program: str,
    verb: str,
    spec: dict[str, Any],
    wait: bool,
    secret: Secret | None = None,
) -> bool:
    under_way: set[str] = host.connector_data.setdefault(UNDER_WAY, set())
    try:
        known = name in under_way and is_known(host, program, name)
        given = secret() if secret and not known else None
        if isinstance(given, Refusal):
            say_refusal(host, given)
            return False
        task = spec if given is None else {**spec, "secret": given}
        started = known or start_job(host, program, name, verb, task)
        if wait:
            under_way.discard(name)
            return started and follow_job(host, program, name)
        if started:
            under_way.add(name)
        return started
    except ConnectionError as error:
        say_refusal(
            host,
            Refusal(
                f"the box no longer answers ({error})",
                "a connection to the end of the work",
                "run the deploy again: the work goes on over there, and is found again",
            ),
        )
        return False
