import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aibox.decide.driver_refusals import RepositoryAnswer
from aibox.decide.fitting import Load, load_of
from aibox.decide.preflight import (
    BoxReport,
    PortOwner,
    Wanted,
    can_ask_apt,
    cut_off,
    judge,
    serving_now,
    unfinished,
    warnings,
)
from tests.unit.driver_report import WANTED as DRIVER
from tests.unit.driver_report import bare, driven, evidence

GB = 10**9
NOW = 1_800_000_000.0
RELEASE = "/opt/vllm/releases/0.31.0-01234567"
WEIGHTS = "/srv/models/qwen3.8-27b/abc"
WANTED = Wanted(
    locked_pythons=("3.11", "3.13"),
    vllm_version="0.31.0",
    server_port=8000,
    server_unit="vllm-coder",
    server_user="vllm",
    releases_folder="/opt/vllm/releases",
    release_folder=RELEASE,
    release_bytes=12 * GB,
    cache_folder="/var/cache/aibox",
    models_folder="/srv/models",
    weights_folder=WEIGHTS,
    weights_bytes=55 * GB,
    reserve_bytes=10 * GB,
    clock=NOW,
)


OURS = (PortOwner(7, "python", "vllm-coder.service", ports=(9000,)),)


def good_report() -> dict[str, Any]:
    disk = {"filesystem": "66305", "mount": "/", "free_bytes": 200 * GB}
    return {
        "os": {"id": "debian", "version_id": "12", "pretty_name": "Debian GNU/Linux 12 (bookworm)"},
        "architecture": "x86_64",
        "python": "3.11",
        "root": True,
        "systemd": 252,
        "memory_bytes": 64 * GB,
        "clock": NOW + 3,
        "disks": {
            "/usr": dict(disk),
            "/opt/vllm/releases": disk,
            "/srv/models": dict(disk),
            "/var/cache/aibox": dict(disk),
        },
        "ports": {"8000": None},
        "serving": [],
        "dpkg": {"present": True, "broken": []},
        "gpu": {
            "library": True,
            "error": None,
            "driver": "580.178.04",
            "cards": [
                {
                    "index": 0,
                    "name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
                    "uuid": "GPU-0",
                    "memory_bytes": 102_641_958_912,
                    "capability": [12, 0],
                    "mig": None,
                    "power_min_w": 150.0,
                    "power_max_w": 600.0,
                }
            ],
        },
        "account": None,
        "foreign_unit": None,
        "units": {"vllm-stream.service": None, "litellm.service": None},
        "keys": [],
        "sizes": {RELEASE: 0, WEIGHTS: 0},
    }


def at(report: dict[str, Any], place: str, value: object) -> dict[str, Any]:
    """The report with another value at a place such as "os.id"."""
    *steps, last = place.split(".")
    inner: Any = report
    for step in steps:
        inner = inner[int(step)] if isinstance(inner, list) else inner[step]
    inner[last] = value
    return report


def refusals(
    report: dict[str, Any],
    driver: dict[str, Any] | None = None,
    *,
    serving: Sequence[PortOwner] = (),
    offered: RepositoryAnswer | None = None,
    load: Load | None = None,
    **changes: Any,
) -> list[str]:
    """In words. driver: the probe's answer to "driver"; load: on the cards; changes: of what is
    wanted of the driver."""
    asked = replace(DRIVER, **changes)
    parsed = BoxReport.parse(json.dumps(report))
    wanted = replace(WANTED, load=load)
    judged = judge(parsed, wanted, evidence(driver), asked, serving=serving, offered=offered)
    return [str(refusal) for refusal in judged]


def the_refusal(report: dict[str, Any], driver: dict[str, Any] | None = None) -> str:
    found = refusals(report, driver)
    assert len(found) == 1, found
    return found[0]


def test_a_good_box_is_not_refused() -> None:
    assert refusals(good_report()) == []
    assert warnings(BoxReport.parse(json.dumps(good_report())), evidence()) == []


@pytest.mark.parametrize(
    ("system", "version", "refused", "warned"),
    [
        ("ubuntu", "24.04", False, False),
        ("debian", "12", False, False),
        ("debian", "13", False, False),
        ("ubuntu", "26.04", False, True),
        ("ubuntu", "22.04", True, False),
        ("debian", "11", True, False),
        ("fedora", "43", True, False),
    ],
)
def test_the_operating_system(system: str, version: str, refused: bool, warned: bool) -> None:
    report = at(at(good_report(), "os.id", system), "os.version_id", version)
    assert bool(refusals(report)) == refused
    assert bool(warnings(BoxReport.parse(json.dumps(report)), evidence())) == warned


LIBRARY_MISSING: dict[str, Any] = {"library": False, "error": None, "driver": None, "cards": []}
MISMATCH: dict[str, Any] = LIBRARY_MISSING | {
    "library": True,
    "error": "Driver/library version mismatch",
}


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("architecture", "aarch64", ["architecture aarch64", "x86_64"]),
        ("root", False, ["do not run as root", "sudo"]),
        ("systemd", None, ["no systemd", "252 or newer"]),
        ("systemd", 249, ["systemd 249"]),
        ("python", None, ["no python3", "apt-get install python3"]),
        ("python", "3.12", ["Python 3.12", "3.11, 3.13", "make a lock for Python 3.12"]),
        ("dpkg.present", False, ["no dpkg"]),
        ("memory_bytes", 4 * GB, ["4.0 GB of memory", "7.5 GB"]),
        ("clock", NOW - 601, ["10 minutes behind", "timedatectl"]),
        ("clock", NOW + 86400 * 365, ["365 days ahead of"]),
        ("clock", NOW - 3600 * 5, ["5 hours behind"]),
        ("gpu.cards", [], ["no card"]),
        ("gpu.cards.0.memory_bytes", 32607 * 2**20, ["34.2 GB (32607 MiB)"]),
        ("gpu.cards.0.memory_bytes", None, ["not supported"]),
        ("ports", {}, ["port 8000"]),
    ],
)
def test_one_fault_is_one_refusal(place: str, value: object, words: list[str]) -> None:
    refusal = the_refusal(at(good_report(), place, value))
    for word in words:
        assert word in refusal


@pytest.mark.parametrize(
    ("gpu", "driver"),
    [
        (LIBRARY_MISSING, bare()),
        (MISMATCH, driven() | {"library": "595.71.05"}),
        (
            good_report()["gpu"] | {"driver": "570.86.10"},
            driven() | {"loaded": {"version": "570.86.10", "open": True}},
        ),
    ],
    ids=["missing", "upgraded under the loaded module", "too old"],
)
def test_a_driver_that_the_stage_mends_is_no_fault(
    gpu: dict[str, Any], driver: dict[str, Any]
) -> None:
    assert refusals(at(good_report(), "gpu", gpu), driver) == []


def test_what_dpkg_has_not_finished_is_no_fault_until_it_cannot_be() -> None:
    assert refusals(at(good_report(), "dpkg.broken", ["a: unpacked"])) == []
    refusal = str(unfinished(("a: unpacked",)))
    assert "a: unpacked" in refusal
    assert "dpkg --configure -a" in refusal


def test_without_a_driver_the_bus_names_the_card() -> None:
    report = at(good_report(), "gpu", LIBRARY_MISSING)
    assert "no NVIDIA card" in the_refusal(report, bare() | {"pci": []})
    slot = {"slot": "0000:01:00.0", "id": "10de:2b85", "driver": None}
    assert "RTX 5090" in the_refusal(report, bare() | {"pci": [slot]})


def test_a_reboot_is_refused_while_the_server_answers() -> None:
    report = at(good_report(), "gpu", MISMATCH)
    old = driven() | {"loaded": {"version": "570.195.03", "open": True}}
    [refusal] = refusals(report, old, serving=OURS)
    assert "the loaded module is 570.195.03, not 580.178.04" in refusal
    assert "reboot_while_serving = True" in refusal
    assert refusals(report, old, serving=OURS, reboot_while_serving=True) == []
    assert refusals(good_report(), serving=OURS) == []


@pytest.mark.parametrize(
    ("owner", "who", "stop"),
    [
        (OURS[0], "the server (vllm-coder.service, port 9000)", "`systemctl stop vllm-coder`"),
        (
            replace(OURS[0], unit="q.service", ports=(9000, 9001)),
            "q.service (ports 9000, 9001)",
            "`systemctl stop q.service`",
        ),
        (
            replace(OURS[0], unit="vllm-coder.service", manager="user", user="me"),
            "vllm-coder.service of me (port 9000)",
            "`systemctl --user -M me@ stop vllm-coder.service`",
        ),
        (
            replace(OURS[0], unit="0123456789ab", manager="container"),
            "a vLLM in the container 0123456789ab",
            "`docker stop 0123456789ab`",
        ),
        (
            replace(OURS[0], unit="0123456789ab", manager="container", starter="q.service"),
            "a vLLM in a container of q.service",
            "`systemctl stop q.service`",
        ),
        (replace(OURS[0], unit=None, manager="none"), "python (pid 7, port 9000)", "`kill 7`"),
    ],
)
def test_whoever_a_reboot_cuts_off_is_named(owner: PortOwner, who: str, stop: str) -> None:
    assert cut_off(owner, "vllm-coder") == (who, stop)


def test_what_the_kernel_says_of_the_card_is_a_warning() -> None:
    said = "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus."
    [warning] = warnings(BoxReport.parse(json.dumps(good_report())), evidence(kernel_log=[said]))
    assert said in warning


def holder(pid: int, name: str, unit: str | None, **more: Any) -> dict[str, Any]:
    """Who holds a port, as the probe tells it."""
    manager = "system" if unit else "none"
    kept = {"unit": unit, "manager": manager, "user": "me", "starter": None, **more}
    return {"pid": pid, "name": name, "vllm": name == "vllm", **kept}


@pytest.mark.parametrize(
    ("owner", "words"),
    [
        (None, None),
        (holder(1, "python3", "vllm-coder.service"), None),
        (
            holder(12, "nginx", "nginx.service"),
            ["nginx (pid 12, unit nginx.service)", "systemctl disable --now nginx.service"],
        ),
        (holder(12, "vllm", "qwen.service"), ['adopt it: set server_unit = "qwen" in group_data']),
        (holder(12, "vllm", "vllm@a.service"), ["`systemctl disable --now vllm@a.service`"]),
        (
            holder(12, "vllm", "vllm-coder.service", manager="user"),
            ["a unit of the user me", "`systemctl --user -M me@ disable --now vllm-coder.service`"],
        ),
        (
            holder(12, "docker-proxy", None, manager="container"),
            ["a container", "publish=8000", "docker update --restart=no"],
        ),
        (
            holder(12, "docker-proxy", None, manager="container", starter="qwen.service"),
            [
                "a container of qwen.service",
                "`systemctl disable --now qwen.service`, which starts the container",
            ],
        ),
        (holder(12, "vllm", None), ["no systemd unit", "`kill 12`"]),
        (holder(0, "a hidden process", None, manager=None), ["a hidden process", "ss -ltnp"]),
    ],
)
def test_the_port_is_free_or_ours(owner: object, words: list[str] | None) -> None:
    report = at(good_report(), "ports", {"8000": owner})
    if words is None:
        assert refusals(report) == []
    else:
        assert all(word in the_refusal(report) for word in words)


def free(root: int, models: int | None = None) -> dict[str, Any]:
    report = good_report()
    for disk in report["disks"].values():
        disk["free_bytes"] = root
    if models is not None:
        other = {"filesystem": "9", "mount": "/srv", "free_bytes": models}
        report["disks"]["/srv/models"] = other
    return report


def test_downloads_count_where_they_are_on_a_disk_of_their_own() -> None:
    """On the releases' own disk uv's cache and the release share their blocks."""
    report = good_report()
    own = {"filesystem": "9", "mount": "/var", "free_bytes": 21 * GB}
    report["disks"]["/var/cache/aibox"] = own
    refusal = the_refusal(report)
    assert "21.0 GB free on /var" in refusal
    assert "12.0 GB for the release's downloads in /var/cache/aibox" in refusal
    assert "set cache_folder to a folder on a larger disk" in refusal
    own["free_bytes"] = 22 * GB
    assert refusals(report) == []


def test_needs_on_one_filesystem_add_up() -> None:
    assert refusals(free(77 * GB)) == []
    refusal = the_refusal(free(77 * GB - 1))
    assert "77.0 GB free on /" in refusal
    assert "12.0 GB for the release in /opt/vllm/releases" in refusal
    assert "55.0 GB for the weights in /srv/models, 10.0 GB kept free" in refusal
    assert "free 0.1 GB on /, or set releases_folder or models_folder" in refusal


def test_filesystems_are_judged_apart() -> None:
    assert refusals(free(22 * GB, 65 * GB)) == []
    assert "22.0 GB: 12.0 GB for the release" in the_refusal(free(21 * GB, 65 * GB))
    assert "free 1.0 GB on /srv, or set models_folder" in the_refusal(free(22 * GB, 64 * GB))
    assert len(refusals(free(0, 0))) == 2


def test_what_is_there_already_is_not_needed_again() -> None:
    assert refusals(at(free(22 * GB), "sizes", {WEIGHTS: 55 * GB})) == []
    assert refusals(at(free(47 * GB), "sizes", {WEIGHTS: 30 * GB, RELEASE: 0})) == []
    assert refusals(at(free(46 * GB), "sizes", {WEIGHTS: 30 * GB, RELEASE: 0}))
    assert refusals(at(free(65 * GB), "sizes", {RELEASE: 8 * GB})) == []


def answer(**changes: Any) -> RepositoryAnswer:
    """NVIDIA's repository with 5 GB to bring, and whatever else is said of it."""
    return replace(
        RepositoryAnswer("-----BEGIN", DRIVER.fingerprint, None, {}, (), GB, 4 * GB, None),
        **changes,
    )


def test_driver_and_toolkit_take_room_beside_the_rest() -> None:
    assert refusals(free(82 * GB), offered=answer()) == []
    [refusal] = refusals(free(81 * GB), offered=answer())
    assert "82.0 GB: 5.0 GB for driver and CUDA toolkit in /usr, 12.0 GB for the rel" in refusal
    assert "free 1.0 GB on /, or set releases_folder or models_folder" in refusal


def test_a_small_disk_for_the_system_alone_names_no_setting() -> None:
    report = free(100 * GB)
    report["disks"]["/usr"] = {"filesystem": "7", "mount": "/usr", "free_bytes": 14 * GB}
    [refusal] = refusals(report, offered=answer())
    assert "14.0 GB free on /usr" in refusal
    assert "15.0 GB: 5.0 GB for driver and CUDA toolkit in /usr, 10.0 GB kept free" in refusal
    assert refusal.endswith("free 1.0 GB on /usr, then run again")


def test_what_the_repository_lacks_comes_with_the_rest() -> None:
    found = refusals(free(0), offered=answer(error=f"E: {DRIVER.url} 404  Not Found"))
    assert len(found) == 2 and "404" in found[0] and "0.0 GB free" in found[1]


def test_apt_that_resolves_nothing_beside_unfinished_packages_is_no_refusal() -> None:
    stuck = answer(unresolved="a : Depends: b but it is not going to be installed")
    assert len(refusals(good_report(), offered=stuck)) == 1
    report = at(good_report(), "dpkg.broken", ["a: unpacked"])
    assert refusals(report, offered=stuck) == []


@pytest.mark.parametrize(
    ("place", "value"),
    [("os.id", "fedora"), ("architecture", "aarch64"), ("root", False), ("dpkg.present", False)],
)
def test_a_repository_without_a_folder_for_the_box_is_not_asked(place: str, value: object) -> None:
    assert can_ask_apt(BoxReport.parse(json.dumps(good_report())))
    assert not can_ask_apt(BoxReport.parse(json.dumps(at(good_report(), place, value))))


@pytest.mark.parametrize(("watts", "refused"), [(149, True), (150, False), (600, False)])
def test_a_power_limit_is_one_that_the_card_allows(watts: int, refused: bool) -> None:
    found = refusals(good_report(), power_limit_w=watts)
    assert len(found) == refused
    assert all("150 to 600 W" in one for one in found)


def test_without_a_driver_nobody_knows_the_bounds_of_power() -> None:
    report = at(good_report(), "gpu", LIBRARY_MISSING)
    assert refusals(report, bare(), power_limit_w=9) == []


def test_a_built_box_needs_no_room_at_all() -> None:
    assert refusals(at(free(0), "sizes", {RELEASE: 8 * GB, WEIGHTS: 56 * GB})) == []


def test_a_disk_nobody_asked_about_is_a_refusal() -> None:
    report = good_report()
    del report["disks"]["/srv/models"]
    assert "nothing is known about the disk under /srv/models" in the_refusal(report)


def test_all_faults_come_at_once() -> None:
    report = free(0)
    report |= {"architecture": "armv7l", "python": "3.9", "systemd": None, "memory_bytes": 0}
    report |= {"clock": 0, "gpu": LIBRARY_MISSING, "root": False, "os": {}}
    driver = bare() | {"pci": [], "secure_boot": True, "runfile": ["/usr/bin/nvidia-uninstall"]}
    report["os"] = {"id": "arch", "version_id": "", "pretty_name": "Arch Linux"}
    report["dpkg"] = {"present": False, "broken": []}
    report["ports"]["8000"] = holder(1, "x", None)
    assert len(refusals(report, driver, serving=OURS)) == 14


@pytest.mark.parametrize(
    ("place", "value", "words"),
    [
        ("os", None, "report.os: expected an object, found null"),
        ("os.id", 1, "report.os.id: expected text, found 1"),
        ("root", 1, "report.root: expected true or false, found 1"),
        ("memory_bytes", "64 GB", 'report.memory_bytes: expected a whole number, found "64 GB"'),
        ("memory_bytes", True, "report.memory_bytes: expected a whole number, found true"),
        ("memory_bytes", -1, "report.memory_bytes: expected 0 or more"),
        ("clock", float("nan"), "report.clock: expected seconds, found NaN"),
        ("clock", float("inf"), "report.clock: expected seconds"),
        ("clock", 10**400, "report.clock: expected seconds"),
        ("disks", [], "report.disks: expected an object"),
        ("disks./srv/models", None, "report.disks./srv/models: expected an object, found null"),
        ("serving", [{}], "report.serving[0].pid: missing"),
        ("ports", {"http": None}, "report.ports: expected port numbers"),
        ("dpkg.broken", [1], "report.dpkg.broken: expected texts"),
        ("gpu.cards", {}, "report.gpu.cards: expected a list"),
        ("gpu.cards.0.mig", "N/A", "report.gpu.cards[0].mig: expected enabled, disabled or null"),
        ("gpu.cards.0.capability", [12], "report.gpu.cards[0].capability: expected two numbers"),
        ("gpu.cards.0.capability", "12.0", "capability: expected two numbers or null"),
        ("sizes", {"/x": 1.5}, "report.sizes./x: expected a whole number, found 1.5"),
    ],
)
def test_a_malformed_report_is_a_value_error_in_words(
    place: str, value: object, words: str
) -> None:
    with pytest.raises(ValueError) as caught:
        BoxReport.parse(json.dumps(at(good_report(), place, value)))
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "[" * 100_000, "9" * 5000])
def test_a_report_that_is_no_object_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="report"):
        BoxReport.parse(text)


@pytest.mark.parametrize("name", list(good_report()))
def test_a_missing_part_is_named(name: str) -> None:
    report = good_report()
    del report[name]
    with pytest.raises(ValueError, match=rf"report\.{name}: missing"):
        BoxReport.parse(json.dumps(report))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(list(good_report())), json_values, min_size=1))
@settings(max_examples=100, deadline=None)
def test_any_report_is_judged_or_a_value_error(changes: dict[str, object]) -> None:
    try:
        report = BoxReport.parse(json.dumps(good_report() | changes))
    except ValueError as error:
        assert "report" in str(error)
        return
    judged = judge(report, WANTED, evidence(), DRIVER, serving=(), offered=None)
    assert isinstance(judged, list)


@pytest.mark.parametrize(
    ("account", "refused"),
    [
        (None, False),
        ({"uid": 998, "shell": "/usr/sbin/nologin"}, False),
        ({"uid": 1001, "shell": "/usr/sbin/nologin"}, False),
        ({"uid": 1000, "shell": "/bin/bash"}, True),
    ],
)
def test_a_persons_login_is_not_taken_for_the_server(account: Any, refused: bool) -> None:
    found = refusals(at(good_report(), "account", account))
    assert any("set server_user to" in text for text in found) is refused


HIS: dict[str, Any] = {"path": "/etc/systemd/system/vllm-coder.service"}
HIS |= {"starts_container": False, "starts_vllm": True}


def test_a_unit_that_no_deploy_has_written_is_no_fault() -> None:
    assert refusals(at(good_report(), "foreign_unit", HIS)) == []


def test_a_unit_that_starts_no_vllm_is_never_replaced() -> None:
    said = the_refusal(at(good_report(), "foreign_unit", {**HIS, "starts_vllm": False}))
    assert "starts no vLLM" in said
    assert "set server_unit to another name" in said


def test_a_unit_of_our_name_that_starts_a_container_has_one_answer() -> None:
    report = at(good_report(), "foreign_unit", {**HIS, "starts_container": True})
    idle = the_refusal(report)
    assert "`systemctl disable --now vllm-coder.service`" in idle
    assert "set server_unit to a name that no unit has" in idle
    of = {"manager": "container", "starter": "vllm-coder.service"}
    report["ports"]["8000"] = holder(12, "docker-proxy", None, **of)
    assert the_refusal(report) == idle
    assert "docker stop" not in idle


def test_what_serves_is_read_with_all_its_ports() -> None:
    row = {"pid": 7, "name": "python", "unit": "vllm-coder.service", "manager": "system"}
    row |= {"user": None, "vllm": False, "starter": None, "ports": [9000]}
    assert serving_now(json.dumps([row])) == OURS
    with pytest.raises(ValueError, match=r"serving\[0\]\.ports: expected whole numbers"):
        serving_now(json.dumps([row | {"ports": ["x"]}]))


# --- several cards ---

HEAVY = {"gpu-memory-utilization": 0.87}
TWO: dict[str, Any] = {"gpu_uuids": (), "cards": 2, "cards_for": "tensor-parallel-size 2"}


def on_the_bus(driver: dict[str, Any]) -> dict[str, Any]:
    """A second card of the kind."""
    (first,) = driver["pci"]
    return {**driver, "pci": [first, {**first, "slot": "0000:41:00.0"}]}


def with_cards(*uuids: str) -> dict[str, Any]:
    report = good_report()
    first = report["gpu"]["cards"][0]
    cards = [{**first, "index": at, "uuid": uuid} for at, uuid in enumerate(uuids)]
    return at(report, "gpu.cards", cards)


def test_weights_that_fit_no_card_are_refused_before_they_are_fetched() -> None:
    both, heavy = with_cards("GPU-1", "GPU-2"), load_of(HEAVY, 111 * GB)
    assert refusals(good_report(), load=load_of(HEAVY, 55 * GB)) == []
    (alone,) = refusals(good_report(), load=heavy)
    assert "111.0 GB of weights over 1 card: 111.0 GB a card" in alone
    spread = load_of({**HEAVY, "tensor-parallel-size": 2}, 111 * GB)
    assert refusals(both, on_the_bus(driven()), load=spread, **TWO) == []
    # told by the bus alone, where there is no driver
    undriven = at(good_report(), "gpu", LIBRARY_MISSING)
    (told,) = refusals(undriven, bare(), load=heavy)
    assert "102.0 GB × 0.87 = 88.7 GB" in told


def test_too_few_cards_are_one_refusal() -> None:
    heavy = load_of({**HEAVY, "tensor-parallel-size": 2}, 400 * GB)
    (found,) = refusals(good_report(), load=heavy, **TWO)
    assert "2 cards (tensor-parallel-size 2), each with at least 96 GB" in found
    undriven = at(good_report(), "gpu", LIBRARY_MISSING)
    (told,) = refusals(undriven, bare(), **TWO)
    assert "10de:2bb1 in slot" in told and '{"tensor-parallel-size": 1}' in told


def test_a_limit_must_suit_each_card() -> None:
    both = with_cards("GPU-1", "GPU-2")
    both["gpu"]["cards"][0] |= {"power_min_w": 150.0, "power_max_w": 600.0}
    both["gpu"]["cards"][1] |= {"power_min_w": 150.0, "power_max_w": 300.0}
    assert refusals(both, power_limit_w=300, **TWO) == []
    (found,) = refusals(both, power_limit_w=450, **TWO)
    assert "150 to 300 W" in found
