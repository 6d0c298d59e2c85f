"""Run by a release's own Python: FlashInfer compiles the kernels that are asked for.

Standard input: {"kernels": [as aibox/decide/kernels.py makes them]}. Standard output: what ninja
says, then one line of JSON: {"version", "folder" for ready-made kernels, "built": [{"kernel",
"name", "file"}]}. With "look" as its argument it compiles nothing and says which of them
FlashInfer finds ready-made: {"found": [true or false, …]}.
"""

import json
import sys
from importlib import import_module
from typing import Any


def spec_of(kernel: dict[str, Any]) -> Any:
    """FlashInfer's own description of one kernel."""
    torch = import_module("torch")
    if kernel["kind"] == "sampling":
        return import_module("flashinfer.jit.sampling").gen_sampling_module()
    query, kv = getattr(torch, kernel["query"]), getattr(torch, kernel["kv"])
    head = kernel["head_dim"]
    if kernel["kind"] == "prefill":
        modules = import_module("flashinfer.jit.attention")
        return modules.gen_batch_prefill_module(
            "fa2", query, kv, query, torch.int32, head, head, 0, False, False, False
        )
    return import_module("flashinfer.jit.xqa").gen_xqa_module(
        query,
        kv,
        kernel["page"],
        head,
        kernel["group"],
        False,
        query,
        q_seq_len=kernel["tokens"],
    )


def main() -> None:
    kernels = json.load(sys.stdin)["kernels"]
    specs = [spec_of(kernel) for kernel in kernels]
    if "look" in sys.argv:
        print(json.dumps({"found": [bool(spec.is_aot) for spec in specs]}))
        return
    environment = import_module("flashinfer.jit.env")
    import_module("flashinfer.jit").build_jit_specs(specs, verbose=True)
    built = [
        {"kernel": kernel, "name": spec.name, "file": str(spec.jit_library_path)}
        for kernel, spec in zip(kernels, specs, strict=True)
    ]
    answer = {
        "version": import_module("flashinfer").__version__,
        "folder": str(environment.FLASHINFER_AOT_DIR),
        "built": built,
    }
    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
