"""Configuration for clients: it parses, names what is served, and holds no key."""

from __future__ import annotations

import ast
import json
import shlex
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from aibox.box import clients as on_box
from aibox.decide import clients
from aibox.decide.clients import Door, Offer

KEYED = Door("stream", "http://ai-box:4000", "/etc/aibox/stream-keys on the box")
OPEN = Door("stream", "http://ai-box:4000", None)
GATEWAY = Door("gateway", "http://ai-box:4001", "secrets/litellm-master-key")
OFFER = Offer("ai-box", ["qwen3.8-27b", "coder"], 131_072, vision=True, doors=[KEYED, GATEWAY])


@pytest.mark.parametrize("door", [KEYED, OPEN], ids=["with a key", "without one"])
def test_opencode_gets_every_model_with_its_limits(door: Door) -> None:
    whole = json.loads(clients.opencode(OFFER, door))
    provider = whole["provider"]["ai-box"]
    assert provider["options"]["baseURL"] == "http://ai-box:4000/v1"
    assert provider["options"]["apiKey"] == ("{env:AI_BOX_KEY}" if door.key_place else "none")
    assert list(provider["models"]) == ["qwen3.8-27b", "coder"]
    assert provider["models"]["coder"]["limit"] == {"context": 131_072, "output": 32_768}
    assert whole["model"] == "ai-box/qwen3.8-27b"


@pytest.mark.parametrize(
    ("context", "most"), [(4096, 1024), (131_072, 32_768), (262_144, 65_536), (1_048_576, 65_536)]
)
def test_an_answer_has_its_part_of_the_context(context: int, most: int) -> None:
    assert clients.answer_limit(context) == most


@pytest.mark.parametrize("door", [KEYED, OPEN, GATEWAY])
def test_the_sdks_programs_are_python_and_ask_this_door(door: Door) -> None:
    for program in (clients.openai_python(OFFER, door), clients.anthropic_python(OFFER, door)):
        ast.parse(program)
        assert door.url in program
        assert ("AI_BOX_KEY" in program) is (door.key_place is not None)
    assert f'base_url="{door.url}/v1"' in clients.openai_python(OFFER, door)
    assert f'base_url="{door.url}"' in clients.anthropic_python(OFFER, door)


def test_claude_code_gets_one_model_for_all_its_tiers() -> None:
    lines = clients.claude_code(OFFER, KEYED).splitlines()
    told = dict(line.removeprefix("export ").split("=", 1) for line in lines[:-1])
    assert lines[-1] == "claude"
    assert told["ANTHROPIC_BASE_URL"] == "http://ai-box:4000"
    assert {value for name, value in told.items() if name.endswith("MODEL")} == {"qwen3.8-27b"}


def test_curl_is_one_command_that_a_shell_takes_apart() -> None:
    words = shlex.split(clients.curl(OFFER, KEYED))
    assert words[2] == "http://ai-box:4000/v1/chat/completions"
    assert json.loads(words[-1])["model"] == "qwen3.8-27b"


def test_the_page_names_each_door_and_where_its_key_lies_and_uses_the_first() -> None:
    page = clients.page(OFFER)
    assert "stream   http://ai-box:4000/v1    its key: /etc/aibox/stream-keys on the box" in page
    assert "gateway  http://ai-box:4001/v1    its key: secrets/litellm-master-key" in page
    assert page.count("http://ai-box:4001") == 1
    assert clients.page(replace(OFFER, doors=[])).startswith("no door is open")


def test_without_vision_no_client_sends_images() -> None:
    whole = json.loads(clients.opencode(replace(OFFER, vision=False), OPEN))
    model = whole["provider"]["ai-box"]["models"]["coder"]
    assert (model["attachment"], model["modalities"]["input"]) == (False, ["text"])


DEPLOYED: dict[str, Any] = {
    "server": {"models": ["qwen3.8-27b"], "context": 131_072, "speculative": True},
    "weights": {"folder": "/none"},
    "doors": {"stream": {"port": 4000, "key_file": None}},
}


def test_the_page_on_a_box_is_the_same_with_mtp_and_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "deployed.json"
    monkeypatch.setattr(on_box, "DEPLOYED", record)
    pages = []
    for speculative in (True, False):
        server = {**DEPLOYED["server"], "speculative": speculative}
        record.write_text(json.dumps({**DEPLOYED, "server": server}))
        assert on_box.clients("ai-box.local") == 0
        pages.append(capsys.readouterr().out)
    assert pages[0] == pages[1]
    assert "http://ai-box.local:4000/v1" in pages[0]


@pytest.mark.parametrize(
    ("address", "url", "box"),
    [
        ("ai-box.local", "http://ai-box.local:4000", "ai-box"),
        ("192.168.1.20", "http://192.168.1.20:4000", "own-name"),
        ("fd00::20", "http://[fd00::20]:4000", "own-name"),
    ],
)
def test_the_filter_comes_first_and_an_address_names_no_box(
    monkeypatch: pytest.MonkeyPatch, address: str, url: str, box: str
) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "own-name.home")
    gateway = {"gateway": {"port": 4001, "key_file": "/etc/aibox/litellm-master-key"}}
    doors = {**gateway, **DEPLOYED["doors"]}  # as a record with sorted keys has them
    offer = on_box.offered({**DEPLOYED, "doors": doors}, address)
    assert (offer.doors[0].url, offer.box) == (url, box)
    assert [door.name for door in offer.doors] == ["stream", "gateway"]


def test_a_gateway_that_asks_several_boxes_comes_first_with_all_its_models() -> None:
    gateway = {"port": 4001, "key_file": "/etc/aibox/litellm-master-key"}
    doors = {**DEPLOYED["doors"], "gateway": {**gateway, "models": ["qwen3.8-27b", "other"]}}
    doors["gateway"]["context"] = 4096
    offer = on_box.offered({**DEPLOYED, "doors": doors}, "ai-box")
    assert [door.name for door in offer.doors] == ["gateway", "stream"]
    assert (offer.models, offer.context) == (["qwen3.8-27b", "other"], 4096)


@pytest.mark.parametrize(
    ("record", "address", "said"),
    [
        (None, "ai-box", "deploy to this box first"),
        ("{}", "ai-box", "deploy to this box first"),
        (json.dumps(DEPLOYED), "a b;c", "no host name"),
        (json.dumps(DEPLOYED), "ai-box:4000", "no host name"),
    ],
)
def test_what_cannot_be_told_is_said_in_words(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    record: str | None,
    address: str,
    said: str,
) -> None:
    monkeypatch.setattr(on_box, "DEPLOYED", tmp_path / "deployed.json")
    if record is not None:
        (tmp_path / "deployed.json").write_text(record)
    assert on_box.clients(address) == 1
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("config", "images"), [('{"vision_config": {}}', True), ("{}", False)])
def test_a_vision_tower_is_seen_in_the_models_config(
    tmp_path: Path, config: str, images: bool
) -> None:
    (tmp_path / "config.json").write_text(config)
    assert on_box.takes_images(tmp_path / "config.json") is images
    assert not on_box.takes_images(tmp_path / "none.json")
