"""Make the tiny rehearsal model anew: 1 MB that vLLM 0.31.0 loads as the Qwen3.5 family.

    python tests/rehearsal/emulation/make_tiny_model.py FOLDER [--without-head]

Wants torch, transformers (5.10 or newer), safetensors and tokenizers, which the project does not
need otherwise: the result is committed, with its sums beside it. Random weights, seeded.

- Hybrid (three linear-attention layers to one of full attention) with a vision tower and an MTP
  head of 15 tensors, as the real index lists them. Linear-attention head dimensions are 128: the
  CPU kernel for gated delta nets takes no smaller ones.
- Every residual branch writes zero, so that the next token depends on the current one only, and
  the head computes the same from its embedding half plus some noise: greedy decoding accepts about
  half of the drafts. To a prompt that ends with a line feed the model answers "[\\n[\\n[\\n…".
- generation_config names no top_k: with MTP on the CPU a request with top_k ends the engine.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from pathlib import Path
from typing import Any

SEED = 0
LAYERS = 4
HIDDEN = 64
CONTEXT = 262_144
VOCABULARY = 320  # padded, as real checkpoints have it
NOISE = 0.02
SHARD = "model-00001-of-00001.safetensors"

SPECIAL = [
    *["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>"],
    *["<|vision_pad|>", "<|image_pad|>", "<|video_pad|>"],
]
PLAIN = [
    *["<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>"],
    *["<think>", "</think>"],
]
TEMPLATE = (
    "{%- for m in messages %}{{ '<|im_start|>' + m.role + '\\n' "
    "+ (m.content if m.content is string else '') + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}"
    "{{ '<think>\\n\\n</think>\\n\\n' }}{%- else %}{{ '<think>\\n' }}{%- endif %}{%- endif %}"
)
Weights = dict[str, Any]


def _needed(name: str) -> Any:
    """A module that only this program wants; the type checker does not have it."""
    return importlib.import_module(name)


def write_tokenizer(folder: Path) -> dict[str, int]:
    """Bytes without merges, and Qwen's special tokens; their ids."""
    tokenizers = _needed("tokenizers")
    byte_level = _needed("tokenizers.pre_tokenizers").ByteLevel
    alphabet = {c: i for i, c in enumerate(sorted(byte_level.alphabet()))}
    made = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=alphabet, merges=[]))
    made.pre_tokenizer = byte_level(add_prefix_space=False, use_regex=True)
    made.decoder = tokenizers.decoders.ByteLevel()
    added = tokenizers.AddedToken
    made.add_special_tokens([added(text, special=True, normalized=False) for text in SPECIAL])
    made.add_tokens([added(text, special=False, normalized=False) for text in PLAIN])
    ids = {text: int(made.token_to_id(text)) for text in SPECIAL + PLAIN}
    made.save(str(folder / "tokenizer.json"))
    (folder / "vocab.json").write_text(json.dumps(alphabet))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    _write(folder / "tokenizer_config.json", _tokenizer_config(ids))
    return ids


def _tokenizer_config(ids: dict[str, int]) -> dict[str, Any]:
    stripping = {"lstrip": False, "rstrip": False, "normalized": False, "single_word": False}
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "add_prefix_space": False,
        "clean_up_tokenization_spaces": False,
        "eos_token": "<|im_end|>",
        "pad_token": "<|endoftext|>",
        "bos_token": None,
        "unk_token": None,
        "model_max_length": CONTEXT,
        "image_token": "<|image_pad|>",
        "video_token": "<|video_pad|>",
        "vision_bos_token": "<|vision_start|>",
        "vision_eos_token": "<|vision_end|>",
        "added_tokens_decoder": {
            str(number): {"content": text, "special": text in SPECIAL, **stripping}
            for text, number in ids.items()
        },
        "extra_special_tokens": {},
    }


def write_processors(folder: Path) -> None:
    """Image and video preprocessing, as the vision tower wants it."""
    shared = {
        "size": {"longest_edge": 65536, "shortest_edge": 4096},
        "patch_size": 16,
        "temporal_patch_size": 2,
        "merge_size": 2,
        "image_mean": [0.5] * 3,
        "image_std": [0.5] * 3,
        "processor_class": "Qwen3VLProcessor",
    }
    image = {"image_processor_type": "Qwen2VLImageProcessorFast"}
    video = {"video_processor_type": "Qwen3VLVideoProcessor"}
    _write(folder / "preprocessor_config.json", shared | image)
    _write(folder / "video_preprocessor_config.json", shared | video)


def text_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_text",
        "vocab_size": VOCABULARY,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-6,
        "attention_bias": False,
        "attn_output_gate": True,
        "full_attention_interval": 4,
        "layer_types": [
            "full_attention" if (i + 1) % 4 == 0 else "linear_attention" for i in range(LAYERS)
        ],
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": 1,
        "linear_num_value_heads": 2,
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "rope_type": "default",
            "rope_theta": 10000000,
            "partial_rotary_factor": 0.25,
            "mrope_section": [2, 1, 1],
            "mrope_interleaved": True,
        },
        "partial_rotary_factor": 0.25,
        "eos_token_id": ids["<|im_end|>"],
        "bos_token_id": None,
        "pad_token_id": None,
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }


def vision_config() -> dict[str, Any]:
    return {
        "model_type": "qwen3_5_vision",
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "in_channels": 3,
        "patch_size": 16,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "out_hidden_size": HIDDEN,
        "num_position_embeddings": 64,
        "hidden_act": "gelu_pytorch_tanh",
    }


def head_of(body: Weights, layer: int) -> Weights:
    """The 15 tensors of the MTP head, shaped after the full-attention layer of the body."""
    torch = _needed("torch")
    start = f"model.language_model.layers.{layer}."
    head = {
        f"mtp.layers.0.{key.removeprefix(start)}": torch.randn_like(value) * 0.02
        if value.dim() > 1
        else value.clone()
        for key, value in body.items()
        if key.startswith(start)
    }
    # Drawn and replaced in `make_predictable`: the draw keeps the seeded sequence as it was.
    head["mtp.fc.weight"] = torch.randn(HIDDEN, 2 * HIDDEN, dtype=torch.bfloat16) * 0.02
    for name in ("norm", "pre_fc_norm_embedding", "pre_fc_norm_hidden"):
        head[f"mtp.{name}.weight"] = torch.zeros(HIDDEN, dtype=torch.bfloat16)
    return head


def make_predictable(body: Weights, head: Weights, ids: dict[str, int]) -> None:
    """Let the next token depend on the current one only, and the head agree about half the time."""
    torch = _needed("torch")
    ends = ("o_proj.weight", "out_proj.weight", "down_proj.weight")
    for weights in (body, head):
        for key, value in weights.items():
            if "visual" not in key and key.endswith(ends):
                value.zero_()
    embedding = torch.randn(VOCABULARY, HIDDEN)
    body["model.language_model.embed_tokens.weight"] = embedding.to(torch.bfloat16)
    output = (torch.randn(VOCABULARY, HIDDEN) * 2).to(torch.bfloat16)
    output[max(ids.values()) + 1 :] = 0  # never a padding id
    output[[ids[text] for text in SPECIAL]] = 0  # nor an end of text by accident
    body["lm_head.weight"] = output
    mixing = torch.cat([torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)], dim=1)
    mixing[:, :HIDDEN] += NOISE * torch.randn(HIDDEN, HIDDEN)
    head["mtp.fc.weight"] = mixing.to(torch.bfloat16)


def write_weights(folder: Path, weights: Weights) -> None:
    """One shard and the index."""
    names = sorted(weights)
    _needed("safetensors.torch").save_file(
        {name: weights[name] for name in names}, str(folder / SHARD), metadata={"format": "pt"}
    )
    (folder / SHARD).chmod(0o644)  # it is written 0600, and the server runs as another user
    total = sum(weights[name].numel() * weights[name].element_size() for name in names)
    index = {"metadata": {"total_size": total}, "weight_map": dict.fromkeys(names, SHARD)}
    _write(folder / "model.safetensors.index.json", index)


def make(folder: Path, *, with_head: bool) -> None:
    """Write the whole model into `folder`."""
    torch, transformers = _needed("torch"), _needed("transformers")
    folder.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(SEED)
    ids = write_tokenizer(folder)
    write_processors(folder)
    text = text_config(ids)
    config = transformers.Qwen3_5Config(
        text_config=text,
        vision_config=vision_config(),
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
        tie_word_embeddings=False,
    )
    config.architectures = ["Qwen3_5ForConditionalGeneration"]
    model = transformers.Qwen3_5ForConditionalGeneration(config).to(torch.bfloat16)
    body = {key: value.contiguous().clone() for key, value in model.state_dict().items()}
    head = head_of(body, text["layer_types"].index("full_attention"))
    make_predictable(body, head, ids)
    write_weights(folder, body | head if with_head else body)
    _write(folder / "config.json", _whole_config(config.to_dict(), text))
    _write(folder / "generation_config.json", _generation_config(ids))


def _whole_config(config: dict[str, Any], text: dict[str, Any]) -> dict[str, Any]:
    """The config with what transformers leaves out of it and vLLM reads."""
    kept = ["mtp_num_hidden_layers", "mtp_use_dedicated_embeddings", "mamba_ssm_dtype"]
    kept += ["full_attention_interval", "attn_output_gate"]
    config["text_config"].update({key: text[key] for key in kept})
    config["dtype"] = "bfloat16"
    config["architectures"] = ["Qwen3_5ForConditionalGeneration"]
    return config


def _generation_config(ids: dict[str, int]) -> dict[str, Any]:
    return {
        "eos_token_id": [ids["<|im_end|>"], ids["<|endoftext|>"]],
        "pad_token_id": ids["<|endoftext|>"],
        "do_sample": True,
        "temperature": 0.6,
        "top_p": 0.95,
    }


def _write(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1))


def main() -> int:
    parser = argparse.ArgumentParser(description="Make the tiny rehearsal model.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--without-head", action="store_true", help="as a stripped checkpoint")
    given = parser.parse_args()
    try:
        make(given.folder, with_head=not given.without_head)
    except ModuleNotFoundError as error:
        print(f"{error.name} is missing: pip install torch 'transformers>=5.10.4' first")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
