"""Which doors stand, what they are told, when they are due, and whom LiteLLM's own lets in."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, MutableMapping
from pathlib import Path
from typing import Any

import pytest

from aibox.decide import doors, services
from aibox.decide.doors import GATEWAY, STREAM, Standing
from aibox.decide.preflight import PortOwner
from aibox.decide.services import FOREIGN, OURS, Asked, Verdict
from aibox.decide.wheels import locked_versions
from aibox.gateway import door as code
from aibox.settings import SettingsError
from tests.unit.conftest import ROOT, Load

MINE = PortOwner(7, "python3", "litellm.service")
NGINX = PortOwner(9, "nginx", "nginx.service")
NOBODYS = PortOwner(9, "nc", None)
CONTAINER = PortOwner(9, "docker-proxy", None, manager="container")
OF_A_USER = PortOwner(9, "litellm", "litellm.service", manager="user", user="al")


@pytest.mark.parametrize(
    ("wish", "owner", "unit", "expected"),
    [
        (None, None, None, "on"),
        (None, None, OURS, "on"),
        (None, MINE, OURS, "on"),
        (True, MINE, OURS, "on"),
        (True, None, None, "on"),
        (None, NGINX, None, "left out"),
        (None, NOBODYS, None, "left out"),
        (None, CONTAINER, None, "left out"),
        (None, OF_A_USER, None, "left out"),
        (None, MINE, FOREIGN, "left out"),
        (None, None, FOREIGN, "left out"),
        (None, NGINX, OURS, "refused"),
        (True, NGINX, None, "refused"),
        (True, NGINX, OURS, "refused"),
        (True, OF_A_USER, OURS, "refused"),
        (True, MINE, FOREIGN, "refused"),
        (True, None, FOREIGN, "refused"),
        (False, None, OURS, "off"),
        (False, NGINX, OURS, "off"),
        (False, None, FOREIGN, "off"),
    ],
)
def test_a_door_stands_unless_a_stranger_is_there(
    wish: bool | None, owner: PortOwner | None, unit: str | None, expected: str
) -> None:
    verdict = services.judge(Asked(GATEWAY, wish, 4001), owner, unit)
    said = "on" if verdict.on else "refused" if verdict.refusal else "off"
    assert ("left out" if verdict.left_out else said) == expected


def test_who_holds_the_port_is_named() -> None:
    left_out = services.judge(Asked(GATEWAY, None, 4001), NGINX, None)
    assert left_out.left_out == "port 4001 belongs to nginx (pid 9, unit nginx.service)"
    refusal = services.judge(Asked(STREAM, True, 4000), NGINX, None).refusal
    assert refusal is not None
    assert "port 4000 belongs to nginx" in refusal.found
    assert "systemctl disable --now nginx.service" in refusal.remedy
    assert "set stream_port to a free one" in refusal.remedy
    assert "stream = False" in refusal.remedy
    rows = doors.plan_rows(
        [Asked(STREAM, False, 4000), Asked(GATEWAY, None, 4001)],
        Standing(Verdict(on=False), left_out, ""),
    )
    assert rows[0] == "the stream filter is turned off"
    assert rows[1].startswith("the gateway (LiteLLM) is left out: port 4001 belongs to nginx")


ON, OFF = Verdict(on=True), Verdict(on=False)


@pytest.mark.parametrize(
    ("wish", "stream", "address", "expected"),
    [
        (None, ON, "0.0.0.0", "http://127.0.0.1:4000"),
        (None, ON, "192.168.1.5", "http://192.168.1.5:4000"),
        (None, OFF, "0.0.0.0", "http://127.0.0.1:8000"),
        ("http://127.0.0.1:8000/", ON, "0.0.0.0", "http://127.0.0.1:8000"),
    ],
)
def test_what_the_gateway_asks(
    wish: str | None, stream: Verdict, address: str, expected: str
) -> None:
    ports = {"stream": 4000, "server": 8000}
    assert doors.upstream(wish, stream, address, ports) == expected


def test_litellm_knows_every_name_and_asks_nobody_else() -> None:
    config = json.loads(doors.gateway_config(["a", "b"], "http://127.0.0.1:4000", 4096))
    names = [one["model_name"] for one in config["model_list"]]
    models = [one["litellm_params"]["model"] for one in config["model_list"]]
    bases = {one["litellm_params"]["api_base"] for one in config["model_list"]}
    assert (names, models) == (["a", "b"], ["hosted_vllm/a", "hosted_vllm/b"])
    assert bases == {"http://127.0.0.1:4000/v1"}
    assert {one["model_info"]["max_input_tokens"] for one in config["model_list"]} == {4096}
    assert config["litellm_settings"]["telemetry"] is False
    assert "sk-" not in json.dumps(config)


@pytest.mark.parametrize(
    ("flags", "thinks"),
    [
        ({}, True),
        ({"default-chat-template-kwargs": {"enable_thinking": False}}, False),
        ({"default-chat-template-kwargs": '{"enable_thinking": false}'}, False),
        ({"default-chat-template-kwargs": {"enable_thinking": True}}, True),
        ({"default-chat-template-kwargs": "{"}, True),
    ],
)
def test_whether_the_server_thinks(flags: dict[str, object], thinks: bool) -> None:
    assert doors.thinks(flags) is thinks


# --- what makes one due --------------------------------------------------------------------------

FILES = {"/etc/a": "text\n"}


def found(**changes: Any) -> dict[str, Any]:
    """A door that is as it should be."""
    return {
        "unit": {"ActiveState": "active", "NeedDaemonReload": "no"},
        "started": 100.0,
        "answers": 200,
        "files": {"/etc/a": {"text": "text\n", "owner": "root:root", "mode": "644"}},
        "changed": {"/etc/a": 90.0, "/etc/key": 91.0, "/etc/none": None},
        "passed": services.identity(FILES),
        "failed": None,
        **changes,
    }


def file(**changes: str) -> dict[str, Any]:
    return {"/etc/a": {"text": "text\n", "owner": "root:root", "mode": "644", **changes}}


@pytest.mark.parametrize(
    ("there", "said"),
    [
        (found(), None),
        (found(files={"/etc/a": None}), "/etc/a is not there as a file"),
        (found(files=file(text="other")), "/etc/a has another content"),
        (found(files=file(owner="al:al")), "/etc/a is al:al 644, not root:root 644"),
        (found(files=file(mode="666")), "/etc/a is root:root 666, not root:root 644"),
        (found(unit={"ActiveState": "failed"}), "it does not run (failed)"),
        (found(unit={}, started=None), "it does not run (unknown)"),
        (found(unit={"ActiveState": "activating"}), "it is starting by itself; waiting for it"),
        (
            found(unit={"ActiveState": "active", "NeedDaemonReload": "yes"}),
            "systemd has not read its unit, or a drop-in of it, as it is now",
        ),
        (
            found(changed={"/etc/key": 101.0}),
            "it runs since before /etc/key was laid down",
        ),
        (found(answers=503), "/health/readiness answers 503, not 200"),
        (found(answers=None), "/health/readiness answers nothing, not 200"),
        (found(passed="0"), "this has not passed its gate yet"),
        (found(passed=None), "this has not passed its gate yet"),
    ],
)
def test_what_makes_a_door_due(there: dict[str, Any], said: str | None) -> None:
    assert services.reasons(GATEWAY, FILES, there) == ([said] if said else [])


def failure(**changes: Any) -> dict[str, Any]:
    """What was written down of FILES when they failed their gate."""
    return {"identity": services.identity(FILES), "found": "x", "when": 95.0, **changes}


@pytest.mark.parametrize(
    ("there", "refused"),
    [
        (found(), False),
        (found(failed=failure()), True),
        (found(failed=failure(), answers=None), True),  # at another address than the one before
        (found(failed=failure(identity="0")), False),
        (found(failed=failure(when=90.5)), False),
        (found(failed=failure(), unit={"ActiveState": "failed"}), False),
    ],
    ids=["never", "this one", "elsewhere", "another", "with other keys", "where none runs now"],
)
def test_a_door_that_serves_is_not_stopped_for_what_has_failed(
    there: dict[str, Any], refused: bool
) -> None:
    refusal = services.failed_before(FILES, there, "gateway")
    assert (refusal is not None) is refused
    if refusal is not None:
        assert "retry_failed=true" in refusal.remedy


# --- settings and lock ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"gateway_port": 8000}, "gateway_port: 8000 is server_port too"),
        ({"stream_port": 4001}, "gateway_port: 4001 is stream_port too"),
        ({"stream_mends": {"thnk_tag": "on"}}, "did you mean think_tag"),
        ({"stream_mends": {"think_tag": "yes"}}, "stream_mends"),
        ({"doors_address": "localhost"}, "expected an IPv4 address"),
        ({"metrics_from": ["monitor"]}, "expected an address or a network"),
        ({"gateway_upstream": "ftp://x"}, "gateway_upstream"),
        ({"gateway": "yes"}, "gateway"),
    ],
)
def test_a_setting_of_the_doors_that_cannot_work(
    load: Load, changes: dict[str, Any], fault: str
) -> None:
    with pytest.raises(SettingsError, match=re.escape(fault)):
        load(**changes)


def test_a_door_that_is_off_has_no_port(load: Load) -> None:
    assert load(gateway_port=8000, gateway=False).gateway is False


def test_the_context_is_the_flags_else_the_cards(load: Load) -> None:
    assert load(serve={"max-model-len": "4k"}).context == 4000
    assert load(serve={"max-model-len": None}).context == load().card.context


def test_no_compromised_litellm_is_in_the_lock() -> None:
    """1.82.7 and 1.82.8 carried a payload; every file is held by its hash."""
    text = (ROOT / "group_data/locks/litellm.txt").read_text()
    versions = locked_versions(text)
    assert versions["litellm"] not in ("1.82.7", "1.82.8")
    assert tuple(map(int, versions["litellm"].split("."))) >= (1, 108, 7)
    assert {"prisma", "prometheus-client", "uvicorn"} <= versions.keys()
    assert text.count("==") <= text.count("--hash=sha256:")
    assert "://" not in text


# --- who gets in ---------------------------------------------------------------------------------


def test_keys_are_lines_with_names() -> None:
    text = "# of whom\n\nal: sk-0123456789\n bo-2 : another-key\n"
    assert code.keys_in(text) == {"al": "sk-0123456789", "bo-2": "another-key"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("sk-0123456789", "line 1 is no"),
        ("al: short", "line 1 is no"),
        ("al: two words here", "line 1 is no"),
        ("al: sk-0123456789\nal: sk-9876543210", "line 2 names al again"),
    ],
)
def test_what_is_no_key_is_said_without_it(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        code.keys_in(text)
    assert "0123456789" not in str(error.value)
    assert "9876543210" not in str(error.value)


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ("Bearer sk-0123456789", "al"),
        ("bearer  sk-0123456789", "al"),
        ("sk-9876543210", "bo"),
        ("sk-012345678", None),
        ("sk-01234567890", None),
        ("", None),
        ("Bearer ", None),
        ("Bearer", None),
        ("ключ", None),
    ],
)
def test_a_key_has_a_name(given: str, name: str | None) -> None:
    assert code.name_of(given, {"al": "sk-0123456789", "bo": "sk-9876543210"}) == name


def test_no_key_at_all_opens_nothing() -> None:
    assert code.name_of("", {"master": ""}) is None


@pytest.mark.parametrize(
    ("master", "keys", "names"),
    [
        ("sk-0123456789\n", "", ["master"]),
        ("sk-0123456789\n", "al: sk-9876543210\n", ["master", "al"]),
        ("\n", "al: sk-9876543210\n", None),
        (None, None, None),
    ],
)
def test_litellm_does_not_start_without_a_master_key(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    master: str | None,
    keys: str | None,
    names: list[str] | None,
) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", str(tmp_path))
    code.keys.cache_clear()
    for name, text in (("master-key", master), ("keys", keys)):
        if text is not None:
            (tmp_path / name).write_text(text)
    if names is None:
        with pytest.raises(ValueError, match="line 1"):
            code.keys()
    else:
        assert list(code.keys()) == names
    code.keys.cache_clear()


@pytest.mark.parametrize(
    ("path", "client", "status"),
    [
        ("/v1/chat/completions", "192.168.1.7", 200),
        ("/v1/messages", "192.168.1.7", 200),
        ("/v1/models/a", "192.168.1.7", 200),
        ("/health/readiness", "192.168.1.7", 200),
        ("/health", "192.168.1.7", 404),
        ("/", "127.0.0.1", 404),
        ("/ui", "127.0.0.1", 404),
        ("/ui/", "127.0.0.1", 404),
        ("/login", "127.0.0.1", 404),
        ("/openapi.json", "127.0.0.1", 404),
        ("/key/generate", "127.0.0.1", 404),
        ("/v1/model/info", "127.0.0.1", 404),
        ("/v1/chat/completions/../../ui", "127.0.0.1", 404),
        ("/metrics", "127.0.0.1", 200),
        ("/metrics/", "::ffff:127.0.0.1", 200),
        ("/metrics/", "10.1.2.3", 200),
        ("/metrics/", "192.168.1.7", 403),
        ("/rotation", "127.0.0.1", 200),
        ("/rotation", "10.1.2.3", 200),
        ("/rotation", "192.168.1.7", 403),
        ("/metrics/", "", 403),
    ],
)
def test_what_litellm_is_asked_at_all(path: str, client: str, status: int) -> None:
    assert code.status_of(path, client, "10.0.0.0/8,192.168.2.1/32") == status


def test_the_box_itself_reads_metrics_at_its_own_address() -> None:
    """Where the doors listen on that one alone, it has no other."""
    for path in ("/metrics/", "/rotation"):
        assert code.status_of(path, "192.168.1.20", "", "192.168.1.20") == 200
        assert code.status_of(path, "192.168.1.7", "", "192.168.1.20") == 403
        assert code.status_of(path, "", "", "") == 403


MASTER = b"sk-0123456789"


def asked_of_litellm(
    monkeypatch: pytest.MonkeyPatch,
    *scopes: dict[str, Any],
    boxes: Callable[[], Any] | None = None,
) -> tuple[list[str], list[MutableMapping[str, Any]]]:
    """(what reached LiteLLM, what was answered in its place)."""
    reached: list[str] = []
    sent: list[MutableMapping[str, Any]] = []

    async def whole(scope: code.Scope, _receive: code.Receive, _send: code.Send) -> None:
        reached.append(scope.get("path", scope["type"]))

    async def send(message: MutableMapping[str, Any]) -> None:
        sent.append(message)

    async def receive() -> MutableMapping[str, Any]:
        return {}

    async def asked() -> None:
        app = code.guarded(whole, "", boxes)
        for scope in scopes:
            usual = {"type": "http", "method": "POST", "client": ("192.168.1.7", 1), "headers": []}
            await app({**usual, **scope}, receive, send)

    monkeypatch.setattr(code, "keys", lambda: {"master": MASTER.decode(), "al": "sk-9876543210"})
    asyncio.run(asked())
    return reached, sent


def test_what_is_not_for_litellm_does_not_reach_it(monkeypatch: pytest.MonkeyPatch) -> None:
    key = [(b"Authorization", b"Bearer " + MASTER)]
    reached, sent = asked_of_litellm(
        monkeypatch,
        {"path": "/ui", "headers": key},
        {"path": "/v1/models", "headers": key},
        {"type": "websocket", "path": "/v1/models"},
        {"type": "lifespan"},
    )
    assert reached == ["/v1/models", "lifespan"]
    assert [one.get("status", one["type"]) for one in sent] == [
        404,
        "http.response.body",
        "websocket.close",
    ]


@pytest.mark.parametrize(
    ("path", "headers", "status"),
    [
        ("/v1/chat/completions", [(b"authorization", b"Bearer " + MASTER)], 200),
        ("/v1/chat/completions", [(b"x-api-key", b"sk-9876543210")], 200),
        ("/v1/messages", [(b"X-Api-Key", b"sk-9876543210")], 200),
        ("/v1/messages", [(b"authorization", b"Bearer no"), (b"x-api-key", MASTER)], 200),
        ("/v1/chat/completions", [], 401),
        ("/v1/chat/completions", [(b"authorization", b"Bearer sk-0000000000")], 401),
        ("/v1/chat/completions", [(b"cookie", MASTER)], 401),
        ("/v1/messages", [], 401),
        ("/v1/messages/count_tokens", [(b"x-api-key", b"sk-0000000000")], 401),
        ("/health/readiness", [], 200),
    ],
)
def test_without_a_good_key_the_error_is_in_the_apis_own_form(
    monkeypatch: pytest.MonkeyPatch, path: str, headers: list[tuple[bytes, bytes]], status: int
) -> None:
    reached, sent = asked_of_litellm(monkeypatch, {"path": path, "headers": headers})
    if status == 200:
        assert (reached, sent) == ([path], [])
        return
    assert reached == []
    said = json.loads(sent[1]["body"])
    assert (sent[0]["status"], said["error"]["type"]) == (401, "authentication_error")
    assert (said.get("type") == "error") is path.startswith("/v1/messages")
    assert "sk-0000000000" not in str(said)


def test_how_the_boxes_are_is_told_where_there_are_several(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = {"path": "/rotation", "method": "GET", "client": ("127.0.0.1", 1)}
    for boxes, status in ((lambda: {"b": {"healthy": True}}, 200), (None, 404)):
        reached, sent = asked_of_litellm(monkeypatch, asked, boxes=boxes)
        assert (reached, sent[0]["status"]) == ([], status)
    reached, sent = asked_of_litellm(monkeypatch, asked, boxes=lambda: {"b": 1})
    assert json.loads(sent[1]["body"]) == {"boxes": {"b": 1}}
    elsewhere = {**asked, "client": ("192.168.1.7", 1)}
    assert asked_of_litellm(monkeypatch, elsewhere, boxes=dict)[1][0]["status"] == 403


def test_a_browser_asks_first_and_has_no_key_then(monkeypatch: pytest.MonkeyPatch) -> None:
    path = "/v1/chat/completions"
    reached, sent = asked_of_litellm(monkeypatch, {"path": path, "method": "OPTIONS"})
    assert (reached, sent) == ([path], [])


def test_the_file_that_is_laid_beside_litellm_needs_nothing_of_ours() -> None:
    assert "aibox" not in re.sub(r"AIBOX|\"\"\".*?\"\"\"", "", Path(code.__file__).read_text())
