"""FlashInfer's kernels, compiled for the card by a real compiler: the one that the venv brings.

No GPU is needed for that, and the emulated toolkit of a rehearsal box makes no code.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from aibox.decide import kernels
from aibox.decide.wheels import locked_versions
from tests.rehearsal import jobs
from tests.rehearsal.box import Box
from tests.rehearsal.emulation.hub import Hub
from tests.rehearsal.provision import download_caches, production

# The reference card's flags and shapes, see group_data/models/qwen3.8-27b.yml.
FLAGS = {"kv-cache-dtype": "fp8", "attention-backend": "FLASHINFER"}
ATTENTION = {"head_dim": 256, "group": 6, "page": 64}
DRAFTS = 2
# The toolkit's own folder has both; the compiler of the venv lacks them.
LIBRARIES = """\
mkdir /opt/libraries
ln -s {home}/lib/libcudart.so.13 /opt/libraries/libcudart.so
gcc -shared -x c /dev/null -o /opt/libraries/libcuda.so
"""


@pytest.mark.long
def test_kernels_are_compiled_for_the_card(layers: Callable[[str], str | None], hub: Hub) -> None:
    """The production release alone, then its kernels; no server starts."""
    wanted = jobs.wanted(production(hub.url))
    with Box.up("flashinfer", layer=layers("serving"), binds=download_caches(), owned=True) as box:
        assert jobs.start(box, "release", wanted.release_spec)["ok"]
        built = jobs.finish(box, "release", 900)
        assert built["ok"], built
        folder = wanted.release_folder
        home = box.run(f"echo {folder}/lib/python3*/site-packages/nvidia/cu13").stdout.strip()
        box.run(LIBRARIES.format(home=home))
        spec: dict[str, Any] = {
            "release": folder,
            "kernels": kernels.wanted(
                locked_versions(wanted.release.text), FLAGS, ATTENTION, DRAFTS
            ),
            "cuda_home": home,
            "environment": {"LIBRARY_PATH": "/opt/libraries"},
        }
        assert jobs.start(box, "kernels", spec)["ok"]
        ended = jobs.finish(box, "kernels", 2400)
        assert ended["ok"], ended
        recorded = json.loads(box.run(f"cat {folder}/kernels.json").stdout)
        assert kernels.missing(spec["kernels"], recorded) == []
        for each in recorded["built"]:
            said = box.run(f"sha256sum {folder}/{each['file']}").stdout
            assert said.startswith(each["sha256"])
        assert box.run(f"ls -A {folder}/.. | grep '^[.]' || true").stdout == ""
        assert jobs.work(box, "kernels", spec)["ok"]  # nothing is left to do, and nothing is done
