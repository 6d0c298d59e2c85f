"""The emulated NVML answers nvidia-ml-py as the cards of the reference do."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.rehearsal.emulation import gpu

Read = Callable[[gpu.State | str | None], dict[str, Any]]

READ_EVERYTHING = """
import json, pynvml as n

def answer(ask):
    try:
        return ask()
    except n.NVMLError as error:
        return f"{type(error).__name__}: {error}"

def memory(h, version=None):
    m = n.nvmlDeviceGetMemoryInfo(h, version)
    return [m.total, m.used, m.free]

def card(i):
    h = n.nvmlDeviceGetHandleByIndex(i)
    pci = n.nvmlDeviceGetPciInfo(h)
    uuid = n.nvmlDeviceGetUUID(h)
    return {
        "name": n.nvmlDeviceGetName(h), "uuid": uuid,
        "bus": [pci.busId, pci.domain, pci.bus, pci.device, f"{pci.pciDeviceId:08x}"],
        "index by uuid": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByUUID(uuid.encode())),
        "index by bus": n.nvmlDeviceGetIndex(n.nvmlDeviceGetHandleByPciBusId(pci.busId)),
        "memory": answer(lambda: memory(h)),
        "memory v2": answer(lambda: memory(h, n.nvmlMemory_v2)),
        "capability": answer(lambda: n.nvmlDeviceGetCudaComputeCapability(h)),
        "mig": answer(lambda: n.nvmlDeviceGetMigMode(h)),
        "power": answer(lambda: n.nvmlDeviceGetPowerManagementLimit(h)),
        "power range": answer(lambda: n.nvmlDeviceGetPowerManagementLimitConstraints(h)),
        "persistence": answer(lambda: n.nvmlDeviceGetPersistenceMode(h)),
        "temperature": answer(lambda: n.nvmlDeviceGetTemperature(h, n.NVML_TEMPERATURE_GPU)),
        "temperature v": answer(lambda: n.nvmlDeviceGetTemperatureV(h, n.NVML_TEMPERATURE_GPU)),
        "processes": [[p.pid, n.nvmlSystemGetProcessName(p.pid), p.usedGpuMemory]
                      for p in n.nvmlDeviceGetComputeRunningProcesses(h)],
    }

def everything():
    n.nvmlInit()
    found = {
        "driver": n.nvmlSystemGetDriverVersion(), "nvml": n.nvmlSystemGetNVMLVersion(),
        "cuda": n.nvmlSystemGetCudaDriverVersion(),
        "cards": [card(i) for i in range(n.nvmlDeviceGetCount())],
        "beyond": answer(lambda: n.nvmlDeviceGetHandleByIndex(n.nvmlDeviceGetCount())),
        "stranger": answer(lambda: n.nvmlDeviceGetHandleByUUID(b"GPU-other")),
    }
    n.nvmlShutdown()
    return found | {"after": answer(n.nvmlDeviceGetCount)}

found = answer(everything)
# nvidia-ml-py has its own words for 18; whoever asks the library gets these
words = n.CDLL("libnvidia-ml.so.1").nvmlErrorString
words.restype = n.c_char_p
text = words(18).decode()
print(json.dumps({"error": found, "text 18": text} if isinstance(found, str) else found))
"""

MIB = 1024 * 1024


LOADED = "/sys/module/nvidia/version"
BOOT = "/run/emulated-gpu/boot.json"


def lay(machine: Path, path: str, text: str) -> Path:
    """A file of an emulated machine that is no more than a folder."""
    file = machine / path.lstrip("/")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> Read:
    """Ask nvidia-ml-py, in a process of its own, everything about a state."""
    machine = tmp_path_factory.mktemp("machine")
    library = machine / "libnvidia-ml.so.1"
    gpu.compile_nvml(library, "580.178.04", root=str(machine))
    state_file = lay(machine, gpu.STATE_PATH, "")
    lay(machine, LOADED, "580.178.04\n")

    def ask(state: gpu.State | str | None) -> dict[str, Any]:
        if state is None:
            state_file.unlink(missing_ok=True)
        else:
            state_file.write_text(state if isinstance(state, str) else json.dumps(state))
        result = subprocess.run(
            [sys.executable, "-c", READ_EVERYTHING],
            env=os.environ | {"LD_LIBRARY_PATH": str(machine)},
            capture_output=True,
            text=True,
            check=True,
        )
        answer: dict[str, Any] = json.loads(result.stdout)
        return answer

    return ask


def test_the_workstation_card_is_the_one_of_the_reference(read: Read) -> None:
    found = read(gpu.CARDS["workstation"])
    assert (found["driver"], found["nvml"]) == ("580.178.04", "13.580.178.04")
    assert found["cuda"] == 13000
    card = found["cards"][0]
    total = 102_641_958_912
    assert card == {
        "name": "NVIDIA RTX PRO 6000 Blackwell Workstation Edition",
        "uuid": "GPU-5bd1e9a4-0000-4000-8000-000000000001",
        "bus": ["00000000:01:00.0", 0, 1, 0, "2bb110de"],
        "index by uuid": 0,
        "index by bus": 0,
        "memory": [total, 638 * MIB, total - 638 * MIB],
        "memory v2": [total, 0, total - 638 * MIB],
        "capability": [12, 0],
        "mig": "NVMLError_NotSupported: Not Supported",
        "power": 600_000,
        "power range": [150_000, 600_000],
        "persistence": 0,
        "temperature": 34,
        "temperature v": 34,
        "processes": [],
    }


def test_what_is_not_there_is_an_error_and_no_crash(read: Read) -> None:
    found = read(gpu.CARDS["workstation"])
    assert found["beyond"] == "NVMLError_InvalidArgument: Invalid Argument"
    assert found["stranger"] == "NVMLError_NotFound: Not Found"
    assert found["after"] == "NVMLError_Uninitialized: Uninitialized"


@pytest.mark.parametrize(
    ("name", "total_mib", "capability"),
    [
        ("max-q", 97_887, [12, 0]),
        ("server", 97_887, [12, 0]),
        ("6000d", 80_110, [12, 0]),
        ("rtx5090", 32_607, [12, 0]),
        ("h100-nvl", 95_830, [9, 0]),
        ("h200", 143_771, [9, 0]),
    ],
)
def test_each_named_card_shows_its_own_size_and_capability(
    read: Read, name: str, total_mib: int, capability: list[int]
) -> None:
    card = read(gpu.CARDS[name])["cards"][0]
    assert card["name"] == gpu.CARDS[name]["cards"][0]["name"]
    assert card["memory"][0] == total_mib * MIB
    assert card["capability"] == capability


def test_a_question_that_a_card_does_not_support_is_answered_in_words(read: Read) -> None:
    card = read(gpu.CARDS["memory-not-supported"])["cards"][0]
    assert card["memory"] == card["memory v2"] == "NVMLError_NotSupported: Not Supported"
    card = read(gpu.CARDS["capability-not-supported"])["cards"][0]
    assert card["capability"] == "NVMLError_NotSupported: Not Supported"


def test_mig_is_enabled_disabled_or_not_available(read: Read) -> None:
    def mig(name: str) -> object:
        return read(gpu.CARDS[name])["cards"][0]["mig"]

    assert mig("mig-enabled") == [1, 1]
    assert mig("server") == [0, 0]
    assert mig("mig-not-available") == "NVMLError_NotSupported: Not Supported"


def test_the_processes_that_hold_the_card_are_named(read: Read) -> None:
    card = read(gpu.CARDS["busy"])["cards"][0]
    assert card["processes"] == [[4242, "python3", 88_160 * MIB]]
    assert card["memory"][2] == (97_887 - 638 - 88_160) * MIB


def test_a_box_without_a_card_counts_none(read: Read) -> None:
    assert read(gpu.CARDS["no-gpu"])["cards"] == []


def test_two_cards_are_told_apart_by_their_uuid(read: Read) -> None:
    cards = read(gpu.CARDS["two-cards"])["cards"]
    assert [card["index by uuid"] for card in cards] == [0, 1]
    assert [card["index by bus"] for card in cards] == [0, 1]


def test_an_upgraded_driver_under_a_loaded_module_is_said_as_nvml_says_it(read: Read) -> None:
    found = read(gpu.CARDS["version-mismatch"])
    assert found["error"].startswith("NVMLError_LibRmVersionMismatch")
    assert found["text 18"] == "Driver/library version mismatch"


def test_without_a_card_no_driver_is_loaded(read: Read) -> None:
    assert read(None)["error"] == "NVMLError_DriverNotLoaded: Driver Not Loaded"


def test_a_driver_version_in_the_state_is_answered_in_the_loaded_ones_place(read: Read) -> None:
    found = read({**gpu.CARDS["workstation"], "driver_version": "570.86.10"})
    assert (found["driver"], found["nvml"]) == ("570.86.10", "13.570.86.10")


def first_answers(machine: Path, version: str) -> tuple[int, int]:
    """What the libraries of a version answer to nvmlInit and cuInit on a machine, as codes."""
    code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1])[sys.argv[2]](0))"
    answers = []
    for name, compile_, function in (
        ("nvml.so", gpu.compile_nvml, "nvmlInitWithFlags"),
        ("cuda.so", gpu.compile_cuda, "cuInit"),
    ):
        compile_(machine / name, version, root=str(machine))
        words = [sys.executable, "-c", code, str(machine / name), function]
        answers.append(int(subprocess.check_output(words)))
    return answers[0], answers[1]


@pytest.mark.parametrize(
    ("loaded", "uvm", "differences", "expected"),
    [
        ("580.178.04", True, {}, (0, 0)),
        (None, True, {}, (9, 100)),
        ("580.65.06", True, {}, (18, 803)),
        ("580.178.04", False, {}, (0, 999)),
        ("580.178.04", True, {"cu_init": 3}, (0, 3)),
        ("580.178.04", True, {"cu_init": 802}, (0, 802)),
        ("580.178.04", True, {"cards": []}, (0, 100)),
        ("580.178.04", True, {"init_error": 15}, (15, 0)),
    ],
)
def test_library_and_module_are_one_version_or_a_mismatch(
    tmp_path: Path,
    loaded: str | None,
    uvm: bool,
    differences: dict[str, Any],
    expected: tuple[int, int],
) -> None:
    lay(tmp_path, gpu.STATE_PATH, json.dumps({**gpu.CARDS["workstation"], **differences}))
    if loaded:
        lay(tmp_path, LOADED, f"{loaded}\n")
    if uvm:
        lay(tmp_path, "/dev/nvidia-uvm", "")
    assert first_answers(tmp_path, "580.178.04") == expected


def test_a_module_that_cannot_drive_the_card_shows_none(tmp_path: Path) -> None:
    lay(tmp_path, gpu.STATE_PATH, json.dumps(gpu.CARDS["workstation"]))
    lay(tmp_path, LOADED, "580.178.04\n")
    lay(tmp_path, "/dev/nvidia-uvm", "")
    lay(tmp_path, BOOT, json.dumps({"usable": False}))
    assert first_answers(tmp_path, "580.178.04") == (0, 100)


def test_a_fault_of_hmm_is_cured_by_its_option(tmp_path: Path) -> None:
    faulty = {**gpu.CARDS["workstation"], "cu_init": 999, "hmm_fault": True}
    lay(tmp_path, gpu.STATE_PATH, json.dumps(faulty))
    lay(tmp_path, LOADED, "580.178.04\n")
    lay(tmp_path, "/dev/nvidia-uvm", "")
    for switch, expected in (("N\n", 999), ("Y\n", 0)):
        lay(tmp_path, "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", switch)
        assert first_answers(tmp_path, "580.178.04") == (0, expected)


def test_a_hidden_card_is_no_card_for_cuda(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lay(tmp_path, gpu.STATE_PATH, json.dumps(gpu.CARDS["workstation"]))
    lay(tmp_path, LOADED, "580.178.04\n")
    lay(tmp_path, "/dev/nvidia-uvm", "")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert first_answers(tmp_path, "580.178.04") == (0, 100)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        '{"driver_version": "1", "cuda_version": "13.0", "cards": [}',
        '{"driver_version": "1", "cuda_version": "13.0", "cards": []} more',
        '{"driver_version": 580, "cuda_version": "13.0", "cards": []}',
        '{"driver_version": "1", "cuda_version": "13", "cards": []}',
        '{"driver_version": "1", "cuda_version": "13.0", "cards": [{"name": "x"}]}',
        '{"driver_version": "1", "cuda_version": "13.0", "cards": [], "init_error": "18"}',
        '{"driver_version": "1\\x", "cuda_version": "13.0", "cards": []}',
        '{"driver_version": "1", "cuda_version": "13.0", "cards": [], "a": 01}',
        '{"driver_version": "1", "cuda_version": "13.0", "cards": [], "a": ' + "[" * 90_000,
    ],
)
def test_a_state_that_can_not_be_understood_is_an_error_and_no_crash(read: Read, text: str) -> None:
    assert read(text)["error"].startswith("NVMLError_Unknown")


def test_what_other_stand_ins_keep_in_the_state_is_passed_over(read: Read) -> None:
    state = json.loads(json.dumps(gpu.CARDS["workstation"]))
    state["module"] = {"loaded": "580.178.04", "list": [1.5e3, True, None, "ü\u00fc\n"]}
    assert read(json.dumps(state))["driver"] == "580.178.04"
    assert read(json.dumps(state, ensure_ascii=False))["driver"] == "580.178.04"


def test_a_state_is_written_on_a_running_box_by_one_command() -> None:
    commands: list[str] = []
    gpu.write_state(commands.append, gpu.CARDS["h200"])
    gpu.write_state(commands.append, None)
    assert commands[0].startswith("install -d -m 755 /var/lib/emulated-gpu && printf %s '")
    assert commands[0].endswith(f" && {gpu.CORE} refresh")
    assert commands[1] == f"rm -f /var/lib/emulated-gpu/state.json && {gpu.CORE} refresh"


def test_every_file_of_the_machine_changes_the_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy = tmp_path / "emulation"
    shutil.copytree(gpu.HERE, copy, ignore=shutil.ignore_patterns("__pycache__", "models"))
    monkeypatch.setattr(gpu, "HERE", copy)
    monkeypatch.setattr(gpu, "MACHINE", copy / gpu.MACHINE.name)
    seen = {gpu.fingerprint()}
    parts = [path for path in gpu.MACHINE.rglob("*") if path.is_file()]
    parts += [copy / name for name in gpu.SOURCES]
    for path in parts:
        path.write_bytes(path.read_bytes() + b"\n")
        seen.add(gpu.fingerprint())
    assert len(parts) > 10 and len(seen) == len(parts) + 1
