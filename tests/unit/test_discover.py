"""What is found on a box that no deploy has seen."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from aibox.box import discover
from tasks.facts import Discovery

HEAD = {
    "config_key": "mtp_num_hidden_layers",
    "layers": 1,
    "tensor_prefix": "mtp.",
    "tensors": 2,
}
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASKED = {"repository": "Qwen/Qwen3.8-27B", "unit": "none-such.service", "port": 1, "head": HEAD}


def test_it_runs_on_a_bare_python_and_fits_into_one_argument() -> None:
    command = Discovery().command("discovery", json.dumps(ASKED)).get_raw_value()
    assert len(command) < 100_000  # the kernel's limit for one argument is 128 KiB
    script = command.partition("\n")[2].partition("END_OF_DISCOVERY\n")[0]
    done = subprocess.run(
        [sys.executable, "-IS", "-", "discovery", json.dumps(ASKED)],
        input=script,
        capture_output=True,
        text=True,
        check=True,
        cwd="/",
    )
    assert set(json.loads(done.stdout)) == {"servers", "weights", "listeners"}


def test_a_box_that_fails_says_null() -> None:
    command = Discovery().command("no-such-question").get_raw_value()
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert Discovery().process(done.stdout.splitlines()) is None
    assert done.stderr == ""


# --- processes -----------------------------------------------------------------------------------

VLLM = ["/e/bin/python", "/e/bin/vllm", "serve", "/srv/qwen"]


def table(*rows: tuple[int, int, list[str]]) -> discover.Table:
    return {pid: (parent, words) for pid, parent, words in rows}


@pytest.mark.parametrize(
    ("rows", "servers"),
    [
        ([(5, 1, VLLM), (6, 5, ["VLLM::EngineCore"])], [5]),
        ([(5, 1, ["uv", "run", *VLLM[1:]]), (6, 5, VLLM)], [6]),
        ([(5, 1, ["bash", "-c", "vllm serve /q"]), (6, 5, VLLM), (7, 6, VLLM)], [6]),
        ([(5, 1, ["docker", "run", "x", "vllm", "serve", "m"])], []),
        ([(5, 1, VLLM), (9, 1, VLLM)], [5, 9]),
        ([(5, 5, VLLM)], []),  # its own parent: not a tree
        ([(5, 1, [])], []),
    ],
)
def test_the_server_is_found_among_what_starts_it(
    rows: list[tuple[int, int, list[str]]], servers: list[int]
) -> None:
    assert [pid for pid, _ in discover.own_processes(table(*rows))] == servers


def test_dockers_port_is_the_boxes_own() -> None:
    proxy = "docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 8080 -container-ip 172.17.0.2"
    words = [f"/usr/bin/{proxy}".split()[0], *proxy.split()[1:], "-container-port", "8000"]
    assert discover.published(8000, table((3, 1, words))) == 8080
    assert discover.published(9000, table((3, 1, words))) == 9000


def test_a_process_inside_tmux_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discover, "ROOT", tmp_path)
    for pid, name in ((4, "tmux: server"), (5, "bash")):
        (tmp_path / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / f"proc/{pid}/comm").write_text(f"{name}\n")
    rows = table((4, 1, ["tmux"]), (5, 4, ["bash"]), (6, 5, VLLM))
    assert discover.within(6, rows) == "tmux"
    assert discover.within(4, rows) is None


def test_units_that_would_start_one_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discover, "ROOT", tmp_path)
    folder = tmp_path / "etc/systemd/system"
    folder.mkdir(parents=True)
    start = "[Service]\nUser=me\nExecStart=/e/bin/vllm serve /q --port 9000\n"
    (folder / "his.service").write_text(start)
    (folder / "vllm-coder.service").write_text("[Service]\nExecStart=/opt/start.sh\n")
    (folder / "other.service").write_text("[Service]\nExecStart=/bin/true\n")
    elsewhere = tmp_path / "usr/local/lib/systemd/system"
    elsewhere.mkdir(parents=True)
    (elsewhere / "his.service").write_text("[Service]\nExecStart=/hidden/vllm serve /q\n")
    (elsewhere / "docker.service").write_text("[Service]\nExecStart=/docker run i vllm serve /q\n")
    (elsewhere / "vllm@.service").write_text(start)
    found = discover.idle_units("vllm-coder.service")
    assert [(one["unit"], one["user"], one["port"], one["starter"]) for one in found] == [
        ("his.service", "me", 9000, None),
        ("vllm-coder.service", "root", None, None),
        ("docker.service", "root", 8000, "docker.service"),
    ]


# --- weights -------------------------------------------------------------------------------------


def model(folder: Path, *, layers: int | None = 1, tensors: int = 2, index: bool = True) -> None:
    folder.mkdir(parents=True)
    names = ["model.x", *(f"mtp.{at}" for at in range(tensors))]
    header = json.dumps({name: {"dtype": "BF16", "shape": []} for name in names}).encode()
    (folder / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header)
    text: dict[str, Any] = {"dtype": "bfloat16"}
    text |= {"mtp_num_hidden_layers": layers} if layers is not None else {}
    (folder / "config.json").write_text(json.dumps({"text_config": text}))
    if index:
        listed = json.dumps({"weight_map": dict.fromkeys(names, "model.safetensors")})
        (folder / "model.safetensors.index.json").write_text(listed)


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(
    ("layers", "tensors", "head"),
    [
        (1, 2, "carried"),
        (1, 0, "named, without its tensors"),
        (None, 0, "none"),
        (0, 0, "none"),
        (None, 2, "there, but not named in config.json"),
        (2, 5, "another one"),
    ],
)
def test_the_head_is_judged_from_the_files(
    tmp_path: Path, layers: int | None, tensors: int, head: str, index: bool
) -> None:
    model(tmp_path / "m", layers=layers, tensors=tensors, index=index)
    found = discover.looked_at(tmp_path / "m", ASKED)
    assert found is not None
    assert (found["head"], found["dtype"], found["missing"]) == (head, "bfloat16", 0)


@pytest.mark.parametrize("place", ["", "hub"])
def test_every_model_of_a_hub_cache_is_found_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    cache = tmp_path / place
    model(cache / f"models--Qwen--Qwen3.8-27B/snapshots/{COMMIT}")
    model(cache / "models--un--sloth/snapshots/main")
    (cache / f"models--Qwen--Qwen3.8-27B/snapshots/{COMMIT}/model.safetensors").unlink()
    monkeypatch.setattr(discover, "weights_places", lambda _repository: [str(tmp_path), str(cache)])
    assert [one["repository"] for one in discover.weights(ASKED, [])] == ["un/sloth"]
    (cache / f"models--Qwen--Qwen3.8-27B/snapshots/{COMMIT}/one.safetensors").write_bytes(b"12345")
    found = discover.weights(ASKED, [str(cache / "models--un--sloth/snapshots/main")])
    assert [(one["repository"], one["commit"], one["missing"]) for one in found] == [
        ("Qwen/Qwen3.8-27B", COMMIT, 1),
        ("un/sloth", "main", 0),
    ]


@pytest.mark.parametrize(
    ("config", "name", "dtype"),
    [
        ({"torch_dtype": "float16"}, "a.safetensors", "float16"),
        ({"quantization_config": {"quant_method": "fp8"}}, "a.safetensors", "fp8, quantised"),
        ({}, "a.gguf", "GGUF, quantised"),
        ([], "a.safetensors", None),
    ],
)
def test_quantised_weights_are_called_so(
    tmp_path: Path, config: object, name: str, dtype: str | None
) -> None:
    (tmp_path / name).write_bytes(b"no header")
    (tmp_path / "config.json").write_text(json.dumps(config))
    found = discover.looked_at(tmp_path, ASKED)
    assert found is not None
    assert (found["dtype"], found["head"]) == (dtype, "unknown")


def test_a_folder_without_weights_is_none(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert discover.looked_at(tmp_path, ASKED) is None


# --- what a download would take ------------------------------------------------------------------


class Slow:
    """A connection that gives what it is asked for, up to `size` bytes."""

    def __init__(self, size: int) -> None:
        self.left = size

    def read(self, room: int) -> bytes:
        piece = min(room, self.left)
        self.left -= piece
        return b"x" * piece


def test_a_limit_holds_for_the_measurement_too() -> None:
    rate = discover.received(Slow(100_000), 1_000_000.0)
    assert rate is not None and rate <= 1_000_000.0


def test_a_measurement_fetches_no_more_than_its_share() -> None:
    connection = Slow(200_000_000)
    assert discover.received(connection, None) is not None
    assert connection.left >= 200_000_000 - discover.MEASURE_BYTES - (1 << 18)


def test_what_lies_on_the_box_is_not_asked_of_the_hub(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"12345")
    asked = {
        "repository": "x/y",
        "from": str(tmp_path),
        "files": {"a": [5, ["a"]], "b": [5, ["b", "snapshots/*/b"]]},
        "url": "http://127.0.0.1:9/x",
        "limit": None,
        "sample": None,
    }
    found = discover.fetching(asked)
    assert (found["lying"], found["rate"]) == (5, None)
    assert "the hub gave no answer" in found["why"]
    only = {**asked, "files": {"a": [5, ["a"]]}}
    assert discover.fetching(only) == {"lying": 5, "rate": None, "why": None}


def test_where_only_others_fetch_much_a_file_that_is_there_already_measures() -> None:
    asked: dict[str, Any] = {
        "repository": "x/y",
        "from": "/nowhere",
        "files": {},
        "url": "http://127.0.0.1:9/x",
        "limit": None,
        "sample": "a",
    }
    found = discover.fetching(asked)
    assert found["lying"] == 0
    assert "the hub gave no answer" in found["why"]
