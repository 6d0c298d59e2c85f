import json
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from aibox.card import CardError, WeightsLock, load_card, load_weights_lock
from aibox.decide.unit import flag_lines
from tests.unit.conftest import ROOT

# The flags of the box this project rebuilds, as they stood in its unit.
REFERENCE_FLAGS = (
    "--dtype auto --kv-cache-dtype fp8 --gpu-memory-utilization 0.87 --max-model-len 262144 "
    "--attention-backend FLASHINFER --enable-prefix-caching --enable-auto-tool-choice "
    "--tool-call-parser qwen3_coder --reasoning-parser qwen3 --max-num-seqs 480 "
    "--served-model-name qwen3.8-27b --speculative-config "
    '{"method":"mtp","num_speculative_tokens":2}'
)


def test_the_default_card_holds_the_reference_flags_in_their_order() -> None:
    card = load_card(ROOT / "group_data/models", "qwen3.8-27b")
    assert " ".join(chain.from_iterable(flag_lines(card.serve))) == REFERENCE_FLAGS
    assert card.head is not None
    assert (card.head.config_key, card.head.tensors) == ("mtp_num_hidden_layers", 15)
    assert card.probe.body["chat_template_kwargs"] == {"enable_thinking": False}
    assert card.limits["max-num-seqs"].most == card.serve["max-num-seqs"]
    assert "501 state blocks" in card.limits["max-num-seqs"].why


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("qwen3.8-flash-next", "bfloat16"), ("qwen3.8-27b-unsloth-fp8", "quantised")],
)
def test_cards_to_compare_with_say_what_is_to_be_resolved(name: str, dtype: str) -> None:
    card = load_card(ROOT / "group_data/models", name)
    assert card.dtype == dtype
    assert card.serve["served-model-name"] != "qwen3.8-27b"  # reports tell them apart
    text = (ROOT / f"group_data/models/{name}.yml").read_text()
    assert text.count("(resolve)") > 1
    assert load_weights_lock(ROOT / "group_data/models", name) is None  # no hub was there to ask


SPECULATIVE = [
    {"method": "eagle3", "model": "/srv/models/drafter", "num_speculative_tokens": 5},
    {"method": "dflash", "model": "/srv/models/drafter", "num_speculative_tokens": 8},
    {"method": "draft_model", "model": "/srv/models/small", "num_speculative_tokens": 4},
    {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
]


@pytest.mark.parametrize("config", SPECULATIVE, ids=lambda config: config["method"])
def test_a_card_takes_any_speculative_configuration(config: dict[str, Any], tmp_path: Path) -> None:
    """Whether vLLM knows the method is for the release's own parser to say."""
    document = yaml.safe_load((ROOT / "group_data/models/qwen3.8-27b.yml").read_text())
    document["head"] = None
    document["serve"]["speculative-config"] = config
    (tmp_path / "other.yml").write_text(yaml.safe_dump(document))
    card = load_card(tmp_path, "other")
    words = list(chain.from_iterable(flag_lines(card.serve)))
    assert json.loads(words[words.index("--speculative-config") + 1]) == config


def test_the_rehearsals_card_serves_on_a_cpu() -> None:
    card = load_card(ROOT / "tests/rehearsal/group_data/models", "tiny-qwen3.5-mtp")
    words = set(chain.from_iterable(flag_lines(card.serve)))
    assert {"--no-enable-prefix-caching", "--enforce-eager"} <= words
    assert card.serve["kv-cache-dtype"] == "auto"
    assert card.probe.body["temperature"] == 0
    assert "top_k" not in card.probe.body


@pytest.fixture
def card(tmp_path: Path) -> Path:
    path = tmp_path / "qwen3.8-27b.yml"
    path.write_text((ROOT / "group_data/models/qwen3.8-27b.yml").read_text())
    return path


def the_fault(path: Path) -> str:
    with pytest.raises(CardError) as caught:
        load_card(path.parent, path.stem)
    assert len(caught.value.faults) == 1, caught.value.faults
    assert caught.value.faults[0].startswith(f"{path}: ")
    return caught.value.faults[0].removeprefix(f"{path}: ")


WRONG_CARDS = [
    ("context: 262144", "context: 256K", "context: found '256K' (text); expected the model's"),
    ("context: 262144", "context: true", "context: found True (true/false)"),
    ("context: 262144", "contxt: 262144\ncontext: 5", "contxt: unknown; did you mean context?"),
    ("dtype: bfloat16", "dtype: fp8", "dtype: found 'fp8' (text); expected bfloat16"),
    ("repository: Qwen/Qwen3.8-27B", "repository: Qwen3.8", "repository: found 'Qwen3.8' (text)"),
    ("repository: Qwen/Qwen3.8-27B", "repository: ../..", "expected OWNER/NAME"),
    ("  layers: 1", "  layer: 1\n  layers: 1", "head.layer: unknown; did you mean layers?"),
    ("  tensors: 15", "  tensors: none", "head.tensors: found 'none' (text)"),
    ("  tensors: 15", "", "head.tensors: missing; expected how many there are"),
    ('vllm: ">=0.31.0"', "vllm: 0.31", "needs.vllm: found 0.31 (a number); expected version"),
    ('vllm: ">=0.31.0"', "vllm: newest", "needs.vllm: found 'newest' (text); expected version"),
    ('vllm: ">=0.31.0"', 'vlm: ">=0.31.0"\n  vllm: ">=0"', "needs.vlm: unknown; did you mean"),
    ("with_mtp: trust", "with_mtp: maybe", "expected trust or off"),
    ("with_mtp: trust", "with_mtp: on", "prefix_cache_with_mtp: found True (true/false)"),
    ("max_tokens: 160", "max_tokens: 0", "probe.max_tokens: found 0 (a whole number)"),
    (
        '"18,\\\\s*19,\\\\s*20"',
        "(",
        "probe.expect: found '(' (text); expected a regular expression",
    ),
    ("temperature: 0", "max_tokens: 5", "the probe sets max_tokens itself"),
    ("temperature: 0", "temperature: .nan", "cannot be written as JSON"),
    ("max-num-seqs: 480", "max_num_seqs: 480", "serve.max_num_seqs: not a flag's name; did you"),
    ("max-num-seqs: 480", "--max-num-seqs: 480", "did you mean max-num-seqs?"),
    ("max-num-seqs: 480", "-sc: 480", "serve.-sc: not a flag's name"),
    ("max-num-seqs: 480", "max-num-seqs:", "serve.max-num-seqs: needs a value"),
    ("max-num-seqs: 480", "max-num-seqs: 2026-01-01", "expected true, false, text, a number"),
    ("max-num-seqs: 480", "8: 480", "serve.8: found 8 (a whole number); expected a flag's name"),
    ("max-num-seqs: 480", "host: 0.0.0.0", "serve.host: not a flag of the card"),
    ("max-num-seqs: 480", "port: 80", "serve.port: not a flag of the card"),
    ("max-num-seqs: 480", "allowed-origins: [a]", "serve.allowed-origins: not a flag"),
    ("max-num-seqs: 480", "model: x", "serve.model: not a flag of the card"),
    ("max-num-seqs: 480", "max-num-seqs: 480\n  dtype: half", "the key 'dtype' stands there twice"),
    ("max-num-seqs: 480", "max-num-seqs: [", "cannot be read"),
    ("repository:", "name: x\nrepository:", "name: unknown; the file's name is the model's"),
]


@pytest.mark.parametrize(("old", "new", "words"), WRONG_CARDS)
def test_a_wrong_card_is_one_fault_in_words(card: Path, old: str, new: str, words: str) -> None:
    text = card.read_text()
    assert old in text
    card.write_text(text.replace(old, new, 1))
    assert words in the_fault(card)


def test_all_faults_of_a_card_come_at_once(card: Path) -> None:
    text = card.read_text().replace("tensors: 15", "tensors: x").replace("dtype: bfloat16", "")
    card.write_text(text.replace("max-num-seqs", "max_num_seqs"))
    with pytest.raises(CardError) as caught:
        load_card(card.parent, card.stem)
    assert [fault.split(": ")[1] for fault in caught.value.faults] == [
        "serve.max_num_seqs",
        "dtype",
        "head.tensors",
    ]


@pytest.mark.parametrize("text", ["", "- a", "x", "1"])
def test_a_card_that_is_no_mapping_is_refused(card: Path, text: str) -> None:
    card.write_text(text)
    assert "expected a mapping" in the_fault(card)


def test_a_bare_off_is_text(card: Path) -> None:
    card.write_text(card.read_text().replace("with_mtp: trust", "with_mtp: off"))
    assert load_card(card.parent, card.stem).prefix_cache_with_mtp == "off"


def test_an_unknown_model_names_the_nearest_card(card: Path) -> None:
    with pytest.raises(CardError, match=r"did you mean qwen3\.8-27b\?"):
        load_card(card.parent, "qwen38-27b")
    with pytest.raises(CardError, match=r"there are: qwen3\.8-27b"):
        load_card(card.parent, "llama")
    with pytest.raises(CardError, match="there are: none"):
        load_card(card.parent / "nowhere", "llama")
    with pytest.raises(CardError, match="no model card"):
        load_card(card.parent, "../qwen3.8-27b")


@pytest.mark.parametrize(
    "content", [b"\xff", b"a: &a [*a]", b"[" * 1200, b"a: \x00", b"? [a]\n: b"]
)
def test_a_file_that_is_no_yaml_is_refused_in_words(card: Path, content: bytes) -> None:
    card.write_bytes(content)
    with pytest.raises(CardError):
        load_card(card.parent, card.stem)


FILES = {"config.json": {"size": 3, "sha256": "a" * 64}}
LOCK: dict[str, Any] = {"repository": "a/b", "commit": "0" * 40, "files": FILES}


def test_a_weights_lock_is_read(tmp_path: Path) -> None:
    (tmp_path / "x.lock.json").write_text(json.dumps(LOCK))
    lock = load_weights_lock(tmp_path, "x")
    assert lock is not None
    assert (lock.repository, lock.total_bytes) == ("a/b", 3)
    assert load_weights_lock(tmp_path, "y") is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"commit": "main"}, "commit: expected 40 hex digits"),
        ({"repository": "b"}, "repository: expected OWNER/NAME"),
        ({"files": {}}, "files: expected an object with at least one file"),
        ({"extra": 1}, "nothing else"),
        ({"files": {"../x": FILES["config.json"]}}, "a relative path without '..'"),
        ({"files": {"/x": FILES["config.json"]}}, "a relative path without '..'"),
        ({"files": {"-x": FILES["config.json"]}}, "a relative path without '..'"),
        ({"files": {"a//x": FILES["config.json"]}}, "a relative path without '..'"),
        ({"files": {"x": {"size": 1}}}, "expected size and sha256"),
        ({"files": {"x": {"size": "1", "sha256": "a" * 64}}}, "size: expected bytes"),
        ({"files": {"x": {"size": True, "sha256": "a" * 64}}}, "size: expected bytes"),
        ({"files": {"x": {"size": -1, "sha256": "a" * 64}}}, "size: expected bytes"),
        ({"files": {"x": {"size": 1, "sha256": "A" * 64}}}, "sha256: expected 64 hex digits"),
    ],
)
def test_a_wrong_weights_lock_is_refused_with_the_command(
    tmp_path: Path, change: dict[str, Any], words: str
) -> None:
    (tmp_path / "x.lock.json").write_text(json.dumps(LOCK | change))
    with pytest.raises(CardError) as caught:
        load_weights_lock(tmp_path, "x")
    assert words in str(caught.value)
    assert "make lock-model MODEL=x" in str(caught.value)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(json_values | st.dictionaries(st.sampled_from(sorted(LOCK)), json_values))
@settings(max_examples=50, deadline=None)
def test_any_json_is_a_weights_lock_or_a_value_error(document: object) -> None:
    try:
        WeightsLock.parse(json.dumps(document))
    except ValueError as error:
        assert str(error)


@given(
    st.dictionaries(
        st.sampled_from(["serve", "probe", "head", "needs", "context", "dtype", "repository"]),
        json_values | st.dates() | st.binary(max_size=4),
    )
)
@settings(
    max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_yaml_is_a_card_or_a_card_error(tmp_path: Path, changes: dict[str, object]) -> None:
    right = yaml.safe_load((ROOT / "group_data/models/qwen3.8-27b.yml").read_text())
    (tmp_path / "x.yml").write_text(yaml.safe_dump(right | changes, allow_unicode=True))
    try:
        load_card(tmp_path, "x")
    except CardError as error:
        assert error.faults
