"""The box's own exporters, and the monitor that reads them, on boxes with the stand-in release.

Real vLLM under a real Prometheus is test_main_job.py's matter.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import yaml

from aibox.decide.monitoring import DRIFT, DROP_IN_FILE, FACTS, GPU_EXPORTER
from aibox.decide.watcher import DASHBOARD, GRAFANA_UNIT, PASSWORD, PROMETHEUS_UNIT, SCRAPES
from aibox.monitoring.__main__ import FOLDER
from aibox.monitoring.alerts import ALERTS
from tests.rehearsal import alert_cases, watched
from tests.rehearsal.box import Box
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.kill_harness import manifest_of
from tests.rehearsal.provision import HostData, deploy, download_caches, standin
from tests.rehearsal.refusal import the_one_refusal
from tests.rehearsal.test_doors import deployed, exposure, planned
from tests.rehearsal.test_drift import check

GET = """
import sys, urllib.error, urllib.request
request = urllib.request.Request(sys.argv[1], headers={"Authorization": sys.argv[2]})
try:
    print(urllib.request.urlopen(request, timeout=20).read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
except OSError as error:
    print(error)
"""


@pytest.fixture(scope="module")
def box(layers: Callable[[str], str | None]) -> Iterator[Box]:
    name = layers("serving")
    with Box.up("monitoring", layer=name, binds=download_caches(), owned=True) as box:
        box.run("systemctl start vllm-coder")  # waits until it answers
        yield box


@pytest.fixture
def data(hub: Hub) -> HostData:
    """A box that is its own monitor."""
    return {**standin(hub.url), "stream": True, "monitoring": None, "_monitor": "too"}


def got(box: Box, url: str, password: str = "") -> str:
    """What a machine is answered at a URL: a body, a status, or why there is none."""
    key = base64.b64encode(f"admin:{password}".encode()).decode()
    return box.run(["python3", "-c", GET, url, f"Basic {key}"]).stdout


def at_home(port: int, path: str = "/metrics") -> str:
    return f"http://127.0.0.1:{port}{path}"


def test_a_box_that_watches_itself(box: Box, data: HostData) -> None:
    """From nothing to curves, silent from then on; nobody else reads its figures."""
    said = deployed(box, data).said
    assert "the node exporter on port 9100" in said
    assert "metrics are for this box only" in said
    assert "http://localhost:9090/alerts" in said
    node = got(box, at_home(9100))
    assert 'node_systemd_service_restart_total{name="vllm-coder.service"}' in node
    assert "aibox_next_reboot_keeps_card 1" in node
    assert "gpu_temperature_C{" in got(box, at_home(9835))
    assert exposure(box, GPU_EXPORTER.unit) <= 2.0
    assert planned(box, data) == []
    assert check({box: data}).code == 0
    assert 'aibox_drift_operations{box="monitoring"} 0' in box.run(f"cat {DRIFT}").stdout
    box.until(lambda: set(up(box).values()) == {"up"}, 180)
    assert set(up(box)) == {f"aibox-{one}" for one in ("vllm", "stream", "node", "gpu")}


def up(box: Box) -> dict[str, str]:
    """{job: how its target is} as Prometheus sees it."""
    [found] = watched.asked(box, ["/api/v1/targets"])
    return {one["labels"]["job"]: one["health"] for one in found["activeTargets"]}


def test_grafana_has_the_dashboard_and_no_known_password(box: Box) -> None:
    password = box.run(f"cat {PASSWORD}").stdout.strip()
    assert len(password) > 20
    boards = json.loads(got(box, at_home(3000, "/api/search"), password))
    assert [one["uid"] for one in boards] == ["aibox"]
    [source] = json.loads(got(box, at_home(3000, "/api/datasources"), password))
    assert (source["type"], source["url"]) == ("prometheus", watched.URL)
    assert got(box, at_home(3000, "/api/search"), "admin").strip() == "401"
    assert box.run(f"stat -c '%U %a' {PASSWORD}").stdout == "root 600\n"
    assert password not in box.run(f"systemctl show {GRAFANA_UNIT}").stdout


def test_promtool_takes_the_files_and_every_alert_fires_and_does_not(box: Box) -> None:
    box.run(f"promtool check config {SCRAPES}")
    severity = {alert.name: alert.severity for alert in ALERTS}
    told = {name: FOLDER.joinpath(name).read_text() for name in ("rules.yml",)}
    documents = alert_cases.documents(severity)
    told |= {f"{at}.yml": yaml.safe_dump(one) for at, one in enumerate(documents)}
    for name, text in told.items():
        box.run(f"mkdir -p /tmp/alerts && cat >/tmp/alerts/{name}", text=text)
    words = "cd /tmp/alerts && promtool check rules --lint-fatal rules.yml && promtool test rules"
    ended = box.run(f"{words} {' '.join(sorted(told.keys() - {'rules.yml'}))} 2>&1", check=False)
    assert ended.returncode == 0, ended.stdout
    fires = {case.alert for case in alert_cases.CASES if case.labels is not None}
    stays = {case.alert for case in alert_cases.CASES if case.labels is None}
    assert fires == stays == set(severity)


@pytest.mark.long
def test_a_lost_initramfs_and_a_changed_file_are_told(box: Box, data: HostData) -> None:
    """The next reboot would lose the card; and a scrape file is mended without a restart."""
    box.run("touch /etc/modprobe.d/aibox-nvidia.conf && systemctl start aibox-facts")
    assert "aibox_next_reboot_keeps_card 0" in box.run(f"cat {FACTS}").stdout
    before = box.run(f"systemctl show {PROMETHEUS_UNIT} -p MainPID").stdout
    box.run(f"sed -i s/15s/16s/ {SCRAPES}")
    deployed(box, data)
    assert box.run(f"systemctl show {PROMETHEUS_UNIT} -p MainPID").stdout == before
    box.run("systemctl start aibox-facts")  # its timer would within a minute
    assert "aibox_next_reboot_keeps_card 1" in box.run(f"cat {FACTS}").stdout
    assert planned(box, data) == []


@pytest.mark.long
def test_turned_off_it_leaves_nothing_that_listens(box: Box, data: HostData) -> None:
    deployed(box, data)
    off = {**data, "monitoring": False, "_monitor": None}
    assert "Prometheus stops" in deploy({box: off}, "--dry").said
    assert "Grafana stops" in deployed(box, off).said
    listening = box.run("ss -ltnH").stdout
    assert not [port for port in (9100, 9835, 9090, 3000) if f":{port} " in listening], listening
    left = [DROP_IN_FILE, FACTS, DRIFT, SCRAPES, DASHBOARD, GPU_EXPORTER.unit_file]
    assert box.run(["ls", "-d", *left], check=False).stdout == ""
    assert planned(box, off) == []
    assert "gpu-exporter" not in manifest_of(box)["bit"]["doors"]
    again = deploy({box: data}, "--dry").said
    assert "Prometheus on port 9090" in again and "Grafana's repository, by its own key" in again
    assert f"{box.name} is asked here" in again


@pytest.mark.long
def test_a_stranger_on_a_port_is_left_alone_and_named(box: Box, data: HostData) -> None:
    off = {**data, "monitoring": False, "_monitor": None}
    deployed(box, off)
    box.run("systemd-run --unit=stranger python3 -m http.server 9100")
    box.until(lambda: box.run("ss -ltn | grep -q :9100", check=False).returncode == 0, 30)
    said = deployed(box, {**data, "_monitor": None, "monitoring": None}).said
    assert "on port 9100" not in said  # nobody watches
    refusal = the_one_refusal(deploy({box: {**off, "monitoring": True}}, "-y"))
    assert "port 9100 belongs to python3" in refusal.found
    assert "monitoring = False" in refusal.do
    said = deployed(box, data).said
    assert "the node exporter is left out: port 9100 belongs to python3" in said
    assert "gpu_temperature_C{" in got(box, at_home(9835))
    box.run("systemctl stop stranger")
    deployed(box, data)
    assert "aibox_info{" in got(box, at_home(9100))


@pytest.mark.long
def test_a_prometheus_of_ones_own_is_left_alone(box: Box, data: HostData) -> None:
    deployed(box, {**data, "monitoring": False, "_monitor": None})
    box.run("apt-get install -qy prometheus; sed -i s/example/mine/ /etc/prometheus/prometheus.yml")
    box.run("systemctl enable --now prometheus")
    said = deployed(box, data).said
    assert "Prometheus is yours: /etc/prometheus/prometheus.yml was changed" in said
    assert "Grafana is yours" not in said  # a deploy has brought it
    assert "python -m tasks.monitoring_files" in said
    assert box.run(f"ls {SCRAPES} {DASHBOARD}", check=False).stdout == f"{DASHBOARD}\n"
    assert planned(box, data) == []


@pytest.mark.long
def test_a_teardown_takes_all_of_it(box: Box, data: HostData) -> None:
    box.run("apt-get purge -qy prometheus grafana; rm -rf /etc/prometheus /var/lib/grafana")
    deployed(box, data)
    box.run("umount /var/cache/aibox/uv")  # this test's own
    ended = deploy({box: data}, "-y", entry="tasks/teardown.py")
    assert ended.code == 0, ended.said
    listening = box.run("ss -ltnH").stdout
    assert not [port for port in (9100, 9835, 9090, 3000) if f":{port} " in listening], listening
    paths = "/etc/systemd/system /etc/aibox /etc/prometheus /etc/grafana /usr/share/keyrings"
    left = box.run(f"find {paths} -name '*aibox*'", check=False).stdout
    assert [one for one in left.split() if "nvidia" not in one] == []
    assert box.run("ls -d /etc/systemd/system/*.service.d", check=False).stdout == ""
    assert box.run("systemctl is-enabled prometheus-node-exporter", check=False).returncode == 1


@pytest.mark.long
def test_a_monitor_of_its_own_reads_the_box_and_is_no_box(
    make_box: MakeBox, data: HostData
) -> None:
    """Two hosts; a third one is refused at the exporters' ports by the kernel itself."""
    box, monitor = make_box("watched"), make_box("watching", kind="bare")
    hosts = {box: {**data, "_monitor": None}, monitor: {**data, "_monitor": "only"}}
    ended = deploy(hosts, "-y")
    assert ended.code == 0, ended.said
    assert f"metrics are for {monitor.address}/32" in ended.said
    box_up = {f"aibox-{one}": "up" for one in ("vllm", "stream", "node", "gpu")}
    monitor.until(lambda: up(monitor) == box_up, 180)
    assert "nvidia" not in monitor.run("dpkg-query -W -f '${Package} '").stdout
    assert deploy(hosts, "--dry", "--json").planned == []
    assert check(hosts).code == 0
    assert monitor.run("ls /opt", check=False).stdout == ""
    stranger = make_box("stranger", kind="bare")
    assert "refused" in refused_at(stranger, box, 9100)
    torn = deploy(hosts, "-y", entry="tasks/teardown.py")
    assert torn.code == 0, torn.said
    assert monitor.run("ss -ltnH | grep -E ':(9090|3000) '", check=False).stdout == ""


def refused_at(stranger: Box, box: Box, port: int) -> str:
    """What a third machine meets at an exporter's port: nothing gets through, or an answer."""
    said: Any = stranger.run(
        f"timeout 5 python3 -c '{ONLY_CONNECT}' {box.address} {port}", check=False
    )
    return "answered" if said.returncode == 0 else "refused"


ONLY_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 4)"
