"""Do the files hold what the card promises: the MTP head, and unquantised parameters?"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from aibox.decide.refusal import Refusal, some


class HeadShape(Protocol):
    """What a card says of the head; the card's own model and `Head` both have this shape."""

    @property
    def config_key(self) -> str: ...
    @property
    def layers(self) -> int: ...
    @property
    def tensor_prefix(self) -> str: ...
    @property
    def tensors(self) -> int: ...


@dataclass(frozen=True)
class Head:
    """The head for use on the box: config.json says `config_key: layers`, and the index lists
    `tensors` names that start with `tensor_prefix`."""

    config_key: str
    layers: int
    tensor_prefix: str
    tensors: int


REMEDY = "take another commit of the weights, or take `speculative-config` off this model"

# safetensors' names of the types a card may ask for.
STORED_AS = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
# Left in F32 on purpose by the publishers: A_log, dt_bias and the like.
OTHER_TYPES_ALLOWED = 0.01
# Narrow types only come from quantising; even a few of them mean other weights.
QUANTISED = "quantised"  # what a card asks for then
PACKED = "I32"  # eight weights of four bits in one
_QUANTISED = ("F8", "F6", "F4", "I8", "U8", "I4", "U4")


def judge_head(
    config: Mapping[str, object], index: Mapping[str, object], head: HeadShape | None
) -> Refusal | None:
    """Whether config.json and the tensors' names both show the head of the card.

    index: model.safetensors.index.json, or `index_of` what stands in the files' own headers.
    """
    if head is None:
        return None
    layers = _config_value(config, head.config_key)
    count = _tensors(index, head.tensor_prefix)
    says = (
        f'config.json says "{head.config_key}": {layers}'
        if layers is not None
        else (f"config.json has no {head.config_key}")
    )
    found = f"{says}, the index lists {count} tensors named {head.tensor_prefix}*"
    expected = f"{head.config_key} {head.layers} and {head.tensors} such tensors"
    has_layers = isinstance(layers, int) and not isinstance(layers, bool)
    if has_layers and layers == head.layers and count == head.tensors:
        return None
    if count == 0 and layers is not None:
        found += ": the head was stripped, the MTP flag would not help"
    elif count and layers is None:
        found += ": the head is there, but vLLM would not find it"
    return Refusal(found, expected, REMEDY)


def standing(
    config: Mapping[str, object] | None, index: Mapping[str, object] | None, head: HeadShape | None
) -> str:
    """How weights that a person has stand to the card's head, in words.

    None: config.json or the index can't be read, or the card knows no head.
    """
    if config is None or index is None or head is None:
        return "unknown"
    if judge_head(config, index, head) is None:
        return "carried"
    named, count = _config_value(config, head.config_key), _tensors(index, head.tensor_prefix)
    if not count:
        return "named, without its tensors" if named else "none"
    return "another one" if named else "there, but not named in config.json"


def index_of(names: Mapping[str, Collection[str]]) -> dict[str, object]:
    """What an index would say. names: file -> the tensors that its header lists."""
    return {"weight_map": {name: file for file in sorted(names) for name in names[file]}}


def judge_index(
    index: Mapping[str, object], names: Mapping[str, Collection[str]]
) -> Refusal | None:
    """Whether every tensor of the index is in the file that it names.

    names: file -> the tensors that its header lists.
    """
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping):
        return None
    missing = sorted(
        str(tensor) for tensor, file in weight_map.items() if tensor not in names.get(str(file), ())
    )
    if not missing:
        return None
    return Refusal(
        f"the index names tensors that are not in their files: {some(missing)}",
        "an index that tells what the files hold",
        REMEDY,
    )


def _config_value(config: Mapping[str, object], key: str) -> object:
    """A key of config.json; multimodal models keep it under text_config."""
    if key in config:
        return config[key]
    nested = config.get("text_config")
    return nested.get(key) if isinstance(nested, Mapping) else None


def _tensors(index: Mapping[str, object], prefix: str) -> int:
    weight_map = index.get("weight_map")
    if not isinstance(weight_map, Mapping):
        return 0
    return sum(1 for name in weight_map if isinstance(name, str) and name.startswith(prefix))


def judge_dtype(headers: Mapping[str, Mapping[str, int]], wanted: str) -> Refusal | None:
    """Whether the files hold the wanted type.

    headers: file -> safetensors type such as "BF16" -> number of parameters of that type.
    wanted: the card's dtype, such as "bfloat16".
    """
    totals: dict[str, int] = {}
    for counts in headers.values():
        for kind, number in counts.items():
            totals[kind] = totals.get(kind, 0) + number
    everything = sum(totals.values())
    stored = STORED_AS.get(wanted, wanted)
    quantised = [kind for kind in totals if kind.startswith(_QUANTISED) and totals[kind]]
    if wanted == QUANTISED:
        return None if quantised or totals.get(PACKED) else not_quantised(totals)
    remedy = "fetch the unquantised repository of the model, or correct dtype in the model card"
    expected = f"{stored} for at least 99 % of the parameters ({wanted}, not quantised)"
    if everything == 0:
        return Refusal("no parameters in the weight files", expected, remedy)
    others = everything - totals.get(stored, 0)
    if not quantised and others <= OTHER_TYPES_ALLOWED * everything:
        return None
    found = in_shares(totals)
    reason = "quantised weights" if quantised else "weights of another type"
    return Refusal(f"{reason}: {found}", expected, remedy)


def not_quantised(totals: Mapping[str, int]) -> Refusal:
    found = in_shares(totals) or "no parameters in the weight files"
    return Refusal(
        f"weights that are not quantised: {found}",
        "a part of the parameters in a type of at most 8 bits, or packed as I32",
        "fetch the quantised repository of the model, or correct dtype in the model card",
    )


def in_shares(totals: Mapping[str, int]) -> str:
    """ "BF16 99.6 %, F32 0.4 %", the largest first."""
    everything = sum(totals.values())
    ordered = sorted(totals.items(), key=lambda item: -item[1])
    return ", ".join(f"{kind} {100 * number / everything:.1f} %" for kind, number in ordered)
