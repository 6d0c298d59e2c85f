"""The record of what we laid down, on the box: what `aibox status` and a drift check go by."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pyinfra import host
from pyinfra.api import operation

from aibox.decide import fleet
from aibox.decide.doors import GATEWAY
from aibox.decide.manifest import DEPLOYED, FORMAT
from tasks import aibox_wheel, ledger, standing_services
from tasks.box import AIBOX_FOLDER, Box
from tasks.operations import Commands, file_in_place


@operation()
def recorded(box: Box) -> Commands:
    """/var/lib/aibox/deployed.json. It comes last: where it stands, all the rest was laid down."""
    text = json.dumps(content(box, ledger.of(host)), indent=1, sort_keys=True)
    yield from file_in_place(DEPLOYED, f"{text}\n".encode())


def content(box: Box, told: ledger.Ledger) -> dict[str, Any]:
    """The same for every run that lays down the same; no secret is in it, nor a secret's sum."""
    lock = box.settings.weights
    return {
        "format": FORMAT,
        "aibox": {"folder": AIBOX_FOLDER, "identity": aibox_wheel.identity()},
        "release": {"id": box.release.release_id, "folder": box.release_folder},
        "weights": {
            "folder": box.weights_folder,
            "repository": lock.repository,
            "commit": lock.commit,
            "files": {path: file.sha256 for path, file in lock.files.items()},
        },
        "server": {
            "unit": box.unit,
            "port": box.settings.server_port,
            "model": box.served_model,
            "models": list(box.served_models),
            "context": box.settings.context,
            "speculative": box.speculative,
            "identity": box.serving.identity,
            "proof": box.proof_record,
            "gpu_uuid": list(box.gpu_uuids) or None,
        },
        "doors": services_of(box),  # the name that records have had so far
        **asdict(told),
    }


def services_of(box: Box) -> dict[str, Any]:
    """What stands beside the server: {name: where it is reached, what it is made of}.

    A gateway that asks several boxes has "models" and "context" of its own.
    """
    found = {one.service: one for one in standing_services.wanted(box)}
    told = {
        service.name: {
            "title": service.title,
            "unit": service.unit,
            "port": one.port,
            "url": one.url,
            "ready": service.ready,
            "folder": one.venv.folder,
            "root": service.root,
            "key_file": one.key_file,
        }
        for service, one in found.items()
    }
    if box.fleet and GATEWAY in found:
        told[GATEWAY.name] |= fleet.offered(box.fleet)
    return told
