"""What a box must be, refused before the first change: exit 1, in words, and nothing touched.

One box with nothing but a driver serves for all that only has to be read; a test that breaks it
mends it again.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.rehearsal.box import Box
from tests.rehearsal.conftest import MakeBox
from tests.rehearsal.emulation import gpu
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.machine import CHECKOUT
from tests.rehearsal.provision import HERE, STANDIN_VERSION, deploy, standin
from tests.rehearsal.refusal import (
    Said,
    assert_planned,
    enlarge_disk,
    refusals_in,
    run_planned,
    run_refused,
    settings_faults,
    the_one_refusal,
    untouched,
)
from tests.rehearsal.registry import subnet_now

CARD = "at least 96 GB (decimal), compute capability 12.0 and MIG off"
ANOTHER_CARD = "use a box with an RTX PRO 6000 Blackwell (96 GB)"
FIRST_UUID = "GPU-5bd1e9a4-0000-4000-8000-000000000001"
SECOND_UUID = "GPU-5bd1e9a4-0000-4000-8000-000000000002"
UNKNOWN_ERROR = 999  # of NVML


@pytest.fixture(scope="module")
def bare(layers: Callable[[str], str | None]) -> Iterator[Box]:
    """One box that nobody has deployed to, with a healthy card, for the whole file."""
    with Box.up("refusals", layer=layers("driven"), owned=True) as box:
        box.run("sudo -n true", user="admin")  # Debian's sudo leaves a mark in the home, once
        yield box


@pytest.fixture
def box(bare: Box) -> Iterator[Box]:
    """That box; the card is a healthy one again at the test's end."""
    yield bare
    insert(bare, gpu.CARDS["workstation"])


@pytest.fixture
def refused(box: Box, hub: Hub) -> Callable[..., Said]:
    """Runs with -y and gives the one refusal, once it is seen that the box is as it was."""

    return lambda **data: run_refused(box, {**standin(hub.url), **data})


@pytest.fixture
def accepted(box: Box, hub: Hub) -> Callable[..., object]:
    """Sees that a run gets past the checks: it plans the work, and does nothing with --dry."""

    return lambda **data: run_planned(box, {**standin(hub.url), **data})


def insert(box: Box, state: gpu.State | None) -> None:
    """Put other cards into the box; None is none at all."""
    gpu.write_state(box.root, state)


@contextmanager
def without(box: Box, path: str) -> Iterator[None]:
    """A file of the box away, and back again."""
    box.run(f"mv {path} {path}.away")
    try:
        yield
    finally:
        box.run(f"mv {path}.away {path}")


@contextmanager
def edited(box: Box, path: str, script: str) -> Iterator[None]:
    """A file of the box changed by sed, and back again."""
    box.run(f"cp -p {path} {path}.kept && sed -i '{script}' {path}")
    try:
        yield
    finally:
        box.run(f"mv {path}.kept {path}")


@pytest.mark.parametrize(
    ("deed", "undone", "seen"),
    [
        ("touch /etc/new && rm /etc/new", "true", "/etc: folder"),
        ("chmod 600 /etc/hosts", "chmod 644 /etc/hosts", "/etc/hosts: f"),
        ("systemd-run -q --unit=passing sleep 60", "systemctl stop passing", "passing.service"),
    ],
)
def test_a_changed_box_is_not_called_untouched(box: Box, deed: str, undone: str, seen: str) -> None:
    with pytest.raises(AssertionError, match=seen), untouched(box):
        box.run(deed)
    box.run(undone)


# --- cards --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("card", "found", "lacks"),
    [
        pytest.param(
            "6000d",
            ("RTX PRO 6000D", "84.0 GB (80110 MiB)"),
            "too little memory",
            marks=pytest.mark.long,
        ),
        ("rtx5090", ("GeForce RTX 5090", "34.2 GB (32607 MiB)"), "too little memory"),
        pytest.param(
            "h100-nvl",
            ("H100 NVL", "100.5 GB (95830 MiB)", "9.0"),
            "another GPU architecture",
            marks=pytest.mark.long,
        ),
        ("h200", ("H200", "150.8 GB (143771 MiB)", "9.0"), "another GPU architecture"),
    ],
)
def test_a_card_that_cannot_hold_the_model_is_refused(
    box: Box, refused: Callable[..., Said], card: str, found: tuple[str, ...], lacks: str
) -> None:
    insert(box, gpu.CARDS[card])
    said = refused()
    assert all(words in said.found for words in found), said
    assert said.found.endswith(f": {lacks}"), said
    assert CARD in said.expected
    assert ANOTHER_CARD in said.do


@pytest.mark.parametrize(
    ("card", "found", "do"),
    [
        ("no-gpu", "no NVIDIA card on the PCI bus", "lspci -d 10de:"),
        pytest.param(
            "memory-not-supported",
            "memory not reported (not supported)",
            "nvidia-smi -q",
            marks=pytest.mark.long,
        ),
        pytest.param(
            "capability-not-supported",
            "compute capability not reported",
            "nvidia-smi -q",
            marks=pytest.mark.long,
        ),
        ("mig-enabled", "102.6 GB (97887 MiB), compute capability 12.0: MIG enabled", "-mig 0"),
    ],
)
def test_a_card_that_does_not_say_enough_is_refused(
    box: Box, refused: Callable[..., Said], card: str, found: str, do: str
) -> None:
    insert(box, gpu.CARDS[card])
    said = refused()
    assert found in said.found
    assert CARD in said.expected
    assert do in said.do


@pytest.mark.parametrize(
    ("card", "mig"),
    [("workstation", None), pytest.param("server", "disabled", marks=pytest.mark.long)],
)
def test_the_96_gb_card_passes_with_mig_unknown_or_off(
    box: Box, accepted: Callable[..., object], card: str, mig: str | None
) -> None:
    (only,) = gpu.CARDS[card]["cards"]
    assert (only["memory_mib"], only["mig"]) == (97_887, mig)
    insert(box, gpu.CARDS[card])
    accepted()


def test_two_cards_need_a_word_which_one_serves(
    box: Box, refused: Callable[..., Said], accepted: Callable[..., object]
) -> None:
    insert(box, gpu.CARDS["two-cards"])
    said = refused()
    assert said.found.startswith("2 cards: ")
    assert f"({FIRST_UUID}): 102.6 GB (97887 MiB)" in said.found
    assert f"({SECOND_UUID}): 34.2 GB (32607 MiB)" in said.found
    assert said.do == f'set gpu_uuid = "{FIRST_UUID}"'
    accepted(gpu_uuid=FIRST_UUID)


@pytest.mark.long
@pytest.mark.parametrize(
    ("uuid", "words"),
    [
        (SECOND_UUID, ("34.2 GB (32607 MiB)", CARD, ANOTHER_CARD)),
        ("GPU-00000000-1111", (FIRST_UUID, "GPU-00000000-1111", "set gpu_uuid to one of")),
    ],
)
def test_the_wrong_one_of_two_cards_is_refused(
    box: Box, refused: Callable[..., Said], uuid: str, words: tuple[str, str, str]
) -> None:
    insert(box, gpu.CARDS["two-cards"])
    said = refused(gpu_uuid=uuid)
    assert words[0] in said.found
    assert words[1] in said.expected
    assert words[2] in said.do


# --- drivers: what is wrong with them the driver stage mends, if there is a card to drive --------


@pytest.mark.long
def test_a_driver_without_its_library_is_no_refusal(
    box: Box, accepted: Callable[..., object]
) -> None:
    with without(box, gpu.LIBRARY_PATH):
        accepted()


@pytest.mark.long
def test_a_driver_upgraded_under_its_module_is_no_refusal(
    box: Box, accepted: Callable[..., object]
) -> None:
    insert(box, gpu.CARDS["version-mismatch"])
    accepted()


@pytest.mark.long
def test_a_loaded_driver_that_does_not_answer_is_refused_in_its_own_words(
    box: Box, refused: Callable[..., Said]
) -> None:
    insert(box, {**gpu.CARDS["workstation"], "init_error": UNKNOWN_ERROR})
    said = refused()
    assert said.found == "NVML says: Unknown Error"
    assert said.expected == "an NVIDIA driver that answers"
    assert "dmesg | grep NVRM" in said.do


# --- ports and disks ----------------------------------------------------------------------------


def test_a_taken_port_names_who_has_it(
    box: Box, refused: Callable[..., Said], accepted: Callable[..., object]
) -> None:
    box.run("systemd-run -q --unit=notes-web python3 -m http.server 8000")
    box.run("timeout 120 sh -c 'until ss -Hltn sport = :8000 | grep -q .; do sleep 0.1; done'")
    pid = box.run("systemctl show notes-web -p MainPID --value").stdout.strip()
    said = refused()
    assert said.found == f"port 8000 belongs to python3 (pid {pid}, unit notes-web.service)"
    assert said.expected == "a free port, or vllm-coder.service on it"
    assert "systemctl disable --now notes-web.service" in said.do and "server_port" in said.do
    accepted(server_port=8001)
    box.run("systemctl stop notes-web")
    accepted()


@pytest.mark.long
def test_a_login_is_not_made_the_servers_user(
    refused: Callable[..., Said], accepted: Callable[..., object]
) -> None:
    said = refused(server_user="admin")
    assert said.found.startswith("admin is a login on the box (uid 1")
    assert "set server_user" in said.do
    accepted()


@pytest.mark.long
def test_a_full_disk_is_refused_with_all_that_needs_room(make_box: MakeBox, hub: Hub) -> None:
    box = make_box("refusals-disk", "bare", disk_limit_mb=600)
    box.run("sudo -n true", user="admin")
    free = int(box.run("df -B1 --output=avail / | tail -1").stdout)
    data = {**standin(hub.url), "release_disk_gb": 0.2, "disk_reserve_gb": 0.3}
    said = run_refused(box, data)
    assert said.found == f"{free / 1e9:.1f} GB free on /"
    need, words = said.expected.split(" GB: ")
    packages = words.split(" GB for driver and CUDA toolkit in /usr, ")[0]
    assert abs(float(need) - float(packages) - 0.2 - 0.3) < 0.11, said
    assert float(packages) > 0.1, said
    assert "0.2 GB for the release in /opt/vllm/releases, " in words
    assert words.endswith("for the weights in /srv/models, 0.3 GB kept free")
    missing = float(said.do.removeprefix("free ").split(" GB on /")[0])
    assert 0 <= missing - (float(need) - free / 1e9) < 0.16, (said, free)
    assert "releases_folder or models_folder" in said.do
    enlarge_disk(box, 600 + round(missing * 1000))
    assert_planned(deploy({box: data}, "--dry"))


# --- the login and the system -------------------------------------------------------------------


def test_a_login_without_sudo_rights_is_refused(refused: Callable[..., Said]) -> None:
    said = refused(ssh_user="guest")
    assert said.found.startswith("sudo says: ")
    assert said.expected == "a login that may use sudo"
    assert "usermod -aG sudo" in said.do


@pytest.mark.long
def test_a_box_without_sudo_is_refused_but_root_needs_none(
    box: Box, refused: Callable[..., Said], accepted: Callable[..., object]
) -> None:
    with without(box, "/usr/bin/sudo"):
        said = refused()
        accepted(ssh_user="root")
    assert "no sudo on the box" in said.found
    assert "root, or a login that may use sudo" in said.expected
    assert "apt-get install sudo" in said.do


def test_a_box_without_python_is_refused(box: Box, refused: Callable[..., Said]) -> None:
    with without(box, "/usr/bin/python3"):
        said = refused()
    assert said == Said(
        box.name, "no python3 on the box", "python3", "on it: `sudo apt-get install python3`"
    )


def test_a_python_without_a_lock_is_refused(refused: Callable[..., Said], tmp_path: Path) -> None:
    name = f"vllm-{STANDIN_VERSION}-py312.txt"
    shutil.copy(HERE / "group_data/locks" / name, tmp_path)
    said = refused(locks_folder=str(tmp_path))
    assert "Python 3.11" in said.found
    assert STANDIN_VERSION in said.expected and said.expected.endswith("3.12")
    assert f"vllm-{STANDIN_VERSION}-py311.txt" in said.do


@pytest.mark.long
def test_half_configured_packages_are_finished_by_the_run(box: Box, hub: Hub) -> None:
    script = "/^Package: less$/,/^$/s/^Status: .*/Status: install ok half-configured/"
    with edited(box, "/var/lib/dpkg/status", script):
        planned = deploy({box: standin(hub.url)}, "--dry", "--json").planned
    assert "Base | dpkg has finished" in planned
    assert (
        "Base | dpkg has finished" not in deploy({box: standin(hub.url)}, "--dry", "--json").planned
    )


FEDORA = (
    "s/^ID=.*/ID=fedora/; s/^VERSION_ID=.*/VERSION_ID=43/; "
    's/^PRETTY_NAME=.*/PRETTY_NAME="Fedora Linux 43"/'
)


def test_another_system_is_refused(box: Box, refused: Callable[..., Said]) -> None:
    with edited(box, "/usr/lib/os-release", FEDORA):
        said = refused()
    assert said.found == "Fedora Linux 43"
    assert said.expected == "Ubuntu 24.04, Debian 12 or Debian 13"
    assert "install one of them" in said.do


def test_all_that_is_wrong_with_a_box_comes_in_one_answer(box: Box, hub: Hub) -> None:
    insert(box, gpu.CARDS["h200"])
    data = {**standin(hub.url), "release_disk_gb": 400_000, "server_port": 22}
    with edited(box, "/usr/lib/os-release", FEDORA), untouched(box):
        ended = deploy({box: data}, "-y")
    assert ended.code == 1, ended.said
    assert "Traceback" not in ended.said
    found = [said.found for said in refusals_in(ended)]
    assert len(found) == 4, found
    for words in ("Fedora", "port 22 belongs to sshd", "NVIDIA H200", "GB free on /"):
        assert any(words in one for one in found), (words, found)


# --- settings: faults of control, before any box is asked ---------------------------------------


def sudo_uses(box: Box) -> int:
    """How often anybody used sudo on the box, by its journal."""
    counted = "journalctl --sync; journalctl -q -t sudo --no-pager | grep -c COMMAND || true"
    return int(box.run(counted).stdout)


def test_all_faults_of_all_settings_come_in_one_answer(
    box: Box, make_box: MakeBox, hub: Hub
) -> None:
    second = make_box("refusals-second", "bare")
    wrong = {"server_prot": 8001, "release_disk_gb": "12 GB", "hub": 3, "serve": ["--x"]}
    uses = sudo_uses(box)
    with untouched(box, second):
        ended = deploy(
            {
                box: {**standin(hub.url), **wrong, "vllm_version": "0.31.1"},
                second: {**standin(hub.url), **wrong, "server_port": 80000},
            },
            "-y",
        )
    faults = settings_faults(ended)
    both = f"{box.name}, {second.name}: "
    for words in (
        f"{both}server_prot: unknown setting; did you mean server_port?",
        f"{both}release_disk_gb: found '12 GB' (text); expected decimal GB, a number from 0",
        f"{both}hub: found 3 (a whole number); expected an http or https URL, text",
        f"{both}serve: found ['--x'] (a list); expected a mapping of flags over the card's",
        f"{second.name}: server_port: found 80000 (a whole number); expected a port",
        f"{box.name}: vllm_version: no lock for vLLM 0.31.1",
    ):
        assert any(fault.startswith(words) for fault in faults), (words, faults)
    assert len(faults) == 6, faults
    assert "6 settings cannot work" in ended.said
    assert "group_data/site.py, inventory or --data" in ended.said
    assert sudo_uses(box) == uses


def test_an_unknown_model_is_refused_with_the_nearest_name(box: Box, hub: Hub) -> None:
    with untouched(box):
        ended = deploy({box: {**standin(hub.url), "model": "tiny-qwen3.5-mpt"}}, "-y")
    (fault,) = settings_faults(ended)
    assert "no model card named 'tiny-qwen3.5-mpt'" in fault
    assert fault.endswith("did you mean tiny-qwen3.5-mtp?")


def test_a_model_that_is_not_pinned_is_refused(box: Box, hub: Hub, tmp_path: Path) -> None:
    shutil.copy(CHECKOUT / "group_data/models/qwen3.8-27b.yml", tmp_path)
    data = {**standin(hub.url), "model": "qwen3.8-27b", "cards_folder": str(tmp_path)}
    said = run_refused(box, data)
    assert "the weights of qwen3.8-27b are not pinned" in said.found
    assert said.do.startswith("`make lock-model MODEL=qwen3.8-27b`")


# --- boxes that are not there -------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["nobody at the address", "nobody at the port"])
def test_an_unreachable_box_is_refused(box: Box, hub: Hub, kind: str) -> None:
    nobody = subnet_now().bridge_address.rsplit(".", 1)[0] + ".254"
    there = {"ssh_hostname": nobody} if "address" in kind else {"ssh_port": 2}
    with untouched(box):
        ended = deploy({box: {**standin(hub.url), **there}}, "-y")
    said = the_one_refusal(ended)
    assert said.found.startswith("no ssh connection: Could not connect")
    assert said.expected == "a login over ssh that asks for nothing"
    target = f"admin@{nobody}" if "address" in kind else f"-p 2 admin@{box.address}"
    assert f"`ssh {target}`" in said.do
