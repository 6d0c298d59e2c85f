"""The doors, by which other machines reach the server: which there are, and what each is told."""

from __future__ import annotations

import ipaddress
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.manifest import STATE_FOLDER
from aibox.decide.services import Asked, Service, Verdict, plan_row

CONFIG_FOLDER = "/etc/aibox"
STREAM_CONFIG = f"{CONFIG_FOLDER}/stream.json"
STREAM_KEYS = f"{CONFIG_FOLDER}/stream-keys"
GATEWAY_CONFIG = f"{CONFIG_FOLDER}/litellm/config.yaml"
GATEWAY_CODE = f"{CONFIG_FOLDER}/litellm/door.py"
ROTATION_CODE = f"{CONFIG_FOLDER}/litellm/rotation.py"
FLEET = f"{CONFIG_FOLDER}/litellm/fleet.json"  # the boxes that a gateway asks, if several
ROTATION = f"{STATE_FOLDER}/rotation.json"  # which of them it asks no more

MASTER_KEY = f"{CONFIG_FOLDER}/litellm-master-key"
GATEWAY_KEYS = f"{CONFIG_FOLDER}/litellm-keys"

STREAM = Service(
    name="stream",
    title="the stream filter",
    unit="vllm-stream.service",
    user="aibox-stream",
    root="/opt/vllm-stream",
    ready="/health",
    files=(STREAM_CONFIG,),
    keys=(STREAM_KEYS,),
)
GATEWAY = Service(
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
class Standing:
    """Both doors as this run wants them. upstream: the base address that the gateway asks."""

    stream: Verdict
    gateway: Verdict
    upstream: str

    def of(self, door: Service) -> Verdict:
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


# --- in words ------------------------------------------------------------------------------------


def plan_rows(asked: Sequence[Asked], standing: Standing) -> list[str]:
    """What the plan says of the doors: those that stand, and why one does not."""
    return [plan_row(one, standing.of(one.service)) for one in asked]
