# How a rehearsal box differs from a real one: only in these values.
# What depends on the run (the hub's address, the one extra file) comes from inventory.py.
from pathlib import Path as _Path

_here = _Path(__file__).resolve().parent

model = "tiny-qwen3.5-mtp"
cards_folder = str(_here / "models")
# What makes the production release serve on a CPU, besides one extra file: libnuma1 and these. The
# second hides the emulated card from torch, which takes NVML's word for a card being there. The
# third keeps humming, one of vLLM's kernel libraries, from reading torch anew twice beside each
# start, to build what only a card runs.
server_environment = {
    "VLLM_TARGET_DEVICE": "cpu",
    "CUDA_VISIBLE_DEVICES": "-1",
    "HUMMING_DISABLE_PARALLEL_BUILD": "1",
}
release_extra_packages = ["libnuma1"]
flashinfer_prebuild = False  # the emulated nvcc makes no code, and there is no card to run it
disk_reserve_gb = 1
stream = gateway = False  # two venvs more; the tests of the doors turn them on
monitoring = False  # likewise
