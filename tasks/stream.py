"""The stream filter on its port: vLLM's own API for other machines, with its streams mended."""

from __future__ import annotations

from functools import cache
from hashlib import sha256

from pyinfra.api import deploy

from aibox.decide import doors
from aibox.decide.doors import STREAM
from aibox.decide.unit import exec_start
from tasks import aibox_wheel, door_keys
from tasks.box import AIBOX_FOLDER, Box
from tasks.services import Venv, Wanted, laid_out, lock_text, unit_text, withdrawn

SIZE = 120_000_000
FETCH = 12_000_000
MODULES = ("aibox.stream.server", "uvloop")
ENVIRONMENT = {"HOME": STREAM.home, "PYTHONDONTWRITEBYTECODE": "1"}
CREDENTIALS = f"/run/credentials/{STREAM.unit}"  # where systemd hands them over (systemd.exec(5))


@deploy("Stream")
def running(box: Box) -> None:
    if box.doors.stream.on:
        laid_out(wanted(box), box, keys=door_keys.of_stream)
    else:
        withdrawn(name="The stream filter is not wanted", service=STREAM)


@cache
def venv() -> Venv:
    """Its code is aibox's own wheel, which its name covers as well as the lock."""
    lock, identity = lock_text("stream"), aibox_wheel.identity()
    lock8 = sha256(f"{lock}{identity}".encode()).hexdigest()[:8]
    folder = f"{STREAM.root}/{aibox_wheel.version()}-{lock8}"
    wheels = f"{AIBOX_FOLDER}/{identity}/parcel"
    return Venv(folder, lock, SIZE, FETCH, MODULES, wheels)


def wanted(box: Box) -> Wanted:
    settings, has_keys = box.settings, bool(door_keys.stream_keys())
    unit = unit_text(
        "vllm-stream.service.j2",
        STREAM,
        ENVIRONMENT,
        served=settings.model,
        after=box.unit,
        venv=venv().folder,
        credentials=[f"keys:{doors.STREAM_KEYS}"] if has_keys else [],
        exec_start=exec_start(
            [[f"{venv().folder}/bin/python", "-m", "aibox.stream", "--config", STREAM.files[0]]]
        ),
    )
    return Wanted(
        service=STREAM,
        port=settings.stream_port,
        url=f"http://{doors.reached_at(settings.doors_address)}:{settings.stream_port}",
        venv=venv(),
        files={doors.STREAM_CONFIG: config(box, has_keys=has_keys), STREAM.unit_file: unit},
        key_file=doors.STREAM_KEYS if has_keys else None,
        keys=STREAM.keys,
        models=box.served_models,
        environment=list(ENVIRONMENT),
        extra={},
    )


def config(box: Box, *, has_keys: bool) -> str:
    settings = box.settings
    return doors.stream_config(
        address=settings.doors_address,
        port=settings.stream_port,
        server_port=settings.server_port,
        mends=settings.stream_mends,
        thinking=doors.thinks(settings.flags),
        keys_file=f"{CREDENTIALS}/keys" if has_keys else None,
        metrics_from=box.metrics_from,
    )
