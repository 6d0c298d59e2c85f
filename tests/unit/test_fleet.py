"""Several boxes behind one gateway: who is asked, where, and what is said of it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from aibox.decide import doors, fleet
from aibox.decide.doors import Standing
from aibox.decide.fleet import Fleet, Member, Other
from aibox.decide.services import Verdict

OWN = Member("a", ("coder", "qwen"), "http://127.0.0.1:4000", 4096, keyed=True)
OTHER = Other("b", ("coder",), "192.168.1.21", 4000, 4096, stream=True, listens="0.0.0.0")


@pytest.mark.parametrize(
    ("address", "upstream"),
    [
        ("192.168.1.21", "http://192.168.1.21:4000"),
        ("ai-box-2.home.arpa", "http://ai-box-2.home.arpa:4000"),
        ("fd00::21", "http://[fd00::21]:4000"),
    ],
)
def test_another_box_is_asked_at_its_filter(address: str, upstream: str) -> None:
    found = fleet.member(replace(OTHER, address=address))
    assert (found.upstream, found.health) == (upstream, f"{upstream}/health")
    assert found.names == f"{upstream}/v1/models"
    assert found.keyed


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (OTHER, None),
        (replace(OTHER, address="ai-box-2"), None),
        (replace(OTHER, models=()), "not pinned yet"),
        (replace(OTHER, stream=False), "no stream filter"),
        (replace(OTHER, listens="127.0.0.1"), "doors_address 127.0.0.1"),
        (replace(OTHER, address="@local"), "set box_address"),
        (replace(OTHER, address="127.0.0.1"), "set box_address"),
        (replace(OTHER, address="::1"), "set box_address"),
        (replace(OTHER, address="localhost"), "set box_address"),
        (replace(OTHER, address="::ffff:127.0.0.1"), "set box_address"),
    ],
)
def test_a_box_that_cannot_be_asked_is_said_so(other: Other, said: str | None) -> None:
    why = fleet.unreachable(other)
    assert (why is None) if said is None else (why is not None and said in why)


@pytest.mark.parametrize(
    ("others", "said"),
    [
        ([OTHER, replace(OTHER, box="c", address="192.168.1.22")], []),
        ([OTHER, replace(OTHER, box="c", port=4100)], []),  # behind one address, each at its port
        ([OTHER, replace(OTHER, box="c")], ["b and c have the same address, 192.168.1.21"]),
        (
            [replace(OTHER, box=box, address=box.title()) for box in ("box", "BOX", "Box")],
            ["box, BOX and Box have the same address, box"],
        ),
        ([replace(OTHER, box=box, address="127.0.0.1") for box in "bc"], []),  # not asked at all
        ([replace(OTHER, box=box, address="@local") for box in "bc"], []),
    ],
)
def test_one_machine_is_not_asked_as_two(others: list[Other], said: list[str]) -> None:
    assert [one.found for one in fleet.at_one_address(others)] == said


def test_each_name_is_configured_once_a_box() -> None:
    there = (OWN, fleet.member(OTHER))
    config = json.loads(fleet.config(there))
    found = [
        (one["model_name"], one["model_info"]["box"], one["litellm_params"]["api_base"])
        for one in config["model_list"]
    ]
    assert found == [
        ("coder", "a", "http://127.0.0.1:4000/v1"),
        ("qwen", "a", "http://127.0.0.1:4000/v1"),
        ("coder", "b", "http://192.168.1.21:4000/v1"),
    ]
    assert config["router_settings"]["num_retries"] == 1  # coder's other box
    assert config["litellm_settings"]["request_timeout"] == 600


@pytest.mark.parametrize(("boxes", "retries"), [(1, 0), (2, 1), (4, 3), (9, 3)])
def test_a_request_goes_to_so_many_other_boxes(boxes: int, retries: int) -> None:
    there = [replace(OWN, box=str(at)) for at in range(boxes)]
    assert json.loads(fleet.config(there))["router_settings"]["num_retries"] == retries


def test_the_filters_key_goes_to_filters_only() -> None:
    """A server of the person's own at gateway_upstream is not told it."""
    there = (replace(OWN, models=("coder",), keyed=False), fleet.member(OTHER))
    keys = [
        one["litellm_params"]["api_key"] for one in json.loads(fleet.config(there))["model_list"]
    ]
    assert keys == ["none", "os.environ/AIBOX_UPSTREAM_KEY"]
    boxes = json.loads(fleet.fleet_text("", there))["boxes"]
    assert [boxes[name]["keyed"] for name in ("a", "b")] == [False, True]


FILTER, SERVER = "http://127.0.0.1:4000", "http://127.0.0.1:8000"


@pytest.mark.parametrize(
    ("upstream", "stream", "keyed", "by_hand"),
    [
        (FILTER, True, True, False),
        (SERVER, False, False, False),
        (SERVER, True, False, False),
        ("http://127.0.0.1:9000", True, False, True),
        (FILTER, False, False, True),  # a filter of the person's own, in the place of ours
    ],
)
def test_the_gateways_own_box_is_asked_as_it_would_be_alone(
    upstream: str, stream: bool, keyed: bool, by_hand: bool
) -> None:
    standing = Standing(Verdict(on=stream), Verdict(on=True), upstream)
    found = fleet.itself("a", ("coder",), 4096, standing, filters=FILTER, server=SERVER)
    assert (found.upstream, found.keyed, found.by_hand) == (upstream, keyed, by_hand)


def test_a_server_of_the_persons_own_is_judged_by_what_it_answers_itself() -> None:
    """Not by the box's vLLM, behind which it may be dead; whether it has a /health is not known."""
    own = replace(OWN, upstream="http://127.0.0.1:9000", by_hand=True)
    told = json.loads(fleet.fleet_text("", (own,)))["boxes"]["a"]
    assert told["health"] == told["names"] == "http://127.0.0.1:9000/v1/models"


def test_an_odd_name_of_a_box_goes_through_unchanged() -> None:
    odd = 'a "b" {c}: ü'
    there = (replace(OWN, box=odd),)
    assert json.loads(fleet.config(there))["model_list"][0]["model_info"]["box"] == odd
    told = json.loads(fleet.fleet_text("http://127.0.0.1:4001", there))
    assert list(told["boxes"]) == [odd]
    assert told["out"] == doors.ROTATION


def test_the_plan_says_who_is_asked_and_who_is_not() -> None:
    other = fleet.member(replace(OTHER, context=8192))
    there = Fleet((OWN, other), {"c": "it has no filter"}, {"b": "set box_address"})
    assert fleet.plan_rows(there) == [
        "the gateway spreads coder over a, b",
        "the gateway spreads qwen over a",
        f"the gateway asks b at {other.upstream}; set box_address",
        "the gateway does not ask c: it has no filter",
        "coder has contexts of 4,096 on a, 8,192 on b tokens, and a request goes to any of them: "
        "clients can count on the smallest (another served-model-name keeps them apart)",
    ]
    assert fleet.plan_rows(None) == []
    assert fleet.offered(there) == {"models": ["coder", "qwen"], "context": 4096}
