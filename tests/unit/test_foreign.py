"""What is foreign on a box, what of it is accepted, and that nothing secret is shown of it."""

from typing import Any

import pytest

from aibox.decide.foreign import Declared, Foreign, foreign_in, is_loopback, said, sort
from aibox.decide.secrecy import HIDDEN, without_secrets, words_without_secrets

UNIT = "vllm-coder.service"
FILE = f"/etc/systemd/system/{UNIT}"
PACKAGED = "nvidia-persistenced.service"  # enabled by us, laid down by its package
LOCAL = f"/etc/systemd/system/{PACKAGED}"
DECLARED = Declared(
    files=[FILE, "/etc/systemd/system/vllm-coder.service.d/ours.conf"],
    groups={"vllm": ["vllm"]},
    users=["vllm"],
    variables={UNIT: ["HOME", "HF_HUB_OFFLINE"], PACKAGED: []},
)


def found(**changes: Any) -> dict[str, Any]:
    """A box on which nothing is foreign."""
    return {
        "units": {UNIT: unit()},
        "members": {"vllm": ["vllm"]},
        "groups_of": {"vllm": ["vllm"]},
        "listeners": [socket(22, "sshd"), socket(8000, "python", unit=UNIT)],
        "ssh_port": 22,
        **changes,
    }


def unit(**changes: Any) -> dict[str, Any]:
    right = {"fragment": FILE, "drop_ins": {}, "variables": ["HOME", "LANG", "LC_ALL", "PWD"]}
    return {**right, "theirs": False, "given": [], **changes}


def socket(port: int, name: str, address: str = "0.0.0.0", unit: str | None = None) -> Any:
    return {"port": port, "address": address, "name": name, "unit": unit}


DROP_IN = f"{FILE}.d/x.conf"
FOR_ALL = "/etc/systemd/system/service.d/x.conf"


@pytest.mark.parametrize(
    ("box", "what"),
    [
        (found(), []),
        (found(units={UNIT: unit(drop_ins={f"{FILE}.d/ours.conf": "[Service]"})}), []),
        (found(units={UNIT: unit(drop_ins={DROP_IN: "[Service]"})}), [f"drop-in {DROP_IN}"]),
        (found(units={UNIT: unit(fragment="/run/x.service")}), ["unit file /run/x.service"]),
        (found(units={UNIT: unit(fragment="")}), []),
        (
            found(units={UNIT: unit(fragment=f"/usr/lib/systemd/system/{UNIT}")}),
            [f"unit file /usr/lib/systemd/system/{UNIT}"],
        ),
        (found(units={PACKAGED: unit(fragment=f"/lib/systemd/system/{PACKAGED}")}), []),
        (found(units={PACKAGED: unit(fragment=LOCAL)}), [f"unit file {LOCAL}"]),
        (
            found(units={UNIT: unit(variables=["LD_PRELOAD", "HF_HUB_OFFLINE", "\x1b[31m"])}),
            [f"variable LD_PRELOAD of {UNIT}"],
        ),
        (
            found(units={UNIT: unit(variables=["A"], drop_ins={DROP_IN: "Environment=A=1"})}),
            [f"drop-in {DROP_IN}"],
        ),
        (found(units={UNIT: unit(variables=["HF_HOME"], given=["HF_HOME"])}), []),
        (found(units={UNIT: unit(theirs=True, drop_ins={DROP_IN: "[Service]"})}), []),
        (found(units={UNIT: unit(theirs=True, fragment=f"/usr/lib/systemd/system/{UNIT}")}), []),
        (
            found(units={UNIT: unit(theirs=True, drop_ins={FOR_ALL: "[Service]"})}),
            [f"drop-in {FOR_ALL}"],  # no deploy takes it away
        ),
        (
            found(units={UNIT: unit(theirs=True, fragment="/run/x.service")}),
            ["unit file /run/x.service"],
        ),
        (
            found(units={PACKAGED: unit(theirs=True, fragment=LOCAL)}),
            [f"unit file {LOCAL}"],
        ),
        (
            found(members={"vllm": ["vllm", "bob", "al"]}),
            ["member al of vllm", "member bob of vllm"],
        ),
        (found(groups_of={"vllm": ["vllm", "docker"]}), ["member vllm of docker"]),
        (found(listeners=[socket(9100, "node_exporter")]), ["port 9100 node_exporter"]),
        (
            found(listeners=[socket(80, "nginx", "::"), socket(80, "nginx")]),
            ["port 80 nginx"],
        ),
        (found(listeners=[socket(631, "cupsd", "127.0.0.1"), socket(631, "cupsd", "::1")]), []),
        (
            found(listeners=[socket(2222, "sshd"), socket(22, "sshd")], ssh_port=2222),
            ["port 22 sshd"],
        ),
        (found(ssh_port=None), []),
        (found(listeners=[socket(29500, "python", unit=UNIT)]), []),
        (found(listeners=[socket(8000, "python", unit="mine.service")]), ["port 8000 python"]),
    ],
)
def test_what_no_deploy_lays_down_is_foreign(box: dict[str, Any], what: list[str]) -> None:
    assert [thing.what for thing in foreign_in(box, [], DECLARED)] == what


def test_a_stray_file_is_foreign() -> None:
    assert [one.what for one in foreign_in(found(), ["/srv/x"], DECLARED)] == ["file /srv/x"]


@pytest.mark.parametrize(
    ("address", "inside"),
    [
        ("127.0.0.1", True),
        ("127.0.0.53", True),
        ("localhost", True),
        ("ai-box", False),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("0.0.0.0", False),
        ("::", False),
        ("192.168.1.7", False),
        ("::ffff:10.0.0.1", False),
    ],
)
def test_loopback_is_known(address: str, inside: bool) -> None:
    assert is_loopback(address) == inside


def test_accepted_things_are_told_from_new_ones_and_from_gone_ones() -> None:
    things = [Foreign("port 80 nginx", "why"), Foreign("port 81 nginx", "why")]
    result = sort(things, [" port 80 nginx ", "port 8 x", "port 8 x"])
    assert result.new == (things[1],)
    assert result.accepted == ("port 80 nginx",)
    assert result.gone == ("port 8 x",)


def test_a_part_of_a_text_accepts_nothing() -> None:
    thing = Foreign("port 80 nginx", "why")
    assert sort([thing], ["port 80", "PORT 80 NGINX", "port 80 nginx2"]).new == (thing,)


def test_a_drop_in_shows_what_it_says() -> None:
    assert said("# a\n; b\n\n[Service]\n  Nice=5\n") == ("[Service]", "  Nice=5")
    assert said("x\n" * 50)[-1] == "(10 more lines)"


@pytest.mark.parametrize(
    "text",
    [
        "Environment=HF_TOKEN=hunter2",
        'Environment="HF_TOKEN=hunter2 hunter2"',
        "ExecStart=vllm serve x --api-key hunter2 --seed 7",
        "ExecStart=vllm serve x --api-key \\\n    hunter2",
        "ExecStart=vllm serve x --api-key one hunter2",
        "ExecStart=vllm serve x --api-key \\\n    one \\\n    hunter2 \\\n    --seed 7",
        "LITELLM_MASTER_KEY=hunter2",
        "Environment=API_KEYS=a,hunter2 PATH=/bin",
        "OPENAI_KEY_1=hunter2",
        "PASSWORD1=hunter2",
        "TOKENS=hunter2",
        "VLLM_PW=hunter2",
        "SALT=hunter2",
        '["serve", "--api-key", "one", "hunter2", "--port", "8000"]',
        "['serve', '--api-key', 'one', 'hunter2']",
        "curl -s -u me:hunter2 http://x/",
        "AUTH=hunter2",
        "Environment=BASIC_AUTH=hunter2",
        "it runs with --api-key=hunter2, which is not wanted",
        '{"api_key":"hunter2"}',
        "MY_PASSWORD = hunter2",
        "password: hunter2",
        "CLIENT_SECRET='hunter2'",
        "proxy=http://me:hunter2@host/",
        "Authorization: Bearer hunter2",
        "aws_credential=hunter2",
    ],
)
def test_a_secret_is_hidden(text: str) -> None:
    assert "hunter2" not in without_secrets(text)
    assert HIDDEN in without_secrets(text)


def test_a_word_that_is_a_whole_line_holds_no_secret() -> None:
    words = [
        "bash",
        "-c",
        "vllm serve --api-key one two --seed 7",
        "-H",
        "Authorization: Bearer abc",
    ]
    shown = words_without_secrets(words)
    assert shown[2] == "vllm serve --api-key (hidden) --seed 7"
    assert shown[4] == "Authorization: Bearer (hidden)"


@pytest.mark.parametrize(
    ("words", "shown"),
    [
        (
            "vllm serve --api-key one two --seed 7",
            "vllm serve --api-key (hidden) (hidden) --seed 7",
        ),
        ("vllm serve --api-key=one two", "vllm serve --api-key=(hidden) (hidden)"),
        ("env VLLM_API_KEY=one vllm", "env VLLM_API_KEY=(hidden) vllm"),
        ("vllm serve --max-num-batched-tokens 8 m", "vllm serve --max-num-batched-tokens 8 m"),
    ],
)
def test_a_secret_is_hidden_word_by_word(words: str, shown: str) -> None:
    assert " ".join(words_without_secrets(words.split())) == shown


@pytest.mark.parametrize(
    "text",
    [
        "--max-num-batched-tokens 8192",
        '--speculative-config {"method":"mtp","num_speculative_tokens":1}',
        "--tokenizer-mode auto",
        "ExecStart=/opt/vllm/bin/vllm serve /srv/models/x",
        "hub=https://huggingface.co",
        "Authors=them",
        "--stream-interval 1 --enable-auto-tool-choice --tool-call-parser qwen3_coder",
        "TimeoutStartSec=930",
    ],
)
def test_what_is_no_secret_is_shown(text: str) -> None:
    assert without_secrets(text) == text
