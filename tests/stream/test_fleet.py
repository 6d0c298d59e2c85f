"""The gateway before several boxes: the real LiteLLM, and scripted servers in the boxes' place."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from aibox.decide import fleet
from aibox.decide.fleet import Member
from aibox.gateway import rotation
from tests.benchmarks.doors import (
    KEY,
    free_port,
    litellm_command,
    litellm_environment,
    process,
    ready,
)
from tests.stream.rows import chunk, stream
from tests.stream.scripted import JSON, Die, Script, Scripted, Wait

pytestmark = pytest.mark.long
MODELS = {"a": ("m",), "b": ("m",), "c": ("other", "third")}
CHAT, RESPONSES = "/v1/chat/completions", "/v1/responses"
HEALTH, NAMES = "/health", "/v1/models"
FILTERS_KEY = "sk-of-the-filters"
BODY = {"model": "m", "messages": [{"role": "user", "content": "Hello"}]}
USAGE = {"prompt_tokens": 5, "completion_tokens": 9, "total_tokens": 14}
PATIENCE_S = 30  # for what a gateway sees of a box only after some seconds


def said(name: str) -> bytes:
    """A whole answer that names its box."""
    message = {"role": "assistant", "content": f"I am {name}."}
    choice = {"index": 0, "message": message, "finish_reason": "stop"}
    told = {"id": "x", "object": "chat.completion", "created": 1, "model": "m"}
    return json.dumps({**told, "choices": [choice], "usage": USAGE}).encode()


def streamed(name: str) -> bytes:
    return stream([chunk({"role": "assistant", "content": f"I am {name}."}), chunk({}, "stop")])


def first(name: str) -> bytes:
    """The first piece of it."""
    return streamed(name).partition(b"\n\n")[0] + b"\n\n"


def naming(*names: str) -> Script:
    """What a box answers that serves these."""
    return whole(json.dumps({"object": "list", "data": [{"id": one} for one in names]}).encode())


def whole(body: bytes, status: int = 200, before: float = 0) -> Script:
    return Script([body], status, dict(JSON), before=before, whole=True)


@dataclass
class Gateway:
    """ports: {box: where its server is expected}. out: the file that says who is out."""

    url: str
    ports: Mapping[str, int]
    out: Path


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gateway]:
    folder, port = tmp_path_factory.mktemp("fleet"), free_port()
    ports = {name: free_port() for name in MODELS}
    command = litellm_command(folder, port, 1)
    assert command, "its venv could not be made"
    members = [member(name, at) for name, at in ports.items()]
    told = json.loads(fleet.fleet_text("", members))
    out = folder / "rotation.json"
    (folder / rotation.FLEET).write_text(json.dumps({**told, "out": str(out)}))
    (folder / "litellm.yaml").write_text(fleet.config(members))
    (folder / "upstream-keys").write_text(f"gateways: {FILTERS_KEY}\n")
    with process(command, 0, **litellm_environment(folder)):
        ready(port)
        yield Gateway(f"http://127.0.0.1:{port}", ports, out)


def member(name: str, port: int) -> Member:
    return Member(name, MODELS[name], f"http://127.0.0.1:{port}", 4096, keyed=True)


@dataclass
class Fleet:
    """The boxes as they run, and a client of the gateway."""

    gateway: Gateway
    client: aiohttp.ClientSession
    boxes: dict[str, Scripted] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        self.boxes[name] = Scripted(whole(said(name)))
        self.boxes[name].port = self.gateway.ports[name]
        self.boxes[name].by_path[HEALTH] = whole(b"{}")
        self.boxes[name].by_path[NAMES] = naming(*MODELS[name])
        await self.boxes[name].start()

    def asked(self, name: str) -> int:
        """Requests that came to a box, without questions after how it is."""
        return sum(one.line.startswith("POST") for one in self.boxes[name].asked)

    def speak(self, script: Callable[[str], Script], *names: str) -> None:
        for name in names or MODELS:
            self.boxes[name].script = script(name)

    async def ask(self, path: str = CHAT, **body: Any) -> tuple[int, str]:
        told = {**(BODY if path == CHAT else {"model": "m"}), **body}
        async with self.client.post(self.gateway.url + path, json=told) as answer:
            return answer.status, await answer.text()

    async def who(self, times: int = 1, **body: Any) -> list[str]:
        """Who has answered so many requests at once; each of them had to succeed."""
        answers = await asyncio.gather(*(self.ask(**body) for _ in range(times)))
        assert {status for status, _ in answers} == {200}, answers
        return sorted(text.partition("I am ")[2][0] for _, text in answers)

    async def shown(self) -> dict[str, Any]:
        async with self.client.get(self.gateway.url + "/rotation") as answer:
            found: dict[str, Any] = (await answer.json())["boxes"]
        return found

    async def healthy(self, *names: str) -> None:
        """Wait until these and no others are."""
        async with asyncio.timeout(PATIENCE_S):
            while {one for one, of in (await self.shown()).items() if of["healthy"]} != {*names}:
                await asyncio.sleep(0.1)

    def take_out(self, **why: str) -> None:
        out = {name: {"why": text, "since": 1.0} for name, text in why.items()}
        aside = self.gateway.out.with_suffix(".new")
        aside.write_text(json.dumps({"out": out}))
        aside.replace(self.gateway.out)


@asynccontextmanager
async def standing(gateway: Gateway) -> AsyncIterator[Fleet]:
    """All boxes healthy and in rotation."""
    headers = {"Authorization": f"Bearer {KEY}"}
    connector = aiohttp.TCPConnector(limit=0)
    gateway.out.unlink(missing_ok=True)
    async with aiohttp.ClientSession(headers=headers, connector=connector) as client:
        there = Fleet(gateway, client)
        for name in MODELS:
            await there.start(name)
        await there.healthy(*MODELS)
        try:
            yield there
        finally:
            for box in there.boxes.values():
                box.stop()


def over(gateway: Gateway, told: Callable[[Fleet], Awaitable[None]]) -> None:
    async def run() -> None:
        async with standing(gateway) as there:
            await told(there)

    asyncio.run(run())


def test_a_burst_is_spread_evenly(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.speak(lambda name: whole(said(name), before=0.5))
        assert await there.who(8) == ["a"] * 4 + ["b"] * 4
        assert {of["requests"] for of in (await there.shown()).values()} == {0}

    over(gateway, told)


def test_the_less_busy_box_gets_the_next_request(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.speak(lambda name: whole(said(name), before=3), "a")
        slow = asyncio.create_task(there.who(2))  # one each; b's is soon done
        await asyncio.sleep(1)
        assert [await there.who() for _ in range(4)] == [["b"]] * 4
        assert await slow == ["a", "b"]

    over(gateway, told)


def test_each_name_goes_to_who_serves_it(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        assert await there.who(2, model="other") == ["c", "c"]
        assert await there.who(2, model="third") == ["c", "c"]
        status, text = await there.ask(model="nobody's")
        assert 400 <= status < 500, text
        async with there.client.get(gateway.url + "/v1/models") as answer:
            names = [one["id"] for one in (await answer.json())["data"]]
        assert sorted(names) == ["m", "other", "third"]

    over(gateway, told)


def test_a_box_is_asked_for_a_name_only_while_it_says_so_itself(gateway: Gateway) -> None:
    """It is configured for what the settings say, which has not come to every box yet."""

    async def told(there: Fleet) -> None:
        there.boxes["b"].by_path[NAMES] = naming("an-old-name")
        async with asyncio.timeout(PATIENCE_S):
            while (await there.shown())["b"]["missing"] != ["m"]:
                await asyncio.sleep(0.1)
        assert (await there.shown())["b"]["healthy"]
        assert await there.who(6) == ["a"] * 6
        there.boxes["b"].by_path[NAMES] = naming("an-old-name", "m")
        async with asyncio.timeout(PATIENCE_S):
            while (await there.shown())["b"]["missing"]:
                await asyncio.sleep(0.1)
        assert await there.who(6) == ["a"] * 3 + ["b"] * 3

    over(gateway, told)


def test_a_box_is_looked_at_with_the_key_that_requests_have(gateway: Gateway) -> None:
    """One that would refuse them is not healthy."""

    async def told(there: Fleet) -> None:
        assert await there.who(2) == ["a", "b"]
        there.boxes["b"].by_path[NAMES] = whole(b"{}", 401)
        await there.healthy("a", "c")
        assert "/v1/models answers 401" in (await there.shown())["b"]["found"]
        for path in (CHAT, NAMES):
            asked = [one for one in there.boxes["b"].asked if one.line.split()[1] == path]
            assert {one.headers["authorization"] for one in asked} == {f"Bearer {FILTERS_KEY}"}

    over(gateway, told)


def test_a_box_that_is_out_is_not_asked_until_it_is_back(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.take_out(b="its card is changed")
        assert await there.who(6) == ["a"] * 6
        assert there.asked("b") == 0
        assert (await there.shown())["b"]["out"]["why"] == "its card is changed"
        there.take_out()
        assert await there.who(6) == ["a"] * 3 + ["b"] * 3

    over(gateway, told)


def test_with_all_boxes_out_the_answer_says_why(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.take_out(a="a roll", b="its card is changed")
        for path, more in (
            (CHAT, {}),
            (CHAT, {"stream": True}),
            ("/v1/messages", {"max_tokens": 5}),
        ):
            async with asyncio.timeout(20):
                status, text = await there.ask(path, **{**BODY, **more})
            assert status == 503, text
            assert "no box serves m now: a was taken out: a roll" in text
            assert "b was taken out: its card is changed" in text
        assert await there.who(model="other") == ["c"]

    over(gateway, told)


@pytest.mark.parametrize("text", ["", "{", '{"out": []}', '{"out": {"a": {}}}'])
def test_a_broken_file_takes_nobody_out(gateway: Gateway, text: str) -> None:
    async def told(there: Fleet) -> None:
        there.take_out(a="a roll")
        assert await there.who(2) == ["b", "b"]
        gateway.out.write_text(text)
        assert await there.who(2) == ["a", "b"]

    over(gateway, told)


def test_a_box_that_stops_costs_no_request(gateway: Gateway) -> None:
    """Before anybody has seen it, and after."""

    async def told(there: Fleet) -> None:
        there.boxes["b"].stop()
        assert await there.who(6) == ["a"] * 6
        there.speak(lambda name: Script([streamed(name)]))
        assert await there.who(6, stream=True) == ["a"] * 6
        await there.healthy("a", "c")
        assert "Connection refused" in (await there.shown())["b"]["found"]
        assert await there.who(6, stream=True) == ["a"] * 6
        await there.start("b")
        await there.healthy(*MODELS)
        there.speak(lambda name: whole(said(name)))
        assert await there.who(6) == ["a"] * 3 + ["b"] * 3

    over(gateway, told)


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_what_one_box_refuses_another_one_answers(gateway: Gateway, status: int) -> None:
    async def told(there: Fleet) -> None:
        there.speak(lambda _: whole(b'{"error": {"message": "no"}}', status), "b")
        assert await there.who(6) == ["a"] * 6
        assert there.asked("b") > 0
        assert await there.who(2, model="other") == ["c"] * 2
        there.speak(lambda name: whole(said(name)), "b")
        assert await there.who(6) == ["a"] * 3 + ["b"] * 3  # it was never put aside

    over(gateway, told)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {}),
        (CHAT, {"stream": True}),
        ("/v1/messages", {**BODY, "max_tokens": 5}),
        (RESPONSES, {"input": "Hello"}),
    ],
)
def test_a_request_that_fails_everywhere_has_asked_each_box_once(
    gateway: Gateway, path: str, body: dict[str, Any]
) -> None:
    """Also one for a name that fewer boxes serve than another."""

    async def told(there: Fleet) -> None:
        there.speak(lambda name: whole(b'{"error": {"message": "%s breaks"}}' % name.encode(), 500))
        status, text = await there.ask(path, **{**body, "model": "m"})
        assert (status, " breaks" in text) == (500, True), text
        assert (there.asked("a"), there.asked("b")) == (1, 1)
        status, text = await there.ask(path, **{**body, "model": "other"})
        assert status == 503, text
        assert "no box serves other now: c has failed; last: " in text
        assert "c breaks" in text
        assert there.asked("c") == 1

    over(gateway, told)


def test_what_is_wrong_with_a_request_is_said_once(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.speak(lambda _: whole(b'{"error": {"message": "too long", "code": 400}}', 400))
        status, text = await there.ask()
        assert (status, "too long" in text) == (400, True)
        assert there.asked("a") + there.asked("b") == 1

    over(gateway, told)


def test_who_hangs_up_is_counted_no_more(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.speak(lambda name: Script([first(name), Wait(60)]))
        asked = [asyncio.create_task(there.ask(stream=True)) for _ in range(4)]
        await asyncio.sleep(1)
        there.speak(lambda name: whole(said(name), before=5))
        asked += [asyncio.create_task(there.ask()) for _ in range(4)]
        await asyncio.sleep(1)
        assert sum(of["requests"] for of in (await there.shown()).values()) == 8
        for one in asked:
            one.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        async with asyncio.timeout(PATIENCE_S):
            while any(of["requests"] for of in (await there.shown()).values()):
                await asyncio.sleep(0.1)
        there.speak(lambda name: whole(said(name), before=0.3))
        assert await there.who(8) == ["a"] * 4 + ["b"] * 4

    over(gateway, told)


def response(name: str) -> bytes:
    """An answer of /v1/responses, which the box keeps."""
    part = {"type": "output_text", "text": f"I am {name}.", "annotations": []}
    message = {"type": "message", "id": "m", "role": "assistant", "status": "completed"}
    usage = {"input_tokens": 1, "output_tokens": 1, "total_tokens": 2}
    told = {"id": "resp_1", "object": "response", "created_at": 1, "model": "m", "usage": usage}
    told |= {"status": "completed", "output": [{**message, "content": [part]}], "tools": []}
    return json.dumps({**told, "parallel_tool_calls": True, "tool_choice": "auto"}).encode()


def test_what_goes_on_from_an_answer_goes_to_the_box_that_has_it(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.speak(lambda name: whole(response(name)))
        for _ in range(2):
            status, text = await there.ask(RESPONSES, input="Hello")
            assert status == 200, text
            name, first = text.partition("I am ")[2][0], json.loads(text)["id"]
            more = {"path": RESPONSES, "input": "More", "previous_response_id": first}
            assert await there.who(4, **more) == [name] * 4
            there.take_out(**{name: "a roll"})
            status, text = await there.ask(**more)
            assert status == 503, text
            said = "only one box of m has the answer that this goes on from"
            assert f"{said}: {name} was taken out: a roll" in text
            there.take_out()

    over(gateway, told)


def test_messages_are_spread_as_well(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        body = {"messages": BODY["messages"], "max_tokens": 5}
        answers = await asyncio.gather(*(there.ask("/v1/messages", **body) for _ in range(4)))
        assert {status for status, _ in answers} == {200}, answers
        assert min(there.asked("a"), there.asked("b")) > 1
        status, text = await there.ask("/v1/messages/count_tokens", messages=BODY["messages"])
        assert status == 200 and json.loads(text)["input_tokens"] > 0

    over(gateway, told)


def test_prometheus_reads_how_the_boxes_are(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.take_out(b="a roll")
        async with there.client.get(gateway.url + "/metrics/") as answer:
            text = await answer.text()
        assert 'aibox_gateway_box_healthy{of="b"} 1.0' in text
        assert 'aibox_gateway_box_in_rotation{of="a"} 1.0' in text
        assert 'aibox_gateway_box_in_rotation{of="b"} 0.0' in text
        assert 'aibox_gateway_box_requests{of="c"} 0.0' in text
        assert "litellm_" in text

    over(gateway, told)


def test_the_kernel_watches_the_boxes_while_they_are_silent(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.speak(lambda name: whole(said(name), before=2))
        asking = asyncio.create_task(there.who(2))
        await asyncio.sleep(1)
        assert 0 < probed_in_s(gateway.ports["a"]) <= 10
        await asking

    over(gateway, told)


def probed_in_s(port: int) -> float:
    """Until the kernel's next look whether who is asked at a port is still there; 0 for never."""
    rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    asked = [row[5] for row in rows if row[2].endswith(f":{port:04X}") and row[3] == "01"]
    found = [timer.split(":") for timer in asked if timer.startswith("02:")]
    return max((int(when, 16) / 100 for _, when in found), default=0)


def test_a_stream_that_breaks_off_moves_only_before_its_first_word(gateway: Gateway) -> None:
    async def told(there: Fleet) -> None:
        there.speak(lambda name: Script([streamed(name)]))
        there.speak(lambda _: Script([Die()]), "b")
        assert await there.who(4, stream=True) == ["a"] * 4
        body = {"messages": BODY["messages"], "max_tokens": 5, "stream": True}
        assert await there.who(4, path="/v1/messages", **body) == ["a"] * 4
        there.speak(lambda name: Script([first(name), Die()]))
        status, text = await there.ask(stream=True)
        assert status == 200
        assert text.count("I am ") == 1
        assert "error" in text
        assert "[DONE]" not in text.partition("error")[0]

    over(gateway, told)
