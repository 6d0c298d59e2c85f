"""What `aibox doctor` tells, and which starts it takes for the present one."""

from __future__ import annotations

import io
import tarfile
from dataclasses import replace

import pytest

from aibox.box.doctor import add, past, split, summary
from aibox.box.journal import Told as Start
from aibox.box.journal import headed, message_of
from aibox.decide.doctor import Findings, screen
from aibox.decide.fault_about import About, Holder
from aibox.decide.faults import Cause, diagnose

CAUSE = Cause(
    "mamba_blocks", "512 do not fit 501", "set max-num-seqs to 480", "ValueError: …", False
)
SERVING = Findings(
    unit="vllm-coder.service",
    port=8000,
    state="active, running",
    since="2026-11-29 10:00:00 UTC",
    health=200,
    owner=None,
    causes=[],
    before=[],
    roots=[],
    memory=[("sequences", "480 sequences fit 501 blocks")],
    log="sudo journalctl -u vllm-coder.service",
)
DOWN = replace(SERVING, state="failed, failed", since=None, health=None, memory=[])


def shown(found: Findings) -> str:
    return "\n".join(screen(found))


def test_a_server_that_serves_is_well() -> None:
    assert SERVING.well
    told = shown(SERVING)
    assert "serves on port 8000 since 2026-11-29" in told
    assert "480 sequences fit 501 blocks" in told
    assert "cause" not in told


def test_a_cause_is_told_with_its_line_and_remedy() -> None:
    found = replace(DOWN, causes=[CAUSE])
    assert not found.well
    told = shown(found)
    for words in ("does not run (failed, failed)", CAUSE.found, CAUSE.line, CAUSE.remedy):
        assert words in told


def test_a_standing_cause_is_not_well_even_while_it_serves() -> None:
    assert not replace(SERVING, causes=[CAUSE]).well


def test_what_no_longer_stands_is_told_and_well() -> None:
    found = replace(SERVING, before=[CAUSE])
    assert found.well
    assert "it serves again" in shown(found)


def test_the_unknown_shows_the_last_errors_and_where_the_log_is() -> None:
    told = shown(replace(DOWN, roots=["AttributeError: x"]))
    assert "unknown" in told
    assert "AttributeError: x" in told
    assert "sudo journalctl -u vllm-coder.service" in told


def test_a_start_that_systemd_will_repeat_has_failed() -> None:
    assert "unknown" in shown(replace(DOWN, state="activating, auto-restart"))


@pytest.mark.parametrize(
    ("found", "words"),
    [
        (replace(SERVING, health=503), "/health answers 503"),
        (replace(SERVING, health=None), "/health answers nothing"),
        (replace(SERVING, owner=Holder(77, "nginx")), "nginx (pid 77) has port 8000"),
        (replace(DOWN, state="activating, start-post"), "under way"),
    ],
)
def test_what_is_wrong_with_a_server_is_said(found: Findings, words: str) -> None:
    assert not found.well
    assert words in shown(found)


def test_of_a_server_that_serves_only_the_running_start_counts() -> None:
    starts = [Start("a", 1, ["x"], 1), Start("b", 2, ["y"], 1)]
    assert split(starts, serves=True) == ([starts[1]], [starts[0]])


def test_otherwise_the_last_start_that_said_anything_counts() -> None:
    starts = [Start("a", 1, ["x"], 1), Start("b", 2, ["y"], 1), Start("c", 3, [], 0)]
    assert split(starts, serves=False) == (starts[1:], [])
    assert split([], serves=False) == ([], [])
    assert split([Start("c", 3, ["systemd: x"], 0)], serves=False)[0][0].invocation == "c"


def test_an_earlier_fault_is_told_unless_it_stands_still() -> None:
    line = "OSError: [Errno 98] Address already in use"
    before = [Start("a", 1, [line], 1)]
    assert [one.kind for one in past(before, About(), [])] == ["port_taken"]
    assert past(before, About(), diagnose([line])) == []


def test_a_message_with_colours_comes_as_bytes() -> None:
    assert message_of({"MESSAGE": list(b"\x1b[31mred\x1b[0m\nnext")}) == [
        "\x1b[31mred\x1b[0m",
        "next",
    ]
    assert message_of({"MESSAGE": "one\ntwo"}) == ["one", "two"]
    assert message_of({"MESSAGE": None}) == []


def test_the_kernels_and_systemds_lines_keep_their_writer() -> None:
    entry = {"SYSLOG_IDENTIFIER": "kernel", "__REALTIME_TIMESTAMP": "1764412345000000"}
    line = headed(entry, "NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen off the bus.", own=False)
    assert [one.kind for one in diagnose([line])] == ["gpu_lost"]
    assert headed(entry, "as it is", own=True) == "as it is"


def test_a_bundle_holds_text_for_its_owner_alone() -> None:
    into = io.BytesIO()
    with tarfile.open(fileobj=into, mode="w:gz") as archive:
        add(archive, "report/x.txt", "text \ud800 here")
    into.seek(0)
    with tarfile.open(fileobj=into) as archive:
        member = archive.getmember("report/x.txt")
        assert member.mode == 0o600
        content = archive.extractfile(member)
        assert content is not None
        assert content.read() == b"text ? here"


def test_the_deploys_record_goes_along_without_its_lists() -> None:
    record = {"format": 1, "files": ["/a", "/b"], "server": {"unit": "x"}}
    assert summary(record) == {"format": 1, "files": "2 entries", "server": {"unit": "x"}}


def test_each_earlier_start_is_looked_at_by_itself() -> None:
    taken = Start("a", 1.0, ["OSError: [Errno 98] Address already in use"], 1)
    died = Start(
        "b",
        2.0,
        [
            "(APIServer pid=800) WARNING 11-30 01:35:00 [core_client.py:809] [shutdown] MPClient: "
            "engine core exited unexpectedly; starting cleanup"
        ],
        1,
    )
    assert [cause.kind for cause in past([taken, died], About(), [])] == [
        "engine_died",
        "port_taken",
    ]
