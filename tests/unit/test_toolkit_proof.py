"""The proof that nvcc compiles, with a made-up nvcc, and why it did not, in words."""

import json
from pathlib import Path

import pytest

from aibox.box import toolkit
from aibox.box.job import JobError, Progress
from aibox.box.probe import files
from aibox.decide import nvcc

NVCC = """#!/bin/sh
if [ "$1" = --version ]; then echo "Cuda compilation tools, release 13.0, V13.0.88"; exit; fi
{act}
"""
WRITES = 'echo "$@" > {folder}/asked; grep -q "include <cmath>" "$3" || exit 9; echo obj > "$5"'


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(files, "ROOT", tmp_path)
    monkeypatch.setattr(toolkit, "RECORD", tmp_path / "lib/cuda.json")
    return tmp_path


def install(folder: Path, act: str) -> None:
    path = folder / "usr/local/cuda-13.0/bin/nvcc"
    path.parent.mkdir(parents=True)
    path.write_text(NVCC.format(act=act.format(folder=folder)))
    path.chmod(0o755)


def prove(folder: Path) -> dict[str, str]:
    return toolkit.prove({"toolkit": "13.0"}, Progress(folder))


def test_a_kernel_that_compiles_is_recorded(folder: Path) -> None:
    install(folder, WRITES)
    record = prove(folder)
    assert (record["nvcc"], record["toolkit"]) == ("13.0.88", "13.0")
    assert record["glibc"]
    assert json.loads((folder / "lib/cuda.json").read_text()) == record
    assert (folder / "asked").read_text().startswith("-arch=sm_120 -c ")


@pytest.mark.parametrize(
    "act",
    ["echo 'nvcc fatal   : Failed to preprocess host compiler properties.' >&2; exit 1", "exit 0"],
)
def test_a_failure_takes_the_old_record_away(folder: Path, act: str) -> None:
    install(folder, act)
    (folder / "lib").mkdir()
    (folder / "lib/cuda.json").write_text("{}")
    with pytest.raises(JobError) as raised:
        prove(folder)
    assert "nvcc of CUDA 13.0 fails" in raised.value.refusal.found
    assert not (folder / "lib/cuda.json").exists()


def test_no_nvcc_is_told(folder: Path) -> None:
    with pytest.raises(JobError) as raised:
        prove(folder)
    assert "/usr/local/cuda-13.0/bin/nvcc" in raised.value.refusal.found


RSQRT = """\
/usr/include/x86_64-linux-gnu/bits/mathcalls.h(206): error: exception specification is \
incompatible with that of previous function "rsqrt" (declared at line 629 of \
/usr/local/cuda-13.0/math_functions.h)
1 error detected in the compilation of "proof.cu".
"""


@pytest.mark.parametrize(
    ("said", "do"),
    [
        (RSQRT, "glibc 2.43"),
        ("nvcc fatal   : Failed to preprocess host compiler properties.\n", "g++"),
        ("sh: 1: gcc: not found\n", "g++"),
        ("nvcc fatal   : Value 'sm_120' is not defined for option 'gpu-architecture'\n", "12.9"),
        ("#error -- unsupported GNU version! gcc versions later than 14 are not\n", "older g++"),
        ("cc1: error: /tmp/x: No space left on device\n", "free space"),
        ("Segmentation fault\n", "journalctl"),
        ("", "journalctl"),
    ],
)
def test_nvccs_words_get_a_remedy(said: str, do: str) -> None:
    refusal = nvcc.explained(said, "13.0", "2.43")
    assert do in refusal.remedy
    assert "CUDA 13.0 fails on glibc 2.43" in refusal.found
