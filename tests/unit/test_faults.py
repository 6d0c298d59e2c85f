"""What a journal says of a failed start, and what a person is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aibox.decide.faults import ORDER, About, Cause, Holder, diagnose, root_lines

JOURNALS = Path(__file__).parent / "journals"
CARD = "group_data/models/qwen3.8-27b.yml"
ABOUT = About(
    flags={
        "max-num-seqs": 512,
        "gpu-memory-utilization": 0.87,
        "max-model-len": 262144,
        "enable-prefix-caching": True,
        "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
    },
    sources={"max-num-seqs": CARD, "max-model-len": "the setting `serve`"},
    card_file=CARD,
    weights="/srv/models/m/c",
    port=8000,
)
MAMBA = (
    "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (501). Each decode "
    "sequence requires one Mamba cache block, so CUDA graph capture cannot proceed. Please lower "
    "max_num_seqs to at most 501 or increase gpu_memory_utilization."
)
LAST = (
    "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
)
KV_CACHE = (
    "ValueError: To serve at least one request with the model's max seq len (262144), (8.1 GiB KV "
    "cache is needed, which is larger than the available KV cache memory (5.3 GiB). Based on the "
    "available memory, the estimated maximum model length is 171520. Try increasing "
    "`gpu_memory_utilization` (which also controls CPU memory on the CPU backend) or decreasing "
    "`max_model_len` when initializing the engine."
)
FREE = (
    "ValueError: Free memory on device cuda:0 (8.88/94.97 GiB) on startup is less than desired GPU "
    "memory utilization (0.87, 82.62 GiB). Decrease GPU memory utilization or reduce GPU memory "
    "used by other processes."
)
NO_NVCC = "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"
S5B = (
    "ValueError: Following weights were not initialized from checkpoint: {'model.norm.weight', "
    "'model.fc.weight', 'model.pre_fc_norm_hidden.weight'}"
)
MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
ILLEGAL = "torch.AcceleratorError: CUDA error: an illegal memory access was encountered"
OUT_OF_MEMORY = (
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total "
    "capacity of 94.97 GiB of which 1.12 GiB is free. Including non-PyTorch memory, this process "
    "has 93.8 GiB memory in use."
)


def lines_of(name: str) -> list[str]:
    return (JOURNALS / name).read_text().splitlines()


def only(lines: list[str], about: About = ABOUT) -> Cause:
    found = diagnose(lines, about)
    assert len(found) == 1, found
    return found[0]


# line, kind, what the remedy names, what the sentence names, whether it is of the surroundings
TOLD: list[tuple[str, str, list[str], list[str], bool]] = [
    (MAMBA, "mamba_blocks", ["max-num-seqs to 480", CARD, "501"], ["512", "501"], False),
    (
        KV_CACHE,
        "kv_cache_too_small",
        ["max-model-len to 171520", "group_data/site.py"],
        ["8.1", "5.3"],
        False,
    ),
    (
        "ValueError: No available memory for the cache blocks. Try increasing "
        "`gpu_memory_utilization` when initializing the engine",
        "kv_cache_too_small",
        ["gpu-memory-utilization", "0.87"],
        [],
        False,
    ),
    (FREE, "gpu_held", ["nvidia-smi"], ["8.88", "94.97", "82.62"], True),
    (NO_NVCC, "no_nvcc", ["run the deploy", "CUDA_HOME"], [], True),
    (
        "ValueError: MTP speculative decoding layer 64 weights missing from checkpoint.",
        "head_missing",
        ["turn MTP off", "revision"],
        [],
        False,
    ),
    (S5B, "head_missing", ["turn MTP off", "revision"], [], False),
    (
        "PermissionError: [Errno 13] Permission denied: '/.cache'",
        "cache_unwritable",
        ["/var/cache/vllm-coder", "HOME"],
        ["/.cache"],
        True,
    ),
    (
        "OSError: [Errno 30] Read-only file system: '/root/.triton'",
        "cache_unwritable",
        ["/var/cache/vllm-coder"],
        ["/root/.triton"],
        True,
    ),
    ("OSError: [Errno 98] Address already in use", "port_taken", ["server_port"], ["8000"], True),
    (
        "ERROR:    [Errno 98] error while attempting to bind on address ('127.0.0.1', 8123): "
        "address already in use",
        "port_taken",
        ["8123", "ss -ltnp"],
        ["8123"],
        True,
    ),
    (MISMATCH, "driver_mismatch", ["reboot"], [], True),
    ("NVML library version: 580.178", "driver_mismatch", ["reboot"], ["580.178"], True),
    (
        "pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
        "driver_mismatch",
        ["reboot"],
        [],
        True,
    ),
    (
        "FileNotFoundError: Weight files referenced in index but missing: "
        "{'model-00007-of-00012.safetensors'}",
        "weights_missing",
        ["run the deploy", "/srv/models/m/c"],
        ["model-00007-of-00012.safetensors"],
        True,
    ),
    (ILLEGAL, "prefix_cache_with_mtp", ["prefix_cache_with_mtp: off", CARD], [], False),
    (
        OUT_OF_MEMORY,
        "gpu_out_of_memory",
        ["gpu-memory-utilization to 0.84", CARD],
        ["2.50 GiB", "1.12 GiB", "94.97 GiB"],
        False,
    ),
    (
        "RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy "
        "requests.",
        "gpu_out_of_memory",
        ["max-num-seqs to 128"],
        ["256"],
        False,
    ),
    (
        "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the "
        "device",
        "no_kernel_image",
        ["vllm_version"],
        ["sm_120"],
        False,
    ),
    (
        "RuntimeError: CUDA driver initialization failed: CUDA driver version is insufficient for "
        "CUDA runtime version",
        "driver_too_old",
        ["driver_version", "580.65.06"],
        [],
        True,
    ),
    (
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12080). Please "
        "update your GPU driver",
        "driver_too_old",
        ["580.65.06"],
        ["12.8"],
        True,
    ),
    (
        "RuntimeError: Found no NVIDIA driver on your system. Please check that you have a GPU",
        "no_driver",
        ["run the deploy"],
        ["libcuda.so.1"],
        True,
    ),
    (
        "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        "no_driver",
        ["run the deploy"],
        ["libcuda.so.1"],
        True,
    ),
    (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions "
        "before calling NumCudaDevices() that might have already set an error? Error 802: system "
        "not yet initialized",
        "cuda_init",
        ["reboot", "uvm_disable_hmm"],
        [],
        True,
    ),
    (
        "RuntimeError: Failed to infer device type, please set the environment variable "
        "`VLLM_LOGGING_LEVEL=DEBUG` to turn on verbose logging to help debug the issue.",
        "no_device",
        ["nvidia-smi -L", "gpu_uuid"],
        [],
        True,
    ),
    ("RuntimeError: No CUDA GPUs are available", "no_device", ["gpu_uuid"], [], True),
    (
        "ValueError: World size (4) is larger than the number of available GPUs (2) in this node. "
        "If this is intentional and you are using:",
        "too_few_cards",
        ["tensor-parallel-size to 2", "nvidia-smi -L"],
        ["over 4 cards", "shows 2"],
        False,
    ),
    (
        "ValueError: Total number of attention heads (24) must be divisible by tensor parallel "
        "size (5).",
        "uncut_heads",
        ["tensor-parallel-size to one of 1, 2, 3, 4, 6, 8, 12"],
        ["24", "5"],
        False,
    ),
    (
        "RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "cards_exchange",
        ["NCCL_P2P_DISABLE", "disable-custom-all-reduce"],
        ["unhandled system error"],
        True,
    ),
    (
        "torch.distributed.DistBackendError: NCCL error in: /pytorch/torch/csrc/distributed/c10d/"
        "NCCLUtils.cpp:94, unhandled cuda error (run with NCCL_DEBUG=INFO for details)",
        "cards_exchange",
        ["NCCL_P2P_DISABLE"],
        [],
        True,
    ),
    (
        "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. "
        "Your Tesla T4 GPU has compute capability 7.5. You can use float16 instead",
        "old_card",
        ["gpu_uuid"],
        ["Tesla T4", "7.5", "8.0"],
        False,
    ),
    (
        "vllm serve: error: unrecognized arguments: --max-num-sequences 512",
        "unknown_flag",
        ["max-num-sequences"],
        ["--max-num-sequences"],
        False,
    ),
    (
        "vllm serve: error: argument --max-num-seqs: invalid int value: 'many'",
        "flag_invalid",
        ["max-num-seqs", CARD],
        ["many"],
        False,
    ),
    (
        "vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp9' (choose from 'auto', "
        "'fp8')",
        "flag_invalid",
        ["kv-cache-dtype", "'fp8'"],
        ["fp9"],
        False,
    ),
    (
        "KeyError: 'invalid tool call parser: qwen3_codr (chose from { hermes,qwen3_coder })'",
        "tool_parser_unknown",
        ["tool-call-parser to qwen3_coder"],
        ["qwen3_codr"],
        False,
    ),
    (
        "KeyError: 'invalid reasoning parser: qwen4 (chose from { deepseek_r1,qwen3 })'",
        "reasoning_parser_unknown",
        ["reasoning-parser to qwen3"],
        ["qwen4"],
        False,
    ),
    (
        "ValueError: Unknown attention backend: 'FLASHINFERR'. Valid options are: FLASH_ATTN, "
        "FLASHINFER, TRITON_ATTN",
        "attention_backend_unknown",
        ["attention-backend to FLASHINFER"],
        ["FLASHINFERR"],
        False,
    ),
    (
        "ValueError: Selected backend AttentionBackendEnum.FLASH_ATTN is not valid for this "
        "configuration. Reason: ['kv_cache_dtype not supported']",
        "attention_backend_unfit",
        ["attention-backend"],
        ["FLASH_ATTN", "kv_cache_dtype not supported"],
        False,
    ),
    (
        "ValueError: User-specified max_model_len (300000) is greater than the derived "
        "max_model_len (max_position_embeddings=262144 or model_max_length=None in model's "
        "config.json). To allow overriding this maximum, set the env var",
        "context_too_long",
        ["max-model-len to 262144"],
        ["300,000", "262,144"],
        False,
    ),
    (
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. "
        "Minimum capability: 100. Current capability: 89.",
        "quantization",
        ["quantization"],
        ["modelopt_fp4"],
        False,
    ),
    (
        "safetensors_rust.SafetensorError: Error while deserializing header: "
        "MetadataIncompleteBuffer",
        "weights_truncated",
        ["verify_weights", "/srv/models/m/c"],
        ["MetadataIncompleteBuffer"],
        True,
    ),
    (
        "safetensors_rust.SafetensorError: Error while deserializing header: header too large",
        "weights_truncated",
        ["verify_weights"],
        ["header too large"],
        True,
    ),
    (
        "ValueError: Invalid repository ID or local directory specified: '/srv/models/m/c'.",
        "no_config",
        ["run the deploy"],
        ["/srv/models/m/c", "config.json"],
        True,
    ),
    (
        "PermissionError: [Errno 13] Permission denied: '/srv/models/m/c/tokenizer.json'",
        "weights_unreadable",
        ["run the deploy", "chmod"],
        ["tokenizer.json"],
        True,
    ),
    (
        "RuntimeError: Cannot find any model weights with `/srv/models/m/c`",
        "weights_missing",
        ["run the deploy"],
        ["/srv/models/m/c"],
        True,
    ),
    (
        'FileNotFoundError: No such file or directory: "/srv/models/m/c/model-00001.safetensors"',
        "weights_missing",
        ["run the deploy"],
        ["model-00001.safetensors"],
        True,
    ),
    (
        "ValueError: Following weights were not initialized from checkpoint: "
        "{'model.layers.3.mlp.gate.weight'}",
        "weights_incomplete",
        ["verify_weights"],
        ["model.layers.3.mlp.gate.weight"],
        False,
    ),
    (
        "OSError: [Errno 28] No space left on device: '/var/cache/vllm-coder/x'",
        "disk_full",
        ["df -h"],
        ["/var/cache/vllm-coder/x"],
        True,
    ),
    ("OSError: [Errno 24] Too many open files", "too_many_files", ["LimitNOFILE"], [], False),
    ("OSError: [Errno 12] Cannot allocate memory", "box_out_of_memory", ["free -h"], [], True),
    (
        '/x/include/cuda/std/__cccl/cuda_toolkit.h:41:8: error: #error "CUDA compiler and CUDA '
        'toolkit headers are incompatible, please check your include paths"',
        "cuda_toolkit_mismatch",
        ["CUDA_HOME"],
        [],
        True,
    ),
    (
        "RuntimeError: SM 12.x requires CUDA >= 12.9.",
        "cuda_toolkit_mismatch",
        ["CUDA_HOME"],
        [],
        True,
    ),
    (
        "nvcc fatal   : Unsupported gpu architecture 'compute_120f'",
        "cuda_toolkit_mismatch",
        ["CUDA_HOME"],
        [],
        True,
    ),
    (
        "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
        "no_compiler",
        ["run the deploy"],
        ["ninja"],
        True,
    ),
    (
        "RuntimeError: Failed to find C compiler. Please specify via CC environment variable or "
        "set "
        "triton.knobs.build.impl.",
        "no_compiler",
        ["run the deploy"],
        ["C compiler"],
        True,
    ),
    (
        "/tmp/tmpab12/cuda_utils.c:5:10: fatal error: Python.h: No such file or directory",
        "no_python_headers",
        ["run the deploy"],
        ["Python.h"],
        True,
    ),
    (
        "huggingface_hub.errors.OfflineModeIsEnabled: Cannot reach "
        "https://hub.example/api/models/x: "
        "offline mode is enabled.",
        "hub_offline",
        ["/srv/models/m/c"],
        [],
        False,
    ),
    (
        "ValueError: num_speculative_tokens:3 must be divisible by n_predict=2",
        "speculative_invalid",
        ["speculative-config", CARD],
        ["n_predict=2"],
        False,
    ),
    (
        "torch.AcceleratorError: CUDA error: unspecified launch failure",
        "cuda_failed",
        ["Xid"],
        ["unspecified launch failure"],
        False,
    ),
    (
        "Nov 29 10:00:00 box kernel: NVRM: Xid (PCI:0000:01:00): 79, pid=812, GPU has fallen off "
        "the bus.",
        "gpu_lost",
        ["power"],
        ["79"],
        True,
    ),
    (
        "[  812.112233] NVRM: Xid (PCI:0000:01:00): 119, pid=812, name=VLLM::EngineCor, Timeout "
        "after 45s of waiting for RPC response from GPU0 GSP!",
        "gpu_fault",
        ["reboot"],
        ["119", "0000:01:00"],
        True,
    ),
    (
        "Nov 29 10:00:00 box kernel: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),"
        "task_memcg=/system.slice/vllm-coder.service,task=VLLM::EngineCor,pid=4242,uid=998",
        "box_out_of_memory",
        ["free -h"],
        ["not the card's"],
        True,
    ),
    (
        "Nov 29 10:00:00 box systemd[1]: vllm-coder.service: Failed with result 'oom-kill'.",
        "box_out_of_memory",
        ["free -h"],
        [],
        True,
    ),
    (
        "Nov 29 10:00:00 box systemd[1]: vllm-coder.service: Failed at step EXEC spawning "
        "/opt/vllm/releases/x/bin/vllm: No such file or directory",
        "release_missing",
        ["run the deploy"],
        [],
        True,
    ),
    (
        "Nov 29 10:00:00 box systemd[1]: vllm-coder.service: start-post operation timed out. "
        "Terminating.",
        "start_timed_out",
        ["start_timeout_s"],
        [],
        False,
    ),
]


@pytest.mark.parametrize(("line", "kind", "remedy", "found", "passing"), TOLD)
def test_a_known_line_is_told_with_its_numbers_and_the_setting(
    line: str, kind: str, remedy: list[str], found: list[str], passing: bool
) -> None:
    cause = only([line])
    assert cause.kind == kind
    assert all(words in cause.remedy for words in remedy), cause.remedy
    assert all(words in cause.found for words in found), cause.found
    assert cause.passing is passing
    assert cause.line in line


@pytest.mark.parametrize(
    ("blocks", "told"),
    [(501, 480), (512, 512), (511, 480), (64, 64), (63, 32), (32, 32), (31, 31), (1, 1)],
)
def test_sequences_go_down_to_a_multiple_of_32_that_fits(blocks: int, told: int) -> None:
    line = f"ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks ({blocks})."
    assert f"set max-num-seqs to {told} in {CARD}" in only([line]).remedy


def test_without_any_block_only_more_memory_helps() -> None:
    line = "ValueError: max_num_seqs (8) exceeds available Mamba cache blocks (0)."
    assert "max-num-seqs" not in only([line]).remedy


def test_the_other_way_out_has_a_number_where_the_journal_tells_enough() -> None:
    about = About(flags=ABOUT.flags, card_file=CARD, card_bytes=102_641_958_912)
    cause = only(lines_of("failing/mamba-blocks.log"), about)
    assert f"set max-num-seqs to 480 in {CARD}, because there are 501 blocks" in cause.remedy
    assert "; 480 leaves some room; or set" in cause.remedy
    assert f"set gpu-memory-utilization to 0.88 in {CARD} (an estimate)" in cause.remedy


def test_a_context_that_does_not_fit_even_in_part_gets_no_number() -> None:
    line = (
        "ValueError: To serve at least one request with the model's max seq len (4096), (2.0 GiB "
        "KV "
        "cache is needed, which is larger than the available KV cache memory (0.1 GiB). Try"
    )
    cause = only([line])
    assert "lower max-model-len" in cause.remedy
    assert "4,096" in cause.found


def test_an_unknown_file_is_the_persons_own_settings() -> None:
    assert "set max-num-seqs to 480 in group_data/site.py" in only([MAMBA], About()).remedy


def test_who_holds_the_card_is_named() -> None:
    about = About(holders=[Holder(4242, "ollama", 8210), Holder(77, "Xorg", None)])
    cause = only([FREE], about)
    for words in ("ollama (pid 4242, 8210 MiB)", "Xorg (pid 77)"):
        assert words in cause.remedy


def test_a_little_less_memory_is_offered_where_most_of_the_card_is_free() -> None:
    line = FREE.replace("8.88/94.97", "80.13/94.97")
    assert f"set gpu-memory-utilization to 0.84 or less in {CARD}" in only([line]).remedy


def test_who_has_the_port_is_named() -> None:
    about = About(port=8000, port_owner=Holder(812, "nginx"))
    cause = only(["OSError: [Errno 98] Address already in use"], about)
    assert "nginx (pid 812)" in cause.found
    assert "nginx" in cause.remedy


@pytest.mark.parametrize(
    ("lines", "about"),
    [
        (
            [MISMATCH, "NVML library version: 580.178"],
            About(driver_loaded="580.95.05"),
        ),
        (
            [
                MISMATCH,
                "Nov 29 10:00:00 box kernel: NVRM: API mismatch: the client has the version "
                "580.178,"
                " but this kernel module has the version 580.95.05.  Please make sure",
            ],
            About(),
        ),
        ([MISMATCH], About(driver_loaded="580.95.05", driver_installed="580.178")),
    ],
)
def test_both_versions_of_a_driver_that_does_not_fit(lines: list[str], about: About) -> None:
    cause = only(lines, about)
    assert "580.178" in cause.found
    assert "580.95.05" in cause.found


def test_a_server_that_came_back_by_itself_is_said_to() -> None:
    about = About(flags=ABOUT.flags, card_file=CARD, serves=True)
    assert "came back by itself" in only([ILLEGAL], about).found


@pytest.mark.parametrize(
    "flags",
    [
        {"max-num-seqs": 8},
        {"speculative-config": {}, "enable-prefix-caching": False},
    ],
)
def test_an_illegal_access_without_the_pair_is_not_laid_at_its_door(
    flags: dict[str, object],
) -> None:
    cause = only([ILLEGAL], About(flags=flags))
    assert cause.kind == "illegal_access"
    assert "prefix_cache_with_mtp" not in cause.remedy


def test_the_log_itself_tells_whether_the_pair_was_on() -> None:
    config = (
        "(EngineCore pid=7) INFO 11-29 10:00:00 [core.py:130] Initializing a V1 LLM engine "
        "(v0.31.0) "
        "with config: speculative_config=SpeculativeConfig(method='mtp'), "
        "enable_prefix_caching=True"
    )
    assert only([config, ILLEGAL], About()).kind == "prefix_cache_with_mtp"
    off = config.replace("caching=True", "caching=False")
    assert only([off, ILLEGAL], About()).kind == "illegal_access"


def test_a_fault_that_pydantic_hands_on_is_told_as_itself() -> None:
    lines = [
        "(APIServer pid=1) pydantic_core._pydantic_core.ValidationError: 1 validation error for "
        "ModelConfig",
        "(APIServer pid=1)   Value error, User-specified max_model_len (300000) is greater than "
        "the "
        "derived max_model_len (max_position_embeddings=262144 or model_max_length=None in model's "
        "config.json). [type=value_error, input_value=ArgsKwargs(), input_type=ArgsKwargs]",
    ]
    assert only(lines).kind == "context_too_long"


def test_another_refusal_of_pydantic_names_its_flag() -> None:
    lines = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for CacheConfig",
        "gpu_memory_utilization",
        "  Input should be less than or equal to 1 [type=less_than_equal, input_value=1.2]",
    ]
    cause = only(lines)
    assert cause.kind == "config_invalid"
    assert "gpu-memory-utilization" in cause.remedy
    assert "Input should be less than or equal to 1" in cause.found


def test_a_wrong_speculative_config_is_told_with_its_key() -> None:
    lines = [
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig",
        "method",
        "  Input should be 'ngram', 'eagle' or 'mtp' [type=literal_error, input_value='mpt']",
    ]
    cause = only(lines)
    assert cause.kind == "speculative_invalid"
    assert "method: Input should be 'ngram', 'eagle' or 'mtp'" in cause.found
    assert CARD in cause.remedy


def test_of_two_parsers_the_nearest_is_named_and_otherwise_all() -> None:
    line = "KeyError: 'invalid tool call parser: xyz (chose from { hermes,qwen3_coder })'"
    assert "hermes, qwen3_coder" in only([line]).remedy


# --- wherever and however it stands ------------------------------------------------------------

VLLM = "(EngineCore pid=812) ERROR 11-29 16:31:02 [core.py:1433] "
HEADS = [
    "",
    VLLM,
    "(EngineCore_DP0 pid=9) ERROR 11-29 16:31:02 [core.py:1433] ",
    "(Worker rank=1 pid=9) ERROR 11-29 16:31:02 [multiproc_executor.py:470] ",
    "(EngineCore pid=812) ",
    "ERROR 11-29 16:31:02 [core.py:390] ",
    "Nov 29 16:31:02 ai-box vllm[812]: " + VLLM,
    "Nov 09 16:31:02.123456 ai-box vllm-coder[812]: ",
    "2026-11-29T16:31:02+0000 ai-box vllm[812]: " + VLLM,
    "2026-11-29T16:31:02.123456+00:00 ai-box python3[812]: " + VLLM,
    "Sun 2026-11-29 16:31:02 UTC ai-box vllm-coder.service[812]: ",
    "\x1b[0;36m(EngineCore pid=812)\x1b[0;0m \x1b[31mERROR\x1b[0m 11-29 16:31:02 [core.py:1433] ",
]
OURS = [row for row in TOLD if "kernel: " not in row[0] and "systemd[" not in row[0]]
OURS = [row for row in OURS if not row[0].startswith("[")]


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("row", OURS, ids=lambda row: f"{row[1]}-{row[0][:24]}")
def test_heads_of_vllm_and_of_the_journal_change_nothing(
    row: tuple[str, str, list[str], list[str], bool], head: str
) -> None:
    bare = only([row[0]])
    assert only([head + row[0]]) == bare


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_line_may_be_broken_anywhere(data: st.DataObject) -> None:
    line, kind, *_ = data.draw(st.sampled_from([row for row in OURS if len(row[0]) > 60]))
    cut = data.draw(st.integers(min_value=1, max_value=len(line) - 1))
    head = data.draw(st.sampled_from(HEADS))
    assert [cause.kind for cause in diagnose([head + line[:cut], head + line[cut:]], ABOUT)] == [
        kind
    ]


def test_a_number_may_be_broken_before_its_point() -> None:
    line = next(row[0] for row in OURS if "(8.1 GiB KV cache is needed" in row[0])
    cut = line.index(".1 GiB KV")
    (cause,) = diagnose([VLLM + line[:cut], VLLM + line[cut:]], ABOUT)
    assert "needs 8.1 GiB of KV cache" in cause.found


@pytest.mark.parametrize("row", OURS, ids=lambda row: f"{row[1]}-{row[0][:24]}")
def test_a_head_in_the_middle_of_a_line(
    row: tuple[str, str, list[str], list[str], bool],
) -> None:
    words = row[0].split(" ")
    middle = max(2, len(words) // 2)
    line = " ".join([*words[:middle], VLLM + " ".join(words[middle:])])
    assert row[1] in [cause.kind for cause in diagnose([line], ABOUT)]


def test_two_processes_that_write_at_once() -> None:
    cut = MAMBA.index("Mamba")
    lines = [
        f"(EngineCore pid=7) {MAMBA[:cut]}",
        "(APIServer pid=3) Traceback (most recent call last):",
        f"(EngineCore pid=7) {MAMBA[cut:]}",
        f"(APIServer pid=3) {LAST}",
    ]
    assert only(lines).kind == "mamba_blocks"


def test_numbers_at_a_lines_end_do_not_run_into_the_next_line() -> None:
    lines = ["NVML library version: 580.178", "12 devices"]
    assert "580.178" in only(lines).found
    assert "580.17812" not in only(lines).found


@pytest.mark.parametrize("at", [0, 1, 2])
def test_a_cause_counts_wherever_it_stands(at: int) -> None:
    lines = ["(APIServer pid=3) Traceback (most recent call last):", LAST]
    lines.insert(at, VLLM + MAMBA)
    assert only(lines).kind == "mamba_blocks"


def test_the_same_cause_is_told_once_and_of_the_last_try() -> None:
    second = MAMBA.replace("512", "508")
    assert "508" in only([MAMBA, MAMBA, LAST, second, LAST]).found


def test_several_causes_the_most_fundamental_first() -> None:
    lines = [MAMBA, "OSError: [Errno 98] Address already in use", NO_NVCC, S5B]
    kinds = [cause.kind for cause in diagnose(lines, ABOUT)]
    assert kinds == ["no_nvcc", "head_missing", "mamba_blocks", "port_taken"]


@pytest.mark.parametrize(
    ("lines", "kind"),
    [
        ([MISMATCH, "RuntimeError: Failed to infer device type, please set"], "driver_mismatch"),
        (
            [ILLEGAL, "Nov 29 10:00:00 box kernel: NVRM: Xid (PCI:0000:01:00): 79, GPU has fallen"],
            "gpu_lost",
        ),
        (
            [VLLM + ILLEGAL, "Nov 29 10:00:00 box kernel: NVRM: Xid (PCI:0000:01:00): 31, pid=8"],
            "pair",
        ),
    ],
)
def test_what_follows_from_another_fault_is_no_cause(lines: list[str], kind: str) -> None:
    assert only(lines).kind == kind.replace("pair", "prefix_cache_with_mtp")


# --- the unknown -------------------------------------------------------------------------------


def test_unknown_stays_unknown_with_the_right_lines() -> None:
    lines = lines_of("failing/unknown.log")
    assert diagnose(lines, ABOUT) == []
    assert root_lines(lines) == [
        "AttributeError: 'NoneType' object has no attribute 'shape'",
        "torch._dynamo.exc.TorchRuntimeError: Dynamo failed to run FX node with fake tensors",
    ]


def test_the_last_five_different_errors_stand_for_the_unknown() -> None:
    lines = [VLLM + f"ValueError: {number}" for number in [*range(9), 8, 8]]
    assert root_lines([*lines, LAST]) == [f"ValueError: {number}" for number in range(4, 9)]


def test_without_an_error_the_last_lines_stand() -> None:
    assert root_lines(["a", "", "b", "c", "d"]) == ["b", "c", "d"]
    assert root_lines([VLLM + "it broke", "later"]) == ["it broke"]
    assert root_lines([]) == []


def test_an_engine_that_ended_without_a_word_is_said_to() -> None:
    gone = (
        "(APIServer pid=3) WARNING 11-29 10:00:00 [core_client.py:809] [shutdown] MPClient: engine "
        "core exited unexpectedly; starting cleanup"
    )
    assert only([gone]).kind == "engine_died"
    assert diagnose([VLLM + "AttributeError: something new", gone], ABOUT) == []


# --- no false causes ---------------------------------------------------------------------------

OTHER_LOGS = sorted([*JOURNALS.glob("unrelated/*.log"), *JOURNALS.glob("healthy/*.log")])


@pytest.mark.parametrize("path", OTHER_LOGS, ids=lambda path: path.stem)
def test_a_log_without_a_fault_names_no_cause(path: Path) -> None:
    assert len(OTHER_LOGS) >= 5
    assert diagnose(path.read_text().splitlines(), ABOUT) == []


@settings(max_examples=200, deadline=None)
@given(st.lists(st.text(max_size=120), max_size=12))
def test_random_text_names_no_cause_and_breaks_nothing(lines: list[str]) -> None:
    assert diagnose(lines) == []
    root_lines(lines)


WORDS = sorted(
    {word for row in TOLD for word in re.findall(r"\w+", row[0])} | {"error", "failed", ":", "(1)"}
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=8))
def test_the_words_of_faults_in_another_order_name_no_cause(lines: list[str]) -> None:
    assert diagnose(lines) == []


def test_every_kind_stands_in_one_place_of_the_order() -> None:
    assert len(ORDER) == len(set(ORDER))
    assert {row[1] for row in TOLD} <= set(ORDER)


@pytest.mark.parametrize(
    ("line", "kind", "found"),
    [
        (
            "found     8.79 GiB of the card are free; held by pid 411 python3 81920 MiB",
            "gpu_held",
            "other processes hold the card: 8.79 GiB are free, held by pid 411 python3 81920 MiB",
        ),
        (
            "found     there is no NVML on this box (libnvidia-ml.so.1)",
            "no_driver",
            "there is no NVML on this box (libnvidia-ml.so.1)",
        ),
        (
            "found     the driver does not answer: Unknown Error",
            "no_driver",
            "the driver does not answer: Unknown Error",
        ),
    ],
)
def test_what_the_wait_for_the_card_says_is_known(line: str, kind: str, found: str) -> None:
    waiting = "waiting for the card, at most 90 s: 8.79 GiB of the card are free; held by pid 411"
    causes = diagnose([waiting, line, "expected  a driver", "do        mend it"], ABOUT)
    assert [(cause.kind, cause.found, cause.passing) for cause in causes] == [(kind, found, True)]


def test_only_waiting_is_no_fault() -> None:
    waiting = "waiting for the card, at most 90 s: 8.79 GiB of the card are free; held by pid 411"
    assert diagnose([waiting, "the card is free after 3.2 s"], ABOUT) == []


def test_a_server_on_a_cpu_says_it_in_other_words() -> None:
    kv = (
        "ValueError: Available memory on node 0 (11.2/23.5 GiB) on kv cache allocation is less "
        "than requested memory for kv (-1.43/0.01 GiB). Reduce CPU memory used by other processes."
    )
    [cause] = diagnose([kv], ABOUT)
    assert cause.kind == "kv_cache_too_small"
    assert "gpu-memory-utilization" in cause.remedy
    start = (
        "ValueError: Available memory on node 0 (3.20/23.5 GiB) on startup is less than desired "
        "CPU memory utilization (0.92, 21.62 GiB). On the CPU backend, the flag controls it."
    )
    [cause] = diagnose([start], ABOUT)
    assert (cause.kind, cause.passing) == ("memory_held", True)
    assert "3.20 are free, and the server wants 21.62" in cause.found


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_a_file_that_may_not_be_read_is_said_to_be_missing(quote: str) -> None:
    path = "/srv/models/m/c/model-00001-of-00002.safetensors"
    [cause] = diagnose(
        [f"FileNotFoundError: No such file or directory: {quote}{path}{quote}"], ABOUT
    )
    assert cause.kind == "weights_missing"
    assert cause.found.startswith(f"{path} is not there, or the server's user may not read it")
