"""How people start vLLM, and what is read of it."""

import pytest

from aibox.decide import launch

SNAPSHOT = "/home/me/.cache/huggingface/hub/models--Qwen--Qwen3.8-27B/snapshots/abc"
SERVER = "vllm.entrypoints.openai.api_server"


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("/home/me/env/bin/vllm serve Qwen/Qwen3.8-27B --port 9000", "Qwen/Qwen3.8-27B"),
        (f"/usr/bin/python3 /home/me/env/bin/vllm serve {SNAPSHOT}", SNAPSHOT),
        ("vllm serve --model Qwen/Qwen3.8-27B", "Qwen/Qwen3.8-27B"),
        ("vllm serve --port 9000 --model=Qwen/Qwen3.8-27B", "Qwen/Qwen3.8-27B"),
        (f"python -m {SERVER} --model /srv/qwen", "/srv/qwen"),
        (f"python3 -u -m {SERVER} --model=/srv/qwen", "/srv/qwen"),
        ("python -m vllm.entrypoints.cli.main serve /srv/qwen", "/srv/qwen"),
        ("python -m vllm serve /srv/qwen", "/srv/qwen"),
        ("python /x/site-packages/vllm/entrypoints/openai/api_server.py --model /q", "/q"),
        ("python -m vllm.entrypoints.api_server --model /q", "/q"),
        ("python /x/site-packages/vllm/entrypoints/api_server.py --model /q", "/q"),
        ("/home/me/.local/bin/uv run --with vllm vllm serve /srv/qwen", "/srv/qwen"),
        ("/usr/bin/env HF_HOME=/data vllm serve /srv/qwen", "/srv/qwen"),
        ("bash -c 'source env/bin/activate && exec vllm serve /srv/qwen --seed 1'", "/srv/qwen"),
        ("/bin/bash -lc 'cd /x; vllm serve /srv/qwen 2>&1 | tee log'", "/srv/qwen"),
        ("docker run --gpus all vllm/vllm-openai --model Qwen/Qwen3.8-27B", None),
        ("python -m http.server 8000", None),
        ("vim vllm serve.md", None),
        ("vllm bench serve --model x", None),
        ("vllm serve", ""),
        ("", None),
    ],
)
def test_a_server_is_known_by_its_command_line(line: str, model: str | None) -> None:
    found = launch.launched(launch.in_words(line))
    assert (found.model if found else None) == model


def test_flags_are_read_in_every_spelling() -> None:
    words = "vllm serve m --max_num_seqs=512 -tp 2 --served-model-name a b --enable-lora --seed -1"
    found = launch.launched(words.split())
    assert found is not None
    assert found.values("max-num-seqs") == ("512",)
    assert found.value("tensor-parallel-size") == "2"
    assert found.served_names == ("a", "b")
    assert found.values("enable-lora") == ()
    assert found.value("seed") == "-1"
    assert found.values("port") is None and found.port == 8000
    assert found.without("seed", "enable-lora") == [
        *("--max-num-seqs", "512", "--tensor-parallel-size", "2"),
        *("--served-model-name", "a", "b"),
    ]


@pytest.mark.parametrize(
    ("words", "name", "value"),
    [
        (["-sc", '{"method":"mtp"}'], "speculative-config", '{"method":"mtp"}'),
        (["-sc={}"], "speculative-config", "{}"),
        (["-dcp", "2"], "decode-context-parallel-size", "2"),
        (["-dpn", "0"], "data-parallel-rank", "0"),
        (["-n", "2"], "nnodes", "2"),
    ],
)
def test_a_short_flag_is_the_long_one(words: list[str], name: str, value: str) -> None:
    assert launch.launch(["m", *words]).value(name) == value


def test_of_a_shells_line_only_the_server_counts() -> None:
    found = launch.launched(["sh", "-c", "vllm serve /q --port 9000 >>/var/log/x 2>&1 || reboot"])
    assert found is not None
    assert found.flags == (("--port", "9000"),)


@pytest.mark.parametrize("port", ["", "nine", "-1"])
def test_a_port_that_is_none_is_the_usual_one(port: str) -> None:
    assert launch.launch(["m", "--port", port]).port == 8000


UNIT = """\
[Unit]
Description=ExecStart=vllm serve decoy
[Service]
User=me
Environment=HF_HOME=/data "TWO=a b"
Environment=HF_HOME=/other
; ExecStart=vllm serve commented
ExecStartPre=/bin/true
ExecStart=-/home/me/env/bin/vllm serve /srv/qwen \\
  # between
  --max-num-seqs 512 \\
  --speculative-config '{"method":"mtp"}'
[Install]
ExecStart=vllm serve elsewhere
"""


def test_a_units_start_is_read_over_its_lines() -> None:
    found = launch.of_unit(UNIT)
    assert found is not None
    assert found.model == "/srv/qwen"
    assert found.value("max-num-seqs") == "512"
    assert found.value("speculative-config") == '{"method":"mtp"}'


def test_a_drop_ins_start_wins() -> None:
    drop_in = "[Service]\nExecStart=\nExecStart=/x/bin/vllm serve /srv/other\n"
    found = launch.of_unit(UNIT, drop_in)
    assert found is not None and found.model == "/srv/other"


def test_the_last_value_of_a_variable_counts() -> None:
    assert launch.environment([UNIT]) == {"HF_HOME": "/other", "TWO": "a b"}


@pytest.mark.parametrize("text", ["", "[Service]\nExecStart=/bin/sh -c 'open", "\\\n", "x" * 5000])
def test_odd_units_start_nothing(text: str) -> None:
    assert launch.of_unit(text) is None


def test_what_a_unit_sets_is_read_over_lines_of_any_system_and_comments() -> None:
    text = "[Service]\r\nEnvironment=A=1 \\\r\n  B=2 bare\r\n#Nice=1\r\n[Install]\r\nNice=2\r\n"
    assert launch.settings(text) == [("Environment", "A=1    B=2 bare")]
    assert launch.environment([text]) == {"A": "1", "B": "2"}
    commented = "[Service]\nExecStart=/bin/x \\\n# --a\n  --b\n"
    assert launch.starts([commented]) == [["/bin/x", "--b"]]
