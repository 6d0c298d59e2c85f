"""Each row in both modes and both APIs, whatever the network cuts."""

from __future__ import annotations

import json
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aibox.stream.mends.answer import Answer
from aibox.stream.mends.body import mended
from aibox.stream.mends.request import asked
from tests.stream import responses
from tests.stream.responses import RESPONSES
from tests.stream.rows import (
    CHAT,
    COUNT,
    DONE,
    MESSAGE,
    MESSAGE_STOP,
    MESSAGES,
    NO_THINKING,
    OFF,
    ON,
    SPELT,
    STOP,
    TOOLS,
    Row,
    block_stop,
    chunk,
    message,
    read_back,
    said,
    stop_for,
    stream,
    text,
    text_start,
    unnumbered,
)

ROWS = CHAT + MESSAGES + RESPONSES
BY_NAME = pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.api}: {row.name}")


def answer_to(row: Row, modes: dict[str, Any]) -> Answer:
    return Answer(row.api, asked(row.request, True), modes)


def through(answer: Answer, blocks: list[bytes]) -> bytes:
    return b"".join([answer.feed(block) for block in blocks]) + answer.end()


def only(mend: str) -> dict[str, Any]:
    return {**OFF, mend: "on"}


@BY_NAME
def test_what_the_client_gets(row: Row) -> None:
    answer = answer_to(row, only(row.mend))
    got = read_back(through(answer, [row.bytes(row.came)]))
    assert (unnumbered(got) if row.api == "responses" else got) == row.gives
    assert answer.counts[row.mend] == row.counted
    assert answer.malformed == row.malformed
    assert answer.outcome.whole


# A call whose name never comes was held back as one piece: it says the same in other bytes.
UNTOUCHED = [row for row in ROWS if row.came == row.gives and row.mend != "late_name"]


@pytest.mark.parametrize("row", UNTOUCHED, ids=lambda row: f"{row.api}: {row.name}")
def test_where_nothing_applied_not_a_byte_differs(row: Row) -> None:
    came = row.bytes(row.came)
    assert through(answer_to(row, only(row.mend)), [came]) == came


@BY_NAME
def test_counting_changes_no_byte(row: Row) -> None:
    came = row.bytes(row.came)
    answer = answer_to(row, {**OFF, row.mend: "count"})
    assert through(answer, [came]) == came
    assert answer.counts[row.mend] == row.counted
    assert answer.malformed == row.malformed


@BY_NAME
def test_off_is_off(row: Row) -> None:
    came = row.bytes(row.came)
    answer = answer_to(row, OFF)
    assert through(answer, [came]) == came
    assert not answer.counts


@BY_NAME
def test_each_byte_by_itself_gives_the_same(row: Row) -> None:
    came = row.bytes(row.came)
    whole, bytewise = answer_to(row, ON), answer_to(row, ON)
    alone = [came[at : at + 1] for at in range(len(came))]
    assert through(bytewise, alone) == through(whole, [came])
    assert bytewise.counts == whole.counts


PLAIN = [
    Row("words", "think_tag", [*said("one", "two", "<", "three", 'four"'), STOP], []),
    Row(
        "thoughts, then words",
        "reasoning_names",
        [
            *[chunk({"reasoning": text}) for text in ("a", "b", "<", "c")],
            *said("d", "e", "f"),
            STOP,
        ],
        [],
    ),
    Row(
        "two choices",
        "reasoning_names",
        [
            *[chunk({"reasoning": "a"}, index=n % 2) for n in range(9)],
            STOP,
            chunk({}, "stop", index=1),
        ],
        [],
        request={"n": 2},
    ),
]


@settings(max_examples=400, deadline=None)
@given(st.data())
def test_any_cuts_give_the_same(data: st.DataObject) -> None:
    row = data.draw(st.sampled_from([*ROWS, *PLAIN]))
    modes = data.draw(st.sampled_from([ON, COUNT, only(row.mend)]))
    end = data.draw(st.sampled_from([b"\n", b"\r\n", b"\r"]))
    came = row.bytes(row.came)
    if data.draw(st.booleans()):  # as vLLM writes it
        came = came.replace(b'": ', b'":').replace(b'", ', b'",').replace(b", ", b",")
    came = came.replace(b"\n", end)
    whole = answer_to(row, modes)
    expected = through(whole, [came])
    size = len(came)
    at = sorted(data.draw(st.lists(st.integers(0, size), max_size=12)))
    blocks = [came[a:b] for a, b in zip([0, *at], [*at, size], strict=True)]
    answer = answer_to(row, modes)
    assert through(answer, blocks) == expected
    assert answer.counts == whole.counts
    bytewise = answer_to(row, modes)
    assert through(bytewise, [came[n : n + 1] for n in range(size)]) == expected


def test_all_mends_at_once_agree() -> None:
    came = [
        *(
            chunk({"role": "assistant", "reasoning": "Hm"}),
            *said("So.\n</think>\n\nI look.", SPELT),
        ),
        STOP,
    ]
    answer = Answer("chat", asked(TOOLS, True), ON)
    got = read_back(through(answer, [stream(came)]))
    deltas = [one["choices"][0]["delta"] for one in got]
    assert deltas[0]["reasoning_content"] == "Hm"
    assert deltas[1] == {"reasoning": "So.\n", "reasoning_content": "So.\n"}
    assert deltas[2] == {"content": "I look."}
    assert json.loads(deltas[3]["tool_calls"][0]["function"]["arguments"]) == {"path": "a.py"}
    assert got[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_an_event_that_is_mended_keeps_its_frame() -> None:
    answer = Answer("chat", asked({}, True), ON)
    data = json.dumps(chunk({"reasoning": "a"})).encode()
    sent = answer.feed(b": hello\r\nid: 7\r\ndata: %b\r\n\r\n" % data)
    assert sent.startswith(b": hello\r\nid: 7\r\ndata: {")
    assert sent.endswith(b"\r\n\r\n") and b"reasoning_content" in sent


def test_text_in_a_known_frame_is_passed_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Answer("chat", asked({}, True), ON)
    for words in ("a", "b"):
        answer.feed(b"data: %b\n\n" % orjson.dumps(chunk({"content": words})))
    monkeypatch.setattr(answer, "_event", lambda *_: pytest.fail("it was read"))
    more = b"data: %b\n\n" % orjson.dumps(chunk({"content": "c"}))
    assert answer.feed(more) == more
    assert answer.feed(more * 3 + b"data: {") == more * 3


def test_a_tag_in_a_known_frame_is_seen() -> None:
    answer = Answer("chat", asked({}, True), ON)
    for words in ("a", "b", "c"):
        answer.feed(b"data: %b\n\n" % orjson.dumps(chunk({"content": words})))
    sent = answer.feed(b"data: %b\n\n" % orjson.dumps(chunk({"content": "d</think>e"})))
    assert [one["choices"][0]["delta"] for one in read_back(sent)] == [
        {"reasoning": "d", "reasoning_content": "d"},
        {"content": "e"},
    ]


def test_a_frame_that_changes_all_the_time_is_given_up() -> None:
    answer = Answer("chat", asked({"n": 2}, True), ON)
    both = [stream([chunk({"content": "a"}, index=n)])[: -len(DONE)] for n in (0, 1)]
    for _ in range(50):
        assert [answer.feed(one) for one in both] == both
    assert answer._chances == 0


def thoughts(*texts: str) -> list[bytes]:
    return [b"data: %b\n\n" % orjson.dumps(chunk({"reasoning": text})) for text in texts]


def test_thinking_in_a_known_frame_is_mended_as_if_it_was_read_whole() -> None:
    texts = ["a", 'b"\\', "é\n", "", "\x7f", "z" * 3000]
    answer = Answer("chat", asked({}, True), ON)
    sent = b"".join(answer.feed(block) for block in thoughts("first", "second", *texts))
    alone = [Answer("chat", asked({}, True), ON).feed(one) for one in thoughts("first", "second")]
    assert sent.startswith(b"".join(alone))
    for words, got in zip(texts, read_back(sent)[2:], strict=True):
        assert got["choices"][0]["delta"] == {"reasoning": words, "reasoning_content": words}
    assert answer.counts["reasoning_names"] == 8
    assert answer._in_frame == 6


@pytest.mark.parametrize(
    "text",
    [
        rb'"a","reasoning_content":"a"',
        rb'"a"},"delta":{"reasoning":"b"',
        rb'"\u00e9"',
        rb'"\ud800"',
        b'"\xff"',
        b'"a',
        b"null",
        b"7",
    ],
)
def test_what_only_has_the_frame_is_read_whole(text: bytes) -> None:
    (whole,) = thoughts("TEXT")
    other = whole.replace(b'"TEXT"', text)
    fresh = Answer("chat", asked({}, True), ON)
    fresh.feed(stream(said("x"))[: -len(DONE)])
    answer = Answer("chat", asked({}, True), ON)
    answer.feed(b"".join(thoughts("a", "b")))
    assert answer.feed(other) == fresh.feed(other)
    assert answer._in_frame == 0


# --- what breaks --------------------------------------------------------------------------------

BEGUN = {
    "chat": stream(said("Hello"))[: -len(DONE)],
    "completions": b'data: {"choices":[{"index":0,"text":"Hello","finish_reason":null}]}\n\n',
    "responses": b'event: response.created\ndata: {"type":"response.created",'
    b'"sequence_number":4}\n\n',
    "messages": stream([MESSAGE, text_start(0), text(0, "Hello")], "messages"),
}


@pytest.mark.parametrize("api", BEGUN)
@pytest.mark.parametrize("torn", [b"", b'data: {"choi', b"data: [DO"])
def test_f11_a_cut_answer_ends_with_an_error_in_the_apis_own_form(api: str, torn: bytes) -> None:
    answer = Answer(api, asked({}, True), ON)
    sent = through(answer, [BEGUN[api], torn])
    assert sent.startswith(BEGUN[api])
    assert answer.cut
    last = read_back(sent)[-1]
    if api == "responses":
        assert last["type"] == "error"
        assert last["sequence_number"] == 5
    elif api == "messages":
        assert (last["type"], last["error"]["type"]) == ("error", "api_error")
        assert b"event: error\ndata: " in sent
    else:
        assert "model server ended" in last["error"]["message"]
    assert b"[DONE]" not in sent


@pytest.mark.parametrize("api", BEGUN)
def test_f11_counted_leaves_the_cut_as_it_is(api: str) -> None:
    answer = Answer(api, asked({}, True), COUNT)
    assert through(answer, [BEGUN[api], b'data: {"choi']) == BEGUN[api] + b'data: {"choi'
    assert answer.cut


def test_f11_the_error_of_a_mended_response_has_a_number_of_its_own() -> None:
    """More events have gone out than the server has numbered."""
    come = stream(
        responses.answer(responses.spoken(responses.LATE, 0, "a</think>b <")), "responses"
    )
    cut = come[: come.index(b"event: response.output_text.done")]
    answer = Answer("responses", asked({}, True), ON)
    got = read_back(through(answer, [cut]))
    assert [one["type"] for one in unnumbered(got)][-1] == "error"
    assert any(one.get("delta") == "b <" for one in got)


def test_who_is_cut_off_by_us_gets_what_was_held_back() -> None:
    answer = Answer("chat", asked({}, True), ON)
    answer.feed(stream(said("a </th"))[: -len(DONE)])
    got = read_back(answer.broken_off("Stopped."))
    assert got[0] == said("a </th")[0]
    assert got[1]["error"]["message"] == "Stopped."


def test_f11_what_was_held_back_comes_before_the_error() -> None:
    answer = Answer("chat", asked({}, True), ON)
    got = read_back(through(answer, [stream(said("a </th"))[: -len(DONE)]]))
    assert got[0] == said("a </th")[0]
    assert "error" in got[1]


@pytest.mark.parametrize(
    ("api", "came"),
    [
        ("chat", stream([*said("x"), STOP])),
        ("chat", stream([*said("x"), STOP])[: -len(DONE)]),  # finished, without the mark
        ("chat", stream([*said("x"), STOP])[:-2]),  # without the last newlines
        ("chat", stream([*said("x"), {"error": {"message": "out of memory", "code": 500}}])),
        ("messages", stream(message(text_start(0), text(0, "x"), block_stop(0)), "messages")),
        ("responses", b'data: {"type":"response.completed"}\n\n'),
        ("responses", b'data: {"type":"response.incomplete"}\n\n'),
    ],
)
def test_a_whole_answer_gets_no_error(api: str, came: bytes) -> None:
    answer = Answer(api, asked({}, True), ON)
    assert through(answer, [came]) == came
    assert not answer.cut


def test_two_choices_of_which_one_finished_are_a_cut() -> None:
    answer = Answer("chat", asked({"n": 2}, True), ON)
    through(answer, [stream([*said("x"), STOP])[: -len(DONE)]])
    assert answer.cut


STRANGE = [
    b"data: {\xff\xfe not JSON\n\n",
    b"data: [1, 2]\n\n",
    b'data: {"choices": [{"index": {}, "delta": {"content": 7, "tool_calls": {"a": 1}}}]}\n\n',
    b'data: {"choices": [{"index": [], "delta": {"tool_calls": [{"index": {}}, 7]}}]}\n\n',
    b'data: {"choices": "<think>", "usage": 7}\n\n',
    b'data: {"type": [], "index": "x", "delta": 7}\n\n',
    b": a comment </think>\n\n",
    b"event: nothing\n\n",
    b"retry: 10\r\n\r\n",
    b"data\n\n",
]


@pytest.mark.parametrize("api", BEGUN)
@pytest.mark.parametrize("strange", STRANGE)
def test_what_is_no_answer_passes_byte_for_byte(api: str, strange: bytes) -> None:
    answer = Answer(api, asked(TOOLS | NO_THINKING, True), ON)
    assert answer.feed(strange) == strange


KEYS = ["choices", "delta", "index", "content", "tool_calls", "function", "arguments", "name"]
KEYS += ["type", "content_block", "text", "finish_reason", "usage", "error", "message", "id"]
LEAVES = st.none() | st.booleans() | st.integers(-1, 2) | st.sampled_from(["", "stop", "text", "<"])


@settings(max_examples=300, deadline=None)
@given(
    st.sampled_from(["chat", "messages", "completions", "responses"]),
    st.lists(
        st.recursive(
            LEAVES,
            lambda inner: (
                st.lists(inner, max_size=2)
                | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4)
            ),
            max_leaves=12,
        ),
        max_size=4,
    ),
)
def test_no_shape_of_json_breaks_a_stream(api: str, shapes: list[Any]) -> None:
    answer = Answer(api, asked(TOOLS, True), ON)
    came = b"".join(b"data: %b\n\n" % json.dumps(shape).encode() for shape in shapes)
    through(answer, [came, DONE])
    counting = Answer(api, asked(TOOLS, True), COUNT)
    assert counting.feed(came) + counting.feed(DONE) == came + DONE
    mended(Answer(api, asked(TOOLS, True), ON), came)


# --- empty answers ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("api", "chunks", "empty"),
    [
        ("chat", [chunk({"role": "assistant", "content": ""}), STOP], True),
        ("chat", [chunk({"reasoning": "Hm"}), STOP], False),
        ("chat", [*said("x"), STOP], False),
        ("chat", [chunk({"content": ""}), chunk({}, "length")], False),
        ("chat", [{"error": {"message": "no"}}], False),
        ("messages", [MESSAGE, stop_for("end_turn"), MESSAGE_STOP], True),
        ("messages", message(text_start(0), text(0, "x"), block_stop(0)), False),
        ("responses", responses.answer([]), True),
        ("responses", responses.answer([], status="incomplete"), False),
        ("responses", responses.answer(responses.spoken(responses.SAID, 0, "Hi")), False),
        ("responses", responses.answer(responses.spoken(responses.THOUGHT, 0, "Hm")), False),
        ("responses", responses.ONLY_CALL, False),
    ],
)
def test_an_answer_without_a_word_is_seen(api: str, chunks: list[Any], empty: bool) -> None:
    answer = Answer(api, asked({}, True), COUNT)
    came = stream(chunks, api)
    assert through(answer, [came]) == came
    assert answer.outcome.empty is empty


@pytest.mark.parametrize(
    ("api", "body", "empty"),
    [
        ("messages", {"type": "message", "content": [], "stop_reason": "end_turn"}, True),
        ("messages", {"type": "message", "content": [{}], "stop_reason": "end_turn"}, False),
        ("messages", {"type": "message", "content": [], "stop_reason": "max_tokens"}, False),
        ("responses", responses.body(), True),
        ("responses", responses.body({"type": "message", "content": []}), True),
        ("responses", responses.body(responses.CALL), False),
        ("responses", responses.body(responses.THOUGHT), False),
        ("responses", responses.body(status="incomplete"), False),
        ("chat", {"choices": [{"message": {"content": ""}, "finish_reason": "stop"}]}, True),
        ("chat", {"choices": [{"message": {"content": "x"}, "finish_reason": "stop"}]}, False),
    ],
)
def test_an_answer_in_one_body_without_a_word_is_seen(
    api: str, body: dict[str, Any], empty: bool
) -> None:
    answer = Answer(api, asked({}, True), COUNT)
    mended(answer, json.dumps(body).encode())
    assert answer.outcome.empty is empty


@pytest.mark.parametrize(
    ("api", "chunks", "tokens"),
    [
        ("chat", [STOP, {"choices": [], "usage": {"completion_tokens": 1}}], 1),
        ("messages", [MESSAGE, stop_for("end_turn"), MESSAGE_STOP], 9),
        ("responses", responses.answer([]), 9),
    ],
)
def test_how_many_tokens_it_had_is_told_by_its_usage(
    api: str, chunks: list[Any], tokens: int
) -> None:
    answer = Answer(api, asked({}, True), ON)
    through(answer, [stream(chunks, api)])
    assert answer.outcome.tokens == tokens


# --- in one body --------------------------------------------------------------------------------


def body_of(content: Any, finish: str = "stop", **more: Any) -> dict[str, Any]:
    told = {"role": "assistant", "content": content, "refusal": None, **more}
    choice = {"index": 0, "message": told, "logprobs": None, "finish_reason": finish}
    return {"id": "chatcmpl-7", "choices": [choice], "usage": {"completion_tokens": 5}}


FOUND = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
SPELT_CALL = {
    "id": "call_7_0",
    "type": "function",
    "function": {"name": "read", "arguments": '{"path": "a.py"}'},
}


@pytest.mark.parametrize(
    ("came", "gives", "request_"),
    [
        (
            body_of("x", reasoning="Hm", tool_calls=[]),
            body_of("x", reasoning="Hm", reasoning_content="Hm", tool_calls=[]),
            {},
        ),
        (
            body_of("a</think>\n\nb", reasoning=None),
            body_of("b", reasoning="a", reasoning_content="a"),
            {},
        ),
        (body_of(None, reasoning="x"), body_of("x", reasoning=None), NO_THINKING),
        (
            body_of("x", reasoning="Hm"),
            body_of("x", reasoning="Hm", reasoning_content="Hm"),
            NO_THINKING,
        ),
        (body_of(SPELT), body_of(None, "tool_calls", tool_calls=[SPELT_CALL]), TOOLS),
        (
            body_of(None, tool_calls=[FOUND]),
            body_of(None, "tool_calls", tool_calls=[FOUND]),
            {},
        ),
        (
            body_of(
                None, tool_calls=[{**FOUND, "function": {"name": "read", "arguments": "{}{}"}}]
            ),
            body_of(None, "tool_calls", tool_calls=[FOUND]),
            {},
        ),
        (
            body_of(None, tool_calls=[{**FOUND, "function": {"name": "read", "arguments": ""}}]),
            body_of(None, "tool_calls", tool_calls=[FOUND]),
            {},
        ),
    ],
)
def test_an_answer_in_one_body_is_mended_too(
    came: dict[str, Any], gives: dict[str, Any], request_: dict[str, Any]
) -> None:
    answer = Answer("chat", asked(request_, True), ON)
    assert json.loads(mended(answer, json.dumps(came).encode())) == gives
    assert answer.counts
    counting = Answer("chat", asked(request_, True), COUNT)
    assert mended(counting, json.dumps(came).encode()) == json.dumps(came).encode()
    assert set(counting.counts) & set(answer.counts)


def test_a_message_in_one_body_is_mended_too() -> None:
    said_ = {"id": "msg_7", "content": [{"type": "text", "text": "I look.</think>" + SPELT}]}
    answer = Answer("messages", asked({"tools": [{"name": "read"}]}, True), ON)
    got = json.loads(mended(answer, json.dumps({**said_, "stop_reason": "end_turn"}).encode()))
    assert got == {
        "id": "msg_7",
        "content": [
            {"type": "thinking", "thinking": "I look.", "signature": ""},
            {
                "type": "tool_use",
                "id": "toolu_7_1_1",
                "name": "read",
                "input": {"path": "a.py"},
            },
        ],
        "stop_reason": "tool_use",
    }


@pytest.mark.parametrize(
    ("came", "gives", "request_", "malformed"),
    [
        ([responses.LONG], responses.MOVED, {}, 0),
        ([responses.ANSWER], [responses.AS_ANSWER], responses.EFFORT_NONE, 0),
        ([responses.message("m1", SPELT)], [responses.FIRST], responses.TOOLS, 0),
        (
            [responses.THOUGHT, responses.message("m1", "I look." + responses.TWO)],
            [
                responses.THOUGHT,
                responses.message("m1", "I look."),
                responses.function_call("fc_7_2", call_id="call_7_2"),
                responses.function_call("fc_7_3", '{"lines": 7}', "call_7_3"),
            ],
            responses.TOOLS,
            0,
        ),
        ([responses.DOUBLED], [responses.function_call("f1", '{"p":1}')], {}, 0),
        ([responses.EMPTY], [responses.function_call("f1", "{}")], {}, 0),
        ([responses.BROKEN], [responses.BROKEN], {}, 1),
        ([responses.THOUGHT, responses.SAID, responses.CALL], None, {}, 0),
    ],
)
def test_a_response_in_one_body_is_mended_too(
    came: list[Any], gives: list[Any] | None, request_: dict[str, Any], malformed: int
) -> None:
    body = json.dumps(responses.body(*came)).encode()
    answer = Answer("responses", asked(request_, True), ON)
    got = mended(answer, body)
    assert json.loads(got) == responses.body(*(came if gives is None else gives))
    assert answer.malformed == malformed
    if gives is None:
        assert got == body and not answer.counts
    counting = Answer("responses", asked(request_, True), COUNT)
    assert mended(counting, body) == body
    assert counting.counts == answer.counts


def test_a_response_that_was_cut_off_keeps_a_call_without_arguments() -> None:
    body = json.dumps(responses.body(responses.EMPTY, status="incomplete")).encode()
    assert mended(Answer("responses", asked({}, True), ON), body) == body


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"object":"list","data":[]}'])
def test_another_body_stays_as_it_is(body: bytes) -> None:
    for api in BEGUN:
        assert mended(Answer(api, asked({}, True), ON), body) == body


def test_the_rows_are_all_there() -> None:
    """One row of each kind and API, so that none is lost unseen."""
    names = " ".join(row.name for row in CHAT)
    assert all(f"F{number}" in names for number in (1, 2, 3, 4, 5, 6, 7, 12))
    names = " ".join(row.name for row in RESPONSES)
    assert all(f"F{number}" in names for number in (1, 2, 3, 4, 5, 6, 7, 12))
    names = " ".join(row.name for row in MESSAGES)
    assert all(f"F{number}" in names for number in (3, 4, 5, 6, 7))
