"""Whether boxes are in sync: never said of what was not looked at to the end."""

import json
from dataclasses import asdict
from typing import Any

import pytest

from aibox.decide import drift
from aibox.decide.drift import Audit, Mend, Reason, Serves, UnfinishedError
from aibox.decide.foreign import Foreign

WHEN = 1795969862.5


def row(name: str, *boxes: str, maybe: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "op_hash": f"hash of {name}",
        "name": name,
        "hosts_with_change": list(boxes),
        "hosts_with_conditional_change": list(maybe),
    }


def report(**changes: Any) -> dict[str, Any]:
    right = {"operations": 2, "reasons": {}, "new": [], "accepted": [], "gone": []}
    return {**right, **changes}


def plan(*rows: dict[str, Any]) -> str:
    return json.dumps({"plan": list(rows), "results": None})


@pytest.mark.parametrize(
    "output",
    [
        "",
        " \n",
        "{",
        plan(row("a", "box"))[:-9],
        "null",
        "[]",
        "{}",
        '{"plan": null}',
        '{"plan": []}',
        '{"plan": {}}',
        '{"plan": "abc"}',
        '{"plan": [1]}',
        '{"plan": [{"name": "a"}]}',
        plan({**row("a"), "hosts_with_change": None}),
        plan({**row("a"), "hosts_with_change": [1]}),
        plan({**row("a"), "name": ""}),
        "[" * 100_000,
        "Ctrl-C",
    ],
)
def test_an_output_that_is_not_whole_is_no_plan(output: str) -> None:
    with pytest.raises(UnfinishedError):
        drift.planned(output)


ROWS = [row("Base | a", "one"), row("Server | b", "one", "two"), row("c", maybe=("two",))]


@pytest.mark.parametrize(
    ("reports", "gap"),
    [
        ({}, "no box was looked at"),
        ({"one": report()}, "two"),
        ({"one": report(), "two": report(operations=0)}, "two"),
        ({"one": report(), "two": report(), "three": report(operations=0)}, "three"),
    ],
)
def test_a_box_without_its_report_is_a_gap(reports: dict[str, Any], gap: str) -> None:
    assert gap in (drift.gap(ROWS, reports) or "")


def test_with_every_report_there_is_no_gap() -> None:
    assert drift.gap(ROWS, {"one": report(), "two": report()}) is None


def test_each_box_gets_what_is_planned_for_it_with_the_reasons() -> None:
    reasons = {"hash of Server | b": [{"text": "because", "diff": ["-x"]}]}
    new = [{"what": "port 1 x", "why": "w", "lines": []}]
    one, two = drift.audits(
        ROWS, {"two": report(new=new, gone=["y"]), "one": report(reasons=reasons)}
    )
    assert [one.box, two.box] == ["one", "two"]
    assert one.mends == (
        Mend("Base", "a", ()),
        Mend("Server", "b", (Reason("because", ("-x",)),)),
    )
    assert two.mends == (Mend("Server", "b", ()), Mend("", "c", ()))
    assert two.foreign == (Foreign("port 1 x", "w"),)
    assert two.gone == ("y",)


SYNC = Audit("a", (), (), ("port 1 x",), ("port 2 x",))
MEND = Audit("b", (Mend("Server", "unit", (Reason("why", ("-old", "+new")),)),), (), (), ())
FOREIGN = Audit("c", (), (Foreign("port 3 x", "w", ("line",)),), (), ())


@pytest.mark.parametrize(
    ("found", "failure", "code"),
    [
        ([SYNC], None, 0),
        ([MEND], None, 2),
        ([FOREIGN], None, 2),
        ([SYNC, MEND], None, 2),
        ([SYNC], "one is missing", 1),
        ([MEND], "one is missing", 1),
        ([SYNC], "", 1),
        ([], None, 1),
        ([], "x", 1),
    ],
)
def test_the_exit_code(found: list[Audit], failure: str | None, code: int) -> None:
    assert drift.exit_code(found, failure) == code
    assert drift.document(found, failure, WHEN)["exit_code"] == code
    assert f"aibox_drift_exit_code {code}\n" in drift.metrics(found, failure, WHEN)


def test_the_table_is_read_by_a_person() -> None:
    assert list(drift.table(MEND)) == [
        "b: a deploy would do 1 thing",
        "  Server  unit",
        "            why",
        "              -old",
        "              +new",
    ]
    assert list(drift.table(FOREIGN)) == [
        "c: 1 thing foreign and not accepted",
        "  foreign: no deploy lays it down or takes it away",
        "    port 3 x: w",
        "        line",
    ]
    assert list(drift.table(SYNC)) == [
        "a: in sync",
        "  accepted         port 1 x",
        "  no longer there  port 2 x (take it out of `accepted`)",
    ]


REFUSED = Audit("d", (Mend("Server", "unit", (Reason("it failed", refused=True),)),), (), (), ())


@pytest.mark.parametrize(
    ("found", "steps"),
    [
        ([SYNC], []),
        ([MEND], ["a deploy mends it: pyinfra inventory deploy.py"]),
        ([REFUSED], ["a deploy of d would be refused: first change what is said above"]),
        (
            [MEND, REFUSED, FOREIGN],
            [
                "a deploy mends it: pyinfra inventory deploy.py",
                "a deploy of d would be refused: first change what is said above",
                "foreign things: take them away, or list their text in the setting `accepted`",
            ],
        ),
    ],
)
def test_no_deploy_is_offered_that_would_be_refused(found: list[Audit], steps: list[str]) -> None:
    assert list(drift.next_steps(found, "pyinfra inventory deploy.py")) == steps


def test_what_a_deploy_is_to_clients_comes_through_the_report() -> None:
    serves = Serves("restart", None, ("the stream filter",), ("coder",))
    told = json.loads(json.dumps(asdict(serves)))
    one, two = drift.audits(ROWS, {"one": report(serves=told), "two": report(serves=None)})
    assert (one.serves, two.serves) == (serves, Serves())


def test_a_refusal_comes_through_the_report() -> None:
    told = [{"text": "it failed", "diff": [], "refused": True}]
    one = drift.audits(ROWS, {"two": report(reasons={"hash of Server | b": told})})[0]
    assert (one.refused, drift.exit_code([one], None)) == (True, 2)
    assert next(drift.table(one)) == "two: a deploy would do 2 things, and would be refused"


def test_what_a_box_says_cannot_steer_a_terminal() -> None:
    assert drift.printable("a\x1b[31mb\rü") == "a\\x1b[31mb\\rü"


def test_after_a_deploy_nothing_is_left_to_mend() -> None:
    """Else the figure of a check before it stood until the next one, and told of drift for days."""
    mend = drift.Mend("Base", "Packages", ())
    before = drift.metrics([Audit("a b", (mend, mend), (), (), ())], None, WHEN)
    assert 'aibox_drift_operations{box="a b"} 2\n' in before
    after = drift.deployed(before)
    assert after == before.replace('{box="a b"} 2', '{box="a b"} 0')
    assert drift.deployed(after) == after
    assert drift.deployed("") == ""


def test_metrics_escape_what_a_box_is_called() -> None:
    text = drift.metrics([Audit('a"b\\c\nd', (), (), (), ())], None, WHEN)
    assert 'aibox_drift_operations{box="a\\"b\\\\c\\nd"} 0\n' in text
    assert "aibox_drift_check_timestamp_seconds 1795969862\n" in text


def test_the_document_says_when() -> None:
    assert drift.document([], "x", WHEN)["time"] == "2026-11-29T16:31:02Z"
