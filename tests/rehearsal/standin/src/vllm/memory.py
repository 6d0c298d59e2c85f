"""What vLLM 0.31.0 says of the card's memory at a start: the reference box's figures.

The card is always the reference one; the utilisation that was asked for decides what is left for
the KV cache, as vLLM's arithmetic does. Context and sequences are the given ones.
"""

from __future__ import annotations

from . import journal
from .options import KV_CACHE_TOKENS, Options

GIB = 1 << 30
CARD, FREE = 94.97, 94.36  # GiB, as torch and vLLM print them
MODEL, CONSUMED = 52.31, 52.9  # GiB that loading took; with what stays beside torch
ACTIVATIONS, GRAPHS = 3.7, 0.9  # GiB at the peak; of the captured graphs
BLOCKS = 501  # of the Mamba cache, with MTP on and the reference flags


class BlocksError(Exception):
    """More sequences than state blocks; the text is the last line."""


def account(given: Options, own_context: int, seconds: float, tensors: int) -> None:
    """The lines of the engine up to the KV cache."""
    context = given.max_model_len or own_context
    left = CARD * given.utilization - CONSUMED - ACTIVATIONS
    say(
        "Setting attention block size to 1600 tokens to ensure that attention page size is >= "
        "mamba page size.",
        "interface.py:990",
    )
    say(f"Loading weights took {seconds:.2f} seconds ({tensors} tensors)", "default_loader.py:485")
    say(f"Model loading took {MODEL} GiB memory and {seconds:.6f} seconds", "model_runner.py:408")
    say(f"Available KV cache memory: {round(left, 2)} GiB", "gpu_worker.py:692")
    say(
        f"GPU KV cache size: {KV_CACHE_TOKENS:,} tokens, "
        f"Maximum concurrency for {context:,} tokens per request: {KV_CACHE_TOKENS / context:.2f}x",
        "kv_cache_utils.py:2464",
    )


def check_blocks(given: Options, blocks: int | None) -> None:
    """Raises BlocksError as the capture of the graphs does; None: enough for any number."""
    if blocks is not None and given.max_num_seqs > blocks:
        raise BlocksError(
            f"ValueError: max_num_seqs ({given.max_num_seqs}) exceeds available Mamba cache blocks "
            f"({blocks}). Each decode sequence requires one Mamba cache block, so CUDA graph "
            f"capture cannot proceed. Please lower max_num_seqs to at most {blocks} or increase "
            "gpu_memory_utilization."
        )


def captured(given: Options) -> None:
    """The lines from the graphs on."""
    wanted = CARD * given.utilization
    left = wanted - CONSUMED - ACTIVATIONS
    fitting, most = left - GRAPHS - 0.15, FREE - CONSUMED - ACTIVATIONS - GRAPHS - 0.15
    say(f"Graph capturing finished in 9 secs, took {GRAPHS:.2f} GiB", "model_runner.py:1088")
    say(
        f"Free memory on device ({FREE}/{CARD} GiB) on startup. Desired GPU memory utilization is "
        f"({given.utilization}, {round(wanted, 2)} GiB). Actual usage is {CONSUMED} GiB for "
        f"consumed memory (weights + non-torch), {ACTIVATIONS} GiB for peak activation, and "
        f"{GRAPHS} GiB for CUDAGraph memory. Replace gpu_memory_utilization config with "
        f"`--kv-cache-memory={int(fitting * GIB)}` ({round(fitting, 2)} GiB) to fit into requested "
        f"memory, or `--kv-cache-memory={int(most * GIB)}` ({round(most, 2)} GiB) to fully utilize "
        f"gpu memory. Current kv cache memory in use is {round(left, 2)} GiB.",
        "gpu_worker.py:955",
    )
    say(
        "init engine (profile, create kv cache, warmup model) took 68.60 s (compilation: 17.80 s)",
        "core.py:374",
    )


def say(text: str, where: str) -> None:
    journal.log(text, where, process=journal.ENGINE_CORE)
