"""The faults that are known: how a journal says them, the most fundamental first.

A pattern is written with the spaces of vLLM 0.31.0's, torch's, FlashInfer's, the kernel's and
systemd's own messages; they are left out when it is searched, because logs get wrapped.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from aibox.decide.fault_lines import squash
from aibox.decide.fault_words import (
    Facts,
    Groups,
    Told,
    told_backend,
    told_batched,
    told_cache,
    told_cards,
    told_config,
    told_context,
    told_disk,
    told_flag_value,
    told_gpu_held,
    told_hardware,
    told_head,
    told_heads,
    told_illegal,
    told_illegal_with_pair,
    told_killed,
    told_kv_cache,
    told_kv_tokens,
    told_mamba,
    told_mismatch,
    told_missing,
    told_name,
    told_no_device,
    told_no_kv_cache,
    told_of_unit,
    told_out_of_memory,
    told_port,
    told_quantization,
    told_speculative,
    told_too_old,
    told_unknown_flag,
    told_unreadable,
    told_warm_up,
    told_weight_gone,
    words,
)


@dataclass(frozen=True)
class Rule:
    """One way to say a kind of fault.

    tell: (found, remedy) from the pattern's groups, or None where the line is no fault here.
    passing: see Cause. whose: "server", "kernel" or "systemd". generic: any program may say it.
    follows: kinds beside which this one is a consequence.
    """

    kind: str
    pattern: re.Pattern[str]
    tell: Callable[[Groups, Facts], Told | None]
    passing: bool = False
    whose: str = "server"
    generic: bool = False
    follows: frozenset[str] = frozenset()


NO_CARD = frozenset({"gpu_lost", "driver_mismatch", "driver_too_old", "no_driver", "cuda_init"})
SIZE = r"[\d.]+ [KMGT]?i?B"


def rule(
    kind: str,
    pattern: str,
    tell: Callable[[Groups, Facts], Told | None],
    *,
    passing: bool = False,
    whose: str = "server",
    generic: bool = False,
    follows: frozenset[str] = frozenset(),
) -> Rule:
    return Rule(kind, squash(pattern), tell, passing, whose, generic, follows)


LOST = words(
    "the card fell off the bus (Xid 79)",
    "no setting mends this: shut the box down, look at the card's power cables, slot and cooling, "
    "and start it again",
)
# What may stand before CUDA's own words: exceptions and "CUDA error:", one behind the other.
LEAD = r"(?:[\w.\[\]() -]{0,60}?(?:[Ee]rror|ERROR|failed)[\w \[\]()]{0,30}: ?){0,4}"
COUNTED = (
    r"(?:[\w./-]{1,200}:\d+: UserWarning: )?(?:CUDA initialization: )?"
    r"(?:Unexpected error from cudaGetDeviceCount\(\)\..{0,300}?)?"
)
CONFIG = (
    r"[\w.]{0,80}ValidationError: \d+ validation errors? for "
    r"(?:Model|Cache|Scheduler|Parallel|Load|"
    r"Attention|Compilation|Vllm|Device|Observability|MultiModal|StructuredOutputs)Config "
)
BETTER_TOLD = frozenset(
    {
        "attention_backend_unfit",
        "attention_backend_unknown",
        "batched_tokens",
        "context_too_long",
        "hub_offline",
        "no_config",
        "no_device",
        "old_card",
        "quantization",
        "speculative_invalid",
        "unknown_model",
        "weights_unreadable",
    }
)
UNIT = r"(?P<of>[\w@.-]{1,100}?\.service): "
ILLEGAL = LEAD + (
    r"(?:an illegal memory access was encountered|CUDA_ERROR_ILLEGAL_ADDRESS|"
    r"cudaErrorIllegalAddress)"
)
XID_ILLEGAL = r"NVRM: Xid \(PCI:(?P<pci>[\w:.]+)\): (?P<xid>13|31),"
NO_NVCC = words(
    "there is no nvcc, and FlashInfer compiles kernels at run time",
    "run the deploy: its cuda stage lays down the toolkit and the unit's CUDA_HOME",
)
MIXED = words(
    "the CUDA compiler does not fit its headers, or this card",
    "run the deploy: its cuda stage lays down a toolkit of torch's own CUDA version, and the "
    "unit's "
    "CUDA_HOME names it; where server_environment in {site} sets CUDA_HOME, take it out",
)
NO_COMPILER = words(
    "a tool that compiles kernels is missing: {tool}",
    "run the deploy: its base and release stages install gcc, g++, ninja and Python's headers",
)
TRUNCATED = words(
    "a file of the weights is cut short or damaged ({complaint})",
    'run the deploy with verify_weights = "full" in {site}: it reads every file and fetches the '
    "damaged one anew into {weights}",
)
NO_CONFIG = words(
    "no model is in {path}: its config.json is missing or can't be read",
    "run the deploy: it fetches what is missing into {weights}",
)

DRIVER_RULES = (
    # what `aibox gpu` says, before the server begins
    rule(
        "gpu_held",
        r"found (?P<free>[\d.]+ [KMG]iB) of the card are free; held by (?P<holders>[^\n]{1,400})",
        words(
            "other processes hold the card: {free} are free, held by {holders}",
            "end what holds the memory, or lower gpu-memory-utilization in {card}",
        ),
        passing=True,
    ),
    rule(
        "no_driver",
        r"found (?P<what>there is no NVML on this box[^\n]{0,60}|the driver does not answer: "
        r"[^\n]{1,200}|the driver shows no card|there is no /dev/nvidia[^\n]{0,60}|"
        r"this start may not open /dev/[^\n]{0,60})",
        words("{what}", "run the deploy: its driver stage says what is missing, and mends it"),
        passing=True,
    ),
    rule(
        "gpu_lost",
        r"NVRM: Xid \(PCI:[\w:.]+\): 79,|NVRM: GPU [\w:.]+: GPU has fallen off the bus",
        LOST,
        passing=True,
        whose="kernel",
    ),
    rule(
        "gpu_lost",
        r"(?:[\w.]{0,80}NVMLError_GpuIsLost: )?(?:Unable to determine the device handle for GPU "
        r"?[\w:.]+:"
        r" ?(?:[\w:.]+: )?)?GPU is lost",
        LOST,
        passing=True,
    ),
    rule(
        "driver_mismatch",
        r"(?:pynvml\.)?(?:NVMLError_LibRmVersionMismatch: |Failed to initialize NVML: )"
        r"Driver/library version mismatch"
        r"(?: NVML library version: (?P<library>[\d.]+))?|NVML library version: [\d.]+"
        r"|" + COUNTED + r"Error 803: system has unsupported display driver / cuda driver "
        r"combination",
        told_mismatch,
        passing=True,
    ),
    rule(
        "driver_mismatch",
        r"NVRM: API mismatch: the client .{0,60}?has the version (?P<library>[\d.]+), but this "
        r"kernel module has the version (?P<module>[\d.]+)",
        told_mismatch,
        passing=True,
        whose="kernel",
    ),
    rule(
        "driver_too_old",
        r"(?:[\w./-]{1,200}:\d+: UserWarning: )?(?:CUDA initialization: )?The NVIDIA driver on "
        r"your "
        r"system "
        r"is too old \(found version (?P<cuda>\d+)\)"
        r"|" + LEAD + r"CUDA driver version is insufficient for CUDA runtime version",
        told_too_old,
        passing=True,
    ),
    rule(
        "no_driver",
        r"Found no NVIDIA driver on your system|libcuda\.so cannot found!"
        r"|(?:Import|OS)Error: libcuda\.so\.1: cannot open shared object file"
        r"|libcuda\.so\.1: cannot open shared object file"
        r"|NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver"
        r"|(?:pynvml\.)?NVMLError_LibraryNotFound: |(?:pynvml\.)?NVMLError_DriverNotLoaded: ",
        words(
            "no NVIDIA driver is loaded, or its library libcuda.so.1 is not there",
            "run the deploy: its driver stage installs it and reboots where that is needed",
        ),
        passing=True,
    ),
    rule(
        "cuda_init",
        COUNTED + r"Error "
        r"(?P<code>802|999|3|304|"
        r"46): (?P<text>system not yet initialized|unknown error|initialization error|OS call "
        r"failed "
        r"or operation not supported on this OS|all CUDA-capable devices are busy or unavailable)"
        r"|CUDA unknown error - this may be due to an incorrectly set up environment",
        words(
            "the driver is there, and CUDA can't be initialised",
            "reboot the box; where it stays so set uvm_disable_hmm = True in {site} and deploy",
        ),
        passing=True,
    ),
    rule(
        "no_device",
        r"No CUDA GPUs are available|Failed to infer device type|"
        + LEAD
        + r"(?:no CUDA-capable device is detected|CUDA_ERROR_NO_DEVICE|invalid device ordinal)",
        told_no_device,
        passing=True,
        follows=NO_CARD,
    ),
    rule(
        "gpu_fault",
        r"NVRM: Xid \(PCI:(?P<pci>[\w:.]+)\): "
        r"(?P<xid>48|62|63|64|74|92|94|95|109|119|120|140|143|154|158),",
        told_hardware,
        passing=True,
        whose="kernel",
        follows=frozenset({"gpu_lost"}),
    ),
    rule(
        "gpu_fault",
        LEAD + r"CUDA error: uncorrectable ECC error encountered",
        words(
            "the card reports a fault of its hardware",
            "look at `nvidia-smi -q -d ECC,PAGE_RETIREMENT` on the box, and reboot; where it comes "
            "back the card is to be replaced",
        ),
        passing=True,
        follows=frozenset({"gpu_lost"}),
    ),
    rule(
        "no_kernel_image",
        LEAD + r"no kernel image is available for execution on the device",
        words(
            "this release holds no kernels for this card (compute capability 12.0 is sm_120)",
            "deploy the release of this project's own lock (vllm_version in group_data/all.py or "
            "{site}): its torch is built for sm_120",
        ),
    ),
    rule(
        "old_card",
        r"Bfloat16 is only supported on GPUs with compute capability of at least "
        r"(?P<least>[\d.]+?)\. "
        r"Your (?P<name>.{1,80}?) GPU has compute capability (?P<has>\d+\.\d+)",
        words(
            "the card {name} has compute capability {has}, and BF16 needs {least}",
            "serve from a card of that capability or newer: gpu_uuid in {site} chooses it",
        ),
    ),
)

SEVERAL_RULES = (
    rule(
        "too_few_cards",
        r"(?:ValueError: )?World size \((?P<wanted>\d+)\) is larger than the number of available "
        r"GPUs \((?P<there>\d+)\) in this node",
        told_cards,
    ),
    rule(
        "uncut_heads",
        r"(?:ValueError: |[\w.]{0,80}ValidationError: .{0,200}?)?Total number of attention heads "
        r"\((?P<heads>\d+)\) must be divisible by tensor parallel size \((?P<size>\d+)\)",
        told_heads,
    ),
    rule(
        "cards_exchange",
        r"(?:RuntimeError: |[\w.]{0,60}DistBackendError: )?NCCL error(?: in)?: ?(?P<what>.{1,120})",
        words(
            "the cards could not exchange their parts (NCCL: {what})",
            "look at `sudo dmesg` for Xid and IOMMU lines; NCCL_P2P_DISABLE = 1 in "
            "server_environment and disable-custom-all-reduce: true in the card go round the "
            "PCIe path between the cards (docs/several-cards.md)",
        ),
        passing=True,
        follows=frozenset({"gpu_lost", "gpu_fault", "gpu_out_of_memory"}),
    ),
)

TOOLKIT_RULES = (
    rule(
        "no_nvcc",
        r"Could not find nvcc and default cuda_home=['\"]?(?P<path>[^'\" ]+?)['\"]? doesn't exist"
        r"|Cannot find CUDA toolkit\. Set CUDA_HOME"
        r"|(?:OSError: )?CUDA_HOME environment variable is not set"
        r"|(?:FileNotFoundError: )?\[Errno 2\] No such file or directory: "
        r"['\"][\w./-]{0,200}nvcc['\"]"
        r"|/bin/sh: (?:\d+: )?[\w./-]{0,200}nvcc: (?:not found|No such file or directory)",
        NO_NVCC,
        passing=True,
    ),
    rule(
        "cuda_toolkit_mismatch",
        r"[\w./+-]{0,300}?(?:\(\d+\)|:\d+(?::\d+)?): (?:fatal )?error: (?:#error )?[\"“]?CUDA "
        r"compiler and CUDA toolkit headers are incompatible"
        r"|(?:#error ?)?[\"“]?CUDA compiler and CUDA toolkit headers are incompatible"
        r"|RuntimeError: SM \d+\.x requires CUDA >= [\d.]+"
        r"|nvcc fatal ?: (?:Unsupported gpu architecture|Unknown option)"
        r"|RuntimeError: No supported CUDA architectures found for major versions"
        r"|RuntimeError: FlashInfer requires GPUs with sm",
        MIXED,
        passing=True,
    ),
    rule(
        "no_compiler",
        r"(?:FileNotFoundError: )?\[Errno 2\] No such file or directory: "
        r"['\"](?P<tool>(?:[\w./-]{0,200}/)?(?:ninja|g\+\+|gcc|c\+\+|cc|cicc|ptxas|x86_64-linux-gnu-g\+\+))"
        r"['\"]",
        NO_COMPILER,
        passing=True,
    ),
    rule(
        "no_compiler",
        r"Failed to find (?P<tool>C compiler)\. Please specify via CC",
        NO_COMPILER,
        passing=True,
    ),
    rule(
        "no_compiler",
        r"(?P<tool>Ninja) is required to load C\+\+ extensions",
        NO_COMPILER,
        passing=True,
    ),
    rule(
        "no_compiler",
        r"/bin/sh: (?:\d+: )?(?P<tool>[\w./+-]{0,200}(?:g\+\+|gcc|c\+\+|cc|ninja)): (?:not "
        r"found|command not"
        r" found)|(?:gcc|g\+\+|cc|c\+\+): fatal error: cannot execute ['\"‘](?P<part>cc1plus|cc1|"
        r"collect2)",
        lambda groups, facts: NO_COMPILER(
            {"tool": groups.get("tool") or groups.get("part") or "?"}, facts
        ),
        passing=True,
    ),
    rule(
        "no_python_headers",
        r"[\w./+-]{1,200}?:\d+:\d+: fatal error: Python\.h: No such file or directory",
        words(
            "Python's headers (Python.h) are missing, and Triton compiles against them",
            "run the deploy: its base stage installs python3-dev for the release's Python",
        ),
        passing=True,
    ),
    rule(
        "no_cuda_library",
        r"(?:/usr/bin/)?(?:[\w./-]{0,200}/)?(?:x86_64-linux-gnu-)?ld: cannot find "
        r"-l(?P<library>cudart|cuda)",
        words(
            "the linker finds no lib{library}.so for kernels that are compiled at run time",
            "run the deploy: its cuda stage lays down the toolkit and its library folder",
        ),
        passing=True,
    ),
)

WEIGHT_RULES = (
    rule(
        "weights_missing",
        r"Weight files referenced in index but missing: (?P<names>\{[^}]{1,20000}\}?)",
        told_missing,
        passing=True,
    ),
    rule(
        "weights_missing",
        r"Cannot find any model weights with [`'\"](?P<path>[^`'\"]+)[`'\"]",
        words(
            "no weights are in {path}",
            "run the deploy: it fetches what is missing into {weights}",
        ),
        passing=True,
    ),
    rule(
        "weights_missing",
        r"(?:\[Errno 2\] )?No such file or directory: "
        r"['\"]?(?P<path>/[^'\"\s]{1,400}?\.safetensors(?:\.[\w.]{0,80})?)(?:['\"]|\b)",
        told_weight_gone,
        passing=True,
    ),
    rule(
        "weights_truncated",
        r"(?:[\w.]{0,80}SafetensorError: )?Error while deserializing(?: header)?: "
        r"(?P<complaint>MetadataIncompleteBuffer|HeaderTooLarge|HeaderTooSmall|InvalidHeader\w*|"
        r"[Hh]eader too large|[Hh]eader too small|[Ii]nvalid header(?: \w+)*|[Ii]nvalid JSON in "
        r"header|[Ii]ncomplete metadata, file not fully covered|InvalidOffset\w*|\w+)",
        TRUNCATED,
        passing=True,
    ),
    rule(
        "weights_truncated",
        r"[\w.]{0,80}SafetensorError: (?P<complaint>[\w :,]{3,80})",
        TRUNCATED,
        passing=True,
    ),
    rule(
        "weights_unreadable",
        r"PermissionError: \[Errno 13\] Permission denied: ['\"](?P<path>[^'\"]+)['\"]",
        told_unreadable,
        passing=True,
        generic=True,
    ),
    rule(
        "no_config",
        r"Invalid repository ID or local directory specified: ['\"](?P<path>[^'\"]+)['\"]",
        NO_CONFIG,
        passing=True,
    ),
    rule(
        "no_config",
        r"(?P<path>/\S{1,300}?) does not appear to have a file named config\.json",
        NO_CONFIG,
        passing=True,
    ),
    rule(
        "hub_offline",
        r"(?:[\w.]{0,80}OfflineModeIsEnabled: )Cannot reach (?P<url>https?://[^\s:]+)"
        r"|[\w.]{0,80}LocalEntryNotFoundError: |[\w.]{0,80}OfflineModeIsEnabled: "
        r"|We couldn't connect to ['\"][^'\"]+['\"] to load the files",
        words(
            "the server looks for a file on the model hub, and it runs offline",
            "run the deploy: it fetches every file of the commit; the unit must name the folder "
            "{weights} and no name of the hub; flags that name another model (speculative-config, "
            "tokenizer) need a folder too, in {card}",
        ),
    ),
    rule(
        "unknown_model",
        r"Model architectures \[?(?P<name>[^\]]{1,200}?)\]? are not supported for now",
        words(
            "this vLLM does not know the model's architecture {name}",
            "set vllm_version in {site} to a release that does, or serve another model",
        ),
    ),
    rule(
        "unknown_model",
        r"The checkpoint you are trying to load has model type [`'\"](?P<name>[\w.-]+)[`'\"] but "
        r"Transformers does not recognize this architecture",
        words(
            "this release does not know the model type {name}",
            "set vllm_version in {site} to a release that does, or serve another model",
        ),
    ),
    rule(
        "head_missing",
        r"MTP speculative decoding layer \d+ weights missing from checkpoint",
        told_head,
    ),
    rule(
        "head_missing",
        r"Following weights were not initialized from checkpoint: \{[^}]{0,20000}?"
        r"(?:['\".]fc\.weight|pre_fc_norm|mtp\.|mtp_|eh_proj|enorm|hnorm|shared_head)",
        told_head,
    ),
    rule(
        "weights_incomplete",
        r"Following weights were not initialized from checkpoint: (?P<names>\{[^}]{1,300})",
        words(
            "the checkpoint lacks tensors of the model: {names}",
            'run the deploy with verify_weights = "full" in {site}; where that finds nothing, the '
            "revision itself is incomplete: choose another commit for {card}",
        ),
        follows=frozenset({"head_missing"}),
    ),
)

FLAG_RULES = (
    rule(
        "unknown_flag",
        r"(?:[\w./-]{0,200}vllm(?: serve)?|api_server\.py): error: unrecognized arguments: "
        r"(?P<flags>.{1,200})",
        told_unknown_flag,
    ),
    rule(
        "flag_invalid",
        r"vllm(?: serve)?: error: argument (?P<flag>-[\w/-]+): (?P<complaint>invalid choice: "
        r".{1,80}? "
        r"\(choose from (?P<choices>[^)]{1,300}))",
        told_flag_value,
    ),
    rule(
        "flag_invalid",
        r"[\w./ -]{0,80}?vllm[\w ]{0,20}: error: argument (?P<flag>-[\w/-]+): "
        r"(?P<complaint>.{1,120})",
        told_flag_value,
    ),
    rule(
        "flag_invalid",
        r"vllm(?: serve)?: error: (?P<complaint>ambiguous option: )(?P<flag>--[\w-]+)",
        told_flag_value,
    ),
    rule(
        "tool_parser_unknown",
        r"(?:KeyError: )?['\"]?invalid tool call parser: (?P<name>[\w.+-]+) \(chose from "
        r"\{(?P<known>[^}]{0,4000})",
        told_name("tool-call-parser", "tool parser"),
    ),
    rule(
        "reasoning_parser_unknown",
        r"(?:KeyError: )?['\"]?invalid reasoning parser: (?P<name>[\w.+-]+) \(chose from "
        r"\{(?P<known>[^}]{0,4000})",
        told_name("reasoning-parser", "reasoning parser"),
    ),
    rule(
        "attention_backend_unknown",
        r"Unknown attention backend: ['\"](?P<name>[^'\"]+)['\"]\. Valid options are: "
        r"(?P<known>[A-Z0-9_, ]{0,3000})",
        told_name("attention-backend", "attention backend"),
    ),
    rule(
        "attention_backend_unfit",
        r"Selected backend (?:AttentionBackendEnum\.)?(?P<name>\w+?) is not valid for this "
        r"configuration\. Reason: (?P<reason>[^\]]{0,200}\]?)",
        told_backend,
    ),
    rule(
        "attention_backend_unfit",
        r"(?P<name>No valid attention backend) found for",
        lambda _groups, facts: (
            "no attention backend serves this model with these flags",
            f"take kv-cache-dtype out of {facts.about.file_of('kv-cache-dtype')}, or attention-"
            f"backend out of {facts.about.file_of('attention-backend')}",
        ),
    ),
    rule(
        "context_too_long",
        r"User-specified max_model_len \((?P<length>\d+)\) is greater than the derived "
        r"max_model_len "
        r"\(\w+=(?P<fits>\d+)(?:\.0)? or model_max_length=(?P<longer>\w+)",
        told_context,
    ),
    rule(
        "speculative_invalid",
        r"[\w.]{0,80}ValidationError: \d+ validation errors? for SpeculativeConfig "
        r"(?P<key>[a-z_]*(?= ?(?:Input|Value|Unexpected|Extra|Field|Assertion|Expected)))"
        r"(?P<complaint>[^\[\n]{1,160})",
        told_speculative,
    ),
    rule(
        "speculative_invalid",
        r"[\w.]{0,80}ValidationError: \d+ validation errors? for SpeculativeConfig",
        told_speculative,
    ),
    rule(
        "speculative_invalid",
        r"(?P<complaint>num_speculative_tokens: ?\d+ must be divisible by "
        r"n_predict=\d+|Unsupported "
        r"speculative method: ['\"][^'\"]+['\"]|num_speculative_tokens was provided but without "
        r"speculative model|A speculative model was provided, but `num_speculative_tokens` was not "
        r"provided|num_speculative_tokens must be provided with speculative model)",
        told_speculative,
    ),
    rule(
        "config_invalid",
        CONFIG
        + r"(?P<key>[a-z_]{2,60}?)(?P<complaint>(?:Input|Value|Unexpected|Extra|Field|Assertion)"
        r"[^\[]{1,160})",
        told_config,
        follows=BETTER_TOLD,
    ),
    rule(
        "config_invalid",
        CONFIG + r"(?:Value error|Assertion failed), (?P<complaint>[^\[]{1,160})",
        words("vLLM refuses its flags: {complaint}", "mend the flag it names in {card} or {site}"),
        follows=BETTER_TOLD,
    ),
    rule(
        "batched_tokens",
        r"max_num_batched_tokens \((?P<number>\d+)\) (?:is smaller than|must be greater than or "
        r"equal "
        r"to) (?P<what>max_model_len|max_num_seqs) \((?P<least>\d+)\)",
        told_batched,
    ),
    rule(
        "quantization",
        r"The quantization method (?P<name>[\w.-]+?) is not supported for the current GPU",
        told_quantization,
    ),
    rule(
        "quantization",
        r"Unknown quantization method: (?P<name>[\w.'\"-]{1,40}?)\. Must be one of",
        told_quantization,
    ),
    rule(
        "quantization",
        r"Quantization method specified in the model config \((?P<name>[\w.-]+)\) does not match "
        r"the "
        r"quantization method specified in the [`'\"]?quantization[`'\"]? argument",
        told_quantization,
    ),
    rule(
        "quantization",
        r"(?P<name>[\w.]{1,40} is not supported for quantization method [\w.-]+?)\. Supported "
        r"dtypes",
        told_quantization,
    ),
)

MEMORY_RULES = (
    rule(
        "gpu_held",
        r"Free memory on device (?:[\w:]+ )?\((?P<free>[\d.]+)/(?P<card>[\d.]+) GiB\) on startup "
        r"is "
        r"less than desired GPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        told_gpu_held,
        passing=True,
    ),
    rule("kv_cache_too_small", r"No available memory for the cache blocks", told_no_kv_cache),
    rule(
        "kv_cache_too_small",
        r"Available memory on node \d+ \([\d.]+/[\d.]+ GiB\) on kv cache allocation is less than "
        r"requested memory for kv",
        told_no_kv_cache,
    ),
    rule(
        "memory_held",
        r"Available memory on node \d+ \((?P<free>[\d.]+)/(?P<all>[\d.]+) GiB\) on startup is less "
        r"than desired CPU memory utilization \((?P<share>[\d.]+), (?P<wanted>[\d.]+) GiB\)",
        words(
            "of this machine's {all} GiB of memory {free} are free, and the server wants {wanted}",
            "end what holds the memory, or lower gpu-memory-utilization (now {share}) in {card}",
        ),
        passing=True,
    ),
    rule(
        "kv_cache_too_small",
        r"To serve at least one request with the model['’]s max seq len \((?P<length>\d+)\),? "
        r"\(?(?P<needed>[\d.]+) GiB KV cache is needed, which is larger than the available KV "
        r"cache "
        r"memory \((?P<there>[\d.]+) GiB\)\.?(?: Based on the available memory, the estimated "
        r"maximum "
        r"model length is (?P<fits>\d+))?",
        told_kv_cache,
    ),
    rule(
        "kv_cache_too_small",
        r"The model['’]s max seq len \((?P<length>\d+)\) is larger than the maximum number of "
        r"tokens "
        r"that can be stored in KV cache \((?P<fits>\d+)\)",
        told_kv_tokens,
    ),
    rule(
        "mamba_blocks",
        r"max_num_seqs \((?P<wanted>\d+)\) exceeds available Mamba cache blocks "
        r"\((?P<blocks>\d+)\)",
        told_mamba,
    ),
    rule(
        "gpu_out_of_memory",
        r"CUDA out of memory occurred when warming up (?:sampler|pooler.{0,30}?) with "
        r"(?P<count>\d+) "
        r"dummy requests",
        told_warm_up,
    ),
    rule(
        "gpu_out_of_memory",
        r"(?:torch\.)?(?:cuda\.)?(?:OutOfMemoryError: )?CUDA out of memory\.? Tried to allocate "
        rf"(?P<wanted>{SIZE})\.?(?: GPU \d+ has a total capacity of (?P<card>{SIZE}) of which "
        rf"(?P<free>{SIZE}) is free)?",
        told_out_of_memory,
    ),
    rule(
        "gpu_out_of_memory",
        r"(?:torch\.AcceleratorError: |torch\.OutOfMemoryError: )?(?:CUDA error: out of "
        r"memory|Triton "
        r"Error \[CUDA\]: out of memory|CUDA out of memory\.)|"
        + LEAD
        + r"(?:CUDA_ERROR_OUT_OF_MEMORY|CUBLAS_STATUS_ALLOC_FAILED)",
        told_out_of_memory,
    ),
)

SURROUNDING_RULES = (
    rule(
        "box_out_of_memory",
        r"oom-kill:constraint=.{0,200}?task_memcg=(?P<whose>.{1,200}?),pid=",
        told_killed,
        passing=True,
        whose="kernel",
    ),
    rule(
        "box_out_of_memory",
        r"(?:Memory cgroup out|Out) of memory: Killed process \d+ \((?P<whose>[^)]{1,40})\)",
        told_killed,
        passing=True,
        whose="kernel",
    ),
    rule(
        "box_out_of_memory",
        r"(?P<whose>[\w@.-]{1,100}?\.service): (?:A process of this unit has been killed by the "
        r"OOM "
        r"killer|"
        r"Failed with result ['\"‘]oom-kill)",
        told_killed,
        passing=True,
        whose="systemd",
    ),
    rule(
        "box_out_of_memory",
        r"(?:OSError: )\[Errno 12\] Cannot allocate memory"
        r"|RuntimeError: unable to mmap \d+ bytes from file .{1,300}?: Cannot allocate memory"
        r"|RuntimeError: \[enforce fail at .{1,80}?\] .{0,80}?DefaultCPUAllocator: can't "
        r"allocate memory",
        words(
            "the box's memory (not the card's) ran out",
            "free memory on the box, or add swap: `free -h` shows what is there",
        ),
        passing=True,
        generic=True,
    ),
    rule(
        "disk_full",
        r"(?:OSError: )?\[Errno 28\] No space left on device(?:: "
        r"['\"](?P<path>[^'\"]{1,300})['\"])?"
        r"|(?:OSError: )\[Errno 122\] Disk quota exceeded",
        told_disk,
        passing=True,
        generic=True,
    ),
    rule(
        "cache_unwritable",
        r"(?:PermissionError: )\[Errno 13\] Permission denied: ['\"](?P<path>[^'\"]+)['\"]"
        r"|(?:OSError: )\[Errno 30\] Read-only file system: ['\"](?P<ro>[^'\"]+)['\"]",
        lambda groups, facts: told_cache(
            {"path": groups.get("path") or groups.get("ro") or ""}, facts
        ),
        passing=True,
        generic=True,
    ),
    rule(
        "cache_unwritable",
        r"FileNotFoundError: \[Errno 2\] No such file or directory: "
        r"['\"](?P<path>/nonexistent[^'\"]*)",
        told_cache,
        passing=True,
        generic=True,
    ),
    rule(
        "too_many_files",
        r"(?:OSError: )\[Errno 24\] Too many open files",
        words(
            "the server has too many files open",
            "run the deploy: its unit sets LimitNOFILE=65536; see what overrides it: "
            "systemctl cat {unit}",
        ),
        generic=True,
    ),
    rule(
        "port_taken",
        r"(?:OSError: |ERROR: +)?\[Errno 98\] (?:Address already in use|error while attempting "
        r"to bind "
        r"on address \(['\"][^'\"]*['\"], (?P<port>\d+)(?:, \d+, \d+)?\): address already in use)",
        told_port,
        passing=True,
        generic=True,
    ),
    rule(
        "port_taken",
        r"[\w.]{0,80}DistNetworkError: The server socket has failed to listen on any local network "
        r"address\."
        r" port: (?P<port>\d+),.{0,80}?EADDRINUSE|[\w.]{0,80}ZMQError: Address already in use",
        told_port,
        passing=True,
    ),
    rule(
        "release_missing",
        UNIT + r"(?:Failed at step EXEC spawning (?P<path>[^:]{1,200}): No such file or directory|"
        r"Failed to locate executable (?P<program>[^:]{1,200}): No such file or directory|Main "
        r"process "
        r"exited, code=exited, status=203/EXEC)",
        told_of_unit(
            "the unit's program is not there: {release}/bin/vllm",
            "run the deploy: it builds the release",
        ),
        passing=True,
        whose="systemd",
    ),
    rule(
        "user_missing",
        UNIT
        + r"(?:Failed to determine user credentials|Main process exited, code=exited, status=217/"
        r"USER|Failed at step USER spawning)",
        told_of_unit(
            "the server's user {user} is not there",
            "run the deploy: it creates the user",
        ),
        passing=True,
        whose="systemd",
    ),
    rule(
        "folder_missing",
        UNIT + r"(?:Failed to set up mount namespacing: (?P<path>[^:]{1,200}): |Failed at step "
        r"(?:NAMESPACE|CHDIR|CACHE_DIRECTORY|STATE_DIRECTORY) spawning)",
        told_of_unit(
            "a folder that the unit needs is not there or not its own",
            "run the deploy: it lays the folders down; systemctl cat {unit} names them",
        ),
        passing=True,
        whose="systemd",
    ),
)

SERVING_RULES = (
    rule(
        "prefix_cache_with_mtp",
        ILLEGAL,
        told_illegal_with_pair,
        follows=frozenset({"gpu_lost", "gpu_fault"}),
    ),
    rule(
        "prefix_cache_with_mtp",
        XID_ILLEGAL,
        told_illegal_with_pair,
        whose="kernel",
        follows=frozenset({"gpu_lost", "gpu_fault"}),
    ),
    rule(
        "illegal_access",
        ILLEGAL,
        told_illegal,
        follows=frozenset({"gpu_lost", "gpu_fault"}),
    ),
    rule(
        "illegal_access",
        XID_ILLEGAL,
        told_illegal,
        whose="kernel",
        follows=frozenset({"gpu_lost", "gpu_fault"}),
    ),
    rule(
        "cuda_failed",
        LEAD + r"CUDA error: (?P<text>unspecified launch "
        r"failure|device-"
        r"side assert triggered|misaligned address|an illegal instruction was encountered|the "
        r"launch "
        r"timed out and was terminated)",
        words(
            "a kernel on the card failed: {text}",
            "look for an Xid: sudo journalctl -k -b -g 'NVRM|Xid'; where it comes back, set "
            "attention-backend: TRITON_ATTN in {card}",
        ),
        follows=frozenset({"gpu_lost", "gpu_fault", "prefix_cache_with_mtp", "illegal_access"}),
    ),
    rule(
        "start_timed_out",
        r"process \d+ did not answer on port \d+ within (?P<seconds>\d+) s",
        words(
            "the server did not answer within {seconds} s",
            "look in its journal at what took so long; where it is only slow, raise "
            "start_timeout_s in {site} (a limit below it follows the measured starts: 4 times the "
            "slowest)",
        ),
    ),
    rule(
        "start_timed_out",
        UNIT + r"(?:start|start-post) operation timed out\. Terminating",
        told_of_unit(
            "the server did not answer within the unit's time limit",
            "set start_timeout_s higher in {site}; what it was doing stands in the last lines of "
            "sudo journalctl -u {unit}",
        ),
        whose="systemd",
    ),
)

RULES: tuple[Rule, ...] = (
    *DRIVER_RULES,
    *SEVERAL_RULES,
    *TOOLKIT_RULES,
    *WEIGHT_RULES,
    *FLAG_RULES,
    *MEMORY_RULES,
    *SURROUNDING_RULES,
    *SERVING_RULES,
)
