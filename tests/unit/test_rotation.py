"""Which boxes a gateway asks: taken out and put back by hand, and said in words."""

from __future__ import annotations

import errno
import json
import os
import re
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from aibox.box import __main__ as program
from aibox.box import rotation as on_box
from aibox.decide import rotation
from aibox.decide.manifest import AIBOX
from aibox.gateway import rotation as code

OUT = {"b": {"why": "its card is changed", "since": 100.0, "by": "hand"}}
NOBODY = "http://127.0.0.1:9"  # the port where nothing is ever said


def test_who_is_out_already_stays_so_since_then() -> None:
    out = rotation.taken_out({}, "b", "its card is changed", "hand", 100.0)
    assert out == OUT
    out = rotation.taken_out(out, "b", "another card", "hand", 200.0)
    assert out == {"b": {"why": "another card", "since": 100.0, "by": "hand"}}
    assert rotation.put_back(out, "b", "hand") == {}
    assert rotation.put_back(out, "a", "hand") == out
    assert code.out_in(rotation.text(out)) == out


@pytest.mark.parametrize(
    ("first", "then", "holds"),
    [("roll", "hand", "hand"), ("hand", "roll", "hand"), ("roll", "roll", "roll")],
)
def test_what_a_hand_has_taken_out_never_becomes_a_rolls(first: str, then: str, holds: str) -> None:
    out = rotation.taken_out({}, "b", f"why of a {first}", first, 100.0)
    out = rotation.taken_out(out, "b", f"why of a {then}", then, 200.0)
    assert out["b"] == {"why": f"why of a {holds}", "since": 100.0, "by": holds}
    assert code.out_in(rotation.text(out)) == out


def test_who_is_not_said_to_have_done_it_is_a_hand() -> None:
    assert code.out_in('{"out": {"b": {"why": "x", "since": 1}}}')["b"]["by"] == "hand"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"out": []}',
        '{"out": {"b": 1}}',
        '{"out": {"b": {"why": "x"}}}',
        '{"out": {"b": {"why": 1, "since": 1}}}',
        '{"out": {"b": {"why": "x", "since": "today"}}}',
        '{"out": {"b": {"why": "x", "since": true}}}',
        '{"out": {"b": {"why": "x", "since": Infinity}}}',
        '{"out": {"b": {"why": "x", "since": NaN}}}',
        '{"out": {"b": {"why": "x", "since": 1e20}}}',
        '{"out": {"b": {"why": "x", "since": -1}}}',
        "[" * 200_000,
        '{"out": {"b": {"why": "x", "since": 1, "by": "cat"}}}',
    ],
)
def test_what_is_no_rotation_is_told(text: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        code.out_in(text)


@pytest.mark.parametrize(
    ("box", "said"),
    [
        ({"out": None, "healthy": True, "found": None}, "in  coder"),
        (
            {"out": None, "healthy": False, "found": "503"},
            "in, not healthy: 503  coder",
        ),
        ({"out": None, "healthy": None, "found": None}, "in, health not known  coder"),
        (
            {"out": OUT["b"], "healthy": True, "found": None},
            "out for 60 min: its card is changed (healthy)  coder",
        ),
        (
            {"out": OUT["b"], "healthy": False, "found": "timed out"},
            "out for 60 min: its card is changed (not healthy: timed out)  coder",
        ),
    ],
)
def test_how_a_box_stands(box: dict[str, Any], said: str) -> None:
    assert rotation.standing({"models": ["coder"], **box}, 3700.0) == said


def test_a_clock_that_was_set_back_makes_no_time_below_nothing() -> None:
    out = {"models": ["coder"], "out": OUT["b"], "healthy": True, "found": None}
    assert rotation.standing(out, 50.0).startswith("out for 0 s: ")


HEALTHY = {"models": ["coder"], "out": None, "healthy": True, "found": None}
ILL = {**HEALTHY, "healthy": False, "found": "503"}
AWAY = {**HEALTHY, "out": OUT["b"]}
SAID = "nobody is left that serves coder: requests for it get 503 until one is "


@pytest.mark.parametrize(
    ("boxes", "said"),
    [
        ({"a": HEALTHY, "b": AWAY}, None),
        ({"a": {**HEALTHY, "healthy": None}, "b": AWAY}, None),  # it may serve
        ({"a": AWAY, "b": AWAY}, f"{SAID}put back (sudo {AIBOX} rotation back a or b)"),
        ({"a": AWAY, "b": ILL}, f"{SAID}put back (sudo {AIBOX} rotation back a)"),
        ({"a": ILL}, f"{SAID}healthy"),
        (
            {"a": {**AWAY, "models": ["coder"]}, "b": {**HEALTHY, "models": ["writer"]}},
            f"{SAID}put back (sudo {AIBOX} rotation back a)",
        ),
    ],
)
def test_a_name_that_nobody_is_asked_for_is_said(
    boxes: dict[str, dict[str, Any]], said: str | None
) -> None:
    assert rotation.nobody_left(rotation.unserved(boxes), boxes) == said


# --- the command ---------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two boxes, and a gateway that does not answer."""
    monkeypatch.setattr(on_box, "FILE", tmp_path / "rotation.json")
    monkeypatch.setattr(on_box, "FLEET", tmp_path / "fleet.json")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    boxes = {name: {"models": ["coder"], "health": NOBODY} for name in ("a", "b")}
    (tmp_path / "fleet.json").write_text(json.dumps({"url": NOBODY, "boxes": boxes}))
    return tmp_path


def test_a_box_is_taken_out_and_put_back(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = ["rotation", "out", "b", "--why", "its card is changed", "--json"]
    assert program.main(out) == 1  # the gateway does not answer, but it is done
    shown = json.loads(capsys.readouterr().out)
    assert [shown["boxes"][name]["out"] is None for name in ("a", "b")] == [True, False]
    assert "refused" in shown["gateway"]
    file = folder / "rotation.json"
    there = code.out_in(file.read_text())["b"]
    assert (there["why"], there["by"]) == ("its card is changed", "hand")
    assert shown["boxes"]["b"]["out"] == there
    assert file.stat().st_mode & 0o777 == 0o644
    assert program.main(["rotation"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "a  in, health not known  coder"
    assert said.out.splitlines()[1].startswith("b  out for 0 s: its card is changed")
    assert "the gateway does not answer" in said.err
    program.main(["rotation", "back", "b"])
    assert code.out_in(file.read_text()) == {}


def test_who_takes_the_last_one_out_is_told(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program.main(["rotation", "out", "a", "--why", "x"])
    assert "nobody is left" not in capsys.readouterr().err
    program.main(["rotation", "out", "b", "--why", "x"])
    assert f"{SAID}put back" in capsys.readouterr().err
    assert set(code.out_in((folder / "rotation.json").read_text())) == {"a", "b"}
    program.main(["rotation", "--json"])
    assert json.loads(capsys.readouterr().out)["unserved"] == ["coder"]
    program.main(["rotation", "back", "b", "--json"])
    assert json.loads(capsys.readouterr().out)["unserved"] == []


def test_a_roll_says_that_it_is_one(folder: Path) -> None:
    program.main(["rotation", "out", "b", "--why", "a new version", "--by", "roll"])
    assert code.out_in((folder / "rotation.json").read_text())["b"]["by"] == "roll"
    program.main(["rotation", "out", "b", "--why", "its card is changed"])
    assert code.out_in((folder / "rotation.json").read_text())["b"]["by"] == "hand"
    program.main(["rotation", "back", "b", "--by", "roll"])
    assert code.out_in((folder / "rotation.json").read_text())["b"]["by"] == "hand"
    program.main(["rotation", "back", "b"])
    assert code.out_in((folder / "rotation.json").read_text()) == {}


def test_one_that_left_the_inventory_can_still_be_put_back(folder: Path) -> None:
    (folder / "rotation.json").write_text(rotation.text({"gone": OUT["b"]}))
    program.main(["rotation", "back", "gone"])
    assert code.out_in((folder / "rotation.json").read_text()) == {}


@pytest.mark.parametrize(
    ("words", "rotation_file", "fleet_file", "said"),
    [
        (["out", "c", "--why", "x"], None, "as it is", "one of a, b"),
        (["back", "c"], None, "as it is", "one of a, b"),
        (["out", "b", "--why", " "], None, "as it is", "no reason"),
        (["out", "b", "--why", "a\nb"], None, "as it is", "can't be shown"),
        (["out", "b", "--why", "x" * 201], None, "as it is", "at most 200"),
        (["out", "b", "--why", "x"], "{", "as it is", "delete it"),
        ([], "{", "as it is", "delete it"),
        ([], None, None, "no gateway here"),
        ([], None, '{"boxes": []}', "no gateway here"),
        (["back", "b"], None, "{", "no gateway here"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_changes(
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    words: list[str],
    rotation_file: str | None,
    fleet_file: str | None,
    said: str,
) -> None:
    file, fleet = folder / "rotation.json", folder / "fleet.json"
    if rotation_file is not None:
        file.write_text(rotation_file)
    if fleet_file is None:
        fleet.unlink()
    elif fleet_file != "as it is":
        fleet.write_text(fleet_file)
    assert program.main(["rotation", *words]) == 1
    assert said in capsys.readouterr().err
    assert (file.read_text() if file.exists() else None) == rotation_file


@pytest.mark.parametrize("words", [["out", "b", "--why", "x"], ["back", "b"], []])
def test_a_file_that_is_a_folder_is_not_to_be_deleted_as_a_broken_one(
    folder: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    (folder / "rotation.json").mkdir()
    assert program.main(["rotation", *words]) == 1
    said = capsys.readouterr().err
    assert f"Is a directory at {folder}/rotation.json" in said
    assert "mend this on the box" in said and "rm " not in said


@pytest.mark.usefixtures("folder")
def test_a_disk_that_takes_nothing_is_told(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(on_box, "write_whole", too_many)
    assert program.main(["rotation", "out", "b", "--why", "x"]) == 1
    assert f"found     {os.strerror(errno.EMFILE)}" in capsys.readouterr().err


@pytest.mark.parametrize("boxes", [[], {"a": 1}, {"a": {"models": [1]}}, "a"])
def test_who_answers_otherwise_at_the_gateways_port_is_no_gateway(
    folder: Path, capsys: pytest.CaptureFixture[str], boxes: object
) -> None:
    with answering(json.dumps({"boxes": boxes}).encode()) as url:
        fleet = json.loads((folder / "fleet.json").read_text())
        (folder / "fleet.json").write_text(json.dumps({**fleet, "url": url}))
        assert program.main(["rotation"]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines()[0] == "a  in, health not known  coder"
    assert "the gateway does not answer: it " in said.err


@contextmanager
def answering(body: bytes) -> Iterator[str]:
    """A server that answers everything so; its address."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Not on the screen."""

    with HTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_only_root_changes_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert program.main(["rotation", "out", "b", "--why", "x"]) == 1
    assert "sudo" in capsys.readouterr().err
    assert not (folder / "rotation.json").exists()


# --- the choice, inside LiteLLM ------------------------------------------------------------------


def rotating(folder: Path, *names: str) -> code.Rotation:
    """Boxes that are all healthy, and serve `coder`."""
    boxes = [code.Box(name, ["coder"], "", "", "", frozenset({"coder"}), 0, 0) for name in names]
    return code.Rotation(boxes, code.Out(str(folder / "rotation.json")))


def test_boxes_take_turns_until_one_is_busier(tmp_path: Path) -> None:
    there = rotating(tmp_path, "a", "b")
    requests = [code.Request() for _ in range(4)]
    assert [there.chosen("ab", one, "coder") for one in requests] == ["a", "b", "a", "b"]
    there.left(requests[1])
    there.left(requests[1])  # twice is once
    assert [there.chosen("ab", code.Request(), "coder") for _ in range(2)] == ["b", "a"]
    assert [of["requests"] for of in there.shown().values()] == [3, 2]


def test_a_request_that_comes_again_goes_to_each_box_once(tmp_path: Path) -> None:
    there, request = rotating(tmp_path, "a", "b", "c"), code.Request()
    assert [there.chosen("abc", request, "coder") for _ in range(3)] == ["a", "b", "c"]
    assert [of["requests"] for of in there.shown().values()] == [0, 0, 1]
    with pytest.raises(code.NobodyServesError, match="a has failed; b has failed; c has failed"):
        there.chosen("abc", request, "coder")
    there.left(request)
    assert [of["requests"] for of in there.shown().values()] == [0, 0, 0]


def test_what_asks_without_a_request_is_not_counted(tmp_path: Path) -> None:
    there = rotating(tmp_path, "a", "b")
    assert [there.chosen("ab", None, "coder") for _ in range(3)] == ["a", "b", "a"]
    assert [of["requests"] for of in there.shown().values()] == [0, 0]


def test_who_is_out_or_not_healthy_is_not_chosen(tmp_path: Path) -> None:
    there = rotating(tmp_path, "a", "b", "c")
    (tmp_path / "rotation.json").write_text(rotation.text({"a": OUT["b"], "gone": OUT["b"]}))
    there.boxes["b"].saw("503")
    assert {there.chosen("abc", None, "coder") for _ in range(4)} == {
        "b",
        "c",
    }  # once is no failure
    there.boxes["b"].saw("503")
    assert {there.chosen("abc", None, "coder") for _ in range(4)} == {"c"}
    with pytest.raises(
        code.NobodyServesError,
        match=r"a was taken out: its card is changed; b is not healthy: 503",
    ):
        there.chosen("ab", None, "coder")
    there.boxes["b"].saw(None)
    assert there.chosen("ab", None, "coder") == "b"


def test_a_box_that_was_never_asked_is_not_healthy_yet() -> None:
    assert not code.Box("a", [], "", "", "").is_healthy


def test_a_box_is_asked_only_for_what_it_serves_now(tmp_path: Path) -> None:
    """The configuration is of the settings; a change has come to one box, not yet to the other."""
    there = rotating(tmp_path, "a", "b")
    there.boxes["a"].models.append("new")
    there.boxes["b"].models.append("new")
    there.boxes["a"].named(["coder", "new"], 0)
    assert {there.chosen("ab", None, "new") for _ in range(3)} == {"a"}
    assert {there.chosen("ab", None, "coder") for _ in range(3)} == {"a", "b"}
    shown = there.shown()["b"]
    assert (shown["models"], shown["missing"], shown["healthy"]) == (["coder"], ["new"], True)
    assert rotation.standing(shown, 0) == "in  coder (not yet: new)"
    there.boxes["a"].saw("503")
    there.boxes["a"].saw("503")
    said = "a is not healthy: 503; b serves coder"
    with pytest.raises(code.NobodyServesError, match=said):
        there.chosen("ab", None, "new")
    assert there.shown()["a"]["models"] == ["coder", "new"]  # what it is to serve


def test_what_a_box_serves_is_asked_anew_in_time() -> None:
    box = code.Box("a", ["m"], "", "", "")
    assert box.are_names_old(0)
    box.named(["m"], 100)
    box.saw(None)
    assert not box.are_names_old(100 + code.NAMES_EVERY_S - 1)
    assert box.are_names_old(100 + code.NAMES_EVERY_S)
    box.saw("once is no failure, but it may come back as another")
    assert box.are_names_old(101)


NO_MODELS = [b"", b"[]", b'{"data": [1]}', b'{"data": [{}]}', b'{"data": 1}', b"[" * 200_000]


@pytest.mark.parametrize("body", NO_MODELS)
def test_what_names_no_models_is_told(body: bytes) -> None:
    with pytest.raises(code.NotWellError, match=r"http://x names no models"):
        code.names_in(body, "http://x")


def test_what_is_out_is_read_anew_and_a_broken_file_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "rotation.json"
    out = code.Out(str(file))
    assert out.now() == {}
    file.write_text(rotation.text(OUT))
    assert out.now() == OUT
    file.write_text("{")
    assert (out.now(), out.now()) == ({}, {})
    assert caplog.text.count("is broken, every box is asked") == 1
    file.unlink()
    assert out.now() == {}
    file.write_text(rotation.text(OUT))
    assert out.now() == OUT


def test_a_file_that_cannot_be_read_just_now_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a LiteLLM that has no file left to open."""
    file = tmp_path / "rotation.json"
    out = code.Out(str(file))
    file.write_text(rotation.text(OUT))
    assert out.now() == OUT
    file.write_text(rotation.text({**OUT, "c": OUT["b"]}))
    for name in ("read_text", "stat"):
        with monkeypatch.context() as patched:
            patched.setattr(Path, name, too_many)
            assert out.now() == OUT
    assert caplog.text.count("what was out stays out") == 2
    assert set(out.now()) == {"b", "c"}


def too_many(*_: object, **__: object) -> None:
    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


def test_what_was_sent_and_never_confirmed_ends_a_connection() -> None:
    address = (socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP, "", ("127.0.0.1", 1))
    with code.watchful_socket(address) as one:
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 25_000
        assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        assert one.gettimeout() == 0  # asyncio's


def test_the_file_that_is_laid_beside_litellm_needs_nothing_of_ours() -> None:
    text = Path(code.__file__).read_text()
    assert not [line for line in text.splitlines() if re.match(r"\s*(from|import) aibox", line)]
