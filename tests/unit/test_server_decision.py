"""Whether a server must be restarted, and whether it owes a proof: decided from what was read."""

import hashlib
from dataclasses import replace
from typing import Any

import pytest

from aibox.decide.server import (
    Serving,
    environment,
    is_starting,
    proof_is_owed,
    reasons_to_restart,
    refused_by_a_deploy,
    switching,
)

WANTED = Serving(
    unit="vllm-coder",
    user="vllm",
    port=8000,
    start_timeout=900,
    release="/opt/r",
    weights="/srv/w",
    lines=[["/opt/r/bin/vllm", "serve", "/srv/w"], ["--port", "8000"], ["--seed", "7"]],
    environment={"HOME": "/var/lib/vllm-coder", "HF_HUB_OFFLINE": "1"},
)

TEXT = "[Unit]\nAfter=a\n[Service]\n# why\nUser=x\n\nExecStart=/bin/x\n"
SUM = hashlib.sha256(TEXT.encode()).hexdigest()


def state(**changes: Any) -> dict[str, Any]:
    """A server that is what is wanted."""
    process = {
        "pid": 99,
        "command": ["/opt/r/bin/python3", *WANTED.command],
        "environment": {**WANTED.environment, "INVOCATION_ID": "x"},
        "started": 2000.0,
    }
    right = {
        "unit": {"ActiveState": "active", "SubState": "running"},
        "process": process,
        "file": {"path": "/etc/x", "sha256": SUM, "changed": 1000.0},
        "changed": {"release": 1500.0, "weights": None},
        "health": 200,
        "proof": {"identity": WANTED.identity},
        "installed": {"path": "/etc/x", "sha256": SUM, "changed": 1000.0},
        "good": SUM,
        "good_release": "r",
        "good_how": "deploy",
        "tried": None,
        "failed": {},
    }
    return {**right, **changes}


def process(**changes: Any) -> dict[str, Any]:
    return {"process": {**state()["process"], **changes}}


def test_a_server_that_is_what_is_wanted_is_left_alone() -> None:
    assert reasons_to_restart(state(), WANTED) == []
    assert proof_is_owed(state(), WANTED) is None


@pytest.mark.parametrize(
    ("found", "reasons"),
    [
        (None, ["it is not there yet"]),
        (state(process=None, unit={}), ["it is inactive"]),
        (state(process=None, unit={"ActiveState": "failed"}), ["it is failed"]),
        (state(file=None), ["its unit file is gone"]),
        (state(changed={"release": 2001.0, "weights": None}), ["it is older than its release"]),
        (state(changed={"release": 1.0, "weights": 2001.0}), ["it is older than its weights"]),
        (
            state(**process(command=[*WANTED.command[:-1], "8"])),
            ["it runs with --seed 8, wanted --seed 7"],
        ),
        (
            state(**process(environment={"HOME": "/root"})),
            [
                "its environment has HOME=/root, not /var/lib/vllm-coder",
                "its environment has HF_HUB_OFFLINE=(unset), not 1",
            ],
        ),
        (state(**process(started=999.0)), ["it is older than its unit file"]),
        (state(unit={"ActiveState": "deactivating"}), ["it is deactivating"]),
        (state(unit={"ActiveState": "activating"}), []),
    ],
)
def test_each_difference_is_a_reason(found: dict[str, Any] | None, reasons: list[str]) -> None:
    assert reasons_to_restart(found, WANTED) == reasons


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "the server does not run yet"),
        (state(process=None), "the server does not run yet"),
        (state(health=None), "/health answers nothing"),
        (state(health=503), "/health answers 503"),
        (state(proof=None), "this command line has not been proven yet"),
        (state(proof={"identity": "of another"}), "this command line has not been proven yet"),
        (state(proof={}), "this command line has not been proven yet"),
    ],
)
def test_whatever_is_not_proven_owes_a_proof(found: dict[str, Any] | None, reason: str) -> None:
    assert proof_is_owed(found, WANTED) == reason


@pytest.mark.parametrize(
    ("found", "starting"),
    [
        (None, False),
        (state(), False),
        (state(unit={}), False),
        (state(unit={"ActiveState": "activating"}), True),
    ],
)
def test_a_server_on_its_way_up_is_known(found: dict[str, Any] | None, starting: bool) -> None:
    assert is_starting(found) == starting


@pytest.mark.parametrize(
    "changed",
    [
        replace(WANTED, lines=[*WANTED.lines, ["--enforce-eager"]]),
        replace(WANTED, environment={**WANTED.environment, "A": "b"}),
    ],
)
def test_what_can_change_an_answer_changes_the_identity(changed: Serving) -> None:
    assert changed.identity != WANTED.identity


def test_where_a_flag_stands_in_a_line_does_not_matter() -> None:
    assert replace(WANTED, lines=[WANTED.command]).identity == WANTED.identity


def test_the_environment_keeps_to_itself_and_writes_where_it_may() -> None:
    found = environment("vllm-coder", "/opt/r", (), {})
    assert found["PATH"].startswith("/opt/r/bin:")
    assert {found[key] for key in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE")} == {
        "1"
    }
    folders = [value for key, value in found.items() if value.startswith("/") and key != "PATH"]
    assert len(folders) == 9
    assert all(
        folder.startswith(("/var/lib/vllm-coder", "/var/cache/vllm-coder")) for folder in folders
    )


def test_the_persons_own_variables_stand_over_ours() -> None:
    extra = {"CUDA_VISIBLE_DEVICES": "-1", "HF_HUB_OFFLINE": "0", "MY": "own"}
    assert extra.items() <= environment("u", "/opt/r", ["GPU-1"], extra).items()
    assert environment("u", "/opt/r", ["GPU-1"], {})["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    several = environment("u", "/opt/r", ["GPU-2", "GPU-1"], {})
    assert several["CUDA_VISIBLE_DEVICES"] == "GPU-2,GPU-1"
    assert "CUDA_VISIBLE_DEVICES" not in environment("u", "/opt/r", (), {})


# --- the switch --------------------------------------------------------------------------------

OTHER_TEXT = TEXT.replace("User=x", "User=y")
OTHER_WORDS = TEXT.replace("# why", "# why not").replace("After=a", "After=b")


def by_text(text: str, path: str = "/etc/x", changed: float = 1000.0) -> dict[str, Any]:
    digest = hashlib.sha256(text.encode()).hexdigest()
    return {"path": path, "sha256": digest, "changed": changed}


def installed(text: str, **changes: Any) -> dict[str, Any]:
    """A box whose installed unit is this one, and runs."""
    return state(file=by_text(text), installed=by_text(text), **changes)


NOT_WANTED = "its unit file is not the wanted one"


@pytest.mark.parametrize(
    ("found", "there", "reasons", "restart"),
    [
        pytest.param(state(), TEXT, [], False, id="all is well"),
        pytest.param(None, None, ["it is not there yet"], True, id="a bare box"),
        pytest.param(
            state(tried=by_text(OTHER_TEXT, "/run/x")),
            TEXT,
            ["/run/x is left of a switch that was cut off"],
            False,
            id="cut off before it began",
        ),
        pytest.param(
            state(file=None, installed=None),
            None,
            ["its unit file is gone"],
            False,
            id="taken away under what has passed",
        ),
        pytest.param(
            state(file=None, installed=None, good="0"),
            None,
            ["its unit file is gone"],
            True,
            id="taken away under what has not",
        ),
        pytest.param(installed(OTHER_TEXT), OTHER_TEXT, [NOT_WANTED], True, id="another user"),
        pytest.param(
            installed(OTHER_WORDS), OTHER_WORDS, [NOT_WANTED], False, id="another comment"
        ),
        pytest.param(
            installed(
                OTHER_TEXT,
                good=hashlib.sha256(OTHER_TEXT.encode()).hexdigest(),
                good_how="rollback",
            ),
            OTHER_TEXT,
            [NOT_WANTED, "you went back to it by a rollback; a deploy goes forward again"],
            True,
            id="after a rollback",
        ),
        pytest.param(
            state(
                file=by_text(OTHER_TEXT, changed=3000.0),
                installed=by_text(OTHER_TEXT, changed=3000.0),
            ),
            OTHER_TEXT,
            [NOT_WANTED],
            False,
            id="edited by hand and never started",
        ),
        pytest.param(
            state(
                file=by_text(OTHER_TEXT, changed=3000.0),
                installed=by_text(OTHER_TEXT, changed=3000.0),
                good="0",
            ),
            OTHER_TEXT,
            ["it is older than its unit file", NOT_WANTED],
            True,
            id="edited by hand, and what runs has never passed",
        ),
        pytest.param(
            state(file=by_text(TEXT, "/run/x"), installed=by_text(OTHER_TEXT), good="0"),
            OTHER_TEXT,
            [NOT_WANTED],
            False,
            id="cut off between start and gate",
        ),
        pytest.param(
            state(file=by_text(TEXT, "/run/x"), good="0"),
            TEXT,
            ["it runs from /run/x: a switch was cut off"],
            False,
            id="cut off after it was installed",
        ),
        pytest.param(
            state(good=None), TEXT, ["it has not passed its gate yet"], False, id="no history"
        ),
        pytest.param(
            state(process=None, unit={"ActiveState": "failed"}),
            TEXT,
            ["it is failed"],
            True,
            id="it has died",
        ),
        pytest.param(
            state(file=by_text(TEXT, "/run/x"), installed=None),
            None,
            [NOT_WANTED],
            False,
            id="a first switch that was cut off",
        ),
    ],
)
def test_only_what_changed_restarts(
    found: dict[str, Any] | None, there: str | None, reasons: list[str], restart: bool
) -> None:
    decided = switching(found, WANTED, TEXT, there)
    assert (decided.reasons, decided.restart) == (reasons, restart)


# --- a unit that has failed -----------------------------------------------------------------------

BLOCKS = {"found": "512 sequences do not fit 501 state blocks", "remedy": "set max-num-seqs to 480"}
FAILED = {"when": 1796027990.0, "cause": {**BLOCKS, "passing": False}, "lines": []}


@pytest.mark.parametrize(
    ("failed", "words"),
    [
        ({}, None),
        ({"0" * 64: FAILED}, None),
        ({SUM: {**FAILED, "cause": {**BLOCKS, "passing": True}}}, None),
        (
            {SUM: FAILED},
            "a deploy refuses this unit: it failed its gate at 2026-11-30 08:39 UTC (512 sequences "
            "do not fit 501 state blocks); set max-num-seqs to 480, or try the same once more: "
            "pyinfra inventory deploy.py --data retry_failed=true",
        ),
        (
            {SUM: {**FAILED, "cause": None}},
            "a deploy refuses this unit: it failed its gate at 2026-11-30 08:39 UTC (no known "
            "cause); see `sudo /opt/aibox/current/bin/aibox doctor` on the box, or try the same "
            "once more: pyinfra inventory deploy.py --data retry_failed=true",
        ),
    ],
    ids=["none", "another", "of what passes", "this one", "without a cause"],
)
def test_a_unit_that_a_deploy_refuses_is_known(failed: dict[str, Any], words: str | None) -> None:
    assert refused_by_a_deploy(state(failed=failed), TEXT) == words
    assert refused_by_a_deploy(None, TEXT) is None
