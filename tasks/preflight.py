"""Before the first change: settings, then the box itself, every fault in one answer."""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pyinfra import config, host, logger, state
from pyinfra.api.exceptions import PyinfraError
from pyinfra.connectors.ssh import connector_data_meta

from aibox.decide import monitoring, takeover
from aibox.decide.access import judge_login
from aibox.decide.discovery import Discovered
from aibox.decide.doors import DOORS, Standing
from aibox.decide.driver import DriverWanted, install_reasons
from aibox.decide.driver_evidence import Evidence
from aibox.decide.driver_refusals import RepositoryAnswer
from aibox.decide.driver_sources import KEY, SOURCE, repository_question
from aibox.decide.preflight import PACKAGES_FOLDER, BoxReport, Wanted, can_ask_apt, judge, warnings
from aibox.decide.refusal import Refusal
from aibox.decide.toolkit import toolkit_reasons
from aibox.settings import (
    ReleaseLock,
    Settings,
    SettingsError,
    driver_wanted_from,
    load_settings,
    release_lock,
    wanted_from,
)
from tasks import (
    cards,
    discovery,
    door_keys,
    doors,
    drift_report,
    first_pin,
    fleet,
    services,
    standing_services,
    watching,
)
from tasks.box import PROJECT, Box, Places
from tasks.facts import Login, Probe
from tasks.first_pin import Pinned
from tasks.operations import say_refusal

WHERE_SETTINGS_ARE = (
    "correct it where you said it: group_data/site.py, inventory or --data; "
    "group_data/all.py has every setting with its default"
)
REPOSITORY_TIMEOUT_S = 300  # the distribution's own lists are fetched with it

_loaded: dict[str, Settings] = {}
_judged: dict[str, Box] = {}


@dataclass(frozen=True)
class Seen:
    """What this run's look at a box gave, for its plan. found: where a person's own server was
    looked at."""

    report: BoxReport
    wanted: Wanted
    standing: Standing
    watched: monitoring.Standing
    evidence: Evidence
    offered: RepositoryAnswer | None
    found: Discovered | None


_seen: dict[str, Seen] = {}


def settings_of_all_boxes() -> dict[str, Settings]:
    """The validated settings of every box of this run. Faults end the run: they are control's."""
    if not _loaded:
        data = {box.name: box.data.dict() for box in state.inventory}
        try:
            _loaded.update(load_settings(data, PROJECT, connector_data_meta, need_weights=False))
        except SettingsError as error:
            raise PyinfraError(f"{error}\n{WHERE_SETTINGS_ARE}") from None
    return _loaded


def judged_box() -> Box | None:
    """This box, ready to be built; None when it was refused, with every cause shown."""
    settings = settings_of_all_boxes()[host.name]
    if watching.is_only_monitor(host):
        return None
    login = host.get_fact(Login, _sudo=False)
    judged = refusals_of_login(login) or look(
        first_pin.pinned(settings, discovery.commit_there), release_lock(settings, login["python"])
    )
    if isinstance(judged, Box):
        _judged[host.name] = judged
        return judged
    for refusal in judged:
        say_refusal(host, refusal)
    state.fail_hosts({host})
    return None


def judged() -> dict[str, Box]:
    """The boxes of this run that were not refused, by name."""
    return _judged


def seen() -> dict[str, Seen]:
    """What was seen of the boxes of this run, by name."""
    return _seen


def refusals_of_login(login: dict[str, Any]) -> list[Refusal]:
    """What keeps us from working on the box at all; sudo is left out where we are root already."""
    can_ask = sys.stdin.isatty() or bool(config.SUDO_PASSWORD)
    config.SUDO = login["uid"] != 0
    refusal = judge_login(login["uid"], login["python"], login["sudo"], can_ask, login["greeting"])
    return [refusal] if refusal else []


def look(pinned: Pinned, found_lock: ReleaseLock | Refusal) -> Box | list[Refusal]:
    """The box itself: what it is, its cards and driver, and what NVIDIA's repository offers it."""
    settings = pinned.settings
    lock = found_lock if isinstance(found_lock, ReleaseLock) else None
    places = Places(settings, lock) if lock else None
    answer = host.get_fact(Probe, "system", json.dumps(asked(settings, places)))
    report = BoxReport.parse(json.dumps(answer))
    standing = doors.judged(settings, report)
    watched = watching.judged(settings, report)
    on = {door: standing.of(door).on for door in DOORS}
    on[monitoring.GPU_EXPORTER] = watched.gpu.on
    needs = services.needs(report, on, standing_services.venvs())
    wanted = replace(wanted_from(settings, lock), doors=needs)
    wanted_driver = driver_wanted_from(settings, lock, report.os_id, report.os_version)
    evidence = evidence_of(wanted_driver.cuda)
    found = discovery.discovered(settings, report, evidence, lock)
    for warning in warnings(report, evidence):
        host.log(warning, logger.warning)
    key = evidence.key if evidence.key_fingerprint == wanted_driver.fingerprint else None
    offered = None
    if can_ask_apt(report) and (key is None or asks_for_packages(evidence, wanted_driver)):
        offered = repository_answer(evidence, wanted_driver)
        key = offered.key
    _seen[host.name] = Seen(report, wanted, standing, watched, evidence, offered, found)
    # A drift check reboots nobody away: it is to name the reboot that is due.
    serving = () if drift_report.is_wanted() else report.serving
    everywhere = settings_of_all_boxes()
    refusals = judge(report, wanted, evidence, wanted_driver, serving=serving, offered=offered)
    refusals += [*doors.refusals(standing), *door_keys.refusals(standing, report.keys)]
    refusals += [*watching.refusals(settings, watched), *fleet.refusals(settings, everywhere)]
    refusals += [pinned.refusal] if pinned.refusal else []
    if refusals or lock is None or key is None:
        return refusals
    there = partial(cards.there, settings.cards_wanted)
    spread = fleet.of_this_box(settings, standing, everywhere)
    return Box(settings, lock, wanted_driver, key, standing, watched, there, spread)


def evidence_of(cuda: str | None) -> Evidence:
    """What stands on the box of driver and toolkit."""
    question = {"key_file": KEY, "source_file": SOURCE, "cuda": cuda}
    return Evidence.parse(json.dumps(host.get_fact(Probe, "driver", json.dumps(question))))


def asks_for_packages(evidence: Evidence, wanted: DriverWanted) -> bool:
    reasons = install_reasons(evidence, wanted)
    return bool(reasons or (wanted.cuda and toolkit_reasons(evidence, wanted.cuda)))


def repository_answer(evidence: Evidence, wanted: DriverWanted) -> RepositoryAnswer:
    """What apt would do with NVIDIA's repository, tried in a folder that is thrown away."""
    question = json.dumps(repository_question(evidence, wanted))
    # With a timeout a fact is asked plainly: this one is dear, and is asked in few runs only.
    answer = host.get_fact(Probe, "repository", question, _timeout=REPOSITORY_TIMEOUT_S)
    return RepositoryAnswer.parse(json.dumps(answer))


def asked(settings: Settings, box: Places | None) -> dict[str, Any]:
    """The probe's question: which disks and ports matter, and what of ours is there already."""
    sizes = {}
    if box and settings.is_pinned:
        sizes[box.weights_folder] = [box.weights_folder, box.partial_weights_folder]
    if box:
        sizes[box.release_folder] = [f"{box.release_folder}/release.json"]
    for venv in standing_services.venvs().values():
        sizes[venv.folder] = [f"{venv.folder}/release.json"]
    folders = [settings.releases_folder, settings.models_folder, settings.cache_folder]
    roots = [door.root for door in (*DOORS, monitoring.GPU_EXPORTER)]
    asked_for = [*doors.asked(settings), *watching.asked(settings)]
    return {
        "folders": [PACKAGES_FOLDER, *folders, *roots],
        "ports": [settings.server_port, *(one.port for one in asked_for)],
        "unit": f"{settings.server_unit}.service",
        "units": [*(door.unit for door in DOORS), *watching.UNITS],
        "keys": [path for door in DOORS for path in door.keys],
        "user": settings.server_user,
        "sizes": sizes,
        "linkable": linkable(box) if box and settings.is_pinned else {},
    }


def linkable(box: Places) -> dict[str, Any]:
    """What of the weights takes no room, because it lies on the box and can be hard-linked."""
    lock = box.settings.weights
    return {
        box.weights_folder: {
            "from": box.settings.weights_from,
            "repository": lock.repository,
            "to": [box.weights_folder, box.partial_weights_folder],
            "files": takeover.asked(lock.repository, lock.commit, lock.files),
        }
    }
