"""The plan on one screen, before the prompt: what each stage would do, in their own words."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import PurePosixPath

from pyinfra import host, state
from pyinfra.facts.server import Command

from aibox.decide import candidate, driver, driver_sources, fleet, history, monitoring, takeover
from aibox.decide.discovery import Discovered
from aibox.decide.doors import plan_rows
from aibox.decide.figures import GB
from aibox.decide.plan import (
    NOUVEAU,
    Fetch,
    PlanFacts,
    Rate,
    Service,
    added,
    disk_changes,
    flags_that_change,
    labelled,
    rows,
)
from aibox.decide.preflight import cut_off, to_write
from aibox.decide.refusal import Refusal
from tasks import (
    doors,
    drift_report,
    first_pin,
    invocation,
    monitor,
    page,
    preflight,
    standing_services,
    watching,
)
from tasks.box import AIBOX, STATE_FOLDER, Box
from tasks.facts import AiboxAnswer, Discovery, LaidFile
from tasks.operations import say_refusal
from tasks.preflight import Seen
from tasks.server import SWITCH, server_state, unit_text, what_is_due
from tasks.summary import PLANNED
from tasks.weights import planned

HISTORY = f"{STATE_FOLDER}/server/history.json"
# With a timeout a fact is asked plainly: no later run is to expect this one.
TIMEOUT_S = 90  # more than the box's own limit for it
# Operations that install packages of the distribution.
DISTRIBUTION = (
    "Base | Packages",
    "Monitoring | Package of the node exporter",
    "Monitor | Package of Prometheus",
)
MUCH = 100_000_000  # bytes that take a while on a slow line


def shown(box: Box) -> None:
    """Shown last where a plan is made for a person; nothing where no operation has work."""
    if drift_report.judges() and failed_before(box) is None:
        refusal = judged(box, due_operations())
        if refusal is not None:
            drift_report.would_be_refused(host, SWITCH, refusal)
        return
    if state.is_executing or not page.is_read():
        return
    due = due_operations()
    refusal = failed_before(box) or judged(box, due) if due else None
    if refusal is not None:  # nothing will be done: a page would say what is not so
        say_refusal(host, refusal)
        state.fail_hosts({host})
    elif due:
        facts = facts_of(box, preflight.seen()[host.name], due)
        host.connector_data[PLANNED] = facts
        page.keep(page.lines("what this run would do:", rows(facts)))


def shown_of_monitor() -> None:
    """The same for a monitor that is no box."""
    due = set() if state.is_executing or not page.is_read() else due_operations()
    if due:
        texts = monitor.plan_rows(preflight.settings_of_all_boxes()[host.name], due)
        page.keep(page.lines("what this run would do:", labelled("monitor", texts)))


def failed_before(box: Box) -> Refusal | None:
    """Why the new unit would be refused by what failed here: told before anybody is asked."""
    if not what_is_due(box, unit_text(box))[0].restart:
        return None
    spec = {**box.candidate_spec, "text": unit_text(box)}
    evidence = candidate.Evidence(failed=server_state(box)["failed"])
    return next(candidate.has_failed(evidence, spec), None)


# Operations without which the box can't judge: its aibox, the release and the weights are there.
GROUND = ("Base | aibox in its own venv", "Release | vLLM", "Weights | Weights of")
JUDGING_S = 360


def judged(box: Box, due: Collection[str]) -> Refusal | None:
    """Why the new command line would be refused, for who only looks or is about to roll: a run
    judges it by itself.

    The release's own parser is asked, as the server's user; nothing of it is written down.
    """
    can_judge = not any(name.startswith(GROUND) for name in due)
    looks = invocation.only_shows() or drift_report.judges()
    if not (looks and can_judge and what_is_due(box, unit_text(box))[0].restart):
        return None
    spec = json.dumps({**box.candidate_spec, "text": unit_text(box)})
    answer = host.get_fact(
        AiboxAnswer, program=AIBOX, words="judge", _stdin=spec, _timeout=JUDGING_S
    )
    return None if answer is None or answer["ok"] else Refusal(**answer["refusal"])


def operations() -> list[tuple[str, bool]]:
    """This box's operations in their order: (name, whether it has something to do)."""
    found = []
    for name_hash in state.get_op_order():
        data = state.ops[host].get(name_hash)
        if data is not None:
            name = next(iter(state.op_meta[name_hash].names))
            found.append((name, data.operation_meta.will_change))
    return found


def due_operations() -> set[str]:
    return {name for name, is_due in operations() if is_due}


def steps() -> dict[str, tuple[int, int]]:
    """stage -> (operations with something to do, all of them)."""
    counted: dict[str, tuple[int, int]] = {}
    for name, is_due in operations():
        stage = name.partition(" | ")[0]
        due, total = counted.get(stage, (0, 0))
        counted[stage] = due + is_due, total + 1
    return counted


def facts_of(box: Box, seen: Seen, due: Collection[str]) -> PlanFacts:
    fetches, rate = fetched(box, seen, due)
    offered = seen.offered.needed_bytes if seen.offered else 0
    service = served(box, seen)
    his = seen.report.foreign_unit.path if seen.report.foreign_unit else None
    return PlanFacts(
        steps=steps(),
        pins=first_pin.in_words(box.settings) if first_pin.is_pending(box.settings) else None,
        fetches=fetches,
        rate=rate,
        disks=disk_changes(seen.report, to_write(seen.report, seen.wanted, offered)),
        reboot=driver.reboot_reasons(seen.evidence, box.driver),
        cut_off=[cut_off(one, box.settings.server_unit)[0] for one in seen.report.serving],
        service=service,
        added=added(due, turned_off_by(due)),
        replaced=replaced(box, seen, due, his=his),
        found=his is not None and service.restart,
        doors=[
            *plan_rows(doors.asked(box.settings), seen.standing),
            *fleet.plan_rows(box.fleet if box.doors.gateway.on else None),
        ],
        watched=monitoring.plan_rows(watching.asked(box.settings), seen.watched),
        monitor=monitor.plan_rows(box.settings, due),
        changes=changes(box) if service.restart else (),
        driver_stays=not (
            driver.install_reasons(seen.evidence, box.driver)
            or driver.reboot_reasons(seen.evidence, box.driver)
        ),
    )


def changes(box: Box) -> list[str]:
    """The server's flags that change; else why it is started anew."""
    process, text = server_state(box)["process"], unit_text(box)
    switching, installed = what_is_due(box, text)
    command = process["command"] if process else []
    flags = flags_that_change(command, installed, box.serving.command)
    return flags or (switching.reasons if process else [])


def turned_off_by(due: Collection[str]) -> list[str]:
    """Files of a person's own that turn nouveau off, where ours is about to."""
    if NOUVEAU not in due:
        return []
    look = "grep -lsE '^\\s*blacklist\\s+nouveau' /etc/modprobe.d/*.conf || true"
    found = str(host.get_fact(Command, look, _timeout=TIMEOUT_S) or "").split()
    return [path for path in found if path != driver_sources.MODPROBE]


# --- what comes over the network ------------------------------------------------------------------


def fetched(box: Box, seen: Seen, due: Collection[str]) -> tuple[list[Fetch], Rate | None]:
    """What is fetched, and the rate that was measured for it; None where it is next to nothing."""
    found = []
    if any(name.startswith(DISTRIBUTION) for name in due):
        watches = ", Prometheus among them" if "Monitor | Package of Prometheus" in due else ""
        found.append(Fetch(f"packages of the distribution{watches}", None))
    if "Monitor | Package of Grafana" in due:
        found.append(Fetch("Grafana, from its own repository", None))
    if seen.offered is not None:
        drives = driver.install_reasons(seen.evidence, box.driver)
        what = "driver and CUDA toolkit" if drives else "CUDA toolkit"
        found.append(Fetch(f"{what}, from NVIDIA", seen.offered.download_bytes))
    if any(name.startswith("Release | vLLM") for name in due):
        release = f"vLLM {box.release.release_id} and what it needs"
        found.append(Fetch(release, round(box.settings.release_fetch_gb * GB)))
    for service, venv in standing_services.venvs().items():
        if any(f"| Venv {venv.id} of {service.title}" in name for name in due):
            found.append(Fetch(f"{service.title} and what it needs", venv.fetch))
    weights, rate = missing_weights(box, sum(one.size or 0 for one in found))
    return [*found, *weights], rate


def missing_weights(box: Box, others: int) -> tuple[list[Fetch], Rate | None]:
    """The weights that lie nowhere on the box, and how fast the hub gives a file of them.

    others: bytes that come from elsewhere; where they are many, their time counts as well.
    """
    paths = planned(box).fetch
    if not paths and others < MUCH:
        return [], None
    lock, limit = box.settings.weights, box.weights_spec["limit"]
    files = {path: lock.files[path] for path in paths}
    largest = max(lock.files, key=lambda path: lock.files[path].size)
    asked = {
        "repository": lock.repository,
        "from": box.settings.weights_from,
        "files": takeover.asked(lock.repository, lock.commit, files),
        "url": f"{box.settings.hub}/{lock.repository}/resolve/{lock.commit}",
        "limit": limit,
        "sample": largest if others >= MUCH else None,
    }
    answer = host.get_fact(Discovery, "fetching", json.dumps(asked), _timeout=TIMEOUT_S)
    wanted = sum(file.size for file in files.values())
    if answer is None:
        return fetch_of_weights(box, wanted, 0), Rate(None, "no answer")
    lying = int(answer["lying"])
    if lying == wanted and others < MUCH:
        return fetch_of_weights(box, wanted, lying), None
    rate = Rate(answer["rate"], answer["why"], limited=limit is not None)
    return fetch_of_weights(box, wanted, lying), rate


def fetch_of_weights(box: Box, wanted: int, lying: int) -> list[Fetch]:
    """wanted: bytes that are missing in our folder; lying: those of them that lie elsewhere."""
    if not wanted:
        return []
    note = "the rest lies on the box" if lying else ""
    note = "they lie on the box, and are taken over by their sums" if lying == wanted else note
    return [Fetch(f"weights of {box.settings.model}", wanted - lying, note)]


# --- the server, and what is a person's own -------------------------------------------------------


def served(box: Box, seen: Seen) -> Service:
    """What its clients will notice. A person's own may serve on another port than ours will."""
    switching, _ = what_is_due(box, unit_text(box))
    found = server_state(box)
    passed = history.read(recorded())
    down = [one.seconds_down for one in passed if one.seconds_down is not None]
    starts = [one.seconds_start for one in passed if one.seconds_start is not None]
    return Service(
        unit=box.unit,
        restart=switching.restart,
        serves=any(one.manager == "system" and one.unit == box.unit for one in seen.report.serving),
        down=next(iter(down), None),
        start=next(iter(starts), None),
        good=found["good"] is not None,
    )


def recorded() -> object:
    """What has passed the gate on this box, as it is written down there."""
    record = host.get_fact(LaidFile, path=HISTORY)
    try:
        return json.loads(record["content"]) if record else []
    except ValueError:
        return []


def drop_ins(box: Box, found: Discovered | None) -> str:
    """What of a person's unit lies beside its file, in words."""
    for server in found.servers if found else ():
        if server.manager == "system" and server.unit == box.unit:
            names = [PurePosixPath(path).name for path in sorted(server.drop_ins)]
            return f", and its drop-ins: {', '.join(names)}" if names else "; it has no drop-ins"
    return ", with drop-ins where it has any"


def replaced(box: Box, seen: Seen, due: Collection[str], *, his: str | None) -> list[str]:
    """What a person has there and this run replaces. his: their own unit's file."""
    texts = []
    if his == box.unit_file:
        texts.append(f"{his}, which you wrote{drop_ins(box, seen.found)}")
    elif his is not None:
        texts.append(f"{his}, which stays where it is: ours in /etc/systemd/system hides it")
    if not any(name.startswith("Driver") for name in due):
        return texts
    loaded = seen.evidence.loaded
    if loaded and driver.reboot_reasons(seen.evidence, box.driver):
        kind = "open" if loaded.open else "proprietary"
        texts.append(f"driver {loaded.version} ({kind} modules) by {box.driver.version} (open)")
    swapped = driver.exchanged(seen.evidence, box.driver)
    if swapped:
        texts.append(
            f"packages of the driver, which stays {box.driver.version}: NVIDIA's own for "
            f"{', '.join(swapped)}"
        )
    removes = seen.offered.removes if seen.offered else ()
    if removes:
        texts.append(f"packages that make way: {', '.join(removes)}")
    for path, text in driver_sources.cleaned_sources(seen.evidence.sources, box.driver.url).items():
        kept = f"renamed to {path}.disabled" if text is None else "without NVIDIA's repository"
        texts.append(f"{path}: {kept}")
    return texts
