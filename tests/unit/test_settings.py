import string
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aibox.decide.fitting import Load as OnCards
from aibox.decide.refusal import Refusal
from aibox.decide.spread import Choice, Spread
from aibox.settings import (
    ReleaseLock,
    Settings,
    SettingsError,
    driver_wanted_from,
    load_on_cards,
    load_settings,
    release_lock,
    release_locks,
    wanted_from,
)
from tests.unit.conftest import COMMIT, CUDA_13, Load, write_weights_lock


def faults_with(load: Load, **changes: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(**changes)
    return caught.value.faults


def the_fault_with(load: Load, **changes: Any) -> str:
    faults = faults_with(load, **changes)
    assert len(faults) == 1, faults
    return faults[0]


def edit_card(project: Path, old: str, new: str) -> None:
    card = project / "group_data/models/qwen3.8-27b.yml"
    text = card.read_text()
    assert old in text
    card.write_text(text.replace(old, new))


def test_the_defaults_load(load: Load) -> None:
    loaded = load()
    assert loaded.card.repository == "Qwen/Qwen3.8-27B"
    assert loaded.weights.total_bytes == 55_000_001_000
    assert loaded.weights_folder == f"/srv/models/qwen3.8-27b/{COMMIT}"
    assert list(loaded.flags) == list(loaded.card.serve)


def test_settings_are_frozen(load: Load) -> None:
    loaded = load()
    with pytest.raises(ValueError, match="frozen"):
        loaded.server_port = 8001


def test_names_of_others_are_ignored(data: dict[str, Any], project: Path) -> None:
    data |= {"ssh_port": 22, "_sudo": True, "docker_arch": "x"}
    assert load_settings({"box": data}, project, ["docker_arch"])["box"].server_port == 8000


WRONG_VALUES = [
    ("server_port", "8000", "found '8000' (text); expected a port, a whole number 1 to 65535"),
    ("server_port", 0, "a whole number 1 to 65535"),
    ("server_port", 65536, "a whole number 1 to 65535"),
    ("server_port", True, "found True (true/false)"),
    ("server_port", 8000.0, "found 8000.0 (a number)"),
    ("start_timeout_s", "15m", "expected seconds"),
    ("start_timeout_s", 0, "expected seconds"),
    ("release_disk_gb", "12 GB", "expected decimal GB"),
    ("release_disk_gb", True, "expected decimal GB"),
    ("disk_reserve_gb", -1, "expected decimal GB"),
    ("disk_reserve_gb", float("nan"), "expected decimal GB"),
    ("driver_version", 580, "found 580 (a whole number)"),
    ("driver_version", 580.178, 'such as "580.178.04"'),
    ("driver_version", "580", 'such as "580.178.04"'),
    ("vllm_version", 0.31, 'expected a version as text, such as "0.31.0"'),
    ("vllm_version", "latest", 'expected a version as text, such as "0.31.0"'),
    ("vllm_version", "-1", 'expected a version as text, such as "0.31.0"'),
    ("vllm_version", "0.31.0/../x", 'expected a version as text, such as "0.31.0"'),
    ("releases_folder", "opt/vllm", "expected an absolute path"),
    ("releases_folder", "/opt/../etc", "without '..'"),
    ("releases_folder", "/opt/vllm/", "expected an absolute path"),
    ("models_folder", "/srv/my models", "letters, digits"),
    ("models_folder", "/", "expected an absolute path"),
    ("cache_folder", "/var/-x", "expected an absolute path"),
    ("cache_folder", Path("/var/cache"), "expected an absolute path"),
    ("cards_folder", "../cards", "without '..'"),
    ("locks_folder", "-x", "not beginning with '-'"),
    ("server_unit", "vllm-coder.service", "without .service"),
    ("server_unit", "-vllm", "a unit's name"),
    ("server_unit", "a b", "a unit's name"),
    ("server_unit", "../x", "a unit's name"),
    ("server_user", "root", "must not run as root"),
    ("server_user", "Vllm", "a user's name"),
    ("server_user", "-vllm", "a user's name"),
    ("gpu_uuid", "0", "hex digits, see nvidia-smi -L"),
    ("gpu_uuid", 0, "found 0 (a whole number)"),
    ("gpu_uuid", [], "expected at least one"),
    ("gpu_uuid", ["GPU-00000001", "1"], "hex digits, see nvidia-smi -L"),
    ("gpu_uuid", ["GPU-0000000a", "GPU-0000000A"], "expected each once"),
    ("serve", {"tp": 2}, "did you mean tensor-parallel-size?"),
    ("serve", {"device-ids": "0,1"}, "gpu_uuid names the cards"),
    ("serve", {"headless": True}, "docs/several-cards.md"),
    ("nvidia_key", "EB69 3B30", "40 hex digits"),
    ("nvidia_key", "G" * 40, "40 hex digits"),
    ("nvidia_key", "EB693B3035CD5710E231E123A4B469963BF863CC\n", "40 hex digits"),
    ("nvidia_key", 0xEB69, "found 60265 (a whole number); expected a key's fingerprint, 40 hex"),
    ("nvidia_repository", "developer.download.nvidia.com", "an http or https URL"),
    ("gpu_pci_ids", "10de:2bb1", "found '10de:2bb1' (text); expected a list of at least one"),
    ("gpu_pci_ids", [], "(a list); expected at least one"),
    ("gpu_pci_ids", ["10DE:2BB1"], "a PCI id in lower case"),
    ("gpu_pci_ids", ["10de:2bb"], "a PCI id in lower case"),
    ("gpu_pci_ids", ["2bb1"], "a PCI id in lower case"),
    ("gpu_pci_ids", ["8086:2bb1"], "a PCI id in lower case"),
    ("power_limit_w", "450 W", "found '450 W' (text); expected a whole number of watts"),
    ("power_limit_w", 450.5, "found 450.5 (a number); expected a whole number of watts"),
    ("power_limit_w", 450.0, "expected a whole number of watts"),
    ("power_limit_w", 0, "expected a whole number of watts"),
    ("power_limit_w", -1, "expected a whole number of watts"),
    ("power_limit_w", True, "found True (true/false); expected a whole number of watts"),
    ("uvm_disable_hmm", 1, "expected True or False"),
    ("reboot_while_serving", "yes", "expected True or False"),
    ("reboot_timeout_s", "10m", "expected seconds"),
    ("reboot_timeout_s", 0, "expected seconds"),
    ("hub", "huggingface.co", "an http or https URL"),
    ("hub", "ftp://huggingface.co", "an http or https URL"),
    ("hub", "https://me:secret@huggingface.co", "without a login"),
    ("hub", "https://hub:port", "an http or https URL"),
    ("hub", "https://hub\n", "an http or https URL"),
    ("release_find_links", "file:///wheels", "an http or https URL"),
    ("release_extra_packages", "libnuma1", "a list of package names"),
    ("release_extra_packages", ["-y"], "a package's name"),
    ("release_extra_packages", ["libnuma1=2"], "a package's name"),
    ("server_environment", {"A-B": "1"}, "is not a name for an environment variable"),
    ("server_environment", {"A": 1}, "found 1 (a whole number)"),
    ("server_environment", {"A": "x\ny"}, "without control characters"),
    ("server_environment", {"A": "x\0y"}, "without control characters"),
    ("server_environment", {"HF_TOKEN": "x"}, "looks like a secret"),
    ("serve", ["--max-num-seqs", "3"], "a mapping of flags"),
    ("serve", {"--max-num-seqs": 3}, "did you mean max-num-seqs?"),
    ("serve", {"max_num_seqs": 3}, "did you mean max-num-seqs?"),
    ("serve", {"Max-Num-Seqs": 3}, "did you mean max-num-seqs?"),
    ("serve", {"no-enable-prefix-caching": True}, "say enable-prefix-caching: false"),
    ("serve", {"host": "0.0.0.0"}, "the unit binds the server to localhost"),
    ("serve", {"port": 80}, "server_port"),
    ("serve", {"allowed_origins": ["*"]}, "closes the server"),
    ("serve", {"model": "x"}, "the unit names the weights folder"),
    ("serve", {"api-key": "x"}, "a secret"),
    ("serve", {"dtype": "--host"}, "may not begin with '-'"),
    ("serve", {"dtype": "a\nb"}, "no unit file can"),
    ("serve", {"lora-modules": []}, "an empty list"),
    ("serve", {"lora-modules": ["a", None]}, "neither text nor a number"),
    ("serve", {"max-num-seqs": {1, 2}}, "expected true, false, text, a number"),
    ("serve", {"max-num-seq": None}, "did you mean max-num-seqs?"),
    ("model", "qwen3.8-27B", "did you mean qwen3.8-27b?"),
    ("model", "../qwen3.8-27b", "the name of a model card"),
    ("model", None, "found nothing"),
]


@pytest.mark.parametrize(("name", "value", "words"), WRONG_VALUES)
def test_a_wrong_value_is_one_fault_in_words(
    load: Load, name: str, value: object, words: str
) -> None:
    fault = the_fault_with(load, **{name: value})
    assert name in fault or name == "model"
    assert words in fault


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"sha256": "abc"}, "release_extra_files.0.sha256: found 'abc' (text); expected 64 hex"),
        ({"path": "../x"}, "without '..'"),
        ({"path": "/x"}, "a path relative to the release"),
        ({"url": "x"}, "an http or https URL"),
        ({"pth": "x"}, "release_extra_files.0.pth: unknown; did you mean path?"),
    ],
)
def test_a_wrong_extra_file_is_one_fault(load: Load, change: dict[str, str], words: str) -> None:
    right = {"url": "http://10.0.0.1/x.so", "sha256": "0" * 64, "path": "lib/x.so"}
    assert words in the_fault_with(load, release_extra_files=[right | change])


def test_an_unknown_setting_names_the_nearest(load: Load) -> None:
    assert the_fault_with(load, sever_port=1) == (
        "box: sever_port: unknown setting; did you mean server_port?"
    )


def test_a_missing_setting_is_a_fault(data: dict[str, Any], project: Path) -> None:
    del data["hub"]
    with pytest.raises(SettingsError, match="hub: missing; expected an http or https URL"):
        load_settings({"box": data}, project, ())


def test_all_faults_of_all_hosts_come_in_one_answer(data: dict[str, Any], project: Path) -> None:
    hosts = {
        "attic": data | {"server_port": "8000", "driver_version": "570.86.10"},
        "cellar": data | {"server_port": "8000", "sever_unit": "x"},
        "garage": data,
    }
    with pytest.raises(SettingsError) as caught:
        load_settings(hosts, project, ())
    error = caught.value
    assert error.faults[0].startswith("attic, cellar: server_port: found '8000'")
    assert error.faults[1].startswith("attic: driver_version: 570.86.10 is older than 580.65.06")
    assert error.faults[2].startswith("cellar: sever_unit: unknown setting")
    assert len(error.faults) == 3
    assert all(fault in str(error) for fault in error.faults)
    assert list(error.good) == ["garage"]
    assert list(error.faults_of) == ["attic", "cellar"]


# --- flags ---


def test_an_override_keeps_its_place_and_a_new_flag_goes_last(load: Load) -> None:
    loaded = load(serve={"seed": 1, "max-num-seqs": 448})
    assert loaded.flags["max-num-seqs"] == 448
    assert list(loaded.flags) == [*loaded.card.serve, "seed"]


def test_none_takes_a_flag_away(load: Load) -> None:
    assert "attention-backend" not in load(serve={"attention-backend": None}).flags


def test_the_source_of_a_flag_is_the_file_that_won(data: dict[str, Any], project: Path) -> None:
    data["serve"] = {"max-num-seqs": 448}
    host = load_settings({"box": data}, project, (), serve_source="group_data/site.py")["box"]
    assert host.flag_source("max-num-seqs") == "group_data/site.py"
    assert host.flag_source("dtype") == "group_data/models/qwen3.8-27b.yml"
    assert host.flag_source("seed") == "group_data/models/qwen3.8-27b.yml"


def test_the_prefix_cache_goes_off_with_mtp_when_the_card_says_so(
    load: Load, project: Path
) -> None:
    edit_card(project, "prefix_cache_with_mtp: trust", "prefix_cache_with_mtp: off")
    loaded = load()
    assert loaded.card.prefix_cache_with_mtp == "off"
    assert loaded.flags["enable-prefix-caching"] is False
    assert "prefix_cache_with_mtp" in loaded.flag_source("enable-prefix-caching")
    assert load(serve={"speculative-config": None}).flags["enable-prefix-caching"] is True
    assert load(serve={"enable-prefix-caching": True}).flags["enable-prefix-caching"] is True


# --- combinations ---


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        ({"gpu-memory-utilization": 0}, "gpu-memory-utilization (the setting `serve`) is 0"),
        ({"gpu-memory-utilization": 87}, "above 0 and at most 1"),
        ({"gpu-memory-utilization": "most"}, "above 0 and at most 1"),
        ({"gpu-memory-utilization": True}, "above 0 and at most 1"),
        ({"max-model-len": 262145}, "gives qwen3.8-27b at most 262144 tokens"),
        ({"max-model-len": "257K"}, "at most 262144 tokens"),
        ({"max-model-len": "long"}, "expected tokens"),
        ({"max-model-len": 0}, "expected tokens"),
        ({"max-model-len": True}, "expected tokens"),
        ({"speculative-config": {"method": "mtp"}}, "num_speculative_tokens is None"),
        (
            {"speculative-config": {"method": "mtp", "num_speculative_tokens": 0}},
            "expected a whole number from 1",
        ),
    ],
)
def test_a_flag_that_cannot_work_is_refused(load: Load, serve: dict[str, Any], words: str) -> None:
    assert words in the_fault_with(load, serve=serve)


@pytest.mark.parametrize(
    "serve",
    [
        {"gpu-memory-utilization": 1},
        {"gpu-memory-utilization": "0.5"},
        {"max-model-len": 262144},
        {"max-model-len": "256K"},
        {"max-model-len": "262k"},
        {"max-model-len": "auto"},
        {"max-model-len": -1},
        {"speculative-config": '{"method":"mtp","num_speculative_tokens":1}'},
        {"speculative-config": {"method": "ngram"}},
    ],
)
def test_a_flag_at_the_limit_is_accepted(load: Load, serve: dict[str, Any]) -> None:
    assert load(serve=serve)


def test_mtp_for_a_model_without_a_head_is_refused(load: Load, project: Path) -> None:
    text = (project / "group_data/models/qwen3.8-27b.yml").read_text()
    head = text[text.index("head:") : text.index("needs:")]
    edit_card(project, head, "head: null\n")
    assert "has no head; take the flag away" in the_fault_with(load)
    assert load(serve={"speculative-config": None}).card.head is None


@pytest.mark.parametrize(
    ("cuda", "driver_version", "fits"),
    [
        ("nvidia-cuda-runtime==13.0.96", "580.65.06", True),
        ("nvidia-cuda-runtime==13.0.96", "580.65.05", False),
        ("nvidia-cuda-runtime==13.0.96", "570.211.01", False),
        ("nvidia-cuda-runtime==13.0.96", "595.10", True),
        ("cuda-toolkit==13.0.3.0", "570.211.01", False),
        ("cuda-toolkit[cublas]==13.0.3.0", "570.211.01", False),
        ("nvidia-cuda-runtime-cu12==12.8.90", "525.60.13", True),
        ("nvidia-cuda-runtime-cu12==12.8.90", "525.60.12", False),
        ("nvidia-cuda-runtime==14.0.1", "570.211.01", False),
        ("numpy==2.0", "470.10", True),
    ],
)
def test_the_driver_must_be_new_enough_for_the_locks_cuda(
    load: Load, project: Path, cuda: str, driver_version: str, fits: bool
) -> None:
    for lock in (project / "group_data/locks").iterdir():
        lock.write_text(f"{cuda} \\\n    --hash=sha256:00\n")
    if fits:
        assert load(driver_version=driver_version)
    else:
        assert "set driver_version to" in the_fault_with(load, driver_version=driver_version)


@pytest.mark.parametrize(
    ("version", "fits"),
    [("0.31.0", True), ("0.31.0+standin", True), ("0.32.1", True), ("0.30.9", False)],
)
def test_the_cards_version_floor_holds(load: Load, project: Path, version: str, fits: bool) -> None:
    (project / f"group_data/locks/vllm-{version}-py311.txt").write_text("")
    if fits:
        assert load(vllm_version=version)
    else:
        assert "needs vLLM >=0.31.0" in the_fault_with(load, vllm_version=version)


def test_a_version_without_a_lock_names_those_there_are(load: Load) -> None:
    fault = the_fault_with(load, vllm_version="0.31.1")
    assert 'there are locks for 0.31.0; set vllm_version = "0.31.0"' in fault


def test_weights_without_a_lock_name_the_command(
    load: Load, data: dict[str, Any], project: Path
) -> None:
    (project / "group_data/models/qwen3.8-27b.lock.json").unlink()
    assert "make it with `make lock-model MODEL=qwen3.8-27b`" in the_fault_with(load)
    unpinned = load_settings({"box": data}, project, (), need_weights=False)["box"]
    with pytest.raises(LookupError):
        _ = unpinned.weights


def test_a_weights_lock_of_another_repository_is_refused(load: Load, project: Path) -> None:
    write_weights_lock(project / "group_data/models/qwen3.8-27b.lock.json", "Other/Model")
    assert "is of Other/Model, the card names Qwen/Qwen3.8-27B" in the_fault_with(load)


def test_a_broken_weights_lock_is_refused(load: Load, project: Path) -> None:
    (project / "group_data/models/qwen3.8-27b.lock.json").write_text("{")
    fault = the_fault_with(load)
    assert fault.startswith("box: group_data/models/qwen3.8-27b.lock.json: not JSON")


def test_a_broken_card_is_named_by_its_path_in_the_project(load: Load, project: Path) -> None:
    edit_card(project, "tensors: 15", "tensors: fifteen")
    assert the_fault_with(load).startswith(
        "box: group_data/models/qwen3.8-27b.yml: head.tensors: found 'fifteen' (text)"
    )


# --- the release's lock ---

EXTRA = {"url": "http://10.0.0.1/x.so", "sha256": "0" * 64, "path": "lib/x.so"}


def lock_of(load: Load, **changes: Any) -> ReleaseLock:
    lock = release_lock(load(**changes), "3.11")
    assert isinstance(lock, ReleaseLock)
    return lock


def test_a_release_is_named_by_version_and_lock(load: Load) -> None:
    lock = lock_of(load)
    assert lock.lock8 == lock.sha256[:8]
    assert lock.release_id == f"0.31.0-{lock.lock8}"
    assert lock.text == CUDA_13
    assert lock.cuda == "13.0"


def test_the_releases_name_changes_with_what_is_in_it_and_with_nothing_else(load: Load) -> None:
    plain = lock_of(load).release_id
    extra = lock_of(load, release_extra_files=[EXTRA]).release_id
    assert extra != plain
    elsewhere = EXTRA | {"url": "http://10.9.9.9/y"}
    assert lock_of(load, release_extra_files=[elsewhere]).release_id == extra
    for change in ({"sha256": "1" * 64}, {"path": "lib/y.so"}):
        assert lock_of(load, release_extra_files=[EXTRA | change]).release_id != extra
    other = EXTRA | {"path": "lib/a.so"}
    forward = lock_of(load, release_extra_files=[EXTRA, other]).release_id
    assert lock_of(load, release_extra_files=[other, EXTRA]).release_id == forward
    assert lock_of(load, release_find_links="http://10.0.0.1/wheels").release_id == plain
    assert lock_of(load, release_extra_packages=["libnuma1"]).release_id == plain


def test_a_python_without_a_lock_is_refused_with_those_that_have_one(load: Load) -> None:
    refusal = release_lock(load(), "3.12")
    assert isinstance(refusal, Refusal)
    assert "3.11, 3.13" in refusal.expected
    assert "vllm-0.31.0-py312.txt" in refusal.remedy
    assert list(release_locks(load())) == ["3.11", "3.13"]


def test_what_is_wanted_of_a_box_follows_from_the_settings(load: Load) -> None:
    loaded = load(release_disk_gb=12.5)
    wanted = wanted_from(loaded, lock_of(load), clock=5.0)
    assert wanted.locked_pythons == ("3.11", "3.13")
    assert wanted.release_folder == f"/opt/vllm/releases/{lock_of(load).release_id}"
    assert wanted.release_bytes == 12_500_000_000
    assert wanted.weights_folder == loaded.weights_folder
    assert wanted.weights_bytes == 55_000_001_000
    assert wanted.clock == 5.0
    assert wanted_from(loaded, None).release_folder is None


def test_what_is_wanted_of_a_driver_follows_from_the_settings(load: Load) -> None:
    loaded = load(power_limit_w=450, nvidia_key="eb693b3035cd5710e231e123a4b469963bf863cc")
    wanted = driver_wanted_from(loaded, lock_of(load), "ubuntu", "24.04")
    assert wanted.url == (
        "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/"
    )
    assert wanted.fingerprint == "EB693B3035CD5710E231E123A4B469963BF863CC"
    assert (wanted.version, wanted.branch, wanted.cuda) == ("580.178.04", "580", "13.0")
    assert wanted.pci_ids == ("10de:2bb1", "10de:2bb4", "10de:2bb5")
    assert wanted.power_limit_w == 450
    assert driver_wanted_from(loaded, None, "debian", "13").cuda == "13.0"


@pytest.mark.parametrize(
    ("typo", "meant"),
    [
        ("power_limit", "power_limit_w"),
        ("gpu_pci_id", "gpu_pci_ids"),
        ("nvidia_repo", "nvidia_repository"),
        ("reboot_when_serving", "reboot_while_serving"),
        ("uvm_disable_hm", "uvm_disable_hmm"),
    ],
)
def test_a_driver_setting_written_wrong_names_the_nearest(
    load: Load, typo: str, meant: str
) -> None:
    assert the_fault_with(load, **{typo: 1}).endswith(f"did you mean {meant}?")


def test_a_setting_that_was_renamed_is_told_its_new_name(load: Load) -> None:
    fault = the_fault_with(load, scrape_address="192.168.1.20")
    assert fault.endswith("scrape_address: unknown setting; it is called box_address now")


def test_several_wrong_driver_settings_come_at_once(load: Load) -> None:
    wrong = {"nvidia_key": "x", "gpu_pci_ids": ["x"], "power_limit_w": "x"}
    assert len(faults_with(load, **wrong)) == 3


# --- anything at all ---

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.binary(max_size=4)
    | st.sampled_from(["/srv/models", "0.31.0", "qwen3.8-27b", "max-num-seqs", "http://x", "-x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(string.ascii_lowercase + "-_", max_size=8), inner, max_size=3)
        | st.dictionaries(inner.filter(lambda key: not isinstance(key, list | dict)), inner)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(sorted(Settings.model_fields)) | st.text(), anything))
@settings(
    max_examples=80,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
def test_any_data_either_loads_or_is_refused(
    data: dict[str, Any], project: Path, changes: dict[str, object]
) -> None:
    try:
        load_settings({"box": data | changes}, project, ())
    except SettingsError as error:
        assert error.faults
        assert str(error)


# --- several cards ---

FIRST, SECOND = "GPU-00000001", "GPU-00000002"
TWO = {"tensor-parallel-size": 2}


def test_one_card_is_named_by_a_text_and_several_by_a_list(load: Load) -> None:
    assert load().cards_wanted == Choice()
    assert load(gpu_uuid=FIRST).cards_wanted == Choice((FIRST,))
    assert load(gpu_uuid=[FIRST]).cards_wanted == Choice((FIRST,))
    both = load(gpu_uuid=[SECOND, FIRST], serve=TWO).cards_wanted
    assert both == Choice((SECOND, FIRST), 2, "tensor-parallel-size 2")
    assert load(serve={"data-parallel-size": 2}).cards_wanted.count == 2


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"gpu_uuid": [FIRST, SECOND]}, "gpu_uuid: found 2 cards, and the server takes 1; name"),
        (
            {"gpu_uuid": FIRST, "serve": TWO},
            "gpu_uuid: found 1 card, and tensor-parallel-size 2 take 2; name as many",
        ),
        (
            {"serve": {"tensor-parallel-size": "two"}},
            "tensor-parallel-size (the setting `serve`) is 'two'; expected a whole number from 1",
        ),
        ({"serve": {"data-parallel-size": 0}}, "is 0; expected a whole number from 1"),
        (
            {"serve": {"tensor-parallel-size": 3, "nnodes": 2}},
            "nnodes (the setting `serve`): tensor-parallel-size 3, nnodes 2 give no whole number",
        ),
        (
            {"serve": TWO, "server_environment": {"CUDA_VISIBLE_DEVICES": "0,1"}},
            "server_environment: CUDA_VISIBLE_DEVICES chooses the cards; name them in gpu_uuid",
        ),
    ],
)
def test_what_does_not_go_with_several_cards(
    load: Load, changes: dict[str, Any], words: str
) -> None:
    assert words in the_fault_with(load, **changes)


@pytest.mark.parametrize(
    ("serve", "words"),
    [
        (
            {"data-parallel-size": 2, "data-parallel-size-local": 4},
            "data-parallel-size-local (the setting `serve`) is 4, of data-parallel-size 2 in all",
        ),
        (
            {**TWO, "decode-context-parallel-size": 4},
            "decode-context-parallel-size (the setting `serve`) is 4, which does not divide",
        ),
        (
            {"decode-context-parallel-size": "two"},
            "decode-context-parallel-size (the setting `serve`) is 'two'; expected a whole",
        ),
    ],
)
def test_sizes_that_vllm_refuses_at_its_start_come_to_none(
    load: Load, serve: dict[str, Any], words: str
) -> None:
    assert words in the_fault_with(load, serve=serve)


@pytest.mark.parametrize("name", ["", " ", [""], ["a", "a"], True, {"a": 1}, ["a", 5], "gpt-*"])
def test_what_clients_can_not_ask_for_is_no_name(load: Load, name: object) -> None:
    fault = the_fault_with(load, serve={"served-model-name": name})
    assert "served-model-name (the setting `serve`) is " in fault


def test_a_server_may_have_several_names(load: Load) -> None:
    assert load(serve={"served-model-name": ["a", "b/c"]}).served_models == ("a", "b/c")


def test_a_card_that_is_named_right_is_no_fault_beside_another(load: Load) -> None:
    assert "server_port" in the_fault_with(load, gpu_uuid=FIRST, server_port="x")


def test_a_card_is_named_as_nvml_names_it(load: Load) -> None:
    assert load(gpu_uuid="GPU-0123ABCD-EF").cards_wanted.uuids == ("GPU-0123abcd-ef",)
    found = load(gpu_uuid=["GPU-0000000A", "GPU-0000000b"], serve=TWO)
    assert found.cards_wanted.uuids == ("GPU-0000000a", "GPU-0000000b")


def test_one_card_may_be_chosen_by_the_variable(load: Load) -> None:
    """As ever: the rehearsal hides all cards so, to serve on the CPU."""
    assert load(server_environment={"CUDA_VISIBLE_DEVICES": "-1"}).cards_wanted == Choice()


def test_what_comes_to_lie_on_a_card(load: Load, project: Path) -> None:
    assert load_on_cards(load(serve=TWO)) == OnCards(55_000_000_000, Spread(2), 0.87, 2)
    edit_card(project, "dtype: bfloat16 ", "dtype: float32 ")
    found = load_on_cards(load())
    assert found is not None and found.weights == 0
