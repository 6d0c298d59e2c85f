"""A benchmark of a box: started there as a job, followed, and its report brought here."""

from __future__ import annotations

import json
import socket
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from pyinfra import host, logger, state
from pyinfra.api import FunctionCommand, Host, QuoteString, State, StringCommand, operation
from pyinfra.api.exceptions import PyinfraError

from aibox.box.job import FOLDER, write_whole
from aibox.decide import bench_page, bench_plan, bench_report
from aibox.decide.bench_plan import Asked
from aibox.decide.bench_report import Report
from aibox.decide.refusal import Refusal
from tasks import fleet, markdown_page, page, watching
from tasks.box import AIBOX, PROJECT
from tasks.going_back import history_of_box
from tasks.operations import Commands, call_aibox, run_job, say_refusal
from tasks.preflight import settings_of_all_boxes

REPORTS = PROJECT / "reports"
JOB = "bench"
LANDED = "bench_report"  # in a box's connector data: the paths that were written
SHORTFALL = "bench_shortfall"  # there too: why what was written is not the whole, or None


def is_well_asked() -> bool:
    """Whether what `--data` asks for can be measured here; every reason against it is said."""
    found = bench_plan.read(asked_of(host))
    refusals = [] if isinstance(found, Asked) else list(found)
    refusals = refusals or bench_plan.unfit(history_of_box() or {})
    for refusal in refusals:
        say_refusal(host, refusal)
    if isinstance(found, Asked) and not refusals:
        warn(beside_gateways(found))
        return True
    state.fail_hosts({host})
    return False


def beside_gateways(asked: Asked) -> list[tuple[str, str]]:
    """What is to be said where gateways send requests to this box; nothing where none do."""
    gateways = [one.name for one in fleet.gateways()]
    models = models_of_boxes() if gateways else {}
    return bench_plan.beside_gateways(
        host.name,
        [box for box, names in models.items() if {*names} & {*models.get(host.name, ())}],
        [one.name for one in state.inventory if state.is_host_in_limit(one)],
        gateways,
        f"sudo {AIBOX} rotation",
        stops=asked.starts_others,
    )


def models_of_boxes() -> dict[str, Sequence[str]]:
    """What each box is asked for, by its settings; nothing while they are wrong, which is no
    matter of a benchmark."""
    try:
        settings = settings_of_all_boxes()
    except PyinfraError:
        return {}
    return {one.name: fleet.seen(one, settings[one.name]).models for one in watching.boxes()}


def warn(rows: Sequence[tuple[str, str]]) -> None:
    """Right before a person is asked, where one is; else at once."""
    shown = page.lines("beside what gateways send:", rows) if rows else []
    if shown and page.is_read():
        page.keep(shown)
        return
    for line in shown:
        host.log(line, logger.warning)


@operation()
def measured() -> Commands:
    """Do what `--data` asks for; what a run that was cut off has measured over there is fetched."""
    given = asked_of(host)
    asked = bench_plan.read(given)
    assert isinstance(asked, Asked)  # is_well_asked has said so
    for line in bench_plan.in_short(asked):
        host.log(line)
    yield FunctionCommand(bring, (given,), {})
    yield StringCommand("rm -rf", QuoteString(str(FOLDER / JOB)))  # it is here now
    yield FunctionCommand(came_to_its_end, (), {})


def asked_of(box: Host) -> dict[str, str]:
    """What `--data` says, as texts by name."""
    names = ["mode", *bench_plan.WORDS]
    given = {name: box.data.get(name) for name in names}
    return {name: bench_plan.text_of(one) for name, one in given.items() if one is not None}


def bring(state: State, host: Host, given: dict[str, str]) -> bool:
    """Start the job or follow it, then write its report here; also one that was broken off."""
    try:
        known = report_of(host, given)
        if known is None:
            went_well = run_job(state, host, JOB, AIBOX, JOB, {"asked": given}, wait=True)
            known = report_of(host, given) if went_well else report_if_any(host, given)
            if known is None and not went_well:
                return False  # which has been said
        if known is None:
            raise ConnectionError("it is gone, or the unit was changed while it was measured")
        host.connector_data[LANDED] = landed(host, known)
        paths = ", ".join(str(one.relative_to(PROJECT)) for one in host.connector_data[LANDED])
        host.connector_data[SHORTFALL] = bench_report.shortfall(known, paths)
    except (ConnectionError, OSError) as error:
        say_refusal(host, unbrought(error))
        return False
    return True


def unbrought(error: Exception) -> Refusal:
    return Refusal(
        f"the report could not be brought here ({error})",
        f"a connection to the end, and {REPORTS} to write to",
        "run the same command again: what was measured is kept over there until a reboot",
    )


def report_of(host: Host, given: dict[str, str]) -> Report | None:
    """What the last job over there has measured, where it was asked for the same, of the unit that
    is installed now. Raises ConnectionError."""
    look = call_aibox(host, AIBOX, ["job", "look", JOB])
    unit = call_aibox(host, AIBOX, ["status", "--history", "--json"])["installed"]
    return bench_report.left_by(look, given, unit)


def report_if_any(host: Host, given: dict[str, str]) -> Report | None:
    """The same after a failure, which may be of the connection."""
    try:
        return report_of(host, given)
    except ConnectionError:
        return None


def came_to_its_end(state: State, host: Host) -> bool:
    """Whether what was brought is whole; where it is not, that is said."""
    refusal: Refusal | None = host.connector_data[SHORTFALL]
    if refusal is not None:
        say_refusal(host, refusal)
    return refusal is None


def landed(host: Host, report: Report) -> list[Path]:
    """Write the report, its page and its charts. Raises OSError."""
    from tasks import bench_charts  # noqa: PLC0415  half a second, which no other run needs

    name = socket.gethostname() if host.name == "@local" else host.name
    report = {**report, "box": name}
    when = datetime.fromtimestamp(report["when"], UTC).strftime("%Y%m%d-%H%M%S")
    card = report["card"] or "model"
    stem = REPORTS / f"{report['mode']}-{card}-{name}-{when}".replace("/", "_")
    REPORTS.mkdir(exist_ok=True)
    paths = [stem.with_name(f"{stem.name}.{ending}") for ending in ("json", "md")]
    write_whole(paths[0], json.dumps(report, indent=1) + "\n")
    write_whole(paths[1], bench_page.page(report))
    return [*paths, *bench_charts.draw(report, stem)]


@operation()
def said() -> Commands:
    """The tables and where they lie. Only words: a generator that yields nothing."""
    paths = host.connector_data.get(LANDED)
    if state.is_executing and paths:
        tables = shown(paths[1].read_text(), host.name)
        page.keep([*tables, *(f"written: {path.relative_to(PROJECT)}" for path in paths)])
    yield from ()


def shown(markdown: str, box: str) -> list[str]:
    """As wide as the terminal leaves room behind the box's name."""
    room = page.width() - len(f"    [{box}] ") if page.columns() else None
    return markdown_page.lines(markdown, room)
