"""What a monitor runs: Prometheus of the distribution, Grafana of its own repository; ours or not.

A Prometheus or Grafana that a person has set up is never touched: they are told what to add.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from aibox.decide.doors import CONFIG_FOLDER
from aibox.decide.monitoring import FIRST_LINE, SYSTEMD
from aibox.decide.preflight import PortOwner, shown_owner
from aibox.decide.services import OURS

PROMETHEUS, PROMETHEUS_UNIT, PROMETHEUS_PORT = "prometheus", "prometheus.service", 9090
PROMETHEUS_DROP_IN = f"{PROMETHEUS_UNIT}.d/aibox.conf"
SCRAPES = "/etc/prometheus/aibox.yml"
RULES = "/etc/prometheus/aibox-rules.yml"

GRAFANA, GRAFANA_UNIT = "grafana", "grafana-server.service"
GRAFANA_DROP_IN = f"{GRAFANA_UNIT}.d/aibox.conf"
SOURCE_OF_DATA = "/etc/grafana/provisioning/datasources/aibox.yaml"
PROVIDER = "/etc/grafana/provisioning/dashboards/aibox.yaml"
DASHBOARDS = "/etc/grafana/aibox"
DASHBOARD = f"{DASHBOARDS}/llm-box.json"
PASSWORD = f"{CONFIG_FOLDER}/grafana-admin-password"
KEY = "/usr/share/keyrings/aibox-grafana.asc"
SOURCE = "/etc/apt/sources.list.d/aibox-grafana.sources"
KEY_NAME = "gpg.key"  # beside the repository

PROMETHEUS_FILES = (SCRAPES, RULES, f"{SYSTEMD}/{PROMETHEUS_DROP_IN}")
GRAFANA_FILES = (
    *(SOURCE_OF_DATA, PROVIDER, DASHBOARD, SOURCE, KEY, PASSWORD),
    f"{SYSTEMD}/{GRAFANA_DROP_IN}",
)
# Grafana knows it from its first start on, and its package stays where it is turned off.
GRAFANA_FILES_OF_NOW = tuple(one for one in GRAFANA_FILES if one != PASSWORD)
FILES = (*PROMETHEUS_FILES, *GRAFANA_FILES)
BY_HAND = "`python -m tasks.monitoring_files` writes the files to add to yours"


@dataclass(frozen=True)
class Program:
    """package: its name. unit, drop_in: as systemd calls it, and ours for it."""

    title: str
    package: str
    unit: str
    drop_in: str
    port: int
    port_setting: str | None


def prometheus() -> Program:
    port = PROMETHEUS_PORT
    return Program("Prometheus", PROMETHEUS, PROMETHEUS_UNIT, PROMETHEUS_DROP_IN, port, None)


def grafana(port: int) -> Program:
    return Program("Grafana", GRAFANA, GRAFANA_UNIT, GRAFANA_DROP_IN, port, "grafana_port")


@dataclass(frozen=True)
class Found:
    """whose: a drop-in of ours, "ours" or "foreign", None without one. changed: files in /etc of
    the package that a person has changed; None where it is not installed. brought: whether a
    deploy of ours has installed it."""

    owner: PortOwner | None
    whose: str | None
    changed: tuple[str, ...] | None
    brought: bool = False


def is_theirs(program: Program, found: Found) -> str | None:
    """Why a program is a person's own and is left as it is; None where it is ours to set up."""
    if found.whose == OURS:
        stranger = found.owner if not holds(program, found.owner) else None
    elif found.changed and program.package == PROMETHEUS:
        return f"{program.title} is yours: {found.changed[0]} was changed; {BY_HAND}"
    elif found.changed is not None and program.package == GRAFANA and not found.brought:
        return f"{program.title} is yours: it was installed before; {BY_HAND}"
    else:
        stranger = found.owner if not holds(program, found.owner) else None
    if stranger is None:
        return None
    another = f"; {program.port_setting} takes another port" if program.port_setting else ""
    return f"{program.title}: port {program.port} belongs to {shown_owner(stranger)}{another}"


def holds(program: Program, owner: PortOwner | None) -> bool:
    """Whether a port is free, or the program's own."""
    return owner is None or (owner.unit == program.unit and owner.manager == "system")


def stands(ours: Collection[str], theirs: Sequence[str], address: str, port: int) -> list[str]:
    """What the plan says of a monitor's programs. ours: packages that are set up here; theirs: in
    words, why the others are not. address, port: Grafana's."""
    rows = []
    if PROMETHEUS in ours:
        rows.append(f"Prometheus on port {PROMETHEUS_PORT} of the monitor alone, with our alerts")
    if GRAFANA in ours:
        where = " of the monitor alone" if address == "127.0.0.1" else ""
        rows.append(f"Grafana on port {port}{where}; its first password will be in {PASSWORD}")
    return [*rows, *theirs]


def reached(ours: Collection[str], address: str, port: int, name: str) -> list[str]:
    """How a person reads the pages of what is set up here. name: of the monitor, as pyinfra calls
    it."""
    rows = []
    if PROMETHEUS in ours:
        way = brought_near(PROMETHEUS_PORT, name)
        url = f"http://localhost:{PROMETHEUS_PORT}"
        rows.append(f"alerts: Prometheus on {url}/alerts of the monitor alone{way}")
    if GRAFANA in ours:
        alone = f"on http://localhost:{port} of the monitor alone{brought_near(port, name)}"
        rows.append(f"Grafana {alone if address == '127.0.0.1' else f'on port {port}'}")
        rows.append(f"Grafana's user is admin; its first password: sudo cat {PASSWORD}")
    return rows


def brought_near(port: int, name: str) -> str:
    return "" if name == "@local" else f"; ssh -fNL {port}:localhost:{port} {name} brings it to you"


def goes(stopped: Collection[str]) -> list[str]:
    """What is no more where programs of ours are stopped. stopped: packages."""
    rows = {
        PROMETHEUS: "Prometheus stops: no figures are kept and no alerts are raised any more; what "
        "it has kept stays",
        GRAFANA: "Grafana stops, and the dashboard with it; its accounts stay",
    }
    return [text for package, text in rows.items() if package in stopped]


# --- what is laid down ---------------------------------------------------------------------------


def prometheus_drop_in() -> str:
    """A configuration beside the distribution's, which stays as it is."""
    return (
        f"{FIRST_LINE}[Service]\nExecStart=\nExecStart=/usr/bin/prometheus $ARGS \\\n"
        f"    --config.file={SCRAPES} \\\n    --web.listen-address=127.0.0.1:{PROMETHEUS_PORT}\n"
    )


def grafana_drop_in(address: str, port: int) -> str:
    """Grafana itself reads the password out of the credential, at its very first start."""
    settings = {
        "GF_SERVER_HTTP_ADDR": address,
        "GF_SERVER_HTTP_PORT": str(port),
        "GF_SECURITY_ADMIN_PASSWORD": "$__file{%d/admin-password}",
        "GF_USERS_ALLOW_SIGN_UP": "false",
        "GF_ANALYTICS_REPORTING_ENABLED": "false",
        "GF_ANALYTICS_CHECK_FOR_UPDATES": "false",
    }
    lines = "".join(f"Environment={name}={value}\n" for name, value in settings.items())
    return f"{FIRST_LINE}[Service]\n{lines}LoadCredential=admin-password:{PASSWORD}\n"


def source_text(url: str) -> str:
    return (
        f"{FIRST_LINE}Types: deb\nURIs: {url}\nSuites: stable\nComponents: main\nSigned-By: {KEY}\n"
    )


def source_of_data() -> str:
    source = {
        "name": "Prometheus (LLM boxes)",
        "uid": "aibox",
        "type": "prometheus",
        "access": "proxy",
        "url": f"http://127.0.0.1:{PROMETHEUS_PORT}",
        "jsonData": {"timeInterval": "15s"},
        "editable": False,
    }
    return _provisioned({"apiVersion": 1, "datasources": [source]})


def provider() -> str:
    one = {
        "name": "LLM boxes",
        "type": "file",
        "disableDeletion": True,
        "allowUiUpdates": False,
        "options": {"path": DASHBOARDS},
    }
    return _provisioned({"apiVersion": 1, "providers": [one]})


def _provisioned(document: Mapping[str, Any]) -> str:
    """JSON, which is YAML too."""
    return f"{FIRST_LINE}{json.dumps(document, indent=1)}\n"
