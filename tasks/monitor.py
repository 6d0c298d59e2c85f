"""The monitor: Prometheus, with our scrape file and alerts, and Grafana with our dashboard."""

from __future__ import annotations

import json
from collections.abc import Collection
from dataclasses import dataclass

from pyinfra import host, logger, state
from pyinfra.api import deploy, operation

from aibox.box.probe.openpgp import fingerprint
from aibox.decide import scraping, watcher
from aibox.decide.monitoring import FIRST_LINE, SYSTEMD
from aibox.decide.plan import labelled
from aibox.decide.preflight import PortOwner
from aibox.decide.refusal import Refusal
from aibox.decide.watcher import (
    GRAFANA,
    GRAFANA_UNIT,
    PROMETHEUS,
    PROMETHEUS_PORT,
    PROMETHEUS_UNIT,
    RULES,
    SCRAPES,
    Found,
    Program,
)
from aibox.settings import Settings
from tasks import door_keys, page, preflight, targets, watching
from tasks.box import PROJECT
from tasks.brought import record
from tasks.drift_report import because
from tasks.facts import LaidFile, Login, Probe
from tasks.given_secrets import SecretError, in_file
from tasks.operations import Commands, laid_down, packages, refused, say_refusal, starts_at_boot
from tasks.package_units import files_gone, runs, stopped
from tasks.prometheus_files import checked, read_anew

MADE = PROJECT / "templates/monitoring"  # by python -m aibox.monitoring
PASSWORD_FILE = PROJECT / "secrets/grafana-admin-password"
KEY_TIMEOUT_S = 60


@dataclass(frozen=True)
class Monitor:
    """prometheus, grafana: why each is a person's own and left alone; None where it is ours."""

    settings: Settings
    prometheus: str | None
    grafana: str | None

    @property
    def theirs(self) -> list[str]:
        return [words for words in (self.prometheus, self.grafana) if words]

    @property
    def ours(self) -> list[str]:
        """Packages that are set up here."""
        wants_grafana = self.settings.grafana and self.grafana is None
        return [PROMETHEUS] * (self.prometheus is None) + [GRAFANA] * wants_grafana


def stands_alone() -> bool:
    """Whether this host is a monitor and no box, and can be worked on; else it is refused."""
    if not watching.is_only_monitor(host):
        return False
    refusals = preflight.refusals_of_login(host.get_fact(Login, _sudo=False))
    for refusal in refusals:
        say_refusal(host, refusal)
        state.fail_hosts({host})
    return not refusals


@deploy("Monitor")
def watching_boxes() -> None:
    settings = preflight.settings_of_all_boxes()[host.name]
    if not watching.is_monitor(host):
        withdrawn(PROMETHEUS_UNIT, watcher.PROMETHEUS_DROP_IN, watcher.PROMETHEUS_FILES)
        withdrawn(GRAFANA_UNIT, watcher.GRAFANA_DROP_IN, watcher.GRAFANA_FILES_OF_NOW)
        return
    monitor = judged(settings)
    for words in [*monitor.theirs, *targets.blind_spots(), *targets.doubts()]:
        host.log(words, logger.warning)
    refusal = password_refusal()
    if refusal:
        say_refusal(host, refusal)
        state.fail_hosts({host})
        return
    if PROMETHEUS in monitor.ours:
        prometheus()
    if GRAFANA in monitor.ours:
        grafana(settings)
    elif not settings.grafana:
        withdrawn(GRAFANA_UNIT, watcher.GRAFANA_DROP_IN, watcher.GRAFANA_FILES_OF_NOW)


def judged(settings: Settings) -> Monitor:
    """Whose Prometheus and Grafana are here, by what stands on the host now."""
    programs = watcher.prometheus(), watcher.grafana(settings.grafana_port)
    asked = {one.package: {"port": one.port, "drop_in": one.drop_in} for one in programs}
    answer = host.get_fact(Probe, "programs", json.dumps(asked))
    brought = record().get("packages", ())

    def theirs(program: Program) -> str | None:
        found = answer[program.package]
        owner = PortOwner(**found["owner"]) if found["owner"] else None
        changed = None if found["changed"] is None else tuple(found["changed"])
        ours = program.package in brought
        return watcher.is_theirs(program, Found(owner, found["whose"], changed, ours))

    return Monitor(settings, *(theirs(one) for one in programs))


def pages(settings: Settings) -> list[int]:
    """Ports of Grafana's pages, where it is ours here."""
    ours = watching.is_monitor(host) and settings.grafana and judged(settings).grafana is None
    return [settings.grafana_port] if ours else []


# --- in words ------------------------------------------------------------------------------------


def plan_rows(settings: Settings, due: Collection[str]) -> list[str]:
    """What the plan says of a monitor, or of one that is no more. due: operations with work."""
    goes = watcher.goes(stopped_by(due))
    if not watching.is_monitor(host):
        return goes
    monitor = judged(settings)
    where = settings.grafana_address, settings.grafana_port
    asked = targets.seen_from_here() if PROMETHEUS in monitor.ours else []
    stands = watcher.stands(monitor.ours, monitor.theirs, *where)
    return [*stands, *goes, *(scraping.asked_at(one) for one in asked)]


def screen_rows(settings: Settings) -> list[str]:
    """How a person reaches what was set up on this host, or what this run has taken off."""
    goes = watcher.goes(stopped_by(done()))
    if not watching.is_monitor(host):
        return goes
    monitor = judged(settings)
    where = settings.grafana_address, settings.grafana_port
    return [*watcher.reached(monitor.ours, *where, host.name), *monitor.theirs, *goes]


def stopped_by(names: Collection[str]) -> list[str]:
    """Packages that these operations stop."""
    units = {PROMETHEUS: PROMETHEUS_UNIT, GRAFANA: GRAFANA_UNIT}
    return [name for name, unit in units.items() if f"Monitor | {not_wanted(unit)}" in names]


def done() -> set[str]:
    """Names of the operations that have changed something on this host in this run."""
    found = state.ops[host].items()
    ended = {key: one.operation_meta for key, one in found if one.operation_meta.is_complete()}
    changed = [key for key, one in ended.items() if one.did_change()]
    return {name for key in changed for name in state.op_meta[key].names}


@operation()
def last_screen() -> Commands:
    """Of a monitor that is no box. Only shown: a generator that yields nothing."""
    settings = preflight.settings_of_all_boxes()[host.name]
    if state.is_executing:
        page.keep(page.lines("the monitor:", labelled("monitor", screen_rows(settings))))
    yield from ()


def not_wanted(unit: str) -> str:
    return f"{unit} is not wanted"


def withdrawn(unit: str, drop_in: str, paths: tuple[str, ...]) -> None:
    """Its package stays."""
    stopped(name=not_wanted(unit), unit=unit, drop_in=f"{SYSTEMD}/{drop_in}")
    files_gone(name=f"Files of ours for {unit}", paths=list(paths))


# --- Prometheus ----------------------------------------------------------------------------------


def prometheus() -> None:
    """Told what to read and where to listen before it is there: its package starts it at once."""
    drop_in = f"{SYSTEMD}/{watcher.PROMETHEUS_DROP_IN}"
    rules = MADE.joinpath("rules.yml").read_bytes()
    checked(name="The alerts", path=RULES, content=rules, check="rules")
    scrapes = scraping.text(FIRST_LINE, scraping.config(targets.seen_from_here(), RULES))
    checked(
        name="What is asked of the boxes", path=SCRAPES, content=scrapes.encode(), check="config"
    )
    content = watcher.prometheus_drop_in().encode()
    laid_down(name="Prometheus' arguments", path=drop_in, content=content)
    packages(name="Package of Prometheus", names=[PROMETHEUS])
    starts_at_boot(name="Prometheus starts at boot", unit=PROMETHEUS_UNIT)
    url = f"http://127.0.0.1:{PROMETHEUS_PORT}/-/ready"
    runs(name="Prometheus runs", unit=PROMETHEUS_UNIT, files=[drop_in], url=url)
    read_anew(name="Prometheus has read them", files=[RULES, SCRAPES])


# --- Grafana -------------------------------------------------------------------------------------


def grafana(settings: Settings) -> None:
    """At its first start it makes its first account, with the password that is there then."""
    drop_in = f"{SYSTEMD}/{watcher.GRAFANA_DROP_IN}"
    texts = {
        drop_in: watcher.grafana_drop_in(settings.grafana_address, settings.grafana_port),
        watcher.SOURCE_OF_DATA: watcher.source_of_data(),
        watcher.PROVIDER: watcher.provider(),
        watcher.DASHBOARD: MADE.joinpath("dashboard.json").read_text(),
    }
    names = ("arguments", "source of data", "folder of dashboards", "dashboard")
    signing_key(name="Grafana's signing key", settings=settings)
    source = watcher.source_text(settings.grafana_repository).encode()
    laid_down(name="Grafana's repository", path=watcher.SOURCE, content=source)
    for name, (path, text) in zip(names, texts.items(), strict=True):
        laid_down(name=f"Grafana's {name}", path=path, content=text.encode())
    password()
    packages(name="Package of Grafana", names=[GRAFANA])
    starts_at_boot(name="Grafana starts at boot", unit=GRAFANA_UNIT)
    url = f"http://127.0.0.1:{settings.grafana_port}/api/health"
    files = [drop_in, watcher.SOURCE_OF_DATA, watcher.PROVIDER]
    runs(name="Grafana runs", unit=GRAFANA_UNIT, files=files, url=url)


@operation()
def signing_key(settings: Settings) -> Commands:
    """The key that lies beside the repository, where its fingerprint is the one of the settings."""
    found = host.get_fact(LaidFile, path=watcher.KEY)
    text = found["content"].decode(errors="replace") if found else ""
    if fingerprint(text) != settings.grafana_key.upper():
        url = f"{settings.grafana_repository.rstrip('/')}/{watcher.KEY_NAME}"
        asked = json.dumps({"url": url})
        answer = host.get_fact(Probe, "signing_key", asked, _timeout=KEY_TIMEOUT_S)
        if answer["fingerprint"] != settings.grafana_key.upper():
            why = answer["error"] or f"{url} is the key {answer['fingerprint'] or 'of nobody'}"
            because(host, why)
            yield refused(another_key(why, settings))
            return
        text = answer["text"]
    yield from laid_down._inner(path=watcher.KEY, content=text.encode())


def another_key(why: str, settings: Settings) -> Refusal:
    return Refusal(
        why,
        f"the key {settings.grafana_key.upper()} beside Grafana's repository",
        "look up which key Grafana Labs signs with now and set grafana_key; or grafana = False",
    )


def password() -> None:
    given = given_password()
    if given is None:
        door_keys.made(name="Grafana's first password", path=watcher.PASSWORD)
    else:
        door_keys.given(name="Grafana's first password", path=watcher.PASSWORD, content=given)


def given_password() -> str | None:
    """What stands in its file on control; None without one. Raises SecretError."""
    given = in_file(PASSWORD_FILE, "a password on one line")
    if given is not None and (len(given) < 8 or given == "admin"):
        found = f"a password of {len(given)} characters in {PASSWORD_FILE}"
        raise SecretError(found, "8 or more", "choose another one")
    return given


def password_refusal() -> Refusal | None:
    try:
        given_password()
    except SecretError as error:
        return error.refusal
    return None
