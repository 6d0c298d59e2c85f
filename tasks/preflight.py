"""Before the first change: settings, then the box itself, every fault in one answer."""

from __future__ import annotations

import json
import sys
from typing import Any

from pyinfra import config, host, logger, state
from pyinfra.api.exceptions import PyinfraError
from pyinfra.connectors.ssh import connector_data_meta

from aibox.decide import manifest
from aibox.decide.access import judge_login
from aibox.decide.preflight import BoxReport, judge, warnings
from aibox.decide.refusal import Refusal
from aibox.settings import (
    ReleaseLock,
    Settings,
    SettingsError,
    load_settings,
    release_lock,
    wanted_from,
)
from tasks.box import PROJECT, Box
from tasks.facts import Login, Probe
from tasks.operations import say_refusal

_loaded: dict[str, Settings] = {}
_judged: dict[str, Box] = {}


def settings_of_all_boxes() -> dict[str, Settings]:
    """The validated settings of every box of this run. Faults end the run: they are control's."""
    if not _loaded:
        data = {box.name: box.data.dict() for box in state.inventory}
        try:
            _loaded.update(load_settings(data, PROJECT, connector_data_meta))
        except SettingsError as error:
            raise PyinfraError(str(error)) from None
    return _loaded


def judged_box() -> Box | None:
    """This box, ready to be built; None when it was refused, with every cause shown."""
    settings = settings_of_all_boxes()[host.name]
    login = host.get_fact(Login, _sudo=False)
    refusals = refusals_of_login(login)
    box = None
    if not refusals:
        lock = release_lock(settings, login["python"])
        box = Box(settings, lock) if isinstance(lock, ReleaseLock) else None
        refusals = refusals_of_box(settings, box)
    for refusal in refusals:
        say_refusal(host, refusal)
    if refusals or box is None:
        state.fail_hosts({host})
        return None
    _judged[host.name] = box
    return box


def judged() -> dict[str, Box]:
    """The boxes of this run that were not refused, by name."""
    return _judged


def refusals_of_login(login: dict[str, Any]) -> list[Refusal]:
    """What keeps us from working on the box at all; sudo is left out where we are root already."""
    can_ask = sys.stdin.isatty() or bool(config.SUDO_PASSWORD)
    config.SUDO = login["uid"] != 0
    refusal = judge_login(login["uid"], login["python"], login["sudo"], can_ask)
    return [refusal] if refusal else []


def refusals_of_box(settings: Settings, box: Box | None) -> list[Refusal]:
    answer = host.get_fact(Probe, "system", json.dumps(asked(settings, box)))
    report = BoxReport.parse(json.dumps(answer))
    for warning in warnings(report):
        host.log(warning, logger.warning)
    return judge(report, wanted_from(settings, box.release if box else None))


def asked(settings: Settings, box: Box | None) -> dict[str, Any]:
    """The probe's question: which disks and ports matter, and what of ours is there already."""
    sizes = {}
    if box:
        sizes[box.weights_folder] = [box.weights_folder, box.partial_weights_folder]
        sizes[box.release_folder] = [f"{box.release_folder}/release.json"]
    return {
        "folders": [settings.releases_folder, settings.models_folder, settings.cache_folder],
        "ports": [settings.server_port],
        "user": settings.server_user,
        "unit_file": f"/etc/systemd/system/{settings.server_unit}.service",
        "deployed": manifest.DEPLOYED,
        "sizes": sizes,
    }
