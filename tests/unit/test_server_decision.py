"""Whether a server must be restarted, and whether it owes a proof: decided from what was read."""

from dataclasses import replace
from typing import Any

import pytest

from aibox.decide.server import (
    Serving,
    environment,
    is_starting,
    proof_is_owed,
    reasons_to_restart,
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
        "file": {"path": "/etc/x", "sha256": "0", "changed": 1000.0},
        "changed": {"release": 1500.0, "weights": None},
        "health": 200,
        "proof": {"identity": WANTED.identity},
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
    found = environment("vllm-coder", "/opt/r", None, {})
    assert found["PATH"].startswith("/opt/r/bin:")
    assert {found[key] for key in ("VLLM_NO_USAGE_STATS", "DO_NOT_TRACK", "HF_HUB_OFFLINE")} == {
        "1"
    }
    folders = [value for key, value in found.items() if value.startswith("/") and key != "PATH"]
    assert len(folders) == 5
    assert all(
        folder.startswith(("/var/lib/vllm-coder", "/var/cache/vllm-coder")) for folder in folders
    )


def test_the_persons_own_variables_stand_over_ours() -> None:
    extra = {"CUDA_VISIBLE_DEVICES": "-1", "HF_HUB_OFFLINE": "0", "MY": "own"}
    assert extra.items() <= environment("u", "/opt/r", "GPU-1", extra).items()
    assert environment("u", "/opt/r", "GPU-1", {})["CUDA_VISIBLE_DEVICES"] == "GPU-1"
    assert "CUDA_VISIBLE_DEVICES" not in environment("u", "/opt/r", None, {})
