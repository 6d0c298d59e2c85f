"""What a starting server is doing, whether its start is over, and the words of a switch."""

import pytest

from aibox.box.switch import has_ended, step_of
from aibox.decide import switching
from aibox.decide.faults import Cause
from aibox.decide.refusal import Refusal
from tests.unit.passed import passed


@pytest.mark.parametrize(
    ("line", "step"),
    [
        ("Loading safetensors checkpoint shards: 50%", "loading weights"),
        ("Starting to load model /srv/models/x", "loading weights"),
        ("torch.compile takes 12.3 s in total", "compiling"),
        ("Capturing CUDA graphs (decode, FULL): 10%", "capturing graphs"),
        ("INFO:     Application startup complete.", "opening the port"),
    ],
)
def test_a_line_of_the_journal_names_the_step(line: str, step: str) -> None:
    assert step_of([line]) == step
    assert step_of([line, "INFO nothing new"]) == step


def unit(**changes: str) -> dict[str, str]:
    shown = {"ActiveState": "activating", "SubState": "start-post", "Result": "success"}
    return {**shown, **changes}


@pytest.mark.parametrize(
    ("found", "over"),
    [
        (unit(), False),
        (unit(ActiveState="active", SubState="running"), False),
        (unit(ActiveState="failed", SubState="failed", Result="exit-code"), True),
        (unit(SubState="auto-restart"), True),
        (unit(Result="timeout"), True),
        (unit(ActiveState="inactive", SubState="dead"), True),
    ],
)
def test_a_start_is_over_when_its_process_is(found: dict[str, str], over: bool) -> None:
    assert has_ended(found) == over


# --- words -------------------------------------------------------------------------------------

ENDED = Refusal("it ended before it served", "a server that stays up", "see the log")
BLOCKS = Cause(
    kind="mamba_blocks",
    found="512 sequences do not fit 501 blocks",
    remedy="set max-num-seqs to 480 in card.yml",
    line="ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (501).",
    passing=False,
)
NOW = "back to the last good unit"


def test_a_known_cause_is_told_with_its_line_and_its_remedy() -> None:
    told = switching.failed(ENDED, [BLOCKS], ["other"], NOW)
    assert told.found.splitlines() == [ENDED.found, BLOCKS.found, f"  {BLOCKS.line}", NOW]
    assert told.remedy.splitlines()[0] == BLOCKS.remedy
    assert switching.AGAIN in told.remedy


def test_what_passes_by_itself_may_be_tried_again_at_once() -> None:
    passing = Cause("port_taken", "port 8000 is nginx's", "end it", "OSError", passing=True)
    assert switching.AGAIN not in switching.failed(ENDED, [passing], [], NOW).remedy


def test_an_unknown_cause_stays_unknown() -> None:
    told = switching.failed(ENDED, [], ["ValueError: new", "token=abcdefgh"], NOW)
    assert told.found.splitlines() == [
        ENDED.found,
        "the last it said:",
        "ValueError: new",
        "token=(hidden)",
        NOW,
    ]
    assert "no known cause" in told.remedy


def test_the_seconds_without_service_are_told() -> None:
    told = switching.with_seconds(switching.failed(ENDED, [], [], NOW), 31.24)
    assert told.found.endswith(f"{NOW}\n31.2 s without service")
    notes = switching.notes(passed("a", seconds_start=30.04, seconds_down=31.0), {})
    assert notes == [
        "passed its gate; the server's own start took 30.0 s",
        "31.0 s without service",
    ]


API = "vllm.entrypoints.openai.api_server"


@pytest.mark.parametrize(
    ("command", "release", "weights"),
    [
        (["/opt/r/bin/python3", "/opt/r/bin/vllm", "serve", "/srv/w", "--x"], "/opt/r", "/srv/w"),
        (["/home/me/v/bin/vllm", "serve", "/srv/w"], "/home/me/v", "/srv/w"),
        (["/opt/r/bin/vllm", "serve", "--model", "/srv/w"], "/opt/r", "/srv/w"),
        (["/opt/r/bin/vllm", "serve"], "/opt/r", ""),
        (["/opt/r/bin/python3", "-m", API, "--model=/srv/w"], "/opt/r", "/srv/w"),
        (["/usr/bin/python3", "-m", API, "--model", "Qwen/Q"], "", "Qwen/Q"),
        (["bash", "-c", "exec /home/me/v/bin/vllm serve Qwen/Q"], "/home/me/v", "Qwen/Q"),
        (["/root/.local/bin/uv", "run", "vllm", "serve", "/srv/w"], "", "/srv/w"),
        (["/opt/r/bin/vllm", "bench", "/srv/w"], "", None),
        (["nginx"], "", None),
        ([], "", None),
    ],
)
def test_what_a_found_server_serves(command: list[str], release: str, weights: str | None) -> None:
    facts = switching.facts_of(command)
    assert (facts["release"], facts["weights"]) == (release, weights or "")
    if weights is None:
        assert (facts["command"], facts["port"]) == (command, None)
    else:
        assert facts["command"][1:3] == ["serve", weights]
        assert (facts["commit"], facts["port"]) == ("w" if "/w" in weights else "", 8000)


def test_a_found_servers_port_and_flags_are_its_own() -> None:
    facts = switching.facts_of(["/v/bin/vllm", "serve", "/srv/w", "--port=9000", "--seed", "7"])
    assert facts["port"] == 9000
    assert facts["command"] == ["/v/bin/vllm", "serve", "/srv/w", "--port", "9000", "--seed", "7"]


def test_what_is_remembered_of_a_failure_holds_no_secret() -> None:
    cause = Cause("x", "api_key=abc1", "set token=abc2", "ValueError: password=abc3", passing=False)
    command = ["vllm", "serve", "/srv/w", "--api-key", "abc4", "--hf-token=abc5", "--seed", "7"]
    told = switching.failure(command, cause, ["Authorization: Bearer abc6"], 7.0)
    assert "abc" not in str(told)
    assert told["command"][-2:] == ["--seed", "7"]
