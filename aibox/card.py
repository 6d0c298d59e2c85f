"""Model cards and weights locks: what we know of a model, read and checked.

Control only. A card is YAML, a lock is JSON; both lie in the cards' folder under the model's name.
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from aibox.decide.launch import SHORT
from aibox.decide.nearest import nearest
from aibox.decide.unit import flag_lines
from aibox.decide.weights import REPOSITORY, LockedFile, WeightsLock
from aibox.faults import faults_of, shown

__all__ = ["CardError", "LockedFile", "ModelCard", "WeightsLock", "load_card", "load_weights_lock"]

MODEL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class CardError(ValueError):
    """A card or a lock that cannot be used. `faults`: each as "file: key: what is wrong"."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults


# Flags that are not the card's: the unit sets them, or they would undo what it sets.
_NOT_THE_CARDS = {
    "host": "the unit binds the server to localhost",
    "port": "the setting server_port sets it",
    "allowed-origins": "the unit closes the server to web pages",
    "model": "the unit names the weights folder",
    "model-tag": "the unit names the weights folder",
    "uds": "the unit binds the server to localhost",
    "config": "flags have one home, the card",
    "api-key": "a secret must not stand on a command line",
    "hf-token": "a secret must not stand on a command line",
    "device-ids": "the setting gpu_uuid names the cards",
    "headless": "a server without an API can't be proven (docs/several-cards.md)",
    "node-rank": "a deploy serves from the first box of several (docs/several-cards.md)",
}


def flag_faults(flags: Mapping[Any, Any]) -> list[tuple[str, str]]:
    """(flag, fault in words) for flags of `vllm serve` as a card or the setting serve gives them.

    Whether vLLM knows a flag is for its own parser to say. None as a value is left to the caller.
    """
    faults = []
    for name, value in flags.items():
        fault = _name_fault(name) or (None if value is None else _value_fault(name, value))
        if fault:
            faults.append((str(name), fault))
    return faults


def _name_fault(name: object) -> str | None:
    if not isinstance(name, str):
        return f"found {shown(name)}; expected a flag's name as text"
    bare = name.lstrip("-")
    plain = bare.replace("_", "-").lower()
    if plain in _NOT_THE_CARDS:
        return f"not a flag of the card: {_NOT_THE_CARDS[plain]}"
    whole = SHORT.get(plain, plain)  # -tp has one dash, the unit writes two
    if name != whole:
        return f"not a flag's name; did you mean {whole}?"
    if not re.fullmatch(r"[a-z0-9]+(?:-[a-z0-9]+)*", name):
        return "not a flag's name; expected words of a-z and 0-9 joined by '-'"
    if name.startswith("no-"):
        return f"say {name.removeprefix('no-')}: false"
    return None


def _value_fault(name: str, value: object) -> str | None:
    if not isinstance(value, bool | int | float | str | list | tuple | dict):
        return f"found {shown(value)}; expected true, false, text, a number, a list or a mapping"
    try:
        flag_lines({name: value})
    except (ValueError, RecursionError) as error:
        return f"found {shown(value)}; {str(error).removeprefix(f'{name}: ')}"
    return None


def _check_specifier(text: str) -> str:
    try:
        SpecifierSet(text)
    except InvalidSpecifier:
        raise ValueError("expected version floors such as '>=0.31.0'") from None
    return text


def _check_pattern(text: str) -> str:
    try:
        re.compile(text)
    except (re.error, OverflowError, RecursionError) as error:
        raise ValueError(f"expected a regular expression ({error})") from None
    return text


def _check_body(body: dict[str, Any]) -> dict[str, Any]:
    ours = sorted({"messages", "prompt", "model", "max_tokens", "stream"} & body.keys())
    if ours:
        raise ValueError(f"the probe sets {', '.join(ours)} itself")
    try:
        flag_lines({"body": body})
    except ValueError as error:
        raise ValueError(str(error).removeprefix("body: ")) from None
    return body


def _off_is_text(value: object) -> object:
    return "off" if value is False else value  # YAML 1.1 reads a bare off as false


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)


class CardHead(_Strict):
    """The MTP head as config.json and the weight index show it."""

    config_key: str = Field(min_length=1, description="the key in config.json, text")
    layers: int = Field(ge=1, description="the key's value, a whole number from 1")
    tensor_prefix: str = Field(min_length=1, description="how the tensors' names begin, text")
    tensors: int = Field(ge=1, description="how many there are, a whole number from 1")


class Attention(_Strict):
    """The shapes of the model's full attention, which kernels are compiled for.

    group: query heads for each key-value head. page: the largest of 64, 32 and 16 tokens that
    divides vLLM's block of the cache for this model.
    """

    head_dim: int = Field(ge=16, le=512, description="a whole number, 16 to 512")
    group: int = Field(ge=1, le=64, description="a whole number, 1 to 64")
    page: Literal[16, 32, 64] = Field(description="16, 32 or 64")


class Needs(_Strict):
    """Version floors."""

    vllm: Annotated[str, AfterValidator(_check_specifier)] = Field(
        description="version floors as text, such as '>=0.31.0'"
    )


class Probe(_Strict):
    """A question whose answer shows that the model is sane. body: extra fields of the request."""

    prompt: str = Field(min_length=1, description="a question, text")
    expect: Annotated[str, AfterValidator(_check_pattern)] = Field(
        min_length=1, description="a regular expression that a sane answer matches"
    )
    max_tokens: int = Field(ge=1, le=4096, description="tokens, a whole number from 1 to 4096")
    body: Annotated[dict[str, Any], AfterValidator(_check_body)] = Field(
        default_factory=dict, description="a mapping of extra request fields"
    )


class Limit(_Strict):
    """What starts have shown of a flag's values."""

    most: int = Field(ge=1, description="the largest value that is known to work, a whole number")
    why: str = Field(min_length=1, description="what came of more, text")


class ModelCard(_Strict):
    """What we know of a model and the server flags for it.

    context is in tokens; dtype is what the files must hold; serve keeps the order of the file.
    """

    name: str
    repository: Annotated[str, Field(pattern=f"^{REPOSITORY.pattern}$")] = Field(
        description="OWNER/NAME on the hub"
    )
    dtype: Literal["bfloat16", "float16", "float32", "quantised"] = Field(
        description="bfloat16, float16, float32 or quantised"
    )
    context: int = Field(ge=1, description="the model's own limit in tokens, a whole number")
    head: CardHead | None = Field(
        description="config_key, layers, tensor_prefix and tensors; null: no head"
    )
    attention: Attention | None = Field(
        default=None, description="head_dim, group and page; left out: only the sampler is built"
    )
    needs: Needs = Field(description="version floors, such as {vllm: '>=0.31.0'}")
    prefix_cache_with_mtp: Annotated[Literal["trust", "off"], BeforeValidator(_off_is_text)] = (
        Field(description="trust or off")
    )
    probe: Probe = Field(description="prompt, expect, max_tokens and body")
    limits: dict[str, Limit] = Field(
        default_factory=dict, description="a mapping of flags to {most, why}"
    )
    serve: dict[str, Any] = Field(description="a mapping of the flags of `vllm serve`")


class _OneOfEach(yaml.SafeLoader):
    """YAML whose mappings may not name a key twice: the last would win without a word."""


def _mapping(loader: _OneOfEach, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for at, key in enumerate(keys):
        if key in keys[:at]:
            raise yaml.constructor.ConstructorError(
                None, None, f"the key {key!r} stands there twice", node.value[at][0].start_mark
            )
    return loader.construct_mapping(node, deep=True)


_OneOfEach.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)


def load_card(folder: Path, name: str) -> ModelCard:
    """The card <folder>/<name>.yml. Raises CardError with every fault of the file."""
    path = folder / f"{name}.yml"
    if not MODEL_NAME.fullmatch(name):
        raise CardError([_no_card(folder, name)])
    try:
        document = _read_yaml(path)
    except FileNotFoundError:
        raise CardError([_no_card(folder, name)]) from None
    if not isinstance(document, dict):
        raise CardError([f"{path}: expected a mapping, found {shown(document)}"])
    return card_from(document, name, path)


def card_from(document: Mapping[Any, Any], name: str, path: Path) -> ModelCard:
    """A card from what its file holds. path: only for the words of a CardError."""
    faults = [f"{path}: name: unknown; the file's name is the model's"] * ("name" in document)
    given = {str(key): value for key, value in document.items() if key != "name"}
    serve = given.get("serve")
    if isinstance(serve, dict):
        faults += [f"{path}: serve.{flag}: {fault}" for flag, fault in _serve_faults(serve)]
        given["serve"] = {} if faults else serve
    try:
        card = ModelCard.model_validate({**given, "name": name})
    except ValidationError as error:
        faults += [f"{path}: {key}: {fault}" for key, fault in faults_of(error, ModelCard)]
    except RecursionError:
        faults.append(f"{path}: nested too deeply")
    if faults:
        raise CardError(faults)
    return card


def _serve_faults(serve: Mapping[Any, Any]) -> list[tuple[str, str]]:
    empty = [(str(name), "needs a value") for name, value in serve.items() if value is None]
    return flag_faults(serve) + empty


def _no_card(folder: Path, name: str) -> str:
    try:
        known = sorted(path.stem for path in folder.iterdir() if path.suffix == ".yml")
    except OSError:  # no such folder
        known = []
    close = nearest(name, known)
    hint = f"did you mean {close}?" if close else f"there are: {', '.join(known) or 'none'}"
    return f"no model card named {name!r} in {folder}; {hint}"


def _read_yaml(path: Path) -> object:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=_OneOfEach)  # noqa: S506
    except yaml.YAMLError as error:
        words = " ".join(str(error).split())
    except UnicodeDecodeError:
        words = "not UTF-8"
    except RecursionError:
        words = "nested too deeply"
    except FileNotFoundError:
        raise
    except (OSError, ValueError) as error:
        words = str(error)
    raise CardError([f"{path}: cannot be read: {words}"])


def lock_path(folder: Path, name: str) -> Path:
    """Where the weights lock of a model lies."""
    return folder / f"{name}.lock.json"


def load_weights_lock(folder: Path, name: str) -> WeightsLock | None:
    """The lock of a model's files, None when there is none. Raises CardError when it is broken."""
    path = lock_path(folder, name)
    try:
        return WeightsLock.parse(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        words = "not UTF-8"
    except (OSError, ValueError) as error:
        words = str(error)
    raise CardError([f"{path}: {words}; make it anew with `make lock-model MODEL={name}`"])
