"""cuInit in a process of its own: whatever it does there is a finding."""

import pytest

from aibox.box import vram
from aibox.decide.vram import Cuda


@pytest.mark.parametrize(
    ("program", "found"),
    [
        ("print('null')", None),
        (
            """print('{"code": 999, "name": "CUDA_ERROR_UNKNOWN", "text": "unknown error"}')""",
            Cuda(999, "CUDA_ERROR_UNKNOWN", "unknown error"),
        ),
        (
            "import os; os.kill(os.getpid(), 11)",
            Cuda(-11, "SIGSEGV", "cuInit ended its process"),
        ),
        (
            "raise SystemExit(3)",
            Cuda(-1, "no answer", "the process that called cuInit said nothing"),
        ),
        ("pass", Cuda(-1, "no answer", "the process that called cuInit said nothing")),
        (
            "import time; time.sleep(60)",
            Cuda(-9, "no answer", "cuInit did not return in 0.5 s"),
        ),
    ],
)
def test_what_cu_init_does_is_told(program: str, found: Cuda | None) -> None:
    assert vram.cuda(program, seconds=0.5 if "sleep" in program else 30) == found


def test_a_box_without_libcuda_has_no_answer() -> None:
    assert vram.cuda(vram.CU_INIT.replace("libcuda.so.1", "libno-such-cuda.so.1")) is None
