"""What a deploy would change about a server that a person runs, and what their clients notice."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aibox.decide import adopting
from aibox.decide.discovery import Discovered, Ours, Server

UNIT = "vllm-coder.service"
CACHED = "/home/me/.cache/huggingface/hub/models--Qwen--Qwen3.8-27B/snapshots/abc"
OURS = Ours(
    unit=UNIT,
    user="vllm",
    port=8000,
    flags=(
        *("--max-model-len", "262144", "--max-num-seqs", "480", "--enable-prefix-caching"),
        *("--served-model-name", "qwen3.8-27b"),
        *("--speculative-config", '{"method":"mtp","num_speculative_tokens":2}'),
    ),
    names=("qwen3.8-27b",),
    environment={"HOME": "/var/lib/vllm-coder", "PATH": "/bin"},
    repository="Qwen/Qwen3.8-27B",
    commit="abc",
    weights_bytes=55_000_000_000,
    context=262_144,
    card_file="group_data/models/qwen3.8-27b.yml",
)


def found(
    words: str = "--host 127.0.0.1 --served-model-name qwen3.8-27b",
    *,
    model: str = CACHED,
    addresses: tuple[str, ...] = ("127.0.0.1",),
    weights: list[dict[str, Any]] | None = None,
    **changes: Any,
) -> Discovered:
    """A box with one server, as the reference box has it but for what is changed."""
    command = ["/e/bin/python", "/e/bin/vllm", "serve", model, *words.split()]
    server: dict[str, Any] = {
        "unit": UNIT,
        "path": f"/etc/systemd/system/{UNIT}",
        "text": f"[Service]\nUser=me\nExecStart={' '.join(command[1:])}\n",
        "drop_ins": {},
        "manager": "system",
        "starter": None,
        "within": None,
        "user": "me",
        "pid": 7,
        "since": 1_800_000_000.0,
        "command": command,
        "port": 8000,
        "health": 200,
        "model": "qwen3.8-27b",
        "asks_for_key": False,
        "metrics": None,
    }
    server |= changes
    if server["pid"] is None:
        server["command"] = []
    listeners = [
        {"port": server["port"] or 8000, "address": one, "name": "python", "unit": UNIT}
        for one in addresses
    ]
    report = {"servers": [server], "weights": weights or [], "listeners": listeners}
    return Discovered.parse(json.dumps(report))


def met(box: Discovered) -> list[tuple[str, str]]:
    server = box.servers[0]
    assert server.launch is not None
    return [(one.what, one.keep) for one in adopting.consequences(server, server.launch, OURS, box)]


def test_a_unit_like_ours_has_no_consequences() -> None:
    assert met(found()) == []


NAMED = "--served-model-name qwen3.8-27b --host localhost"


@pytest.mark.parametrize(
    ("box", "what", "keep"),
    [
        (
            found(f"{NAMED} --port 9000", port=9000),
            "port 9000 becomes 8000: who asks 9000 finds nobody",
            "server_port = 9000",
        ),
        (
            found("--host localhost --served-model-name coder gpt"),
            'clients ask for the model "coder", "gpt"; it will be called "qwen3.8-27b"',
            'serve = {"served-model-name": ["qwen3.8-27b", "coder", "gpt"]}',
        ),
        (
            found("--host localhost", model="Qwen/Qwen3.8-27B"),
            'clients ask for the model "Qwen/Qwen3.8-27B"',
            '"served-model-name": ["qwen3.8-27b", "Qwen/Qwen3.8-27B"]',
        ),
        (
            found("--served-model-name qwen3.8-27b", addresses=("0.0.0.0",)),
            "other machines reach port 8000 directly",
            "no setting keeps this",
        ),
        (found(NAMED, addresses=("192.168.1.5", "127.0.0.1")), "other machines reach", "proxy"),
        (found(NAMED, addresses=("::",)), "other machines reach", "proxy"),
        (
            found("--served-model-name qwen3.8-27b", addresses=(), pid=None),
            "other machines reach port 8000 directly",
            "no setting keeps this",
        ),
        (found(f"{NAMED} --api-key (hidden)"), "clients need an API key", "no setting keeps this"),
        (found(NAMED, asks_for_key=True), "clients need an API key", "LiteLLM"),
        (
            found(NAMED, drop_ins={"/x/key.conf": "[Service]\nEnvironment=VLLM_API_KEY=(hidden)"}),
            "clients need an API key",
            "LiteLLM",
        ),
        (
            found(NAMED, model="unsloth/Qwen3.8-27B-FP8"),
            "it serves unsloth/Qwen3.8-27B-FP8; a deploy serves Qwen/Qwen3.8-27B",
            "model = its name",
        ),
        (
            found(NAMED, model=CACHED.replace("Qwen--Qwen3.8-27B", "un--sloth")),
            "it serves un/sloth",
            "group_data/models/qwen3.8-27b.yml",
        ),
        (
            found(f"{NAMED} --max-model-len 300000"),
            "prompts of more than 262144 tokens are refused; up to 300000 they were not",
            'serve = {"max-model-len": 300000}',
        ),
        (
            found(f"{NAMED} --max-num-seqs 512"),
            "of more than 480 requests at the same time the rest waits; up to 512 ran together",
            'serve = {"max-num-seqs": 512}',
        ),
        (
            found(f"{NAMED} --enable-lora --lora-modules a=/x b=/y"),
            "its LoRA adapters are not served",
            'serve = {"enable-lora": True, "lora-modules": ["a=/x", "b=/y"]}',
        ),
        (
            found(f"{NAMED} -q fp8"),
            "it quantises the weights as it loads them (fp8)",
            'serve = {"quantization": "fp8"}',
        ),
        (
            found(f"{NAMED} -tp 2"),
            "it spreads over several cards (--tensor-parallel-size 2)",
            "no setting keeps this",
        ),
        (
            found(NAMED, unit="my-llm.service"),
            "my-llm.service is not vllm-coder.service",
            'server_unit = "my-llm"',
        ),
        (
            found(NAMED, unit="llm.service", manager="user"),
            "can't be adopted",
            "systemctl --user disable --now llm.service",
        ),
        (
            found(NAMED, unit="0123456789ab", manager="container"),
            "can't be adopted",
            "docker stop 0123456789ab",
        ),
        (
            found(NAMED, unit="0123456789ab", manager="container", starter="qwen.service"),
            "qwen.service starts a container: it can't be adopted",
            "before the deploy: systemctl disable --now qwen.service",
        ),
        (
            found(NAMED, pid=None, starter=UNIT),
            f"{UNIT} starts a container: it can't be adopted",
            'server_unit = "aibox-vllm" in group_data/site.py',
        ),
        (found(NAMED, unit=None, manager="none"), "can't be adopted", "stop it where"),
    ],
)
def test_each_consequence_comes_with_what_keeps_it(box: Discovered, what: str, keep: str) -> None:
    ((said, remedy),) = met(box)
    assert said.startswith(what) or what in said
    assert keep in remedy


def test_a_prefix_cache_that_goes_is_a_consequence() -> None:
    box = found(f"{NAMED} --enable-prefix-caching")
    server = box.servers[0]
    assert server.launch is not None
    without = replace(OURS, flags=("--served-model-name", "qwen3.8-27b"))
    [one] = adopting.consequences(server, server.launch, without, box)
    assert "there is no prefix cache" in one.what
    assert one.keep == 'serve = {"enable-prefix-caching": True} keeps it'
    assert met(box) == []


@pytest.mark.parametrize(
    "words", ["-tp 1", "--tensor-parallel-size=1", "--max-model-len 8192", "--max-model-len 256k"]
)
def test_what_nobody_would_notice_is_no_consequence(words: str) -> None:
    assert met(found(f"{NAMED} {words}")) == []


def test_a_folder_of_no_known_origin_is_not_called_another_model() -> None:
    assert met(found(NAMED, model="/data/qwen")) == []


def test_a_folder_that_was_looked_at_is() -> None:
    held = {
        "folder": "/data/qwen",
        "repository": "un/sloth",
        "commit": None,
        "bytes": 1,
        "missing": 0,
        "head": "none",
        "dtype": None,
    }
    ((what, _),) = met(found(NAMED, model="/data/qwen/", weights=[held]))
    assert what.startswith("it serves un/sloth")


# --- line by line --------------------------------------------------------------------------------


def changes(box: Discovered) -> list[str]:
    return adopting.changes(box.servers[0], OURS)


def test_flags_stand_line_by_line_what_changes_first() -> None:
    words = "--max-num-seqs 512 --swap-space 4 --max-model-len 262144"
    rows = changes(found(f"--host 0.0.0.0 {words} --allow-credentials"))
    assert rows[:7] == [
        "--host 0.0.0.0 -> --host localhost",
        "--max-num-seqs 512 -> --max-num-seqs 480",
        '+ --speculative-config {"method":"mtp","num_speculative_tokens":2}',
        "+ --allowed-origins []",
        "+ --enable-prefix-caching",
        "- --swap-space 4",
        "- --allow-credentials",
    ]
    assert rows[7] == "user me -> vllm"
    assert rows[-1].startswith("sandbox: ")


DROP_INS = [
    "/etc/systemd/system/vllm-coder.service.d/90-mine.conf",
    "/usr/local/lib/systemd/system/vllm-coder.service.d/80-nice.conf",
]


def test_the_rest_of_the_unit_is_named() -> None:
    text = "[Service]\nEnvironment=HF_HOME=/data PATH=/x\nExecStartPre=/bin/true\nNice=5\n"
    rows = changes(found(NAMED, text=text, drop_ins=dict.fromkeys(DROP_INS, "[Service]\n")))
    assert any(row.startswith("no longer set: HF_HOME (") for row in rows)
    assert "lines of the unit that go: ExecStartPre, Nice" in rows
    assert "drop-ins set aside: 90-mine.conf" in rows
    assert f"drop-ins that stay, and change ours too: {DROP_INS[1]}" in rows


def test_very_many_flags_are_cut() -> None:
    rows = changes(found(" ".join(f"--flag-{at} {at}" for at in range(40))))
    assert len(rows) < 20
    assert any(row.startswith("and ") for row in rows)


def test_no_secret_is_shown() -> None:
    words = f"{NAMED} --api-key sk-1234567890 --hf-token=hf_abcdefgh"
    rows = [*changes(found(words)), *(text for pair in met(found(words)) for text in pair)]
    assert not any("sk-1234567890" in row or "hf_abcdefgh" in row for row in rows)


# --- which one ------------------------------------------------------------------------------------


def server(**changes: Any) -> Server:
    return found(NAMED, **changes).servers[0]


@pytest.mark.parametrize(
    ("servers", "chosen"),
    [
        ([], None),
        ([server(unit="other.service", port=8000), server(pid=None)], "other.service"),
        ([server(pid=None)], UNIT),
        ([server(unit="a.service", port=9000), server(unit="b.service")], "b.service"),
        ([server(unit="a.service", port=9000)], "a.service"),
        ([server(unit="a.service", pid=None)], None),
        ([server(manager="user"), server(unit="b.service", port=9)], UNIT),
    ],
)
def test_the_one_of_our_name_or_port_is_what_a_deploy_stands_in_for(
    servers: list[Server], chosen: str | None
) -> None:
    one = adopting.adopted(servers, OURS)
    assert (one.unit if one else None) == chosen


def test_only_a_unit_that_is_adopted_can_be_brought_back() -> None:
    assert any("--data to=found" in row for row in adopting.stays(server(), OURS))
    assert any("files of its user" in row for row in adopting.stays(server(user=None), OURS))
    assert adopting.stays(server(manager="container"), OURS) == []
    assert adopting.stays(server(starter=UNIT), OURS) == []
    assert adopting.stays(server(unit="other.service"), OURS) == []
