"""Which of FlashInfer's kernels a release must hold."""

from __future__ import annotations

from typing import Any

import pytest

from aibox.box import kernels as on_box
from aibox.box.job import JobError
from aibox.decide.kernels import described, missing, wanted
from aibox.settings import ReleaseLock, driver_wanted_from, release_lock
from tasks.box import Box
from tests.unit.conftest import CUDA_13, Load

LOCKED = {"flashinfer-python": "0.7.0.post1", "vllm": "0.31.0"}
FLAGS = {"kv-cache-dtype": "fp8", "attention-backend": "FLASHINFER"}
SHAPE = {"head_dim": 256, "group": 6, "page": 64}


def kinds(**changes: Any) -> list[str]:
    asked: dict[str, Any] = {"locked": LOCKED, "flags": FLAGS, "attention": SHAPE, "drafts": 2}
    return [kernel["kind"] for kernel in wanted(**(asked | changes))]


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        ({}, ["sampling", "prefill", "xqa", "xqa", "xqa"]),
        ({"drafts": 0}, ["sampling", "prefill", "xqa"]),
        ({"locked": {"vllm": "0.31.0"}}, []),  # the stand-in
        ({"attention": None}, ["sampling"]),
        ({"flags": FLAGS | {"attention-backend": "TRITON_ATTN"}}, ["sampling"]),
        ({"flags": FLAGS | {"kv-cache-dtype": "fp8_e5m2"}}, ["sampling"]),
        (
            {"flags": {"attention-backend": "flashinfer"}, "drafts": 0},
            ["sampling", "prefill", "xqa"],
        ),
    ],
)
def test_kernels_follow_from_lock_flags_and_card(changes: dict[str, Any], found: list[str]) -> None:
    assert kinds(**changes) == found


def test_a_step_may_verify_fewer_tokens_than_are_drafted() -> None:
    kernels = wanted(LOCKED, FLAGS, SHAPE, 2)
    assert [kernel["tokens"] for kernel in kernels if kernel["kind"] == "xqa"] == [1, 2, 3]
    words = "xqa query bfloat16, kv float8_e4m3fn, head_dim 256, group 6, page 64, tokens 3"
    assert described(kernels[-1]) == words


def test_what_a_release_holds_is_not_compiled_again() -> None:
    kernels = wanted(LOCKED, FLAGS, SHAPE, 1)
    assert missing(kernels, None) == kernels
    assert missing(kernels, {"built": [{"kernel": kernels[0], "file": "a.so"}]}) == kernels[1:]
    assert missing(kernels, {"built": [{"kernel": one, "file": "a.so"} for one in kernels]}) == []


def box_of(load: Load, **changes: Any) -> Box:
    settings = load(**changes)
    lock = release_lock(settings, "3.11")
    assert isinstance(lock, ReleaseLock)
    return Box(settings, lock, driver_wanted_from(settings, lock, "debian", "12"), "")


def test_the_lock_decides_whether_there_are_kernels(load: Load) -> None:
    assert box_of(load).kernels == []  # no FlashInfer in this one
    path = box_of(load).settings.locks / "vllm-0.31.0-py311.txt"
    path.write_text(f"{CUDA_13}flashinfer-python==0.7.0.post1 --hash=sha256:1\n")
    box = box_of(load)
    assert len(box.kernels) == 5
    assert box.kernels_spec["cuda_home"] == "/usr/local/cuda-13.0"
    assert box_of(load, flashinfer_prebuild=False).kernels == []
    path.write_text("flashinfer-python==0.7.0.post1 --hash=sha256:1\n")
    assert box_of(load).kernels == []  # without CUDA there is no compiler


def test_a_compiler_that_fails_is_explained() -> None:
    said = "[1/4] nvcc\nx.cu(3): error: cannot open source file\nninja: build stopped"
    error = on_box.failed([{"kind": "sampling"}], said, "/usr/local/cuda-13.0")
    assert isinstance(error, JobError)
    assert "kernels do not compile (sampling)" in error.refusal.found
    assert "cannot open source file" in error.refusal.found
    assert "flashinfer_prebuild = False" in error.refusal.remedy
    with pytest.raises(OSError, match="No space left"):
        on_box.failed([], "fatal: No space left on device", "/usr/local/cuda-13.0")
