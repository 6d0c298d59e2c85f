"""What a starting server says of itself, and which of its errors is the cause."""

import pytest

from aibox.box.switch import STEPS, faults_in, has_ended

PREFIX = "(EngineCore pid=812) ERROR 11-29 16:31:02 [core.py:1100] "
LAST = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s):"


@pytest.mark.parametrize(
    ("lines", "faults"),
    [
        ([], []),
        (["INFO all is well", "(APIServer pid=1) INFO 11-29 16:31:02 [x.py:1] no error: x"], []),
        (
            [
                f"{PREFIX}EngineCore failed to start.",
                f"{PREFIX}Traceback (most recent call last):",
                f"{PREFIX}ValueError: max_num_seqs (480) exceeds available Mamba cache blocks",
                f"(APIServer pid=800) {LAST} {{}}",
            ],
            ["ValueError: max_num_seqs (480) exceeds available Mamba cache blocks"],
        ),
        (
            ["OSError: [Errno 98] Address already in use"] * 3,
            ["OSError: [Errno 98] Address already in use"],
        ),
        (
            [
                "vllm serve: error: argument --port: invalid int value",
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            ],
            [
                "vllm serve: error: argument --port: invalid int value",
                "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
            ],
        ),
        ([f"ValueError: {n}" for n in range(9)], [f"ValueError: {n}" for n in range(4, 9)]),
        (["ValueError:", "Error handling is on"], []),
    ],
)
def test_the_last_different_errors_are_the_cause(lines: list[str], faults: list[str]) -> None:
    assert faults_in(lines) == faults


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
    assert [name for pattern, name in STEPS if pattern.search(line)] == [step]


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
