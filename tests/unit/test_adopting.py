"""What a deploy would change about a server that a person runs, and what their clients notice."""

import ast
import json
from dataclasses import replace
from typing import Any

import pytest

from aibox.card import Limit
from aibox.decide import adopting, consequences
from aibox.decide.discovery import Discovered, Kept, Ours, Server
from tests.unit.conftest import ROOT

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
    start_timeout=1200,
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


def consequences_of(box: Discovered, ours: Ours = OURS) -> list[consequences.Consequence]:
    server = box.servers[0]
    assert server.launch is not None
    return consequences.consequences(server, server.launch, ours, box)


def met(box: Discovered) -> list[tuple[str, str]]:
    return [
        (one.what, "\n".join([consequences.as_python(one.flags), *one.below]))
        for one in consequences_of(box)
    ]


def test_a_unit_like_ours_has_no_consequences() -> None:
    assert met(found()) == []


NAMED = "--served-model-name qwen3.8-27b --host localhost"


@pytest.mark.parametrize(
    ("box", "what", "keep"),
    [
        (
            found(f"{NAMED} --port 9000", port=9000),
            "port 9000 becomes 8000: who asks 9000 finds nobody",
            "server_port = 9000 in group_data/site.py",
        ),
        (
            found("--host localhost --served-model-name coder gpt"),
            'clients ask for the model "coder", "gpt"; it will be called "qwen3.8-27b"',
            '{"served-model-name": ["qwen3.8-27b", "coder", "gpt"]}',
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
            '{"max-model-len": 300000}',
        ),
        (
            found(f"{NAMED} --max-num-seqs 512"),
            "of more than 480 requests at the same time the rest waits; up to 512 ran together",
            '{"max-num-seqs": 512}\nbut each sequence takes memory',
        ),
        (
            found(f"{NAMED} --enable-lora --lora-modules a=/x b=/y"),
            "its LoRA adapters are not served",
            '{"enable-lora": True, "lora-modules": ["a=/x", "b=/y"]}',
        ),
        (
            found(f"{NAMED} -q fp8"),
            "it quantises the weights as it loads them (fp8)",
            '{"quantization": "fp8"}',
        ),
        (
            found(f"{NAMED} -tp 2"),
            "it spreads over several cards (--tensor-parallel-size 2); a deploy serves from one",
            '{"tensor-parallel-size": 2}',
        ),
        (
            found(f"{NAMED} --tensor-parallel-size 2 -dp 2 -pp 1"),
            "(--tensor-parallel-size 2, --data-parallel-size 2); a deploy serves from one",
            '{"tensor-parallel-size": 2, "data-parallel-size": 2}',
        ),
        (found(f"{NAMED} -tp auto"), "it spreads over several cards", ""),
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


WITHOUT_CACHE = replace(OURS, flags=("--no-enable-prefix-caching",))


def test_a_prefix_cache_that_goes_is_a_consequence_with_what_is_known_of_it() -> None:
    box = found(f"{NAMED} --enable-prefix-caching")
    [one] = consequences_of(box, WITHOUT_CACHE)
    assert "there is no prefix cache" in one.what
    assert str(one).startswith("enable-prefix-caching: what prompts have in common")
    assert (one.flags, one.below) == ({"enable-prefix-caching": True}, [])
    known = replace(WITHOUT_CACHE, issues={"enable-prefix-caching": "a class of bugs: answers …"})
    [one] = consequences_of(box, known)
    assert one.below == ["but a known issue of this vLLM: a class of bugs"]
    assert consequences_of(box, replace(OURS, flags=())) == []  # on by default


def test_more_sequences_than_the_card_knows_to_work_come_with_what_it_knows() -> None:
    known = replace(OURS, limits={"max-num-seqs": Limit(most=480, why="512 failed at start")})
    [one] = consequences_of(found(f"{NAMED} --max-num-seqs 512"), known)
    assert one.below[0] == "but group_data/models/qwen3.8-27b.yml knows: 512 failed at start"
    lower = replace(known, flags=("--max-num-seqs", "4"))
    [one] = consequences_of(found(f"{NAMED} --max-num-seqs 480"), lower)
    assert one.below[0].startswith("but each sequence takes memory")


@pytest.mark.parametrize(
    ("words", "flags", "what", "kept"),
    [
        ("", "--enforce-eager", "answers come slower", {"enforce-eager": None}),
        ("--enforce-eager", "", "it compiles and captures", {"enforce-eager": True}),
        (
            "--gpu-memory-utilization 0.87",
            "--gpu-memory-utilization 0.15",
            "it takes 0.15 of the card's memory, not 0.87: fewer prompts fit",
            {"gpu-memory-utilization": 0.87},
        ),
        (
            "--gpu-memory-utilization 0.5",
            "",
            "it takes 0.92 of the card's memory, not 0.5: what else is on the card has less",
            {"gpu-memory-utilization": 0.5},
        ),
    ],
)
def test_graphs_and_memory_that_differ_are_consequences(
    words: str, flags: str, what: str, kept: dict[str, Any]
) -> None:
    ours = replace(OURS, flags=tuple(flags.split()))
    [one] = consequences_of(found(f"{NAMED} {words}"), ours)
    assert one.what.startswith(what)
    assert one.flags == kept


def test_all_that_flags_keep_is_one_line_that_python_reads() -> None:
    box = found(f"{NAMED} --enable-prefix-caching --max-num-seqs 512 --max-model-len 300000")
    ours = replace(OURS, flags=("--no-enable-prefix-caching", *OURS.flags[:4], "--enforce-eager"))
    words, line = consequences.one_line(consequences_of(box, ours), ours)
    assert words == "all that flags keep, by this one line in group_data/site.py:"
    kept = {
        "max-model-len": 300000,
        "max-num-seqs": 512,
        "enable-prefix-caching": True,
        "enforce-eager": None,
    }
    name, _, value = line.strip().partition(" = ")
    assert (name, ast.literal_eval(value)) == ("serve", kept)
    set_already = replace(ours, serve={"seed": 7, "max-num-seqs": 9})
    words, line = consequences.one_line(consequences_of(box, set_already), set_already)
    assert words.endswith("in group_data/site.py in place of its `serve`:")
    assert ast.literal_eval(line.partition(" = ")[2]) == {"seed": 7, **kept}
    assert consequences.one_line(consequences_of(found()), OURS) == []


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
    at = rows.index("no longer set: HF_HOME; where one is missed, in group_data/site.py:")
    assert rows[at + 1] == '  server_environment = {"HF_HOME": "/data"}'
    assert "lines of the unit that go: ExecStartPre, Nice" in rows
    assert "drop-ins set aside: 90-mine.conf" in rows
    assert f"drop-ins that stay, and change ours too: {DROP_INS[1]}" in rows


def test_variables_that_are_set_already_stay_in_the_line_and_secrets_are_left_out() -> None:
    text = "[Service]\nEnvironment=HF_HOME=/data HF_TOKEN=(hidden)\n"
    box = found(NAMED, text=text)
    rows = adopting.changes(box.servers[0], replace(OURS, variables={"A": "1"}))
    at = next(at for at, row in enumerate(rows) if row.startswith("no longer set: HF_HOME, HF_TO"))
    assert "in place of its `server_environment`" in rows[at]
    assert rows[at + 1] == '  server_environment = {"A": "1", "HF_HOME": "/data"}'
    secret = found(NAMED, text="[Service]\nEnvironment=HF_TOKEN=(hidden)\n")
    assert "no longer set: HF_TOKEN" in changes(secret)


def test_the_variable_that_chose_cards_is_no_line_to_keep() -> None:
    text = "[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=0,1 NCCL_DEBUG=WARN\n"
    rows = changes(found(f"{NAMED} -tp 2", text=text))
    assert "no longer set: CUDA_VISIBLE_DEVICES=0,1; gpu_uuid names the cards" in rows
    assert '  server_environment = {"NCCL_DEBUG": "WARN"}' in rows
    alone = changes(found(NAMED, text="[Service]\nEnvironment=CUDA_VISIBLE_DEVICES=1\n"))
    assert sum("no longer set" in row for row in alone) == 1


def test_lines_of_the_unit_that_are_otherwise_are_named() -> None:
    text = "[Service]\nRestart=on-failure\nRestartSec=5s\nWorkingDirectory=/home/me\n"
    rows = changes(found(NAMED, text=text, drop_ins={"/x/a.conf": "[Service]\nRestart=no\n"}))
    there = "lines of the unit: Restart=no -> always, WorkingDirectory=/home/me -> "
    assert f"{there}/var/lib/vllm-coder" in rows
    same = "[Service]\nType=exec\nRestart=always\nRestartSec=5\n"
    assert not any(row.startswith("lines of") for row in changes(found(NAMED, text=same)))


def test_what_our_unit_says_is_what_its_template_says() -> None:
    template = (ROOT / "templates/vllm-coder.service.j2").read_text()
    for name, value in adopting.of_our_unit(OURS).items():
        [line] = [line for line in template.splitlines() if line.startswith(f"{name}=")]
        assert line == f"{name}={value}" or "{{" in line


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
    assert (
        "is kept already, as it stood 1970"
        in adopting.stays(server(), OURS, Kept(0, changed=False))[0]
    )
    edited = adopting.stays(server(), OURS, Kept(0, changed=True))[0]
    assert "as it stands now is kept, changed since 1970-01-01 00:00:00 UTC" in edited
    assert adopting.stays(server(manager="container"), OURS) == []
    assert adopting.stays(server(starter=UNIT), OURS) == []
    assert adopting.stays(server(unit="other.service"), OURS) == []
