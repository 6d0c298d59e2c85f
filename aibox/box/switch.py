"""Replace what the server runs: try the candidate, let it through the gate, or go back.

The candidate is tried from /run, where a reboot forgets it: a box that loses power in the middle
boots what is installed. It is installed only when it has passed, by renaming the staged file, so
that no process looks older than its unit.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass, replace
from typing import Any

from aibox.box import adoption, gate, good_units, journal, lent, started_by, turning
from aibox.box.found import is_ours, standing_parts
from aibox.box.good_units import sum_of
from aibox.box.job import FAILURES, JobError, Progress, Spec, refusal_of, write_whole
from aibox.box.probe.files import SERVER_STATE
from aibox.box.probe.replies import health
from aibox.box.probe.units import process
from aibox.box.prove import exposition, record
from aibox.box.service import Service, Start
from aibox.box.surroundings import about
from aibox.decide import faults, switching
from aibox.decide.faults import Cause
from aibox.decide.history import AS_FOUND, Passed
from aibox.decide.memory_account import Account, account, with_metrics
from aibox.decide.refusal import Refusal

# What a starting vLLM is doing, by the words in its journal, in the order they appear.
STEPS = (
    (re.compile(r"Loading safetensors|Loading weights|Starting to load model"), "loading weights"),
    # not just "torch.compile": an eager start says that it is off
    (
        re.compile(
            r"for the compilation|Dynamo bytecode|Compiling a graph|AOT compile|torch.compile takes"
        ),
        "compiling",
    ),
    (re.compile(r"Capturing CUDA graphs|Graph capturing|CUDA graph capture"), "capturing graphs"),
    (re.compile(r"Starting vLLM server|Application startup complete"), "opening the port"),
)
POLL_S = 0.2
SAY_S = 1.0


def switch(spec: Spec, progress: Progress) -> dict[str, Any]:
    """Make the unit run what the spec says, and leave it so only when it has passed the gate.

    spec: see `Box.candidate_spec`; "restart": whether the process has to be replaced. One that
    fails is taken back to the last good unit. Answers {"seconds_start", "seconds_down"}, and
    "notes" for the person. Raises JobError, which says what failed, why, and what runs now.
    """
    service = Service(spec["unit"])
    lent.refused_while_lent()
    turning.unlocked(service)
    turning.settle(service)
    kept_for_ever(service, spec)
    good = last_good(service, spec)
    stage(service, spec)
    progress.last = good_seconds(spec)
    began, served = time.time(), served_now(service, spec)
    # his own that is up and does not answer (yet): no last good one, and still not to be lost
    revived = good is None and runs_his(service)
    try:
        trial = tried(service, spec, progress)
    except Exception as error:  # whatever it is, what served must come back
        story = taken_back(
            service, spec, good, refusal_of_any(error), began, progress, revived=revived
        )
        if served and spec["restart"]:
            story = switching.with_seconds(story, time.time() - began)
        raise JobError(story.found, story.expected, story.remedy) from None
    try:
        entry = accepted(service, spec, trial)
    except OSError as error:
        story = switching.not_recorded(spec["unit"], refusal_of(error))
        raise JobError(story.found, story.expected, story.remedy) from None
    return {
        "seconds_start": entry.seconds_start,
        "seconds_down": entry.seconds_down,
        "notes": switching.notes(entry, spec["flags"]),
    }


def back(asked: Spec, progress: Progress) -> dict[str, Any]:
    """Switch to a unit that has passed before. asked: {"sha256"}. Raises JobError."""
    spec = good_units.kept(asked["sha256"])
    if spec is None:
        raise JobError(
            f"no unit {asked['sha256'][:12]} is kept on this box",
            "one that `aibox status --history` offers",
            "look there, and name another",
        )
    return switch({**spec, "how": "rollback", "restart": True}, progress)


def refusal_of_any(error: Exception) -> Refusal:
    if isinstance(error, FAILURES):
        return refusal_of(error)
    found = f"the switch itself failed ({type(error).__name__}: {error})"
    return Refusal(found, "a switch that ends by itself", "run the deploy again, and report this")


# --- before anything stops ---------------------------------------------------------------------


def last_good(service: Service, spec: Spec) -> Spec | None:
    """What to go back to: the unit that passed last, or one that serves and was never asked.

    A person's own that stands and is no such unit comes before older ones, but for one that was
    only written over ours, which serves still. None where it does not serve, where that is the
    candidate itself, and where nothing of this name has ever served.
    """
    name = sum_of(spec["text"])
    passed = good_units.passed(service.name)
    newest = passed[0].sha256 if passed else None
    his = adoption.in_force(service)
    if his is not None and his["text"].strip() and his["sha256"] != newest:
        if adoption.has_run(service, his):
            return serving(service, spec, his["text"])
        if not ours_serves(service, spec, newest):
            return None
    if newest == name:
        return None
    for entry in passed:
        kept = good_units.kept(entry.sha256) if entry.sha256 != name else None
        if kept is not None:
            return {**kept, "how": entry.how}
    return serving(service, spec, service.text())


def ours_serves(service: Service, spec: Spec, newest: str | None) -> bool:
    """Whether what passed last is a unit of ours, and something answers: it, when no other ran."""
    kept = good_units.kept(newest) if newest else None
    return kept is not None and is_ours(kept["text"]) and served_now(service, spec)


def serving(service: Service, spec: Spec, text: str | None) -> Spec | None:
    """A unit that nobody has gated, as a good one, where it serves."""
    if not text or text == spec["text"]:
        return None
    kept = as_it_is(service, spec, text)
    if not served_now(service, kept):
        return None
    good_units.keep(kept)
    kept["how"] = AS_FOUND
    good_units.mark_good(good_units.entry_of(kept, None, None, Account()))
    return kept


def kept_for_ever(service: Service, spec: Spec) -> None:
    """A unit that a person built by hand, with all that a way back to it needs."""
    record = adoption.keep(service)
    if record is None or not record["text"].strip():
        return
    kept = good_units.kept(record["sha256"])
    if kept is None or kept.get("unit") != service.name:  # the same text under another name
        good_units.keep(as_it_is(service, spec, record["text"]))


def as_it_is(service: Service, spec: Spec, text: str) -> Spec:
    """What can be told of a unit that nobody has gated; its gate asks for health and model only."""
    found = service.properties()
    process_now = process(int(found["MainPID"] or 0), found["ExecMainStartTimestamp"])
    his = adoption.of_text(service, text)
    ran = process_now is None or his is None or adoption.has_run(service, his)
    running = process_now["command"] if process_now and ran else []
    texts = [text, *(his["drop_ins"].values() if his else ())]
    facts = switching.facts_of(started_by.command_of(running, texts))
    kept = {**spec, **facts, "text": text, "probe": None, "environment": {}, "head": None}
    unit = service.name if ran else None
    port = started_by.port_of(unit, running, texts, usual=spec["port"])
    kept |= {"port": port, "flags": {}, "sources": {}}
    drafts = any(word.startswith("--speculative-config") for word in facts["command"])
    model = gate.model_served(kept["port"]) if ran and served_now(service, kept) else None
    return {**kept, "model": model, "speculative": drafts}


def runs_his(service: Service) -> bool:
    active = service.properties()["ActiveState"] in ("active", "activating")
    return active and standing_parts(service.name) is not None


def stage(service: Service, spec: Spec) -> None:
    """Everything that takes room on a disk, before the old server is touched."""
    good_units.keep(spec)
    write_whole(SERVER_STATE / "spec.json", good_units.as_text(spec), mode=0o600)
    his = adoption.of_text(service, spec["text"])  # that comes back by itself
    if his or service.installed_text() == spec["text"]:
        service.staged.unlink(missing_ok=True)
    else:
        write_whole(service.staged, spec["text"])


def served_now(service: Service, spec: Spec) -> bool:
    return service.properties().get("MainPID", "0") != "0" and health(spec["port"]) == 200


def good_seconds(spec: Spec) -> float | None:
    """What the last start of this release took."""
    known = (e.seconds_start for e in good_units.passed() if e.release_id == spec["release_id"])
    return next((seconds for seconds in known if seconds is not None), None)


# --- through the gate --------------------------------------------------------------------------


@dataclass(frozen=True)
class Trial:
    """A start that has passed. Times are since the epoch; down: when the old server was stopped,
    None where none served or none was stopped."""

    start: Start
    process_started: float
    up: float
    down: float | None
    proof: dict[str, Any] | None


def tried(service: Service, spec: Spec, progress: Progress, *, strict: bool = True) -> Trial:
    """Start the candidate where it has to be started, and see it pass. Raises JobError.

    strict: whether its command line and environment count. On the way back they don't: what served
    with a drop-in of somebody's may do so again.
    """
    served = spec["restart"] and served_now(service, spec)
    strict = strict and spec["probe"] is not None  # of a found unit nobody knows what it should be
    start = started(service, spec, progress) if spec["restart"] else under_way(service)
    wait(service, start, spec, progress)
    up = time.time()
    proof = gate.passes(spec, service, start, progress, strict=strict)
    found = service.properties()
    running = process(int(found["MainPID"]), found["ExecMainStartTimestamp"])
    began = running["started"] if running else start.asked
    return Trial(start, began, up, start.asked if served else None, proof)


def accepted(service: Service, spec: Spec, trial: Trial) -> Passed:
    """Install what has passed, and remember it as the last good one. Raises OSError."""
    install(service, spec, trial.process_started)
    if trial.proof is not None:
        record(spec, trial.proof)
    took = trial.up - trial.process_started if spec["restart"] else None
    down = trial.up - trial.down if trial.down is not None else None
    journal.flushed()
    lines = service.journal(trial.start.asked, trial.start.invocation)
    entry = good_units.entry_of(
        spec, took, down, with_metrics(account(lines), exposition(spec["port"]))
    )
    good_units.mark_good(entry)
    return entry


def started(service: Service, spec: Spec, progress: Progress) -> Start:
    """Start the unit with the spec's text, which stands in /run where it is not installed."""
    progress.step("stopping the old server")
    asked = time.time()
    if adoption.changes_hands(service, spec["text"]):
        service.stop()
    if service.installed_text() == spec["text"]:
        service.tried.unlink(missing_ok=True)
    else:
        service.tried.parent.mkdir(parents=True, exist_ok=True)
        his = adoption.of_text(service, spec["text"])
        mode = adoption.mode_of(his) if his else adoption.READABLE
        write_whole(service.tried, spec["text"], mode)
    adoption.lay_beside(service, spec["text"])
    service.reload()
    start = service.restart()
    progress.step("starting")
    return replace(start, asked=asked)


def under_way(service: Service) -> Start:
    found = service.properties()
    running = process(int(found["MainPID"] or 0), found["ExecMainStartTimestamp"])
    return Start(found["InvocationID"], running["started"] if running else time.time())


def wait(service: Service, start: Start, spec: Spec, progress: Progress) -> None:
    """Until systemd calls it active and /health of its main process has answered.

    Ours are active only then; a unit that a person wrote may be active from the first moment on.
    """
    began = said = time.time()
    while time.time() - began < spec["timeout"]:
        found = service.properties()
        if found["InvocationID"] != start.invocation or has_ended(found):
            raise JobError(
                f"{service.name} ended before it served",
                "a server that stays up and answers /health",
                f"mend the cause; the whole log: sudo journalctl -u {service.name}",
            )
        if found["ActiveState"] == "active" and gate.answers(spec, int(found["MainPID"] or 0)):
            return
        if time.time() - said > SAY_S:
            said = time.time()
            progress.rename(step_of(service.journal(start.asked, start.invocation)))
        time.sleep(POLL_S)
    raise JobError(
        f"{service.name} did not answer within {spec['timeout']} s",
        "a server that answers /health",
        f"look at `journalctl -u {service.name}` on the box; start_timeout_s is the limit",
    )


def has_ended(found: dict[str, str]) -> bool:
    return (
        found["ActiveState"] in ("failed", "inactive")
        or found["SubState"] == "auto-restart"
        or found["Result"] != "success"
    )


def step_of(lines: list[str]) -> str:
    step = "starting"
    for line in lines:
        step = next((name for pattern, name in STEPS if pattern.search(line)), step)
    return step


def install(service: Service, spec: Spec, started: float) -> None:
    """Make it what the box boots. Its file stays older than the process that runs it."""
    his = adoption.of_text(service, spec["text"])
    if his is not None:
        turning.put_back(his)
    else:
        if service.installed_text() != spec["text"]:
            turning.replace(service, spec["text"])
        if service.installed.stat().st_mtime >= started:  # a process that was left running
            os.utime(service.installed, (started - 1, started - 1))
    cleared(service)


def cleared(service: Service) -> None:
    """Nothing of a trial is left."""
    adoption.clear_beside(service)
    service.staged.unlink(missing_ok=True)
    service.tried.unlink(missing_ok=True)
    service.reload()


# --- and back ----------------------------------------------------------------------------------


def taken_back(
    service: Service,
    spec: Spec,
    good: Spec | None,
    stopped_by: Refusal,
    began: float,
    progress: Progress,
    *,
    revived: bool = False,
) -> Refusal:
    """Why the candidate failed, once what served before it is back, gated again.

    A process that nobody replaced is left alone: nothing is lost by it. What served comes back
    first; the cause is looked for afterwards. revived: a person's own unit that was up without an
    answer is started again, ungated.
    """
    if not spec["restart"] and not service.tried.exists():
        service.staged.unlink(missing_ok=True)
        return switching.failed(stopped_by, [], [], f"{service.name} was left as it is")
    stayed_up = service.properties()["ActiveState"] == "active"
    end(service)
    ended = time.time()
    now = started_again(service) if revived else brought_back(service, good, progress)
    journal.flushed()
    lines = service.journal(began, until=ended)
    causes = diagnosed(lines, spec)
    # what a server says that stayed up and did not pass is no cause
    said = [] if stayed_up else faults.root_lines(lines)
    remembered(spec, causes[0] if causes else None, said)
    return switching.failed(stopped_by, causes, said, now)


def end(service: Service) -> None:
    """Stopped, not flapping; nothing of a trial is left."""
    service.stop()
    cleared(service)


def diagnosed(lines: list[str], spec: Spec) -> list[Cause]:
    return faults.diagnose(lines, about(spec, serves=False))


def remembered(spec: Spec, cause: Cause | None, said: list[str]) -> None:
    """Held against a candidate; not against the last good unit, which nothing else can replace."""
    if sum_of(spec["text"]) in [entry.sha256 for entry in good_units.passed()[:1]]:
        return
    failure = switching.failure(spec["command"], cause, said, time.time())
    try:
        good_units.remember_failure(sum_of(spec["text"]), failure)
    except OSError:  # a full disk is told by what needs the room
        return


def started_again(service: Service) -> str:
    service.run("start", "--no-block", check=False)
    return f"{service.name} is your own again and was started; it was not known to answer before"


def brought_back(service: Service, good: Spec | None, progress: Progress) -> str:
    """What runs now, in words. It writes nothing on a disk before it serves: that may be full."""
    if good is None:
        last = good_units.passed(service.name)
        why = "it is itself the last good unit" if last else "nothing served before"
        if adoption.in_force(service) is not None:
            why = "your own unit stands there, as before, and did not run"
        return f"{service.name} is stopped: {why}"
    spec = {**good, "restart": True}
    try:
        progress.step("going back to the last good unit")
        trial = tried(service, spec, progress, strict=False)
    except Exception as error:  # whatever it is, it must not flap
        end(service)
        return (
            f"the last good unit failed too: {refusal_of_any(error).found}\n"
            f"{service.name} is stopped, so that it does not start again and again"
        )
    try:
        stage(service, spec)
        return switching.serves_again(accepted(service, spec, trial))
    except OSError as error:
        return f"the last good unit serves again; not recorded ({refusal_of(error).found})"
