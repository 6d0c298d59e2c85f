"""The doors, by which other machines reach the server: whether each stands, what it is told, and
what makes it due.

A door is on unless a program that is not ours holds its port: then it is left out, and the plan
says so. One that was asked for is never left out without a word: the run is refused.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.manifest import STATE_FOLDER
from aibox.decide.preflight import PortOwner, port_remedy, shown_owner
from aibox.decide.refusal import Refusal
from aibox.decide.switching import AGAIN

CONFIG_FOLDER = "/etc/aibox"
RECORDS = f"{STATE_FOLDER}/doors"  # what of each door has passed its gate
OURS, FOREIGN = "ours", "foreign"  # whose a unit file is


@dataclass(frozen=True)
class Door:
    """name: also how the setting of its port begins. title: in words. root: the folder of its
    venvs. ready: the path that answers 200 when it serves. files, keys: what is laid down for it
    beside its unit. switch: the setting that turns it off, where that is not its name."""

    name: str
    title: str
    unit: str
    user: str
    root: str
    ready: str
    files: tuple[str, ...]
    keys: tuple[str, ...]
    switch: str = ""

    @property
    def setting(self) -> str:
        return self.switch or self.name

    @property
    def port_setting(self) -> str:
        return f"{self.name.replace('-', '_')}_port"

    @property
    def unit_file(self) -> str:
        return f"/etc/systemd/system/{self.unit}"

    @property
    def home(self) -> str:
        return f"/var/lib/{self.user}"

    @property
    def folders(self) -> list[str]:
        """What is made for it."""
        return [self.root, self.home, *(path.rpartition("/")[0] for path in self.files)]

    @property
    def record(self) -> str:
        return f"{RECORDS}/{self.name}.json"

    @property
    def failed(self) -> str:
        """What of it has failed its gate last."""
        return f"{RECORDS}/{self.name}.failed"


STREAM_CONFIG = f"{CONFIG_FOLDER}/stream.json"
STREAM_KEYS = f"{CONFIG_FOLDER}/stream-keys"
GATEWAY_CONFIG = f"{CONFIG_FOLDER}/litellm/config.yaml"
GATEWAY_CODE = f"{CONFIG_FOLDER}/litellm/door.py"
ROTATION_CODE = f"{CONFIG_FOLDER}/litellm/rotation.py"
FLEET = f"{CONFIG_FOLDER}/litellm/fleet.json"  # the boxes that a gateway asks, if several
ROTATION = f"{STATE_FOLDER}/rotation.json"  # which of them it asks no more

MASTER_KEY = f"{CONFIG_FOLDER}/litellm-master-key"
GATEWAY_KEYS = f"{CONFIG_FOLDER}/litellm-keys"

STREAM = Door(
    name="stream",
    title="the stream filter",
    unit="vllm-stream.service",
    user="aibox-stream",
    root="/opt/vllm-stream",
    ready="/health",
    files=(STREAM_CONFIG,),
    keys=(STREAM_KEYS,),
)
GATEWAY = Door(
    name="gateway",
    title="the gateway (LiteLLM)",
    unit="litellm.service",
    user="aibox-gateway",
    root="/opt/litellm",
    ready="/health/readiness",
    files=(GATEWAY_CONFIG, GATEWAY_CODE, ROTATION_CODE, FLEET),
    keys=(MASTER_KEY, GATEWAY_KEYS),
)
DOORS = (STREAM, GATEWAY)


# --- whether it stands ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Asked:
    """What the settings say of a door. wish: None leaves it to what stands on its port."""

    door: Door
    wish: bool | None
    port: int


@dataclass(frozen=True)
class Verdict:
    """left_out: why a door that nobody turned off does not stand, in words."""

    on: bool
    left_out: str | None = None
    refusal: Refusal | None = None


def judge(asked: Asked, owner: PortOwner | None, unit: str | None) -> Verdict:
    """owner: who listens on its port now. unit: whose the file of its unit is, None without one."""
    if asked.wish is False:
        return Verdict(on=False)
    door = asked.door
    if unit == FOREIGN:
        found = f"{door.unit} is a unit that no deploy has written"
        remedy = f"rename yours, or set {door.setting} = False"
        return _stranger(asked, None, found, remedy)
    is_ours = owner is not None and owner.unit == door.unit and owner.manager == "system"
    if owner is None or (is_ours and unit == OURS):
        return Verdict(on=True)
    found = f"port {asked.port} belongs to {shown_owner(owner)}"
    remedy = f"{port_remedy(owner, asked.port, door.port_setting)}; or set {door.setting} = False"
    return _stranger(asked, unit, found, remedy)


def _stranger(asked: Asked, unit: str | None, found: str, remedy: str) -> Verdict:
    """A door that stands already is not taken away because somebody has taken its port."""
    if asked.wish is None and unit is None:
        return Verdict(on=False, left_out=found)
    expected = f"a free port, or {asked.door.unit} of a deploy on it, for {asked.door.title}"
    return Verdict(on=False, refusal=Refusal(found, expected, remedy))


@dataclass(frozen=True)
class Standing:
    """Both doors as this run wants them. upstream: the base address that the gateway asks."""

    stream: Verdict
    gateway: Verdict
    upstream: str

    def of(self, door: Door) -> Verdict:
        return self.stream if door is STREAM else self.gateway


NONE = Standing(Verdict(on=False), Verdict(on=False), "")


def upstream(wish: str | None, stream: Verdict, address: str, ports: Mapping[str, int]) -> str:
    """What the gateway asks: the filter where it stands, else the server; or what was set.

    ports: {"stream", "server"}. address: what the doors listen on.
    """
    if wish is not None:
        return wish.rstrip("/")
    if stream.on:
        return own_filter(address, ports["stream"])
    return f"http://127.0.0.1:{ports['server']}"


def own_filter(address: str, port: int) -> str:
    """Where the box itself reaches its filter. address: what the doors listen on."""
    return f"http://{reached_at(address)}:{port}"


def reached_at(address: str) -> str:
    """Where the box itself reaches what listens on an address."""
    return "127.0.0.1" if ipaddress.ip_address(address).is_unspecified else address


# --- what it is told -----------------------------------------------------------------------------


def stream_config(
    address: str,
    port: int,
    server_port: int,
    mends: Mapping[str, str],
    thinking: bool,
    keys_file: str | None,
    metrics_from: Sequence[str],
) -> str:
    """The filter's configuration, see aibox/stream/config.py."""
    config = {
        "address": address,
        "port": port,
        "upstream": f"http://127.0.0.1:{server_port}",
        "mends": dict(mends),
        "thinking": thinking,
        "keys_file": keys_file,
        "metrics_allowed": list(metrics_from),
    }
    return json.dumps(config, indent=1) + "\n"


def thinks(flags: Mapping[str, object]) -> bool:
    """Whether the server thinks where a request does not say."""
    told = flags.get("default-chat-template-kwargs")
    if isinstance(told, str):
        try:
            told = json.loads(told)
        except ValueError:
            return True
    return not isinstance(told, Mapping) or told.get("enable_thinking") is not False


def gateway_config(names: Sequence[str], upstream: str, context: int) -> str:
    """LiteLLM's configuration where it asks its own box alone. names: all that the server answers
    to. context: tokens."""
    return litellm_config([deployment(name, upstream, context) for name in names])


def deployment(name: str, upstream: str, context: int, *, keyed: bool = True) -> dict[str, Any]:
    """A model at one place, as LiteLLM's model_list has it. keyed: it is given the filter's key."""
    return {
        "model_name": name,
        "litellm_params": {
            "model": f"hosted_vllm/{name}",
            "api_base": f"{upstream}/v1",
            "api_key": "os.environ/AIBOX_UPSTREAM_KEY" if keyed else "none",
        },
        "model_info": {
            "max_input_tokens": context,
            "input_cost_per_token": 0,
            "output_cost_per_token": 0,
        },
    }


def litellm_config(
    deployments: Sequence[Mapping[str, Any]], router: Mapping[str, Any] | None = None
) -> str:
    """As JSON, which is YAML too. router: how LiteLLM goes from one deployment to the next."""
    config = {
        "model_list": list(deployments),
        "litellm_settings": {
            "drop_params": True,
            "callbacks": ["prometheus"],
            "telemetry": False,
            "request_timeout": 600,
            "require_auth_for_metrics_endpoint": False,  # door.py sees to who may
        },
        "general_settings": {
            "master_key": "os.environ/LITELLM_MASTER_KEY",
            "custom_auth": "door.key_checked",
        },
    }
    if router:
        config["router_settings"] = dict(router)
    return json.dumps(config, indent=1) + "\n"


# --- what makes it due ---------------------------------------------------------------------------


STARTING = "it is starting by itself; waiting for it"  # alone, no reason to start it anew


def identity(files: Mapping[str, str]) -> str:
    """The sum of everything that a door is made of but its keys: {path: text}."""
    return hashlib.sha256(json.dumps(dict(files), sort_keys=True).encode()).hexdigest()


def reasons(door: Door, files: Mapping[str, str], found: Mapping[str, Any]) -> list[str]:
    """Why a door has to be switched. files: {path: text} as wanted. found: the probe's answer."""
    return [
        *(one for path, text in files.items() for one in _file_reasons(path, text, found["files"])),
        *process_reasons(door.ready, found),
        *([] if found["passed"] == identity(files) else ["this has not passed its gate yet"]),
    ]


def failed_before(
    files: Mapping[str, str], found: Mapping[str, Any], setting: str
) -> Refusal | None:
    """Why a door that runs is not stopped again for what has failed its gate already.

    Keys that were laid down since then may have been what it failed of.
    """
    failed = found["failed"] or {}
    runs = found["unit"].get("ActiveState") == "active"
    if not runs or failed.get("identity") != identity(files):
        return None
    keys = [path for path in found["changed"] if path not in files]
    if any((found["changed"][path] or 0) > failed["when"] for path in keys):
        return None
    return Refusal(
        f"this very door has failed its gate before: {failed['found']}",
        "one that has not failed: the one before it goes on serving",
        f"change the settings of {setting}, or mend the cause and try the same once more: {AGAIN}",
    )


def _file_reasons(path: str, text: str, there: Mapping[str, Any]) -> list[str]:
    file = there.get(path)
    if file is None:
        return [f"{path} is not there as a file"]
    found = [f"{path} has another content"] if file["text"] != text else []
    owner = f"{file['owner']} {file['mode']}"
    return found + ([f"{path} is {owner}, not root:root 644"] if owner != "root:root 644" else [])


def process_reasons(ready: str, found: Mapping[str, Any]) -> list[str]:
    """Why what runs is not what is laid down. ready: the path that is to answer 200."""
    unit = found["unit"]
    if unit.get("ActiveState") == "activating":
        return [STARTING]
    if unit.get("ActiveState") != "active" or found["started"] is None:
        return [f"it does not run ({unit.get('ActiveState', 'unknown')})"]
    if unit.get("NeedDaemonReload") == "yes":
        return ["systemd has not read its unit, or a drop-in of it, as it is now"]
    newer = [path for path, when in found["changed"].items() if when and when > found["started"]]
    if newer:
        return [f"it runs since before {path} was laid down" for path in newer]
    if found["answers"] != 200:
        return [f"{ready} answers {found['answers'] or 'nothing'}, not 200"]
    return []


# --- in words ------------------------------------------------------------------------------------


def plan_rows(asked: Sequence[Asked], standing: Standing) -> list[str]:
    """What the plan says of the doors: those that stand, and why one does not."""
    return [plan_row(one, standing.of(one.door)) for one in asked]


def plan_row(asked: Asked, verdict: Verdict) -> str:
    door = asked.door
    if verdict.on:
        return f"{door.title} on port {asked.port}"
    if verdict.left_out:
        return (
            f"{door.title} is left out: {verdict.left_out} ({door.port_setting} takes another, "
            f"{door.setting} = False says no)"
        )
    return f"{door.title} is turned off"
