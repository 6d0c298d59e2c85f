"""Which exporters stand, and for whom; what a Prometheus asks; whose a monitor's programs are."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml

from aibox.box import facts
from aibox.box.probe import commands, driver, programs, unit_files
from aibox.decide import monitoring, scraping, services, watcher
from aibox.decide.driver import DriverWanted
from aibox.decide.monitoring import GPU_EXPORTER, NODE_EXPORTER, Monitor, Standing
from aibox.decide.preflight import PortOwner
from aibox.decide.scraping import HERE, Seen
from aibox.decide.services import FOREIGN, OURS, Asked, Verdict
from aibox.decide.watcher import Found
from aibox.settings import SettingsError
from tests.unit.conftest import ROOT, Load

ITSELF = Monitor("ai-box", "ai-box", itself=True)
KNOWN = Monitor("watcher", "192.168.1.7", itself=False)
NAMED = Monitor("watcher", "watcher", itself=False)
NGINX = PortOwner(9, "nginx", "nginx.service")
ON = Verdict(on=True)


# --- who may read --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "monitors", "readers", "is_refused"),
    [
        ([], [], (), False),
        ([], [ITSELF], (), False),
        ([], [KNOWN], ("192.168.1.7/32",), False),
        ([], [Monitor("w", "2001:db8::7", itself=False)], ("2001:db8::7/128",), False),
        ([], [Monitor("w", "127.0.0.1", itself=False)], (), True),
        (["10.0.0.0/8"], [KNOWN], ("10.0.0.0/8", "192.168.1.7/32"), False),
        (["192.168.1.7/32"], [KNOWN], ("192.168.1.7/32",), False),
        ([], [NAMED], (), True),
        ([], [KNOWN, NAMED], ("192.168.1.7/32",), True),
        (["10.0.0.0/8"], [NAMED], ("10.0.0.0/8",), False),
    ],
)
def test_a_monitor_may_read_where_its_address_is_known(
    said: list[str], monitors: list[Monitor], readers: tuple[str, ...], is_refused: bool
) -> None:
    assert monitoring.readers(said, monitors) == readers
    refusal = monitoring.unknown_monitor(said, monitors, [])
    assert (refusal is not None) == is_refused
    if refusal:
        assert "metrics_from" in refusal.remedy


def test_a_monitor_that_nobody_knows_may_be_a_box_written_wrong() -> None:
    refusal = monitoring.unknown_monitor([], [Monitor("oen", "oen", itself=False)], ["one", "two"])
    assert refusal is not None and "did you mean one?" in refusal.found


@pytest.mark.parametrize(
    ("readers", "address", "allowed"),
    [
        ((), "127.0.0.1:9100", ["localhost"]),
        (("192.168.1.7/32",), "0.0.0.0:9100", ["localhost", "192.168.1.7/32"]),
    ],
)
def test_the_node_exporter_listens_for_readers_only(
    readers: tuple[str, ...], address: str, allowed: list[str]
) -> None:
    standing = Standing(True, ON, ON, readers)
    lines = monitoring.node_drop_in(standing, 9100, ["vllm-coder.service"]).splitlines()
    assert lines[0].startswith(unit_files.FIRST_WORDS)
    assert "ExecStart=" in lines  # the package's own goes
    assert "$ARGS" in "".join(lines)
    assert any(f"--web.listen-address={address}" in line for line in lines)
    assert any("unit-include=(vllm-coder[.]service)" in line for line in lines)
    assert "IPAddressDeny=any" in lines
    assert [line.partition("=")[2] for line in lines if "IPAddressAllow" in line] == allowed


def test_the_plan_names_exporters_and_who_may_read() -> None:
    asked = [Asked(NODE_EXPORTER, None, 9100), Asked(GPU_EXPORTER, None, 9835)]
    left_out = services.judge(asked[0], NGINX, None)
    rows = monitoring.plan_rows(asked, Standing(True, left_out, ON, ("10.0.0.0/8",)))
    assert rows == [
        "the node exporter is left out: port 9100 belongs to nginx (pid 9, unit nginx.service) "
        "(node_exporter_port takes another, monitoring = False says no)",
        "the GPU exporter (nvitop) on port 9835",
        monitoring.WITHOUT_NODE_EXPORTER,
        "metrics are for 10.0.0.0/8",
    ]
    assert monitoring.plan_rows(asked, Standing(True, ON, ON, ())) == [
        "the node exporter on port 9100",
        "the GPU exporter (nvitop) on port 9835",
        "metrics are for this box only",
    ]
    assert monitoring.plan_rows(asked, monitoring.OFF) == []


@pytest.mark.parametrize(
    ("address", "monitors", "is_refused"),
    [
        ("@local", [KNOWN], True),
        ("@local", [ITSELF, KNOWN], True),
        ("@local", [Monitor("@local", "@local", itself=True)], False),
        ("@local", [], False),
        ("192.168.1.20", [KNOWN], False),
        ("ai-box", [KNOWN], False),
    ],
)
def test_a_box_that_only_pyinfra_can_name_is_refused_to_a_monitor(
    address: str, monitors: list[Monitor], is_refused: bool
) -> None:
    refusal = monitoring.unknown_box(address, monitors)
    assert (refusal is not None) == is_refused
    if refusal:
        assert "box_address" in refusal.remedy


@pytest.mark.parametrize("name", ["ai box", "-box", "ai-box.", "http://ai-box", ""])
def test_an_address_that_nobody_can_reach_is_refused(load: Load, name: str) -> None:
    with pytest.raises(SettingsError, match="box_address"):
        load(box_address=name)


@pytest.mark.parametrize("name", ["ai-box", "ai-box.home.arpa", "192.168.1.20", "2001:db8::7"])
def test_a_name_or_an_address_will_do(load: Load, name: str) -> None:
    assert load(box_address=name).box_address == name


def test_exporters_have_ports_of_their_own(load: Load) -> None:
    with pytest.raises(SettingsError, match="gpu_exporter_port: 9100 is node_exporter_port too"):
        load(gpu_exporter_port=9100)
    load(gpu_exporter_port=9100, monitoring=False)


# --- what is asked of the boxes ------------------------------------------------------------------

PORTS = {"server": 8000, "stream": 4000, "gateway": 4001, "node": 9100, "gpu": 9835}


def targets(*boxes: Seen) -> dict[str, list[tuple[str, str]]]:
    """{job: [(target, path)]}"""
    return {
        one["job_name"]: [
            (target["targets"][0], target["labels"]["__metrics_path__"])
            for target in one["static_configs"]
        ]
        for one in scraping.jobs(boxes)
    }


def test_a_monitor_elsewhere_reads_the_server_through_the_filter() -> None:
    found = targets(Seen("a", "192.168.1.20", PORTS))
    assert found["aibox-vllm"] == [("192.168.1.20:4000", "/metrics/vllm")]
    assert found["aibox-gateway"] == [("192.168.1.20:4001", "/metrics/")]
    # a person's own Prometheus has a job `node` already, and takes no name twice
    assert set(found) == {f"aibox-{one}" for one in ("vllm", "stream", "gateway", "node", "gpu")}


def test_a_box_that_watches_itself_reads_the_server() -> None:
    assert targets(Seen("a", HERE, PORTS))["aibox-vllm"] == [("127.0.0.1:8000", "/metrics")]


def test_ipv6_stands_in_brackets() -> None:
    assert targets(Seen("a", "2001:db8::7", PORTS))["aibox-node"] == [
        ("[2001:db8::7]:9100", "/metrics")
    ]


def test_without_the_filter_the_server_is_not_seen_from_elsewhere() -> None:
    seen = Seen("a", "192.168.1.20", {"server": 8000, "node": 9100})
    assert set(targets(seen)) == {"aibox-node"}
    assert "without the stream filter" in (scraping.blind(seen) or "")
    assert scraping.blind(Seen("a", HERE, {"server": 8000})) is None


def test_figures_that_name_their_box_keep_the_name() -> None:
    jobs = {one["job_name"]: one for one in scraping.jobs([Seen("a", HERE, PORTS)])}
    assert jobs["aibox-node"]["honor_labels"] is True
    assert "honor_labels" not in jobs["aibox-vllm"]
    [labels] = [one["labels"] for one in jobs["aibox-node"]["static_configs"]]
    assert labels["box"] == "a"


def files(folder: Path, inventory: str) -> subprocess.CompletedProcess[str]:
    """By a process of its own: pyinfra changes the one that reads an inventory."""
    folder.joinpath("boxes.py").write_text(inventory)
    words = [sys.executable, "-m", "tasks.monitoring_files", str(folder / "boxes.py")]
    return subprocess.run(
        [*words, "--into", str(folder / "written")],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )


def test_the_files_for_a_prometheus_of_ones_own(tmp_path: Path) -> None:
    data = {"monitoring": True, "box_address": "192.168.1.20"}
    done = files(tmp_path, f"site = [('ai-box', {data!r})]\nmonitor = ['watcher']\n")
    assert done.returncode == 0, done.stderr
    assert "scrape_config_files" in done.stdout
    folder = tmp_path / "written"
    names = {path.name for path in folder.iterdir()}
    assert names == {"scrape.yml", "alerts.yml", "dashboard.json"}
    jobs = yaml.safe_load((folder / "scrape.yml").read_text())["scrape_configs"]
    addresses = {one["job_name"]: one["static_configs"][0]["targets"] for one in jobs}
    assert addresses["aibox-gpu"] == ["192.168.1.20:9835"]
    assert all(len(one["static_configs"]) == 1 for one in jobs)  # the monitor is no box
    assert "do not have" not in done.stdout


def test_files_that_are_written_before_the_boxes_are_watched_are_whole(tmp_path: Path) -> None:
    """They need not be written again after monitoring = True, which is said."""
    done = files(tmp_path, "site = ['ai-box', ('two', {'monitoring': True})]\n")
    assert done.returncode == 0, done.stderr
    jobs = yaml.safe_load((tmp_path / "written/scrape.yml").read_text())["scrape_configs"]
    hosts = {one["job_name"]: [at["labels"]["box"] for at in one["static_configs"]] for one in jobs}
    assert hosts["aibox-node"] == hosts["aibox-gpu"] == ["ai-box", "two"]
    assert done.stdout.endswith("these do not have monitoring = True yet: ai-box\n")


def test_a_box_that_is_not_watched_is_asked_nothing(tmp_path: Path) -> None:
    """Else its server were down for ever."""
    boxes = "[('ai-box', {'monitoring': True}), ('other', {'monitoring': False})]"
    done = files(tmp_path, f"site = {boxes}\n")
    assert done.returncode == 0, done.stderr
    text = (tmp_path / "written/scrape.yml").read_text()
    assert "box: ai-box" in text
    assert "other" not in text


@pytest.mark.parametrize(
    ("inventory", "words"),
    [
        ("site = ['@local']\n", "@local has no address"),
        ("site = [('ai-box', {'monitoring': False})]\n", "all of them with monitoring = False"),
    ],
)
def test_files_that_would_watch_nothing_are_refused(
    tmp_path: Path, inventory: str, words: str
) -> None:
    done = files(tmp_path, inventory)
    assert done.returncode == 1, done.stdout
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "written").exists()


def test_files_for_settings_that_cannot_work_are_refused(tmp_path: Path) -> None:
    done = files(tmp_path, "site = [('ai-box', {'stream_prot': 4000})]\n")
    assert done.returncode == 1
    assert "stream_prot: unknown setting" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "written").exists()


# --- whose a monitor's programs are --------------------------------------------------------------

HIS = PortOwner(7, "prometheus", "prometheus.service")
CONTAINER = PortOwner(7, "docker-proxy", None, manager="container")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Found(None, None, None), None),
        (Found(HIS, OURS, ()), None),
        (Found(None, None, ()), None),  # the distribution's, as it came
        (Found(HIS, None, ()), None),
        (Found(HIS, None, ("/etc/prometheus/prometheus.yml",)), "was changed"),
        (Found(HIS, OURS, ("/etc/prometheus/prometheus.yml",)), None),  # by hand, since
        (Found(CONTAINER, None, None), "port 9090 belongs to docker-proxy"),
        (Found(NGINX, OURS, ()), "port 9090 belongs to nginx"),
        (Found(None, FOREIGN, ("/etc/default/prometheus",)), "was changed"),
    ],
)
def test_a_prometheus_of_ones_own_is_left_alone(found: Found, words: str | None) -> None:
    said = watcher.is_theirs(watcher.prometheus(), found)
    assert (said is None) == (words is None), said
    assert (words or "") in (said or "")


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (Found(None, None, None), None),
        (Found(None, OURS, ()), None),
        (Found(None, None, ()), "it was installed before"),  # its first password is known
        (Found(None, None, (), brought=True), None),  # ours, turned off and on again
        (Found(CONTAINER, None, (), brought=True), "grafana_port takes another port"),
        (Found(CONTAINER, None, None), "grafana_port takes another port"),
    ],
)
def test_a_grafana_of_ones_own_is_left_alone(found: Found, words: str | None) -> None:
    said = watcher.is_theirs(watcher.grafana(3000), found)
    assert (said is None) == (words is None), said
    assert (words or "") in (said or "")


def test_grafana_turned_off_keeps_the_password_that_it_knows() -> None:
    assert watcher.PASSWORD not in watcher.GRAFANA_FILES_OF_NOW
    assert {*watcher.FILES} >= {watcher.PASSWORD, *watcher.GRAFANA_FILES_OF_NOW}  # a teardown's


BOTH = ["prometheus", "grafana"]


@pytest.mark.parametrize(
    ("address", "name", "words"),
    [
        ("0.0.0.0", "watcher", "Grafana on port 3000"),
        ("127.0.0.1", "watcher", "ssh -fNL 3000:localhost:3000 watcher"),
        ("127.0.0.1", "@local", "Grafana on http://localhost:3000 of the monitor alone"),
    ],
)
def test_the_last_screen_says_how_to_reach_alerts_and_dashboard(
    address: str, name: str, words: str
) -> None:
    alerts, grafana, password = watcher.reached(BOTH, address, 3000, name)
    assert "http://localhost:9090/alerts" in alerts
    assert ("ssh -fNL 9090:localhost:9090 watcher" in alerts) == (name == "watcher")
    assert words in grafana
    assert password.endswith(f"sudo cat {watcher.PASSWORD}")


def test_only_what_is_ours_is_said_to_stand() -> None:
    his = "Grafana is yours: it was installed before"
    prometheus, said = watcher.stands(["prometheus"], [his], "127.0.0.1", 3000)
    assert "port 9090" in prometheus
    assert said == his
    assert len(watcher.reached(["prometheus"], "127.0.0.1", 3000, "watcher")) == 1
    assert watcher.PASSWORD in watcher.stands(BOTH, [], "0.0.0.0", 3000)[1]


@pytest.mark.parametrize(
    ("stopped", "words"),
    [([], []), (["prometheus"], ["alerts"]), (BOTH, ["alerts", "dashboard"])],
)
def test_what_stops_is_said(stopped: list[str], words: list[str]) -> None:
    rows = watcher.goes(stopped)
    assert len(rows) == len(words)
    assert all(word in row for word, row in zip(words, rows, strict=True))


def test_a_monitor_says_where_it_asks_each_box() -> None:
    assert scraping.asked_at(Seen("a", HERE, PORTS)) == "a is asked here"
    assert scraping.asked_at(Seen("b", "10.0.0.2", PORTS)) == "b is asked at 10.0.0.2"
    assert scraping.asked_at(Seen("b", "b", PORTS, "unknown")) == "b is asked at b; unknown"


def test_provisioned_files_are_yaml_and_name_our_places() -> None:
    source = yaml.safe_load(watcher.source_of_data())
    assert source["apiVersion"] == 1
    assert source["datasources"][0]["url"] == "http://127.0.0.1:9090"
    provider = yaml.safe_load(watcher.provider())
    assert watcher.DASHBOARD.startswith(provider["providers"][0]["options"]["path"] + "/")
    drop_in = watcher.grafana_drop_in("127.0.0.1", 3000)
    assert f"LoadCredential=admin-password:{watcher.PASSWORD}" in drop_in
    assert "$__file{%d/admin-password}" in drop_in


def test_files_of_a_package_that_were_changed_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    same, other = tmp_path / "same", tmp_path / "other"
    same.write_text("a")
    other.write_text("b")
    sum_of_a = "0cc175b9c0f1b6a831c399e269772661"
    rows = [f" {path} {sum_of_a}" for path in (same, other, tmp_path / "gone")]
    said = "\n".join(["installed", *rows, f" {other} {sum_of_a} obsolete"])
    monkeypatch.setattr(programs, "text_of", lambda _words: said)
    assert programs.changed_by_hand("prometheus") == [str(other), str(other)]
    monkeypatch.setattr(programs, "text_of", lambda _words: None)
    assert programs.changed_by_hand("prometheus") is None


# --- what a box tells of itself ------------------------------------------------------------------

WANTED = DriverWanted(
    version="580.178.04",
    os_id="debian",
    os_version="12",
    url="https://packages.example/debian12/",
    fingerprint="A" * 40,
    cuda="13.0",
    pci_ids=("10de:2bb1",),
    gpu_uuids=(),
    power_limit_w=None,
    uvm_disable_hmm=False,
    reboot_while_serving=False,
    server_unit="vllm-coder",
)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The deploy's file, on a machine whose probe is asked for nothing else."""
    config = tmp_path / "facts.json"
    text = monitoring.facts_config(
        "vllm-coder.service", asdict(WANTED), speculative=True, built={"vllm": "0.31.0"}
    )
    config.write_text(text)
    monkeypatch.setattr(facts, "CONFIG", config)
    monkeypatch.setattr(facts, "WRITTEN", tmp_path / "aibox.prom")
    monkeypatch.setattr(commands, "ran", lambda *_: None)
    return config


def report(module: dict[str, str] | None) -> dict[str, Any]:
    kernel = {"release": "6.1.0-1", "headers": True, "module": module, "initrd_changed": None}
    empty: dict[str, Any] = dict.fromkeys(
        ("secure_boot", "mok_enrolled", "loaded", "uvm_disable_hmm", "library", "key"), None
    )
    empty |= dict.fromkeys(("key_fingerprint", "modprobe_changed", "glibc", "cuda_proof"), None)
    empty |= {"packages": {}, "runfile": [], "sources": {}, "nvcc": {}, "pci": []}
    empty |= {"uvm": True, "nouveau": False, "boot_id": "b", "persistenced": "active"}
    return {**empty, "kernel": "6.1.0-1", "kernels": [kernel], "kernel_log": []}


@pytest.mark.parametrize(
    ("module", "row"),
    [
        ({"version": "580.178.04", "license": "Dual MIT/GPL"}, "keeps_card 1"),
        (None, "keeps_card 0"),
    ],
)
@pytest.mark.usefixtures("told")
def test_a_box_judges_its_next_reboot_by_what_the_deploy_wanted(
    monkeypatch: pytest.MonkeyPatch, module: dict[str, str] | None, row: str
) -> None:
    monkeypatch.setattr(driver, "driver", lambda _asked: report(module))
    assert facts.facts() == 0
    written = facts.WRITTEN.read_text()
    assert f"aibox_next_reboot_{row}" in written
    assert 'aibox_info{vllm="0.31.0"} 1' in written


def test_a_damaged_file_is_refused_in_words(told: Path, capsys: pytest.CaptureFixture[str]) -> None:
    told.write_text(json.dumps({"unit": "vllm-coder.service"}))
    assert facts.facts() == 1
    said = capsys.readouterr().err
    assert "deploy again" in said
    assert "Traceback" not in said
    assert not facts.WRITTEN.exists()
