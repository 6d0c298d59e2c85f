"""LiteLLM on its port: OpenAI's and Anthropic's API for other machines, with keys."""

from __future__ import annotations

from functools import cache, partial
from pathlib import Path

from pyinfra.api import deploy

from aibox.decide import doors, fleet
from aibox.decide.doors import GATEWAY
from aibox.decide.unit import exec_start
from aibox.decide.wheels import locked_versions
from aibox.gateway import door as door_code
from aibox.gateway import rotation as rotation_code
from tasks import door_keys
from tasks.box import Box
from tasks.services import Venv, Wanted, laid_out, lock_text, unit_text, withdrawn

SIZE = 1_000_000_000  # 757 MB were measured, and its bytecode
FETCH = 200_000_000
MODULES = ("litellm.proxy.proxy_server", "prisma", "prometheus_client", "uvicorn")


@deploy("Gateway")
def running(box: Box) -> None:
    if box.doors.gateway.on:
        laid_out(wanted(box), box, keys=partial(keys_laid, box))
    else:
        withdrawn(name="LiteLLM is not wanted", service=GATEWAY)


def keys_laid(box: Box) -> None:
    door_keys.of_gateway()
    if not box.doors.stream.on and doors.STREAM_KEYS in credentials(box).values():
        door_keys.of_stream()  # with which it asks the other boxes


@cache
def venv() -> Venv:
    lock = lock_text("litellm")
    version = locked_versions(lock)["litellm"]
    unnamed = Venv("", lock, SIZE, FETCH, MODULES)
    folder = f"{GATEWAY.root}/{version}-{unnamed.sha256[:8]}"
    return Venv(folder, lock, SIZE, FETCH, MODULES)


def environment(box: Box) -> dict[str, str]:
    """No secret is in it: those are handed over by systemd."""
    return {
        "HOME": GATEWAY.home,
        "PYTHONDONTWRITEBYTECODE": "1",
        "CONFIG_FILE_PATH": doors.GATEWAY_CONFIG,
        "LITELLM_MODE": "PRODUCTION",
        "LITELLM_LOCAL_MODEL_COST_MAP": "True",
        "DISABLE_ADMIN_UI": "True",
        "NO_DOCS": "True",
        "NO_REDOC": "True",
        "NO_OPENAPI": "True",
        door_code.METRICS_FROM: ",".join(box.metrics_from),
    }


def wanted(box: Box) -> Wanted:
    settings = box.settings
    url = f"http://{doors.reached_at(settings.doors_address)}:{settings.gateway_port}"
    variables = environment(box)
    unit = unit_text(
        "litellm.service.j2",
        GATEWAY,
        variables,
        served=settings.model,
        after=doors.STREAM.unit if box.doors.stream.on else box.unit,
        venv=venv().folder,
        credentials=[f"{name}:{path}" for name, path in credentials(box).items()],
        port=settings.gateway_port,
        ready=url + GATEWAY.ready,
        exec_start=exec_start(command(box)),
    )
    return Wanted(
        service=GATEWAY,
        port=settings.gateway_port,
        url=url,
        venv=venv(),
        files={**laid_beside(box, url), GATEWAY.unit_file: unit},
        key_file=doors.MASTER_KEY,
        keys=list(credentials(box).values()),
        models=models(box),
        environment=list(variables),
        extra={"LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    )


def laid_beside(box: Box, url: str) -> dict[str, str]:
    """{path: text} of what LiteLLM is told, and of our code in its process."""
    if box.fleet:
        config = fleet.config(box.fleet.members)
    else:
        config = doors.gateway_config(box.served_models, box.doors.upstream, box.settings.context)
    return {
        doors.GATEWAY_CONFIG: config,
        doors.GATEWAY_CODE: Path(door_code.__file__).read_text(),
        doors.ROTATION_CODE: Path(rotation_code.__file__).read_text(),
        doors.FLEET: fleet.fleet_text(url, box.fleet.members if box.fleet else ()),
    }


def models(box: Box) -> list[str]:
    """Every name that clients may ask this gateway for."""
    return list(fleet.by_name(box.fleet.members)) if box.fleet else box.served_models


def command(box: Box) -> list[list[str]]:
    return [
        [f"{venv().folder}/bin/python", "-m", "uvicorn"],
        ["--app-dir", str(Path(doors.GATEWAY_CODE).parent)],
        ["--factory", "door:made"],
        ["--host", box.settings.doors_address],
        ["--port", str(box.settings.gateway_port)],
        ["--timeout-graceful-shutdown", "30"],
    ]


def credentials(box: Box) -> dict[str, str]:
    """{name: path}, for LoadCredential=. The filter's key only where the filter is asked."""
    given = {"master-key": doors.MASTER_KEY, "keys": doors.GATEWAY_KEYS}
    if asks_a_filter(box) and door_keys.stream_keys():
        given["upstream-keys"] = doors.STREAM_KEYS
    return given


def asks_a_filter(box: Box) -> bool:
    """Its own, or that of another box."""
    where = doors.own_filter(box.settings.doors_address, box.settings.stream_port)
    return bool(box.fleet) or (box.doors.stream.on and box.doors.upstream == where)
