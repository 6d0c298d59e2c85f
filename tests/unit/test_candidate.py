"""What is refused without a start: the arithmetic of a candidate, case by case."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aibox.box.judge import together
from aibox.decide.candidate import Evidence, Owner, Verdict, own_context, refusals, warnings
from aibox.decide.refusal import Refusal
from aibox.decide.vram import Card, Holder

MIB = 2**20
UNIT = "vllm-coder.service"
CARD_FILE = "group_data/models/qwen3.8-27b.yml"
HEAD = {
    "config_key": "mtp_num_hidden_layers",
    "layers": 1,
    "tensor_prefix": "mtp.",
    "tensors": 2,
}
FLAGS = {
    "max-num-seqs": 480,
    "max-model-len": 262144,
    "gpu-memory-utilization": 0.87,
    "speculative-config": {"method": "mtp", "num_speculative_tokens": 2},
}
COMMAND = ["/opt/v/bin/vllm", "serve", "/srv/w", "--max-num-seqs", "480", "--port", "8000"]
SPEC: dict[str, Any] = {
    "unit": UNIT,
    "text": "[Service]\n",
    "user": "vllm",
    "port": 8000,
    "command": COMMAND,
    "environment": {"HOME": "/var/lib/vllm-coder", "HF_HUB_OFFLINE": "1"},
    "weights": "/srv/w",
    "speculative": True,
    "head": HEAD,
    "context": 262144,
    "flags": FLAGS,
    "sources": {**dict.fromkeys(FLAGS, CARD_FILE), "max-num-seqs": "the setting `serve`"},
    "card_file": CARD_FILE,
    "gpu_uuid": None,
    "retry": False,
}
CONFIG: dict[str, Any] = {
    "text_config": {"mtp_num_hidden_layers": 1, "max_position_embeddings": 262144}
}
INDEX = {"weight_map": {"mtp.fc.weight": "a", "mtp.norm.weight": "a", "model.x": "a"}}
TOTAL = 97_887 * MIB
IDLE = Card(0, "RTX PRO 6000", "GPU-1", TOTAL, (12, 0), None, TOTAL - 638 * MIB)
RESOLVED = {"max_model_len": 262144, "gpu_memory_utilization": 0.87, "max_num_seqs": 480}
GOOD = Evidence(Verdict("0.31.0", resolved=RESOLVED), CONFIG, INDEX, cards=(IDLE,))


def card(used: int, *holders: Holder) -> Card:
    assert IDLE.free_bytes is not None
    return replace(IDLE, free_bytes=IDLE.free_bytes - used * MIB, processes=holders)


def resolved(**values: Any) -> Verdict:
    return replace(GOOD.verdict, resolved={**RESOLVED, **values})


def config(**text: Any) -> dict[str, Any]:
    return {"text_config": {**CONFIG["text_config"], **text}}


HEADS = config(
    num_hidden_layers=64,
    full_attention_interval=4,
    num_attention_heads=24,
    num_key_value_heads=4,
    head_dim=256,
    dtype="bfloat16",
)
EXPERTS = {"text_config": {**HEADS["text_config"], "num_experts": 128}}
BOTH = (IDLE, replace(IDLE, uuid="GPU-2", index=1))


def over(cards: int) -> dict[str, Any]:
    """The flag, and the first two cards by name."""
    flags = {**FLAGS, "tensor-parallel-size": cards, "kv-cache-dtype": "fp8"}
    return {"flags": flags, "gpu_uuid": ["GPU-1", "GPU-2"]}


def failure(cause: dict[str, Any] | None, command: list[str] = COMMAND) -> dict[str, Any]:
    return {"when": 1.0, "command": command, "cause": cause, "lines": ["ValueError: of old"]}


SHA = hashlib.sha256(b"[Service]\n").hexdigest()
CAUSE = {"kind": "no_nvcc", "found": "no nvcc", "remedy": "run the deploy", "passing": False}
MAMBA = {
    "kind": "mamba_blocks",
    "found": "512 sequences, 501 blocks",
    "remedy": "set max-num-seqs to 480",
    "line": "ValueError: max_num_seqs (512) exceeds available Mamba cache blocks (501). Each",
    "passing": False,
}
AT_512 = [word if word != "480" else "512" for word in COMMAND]
OURS = Holder(77, "VLLM::EngineCore", 85_000 * MIB)
OTHER = Holder(4242, "python3", 20_000 * MIB)
DROP_IN = f"/etc/systemd/system/{UNIT}.d/mine.conf"


def drop_in(text: str) -> Evidence:
    return replace(GOOD, drop_ins={DROP_IN: text})


def verdict(flag: str | None, found: str = "found this", expected: str = "that") -> Verdict:
    row = {"flag": flag, "found": found, "expected": expected}
    return replace(GOOD.verdict, faults=(row,))


ALLOWED: dict[str, tuple[Evidence, dict[str, Any]]] = {
    "the reference": (GOOD, {}),
    "nothing could be read": (Evidence(), {}),
    "no head wanted without MTP": (replace(GOOD, index={"weight_map": {}}), {"speculative": False}),
    "ngram needs no head": (
        replace(GOOD, index={"weight_map": {}}),
        {"flags": {**FLAGS, "speculative-config": {"method": "ngram"}}},
    ),
    "context that vLLM chooses": (replace(GOOD, verdict=resolved(max_model_len=-1)), {}),
    "context extended by a scaling": (
        replace(
            GOOD,
            config=config(
                max_position_embeddings=65536,
                rope_parameters={
                    "rope_type": "yarn",
                    "factor": 4.0,
                    "original_max_position_embeddings": 65536,
                },
            ),
        ),
        {},
    ),
    "context overridden on purpose": (
        replace(GOOD, config=config(max_position_embeddings=4096)),
        {"environment": {"VLLM_ALLOW_LONG_MAX_MODEL_LEN": "1"}},
    ),
    "the port is our own server's": (replace(GOOD, port_owner=Owner(7, "vllm", UNIT)), {}),
    "the port is our own engine's": (
        replace(GOOD, port_owner=Owner(7, "vllm"), own_pids=frozenset({7})),
        {},
    ),
    "our own server holds the card": (
        replace(GOOD, cards=(card(85_000, OURS),), own_pids=frozenset({77})),
        {},
    ),
    "what our own server holds is not known": (
        replace(
            GOOD,
            cards=(card(85_000, replace(OURS, used_bytes=None)),),
            own_pids=frozenset({77}),
        ),
        {},
    ),
    "another card is busy": (
        replace(GOOD, cards=(IDLE, replace(card(90_000, OTHER), uuid="GPU-2"))),
        {"gpu_uuid": "gpu-1"},
    ),
    "two cards and none is named": (
        replace(GOOD, cards=(card(90_000), replace(IDLE, uuid="GPU-2"))),
        {},
    ),
    "two idle cards hold what one can't": (
        replace(GOOD, config=HEADS, weights_bytes=111_200_000_000, cards=BOTH),
        over(2),
    ),
    "sizes that an earlier version let through": (
        replace(GOOD, config=HEADS, weights_bytes=55_600_000_000),
        {"flags": {**FLAGS, "tensor-parallel-size": "two"}},
    ),
    "the reference's weights": (replace(GOOD, config=HEADS, weights_bytes=55_600_000_000), {}),
    "experts that lie over all replicas": (
        replace(GOOD, config=EXPERTS, weights_bytes=111_200_000_000, cards=BOTH),
        {"flags": {**FLAGS, "data-parallel-size": 2}, "gpu_uuid": ["GPU-1", "GPU-2"]},
    ),
    "another card is held": (
        replace(GOOD, cards=(*BOTH, replace(card(90_000, OTHER), uuid="GPU-3"))),
        over(2),
    ),
    "the whole of an idle card": (
        replace(GOOD, verdict=resolved(gpu_memory_utilization=1.0)),
        {},
    ),
    "a drop-in of ours": (drop_in("# Laid down by the deploy\n[Service]\nExecStart=\n"), {}),
    "a drop-in that adds a variable": (drop_in("[Service]\nEnvironment=MINE=1\n"), {}),
    "a drop-in that says the same": (drop_in("[Service]\nEnvironment=HF_HUB_OFFLINE=1\n"), {}),
    "a drop-in of limits": (drop_in("[Service]\nMemoryMax=50G\n[Unit]\nUser=x\n"), {}),
    "a drop-in with a comment": (drop_in("[Service]\n#ExecStart=/bin/x\n;User=x\n"), {}),
    "it failed for a reason that passes": (
        replace(GOOD, failed={SHA: failure({**CAUSE, "passing": True})}),
        {},
    ),
    "it failed and is to be tried again": (
        replace(GOOD, failed={SHA: failure(CAUSE)}),
        {"retry": True},
    ),
    "another unit failed": (replace(GOOD, failed={"0" * 64: failure(CAUSE)}), {}),
    "512 failed with 501 blocks, now 480": (
        replace(GOOD, failed={"0" * 64: failure(MAMBA, AT_512)}),
        {},
    ),
    "the blocks of another command line": (
        replace(
            GOOD,
            failed={"0" * 64: failure(MAMBA, [*AT_512, "--enforce-eager"])},
            verdict=resolved(max_num_seqs=512),
        ),
        {},
    ),
}


@pytest.mark.parametrize("case", ALLOWED)
def test_what_may_be_tried(case: str) -> None:
    evidence, changed = ALLOWED[case]
    assert refusals(evidence, {**SPEC, **changed}) == []


# case -> (evidence, changes of the spec, what found, expected and remedy must say)
REFUSED: dict[str, tuple[Evidence, dict[str, Any], tuple[str, str, str]]] = {
    "a flag of the card": (
        replace(GOOD, verdict=verdict("kv-cache-dtype", "kv-cache-dtype is 'fp9'")),
        {"sources": {"kv-cache-dtype": CARD_FILE}},
        ("vLLM 0.31.0: kv-cache-dtype is 'fp9'", "that", f"kv-cache-dtype in {CARD_FILE}"),
    ),
    "a flag of the site": (
        replace(GOOD, verdict=verdict("max-num-seqs")),
        {},
        ("found this", "that", "group_data/site.py (the setting `serve`)"),
    ),
    "a fault of no flag": (
        replace(GOOD, verdict=verdict(None)),
        {},
        ("found this", "that", f"the server's flags in {CARD_FILE}"),
    ),
    "a stripped head": (
        replace(GOOD, index={"weight_map": {"model.x": "a"}}),
        {},
        ("the head was stripped", "2 such tensors", "take `speculative-config` off this model"),
    ),
    "a head that config.json denies": (
        replace(GOOD, config={"text_config": {"max_position_embeddings": 262144}}),
        {},
        ("has no mtp_num_hidden_layers", "mtp_num_hidden_layers 1", CARD_FILE),
    ),
    "a context too long": (
        replace(GOOD, config=config(max_position_embeddings=131072)),
        {},
        (
            "own context is 131072",
            "at most 131072",
            f"max-model-len to 131072 or less in {CARD_FILE}",
        ),
    ),
    "a context too long, of a model without text_config": (
        replace(GOOD, config={"mtp_num_hidden_layers": 1, "max_position_embeddings": 4096}),
        {},
        ("own context is 4096", "at most 4096", "4096 or less"),
    ),
    "fewer batched tokens than sequences": (
        replace(GOOD, verdict=resolved(max_num_batched_tokens=256)),
        {},
        ("max-num-batched-tokens is 256", "each sequence", "to 480 or more"),
    ),
    "no sequences": (
        replace(GOOD, verdict=resolved(max_num_seqs=0)),
        {},
        ("max-num-seqs is 0", "from 1", "group_data/site.py"),
    ),
    "a share above the whole": (
        replace(GOOD, verdict=resolved(gpu_memory_utilization=1.5)),
        {},
        ("gpu-memory-utilization is 1.5", "at most 1", CARD_FILE),
    ),
    "the port is a stranger's": (
        replace(GOOD, port_owner=Owner(99, "python3", "old-vllm.service")),
        {},
        (
            "port 8000 is held by python3 (pid 99, old-vllm.service)",
            f"free, or held by {UNIT}",
            "systemctl disable --now old-vllm.service",
        ),
    ),
    "the port is a process of no unit": (
        replace(GOOD, port_owner=Owner(99, "nc")),
        {},
        ("nc (pid 99)", "free", "end process 99"),
    ),
    "somebody else holds the card": (
        replace(GOOD, cards=(card(20_000, OTHER),)),
        {},
        ("python3 (pid 4242, 20000 MiB)", "84607 MiB free", "to 0.79 or less in " + CARD_FILE),
    ),
    "somebody else holds the card beside our own server": (
        replace(
            GOOD,
            cards=(card(97_249, OURS, OTHER),),
            own_pids=frozenset({77}),
            verdict=resolved(gpu_memory_utilization=0.9),
        ),
        {},
        ("85000 MiB of the card would be free without our own server", "MiB free", "stop python3"),
    ),
    "a display holds the card": (
        replace(GOOD, cards=(card(20_000),)),
        {},
        ("no process that NVML names", "free", "take the display off"),
    ),
    "vLLM's own share of the card where the flag is absent": (
        replace(GOOD, verdict=Verdict(), cards=(card(9_000, OTHER),)),
        {"flags": {}, "sources": {}},
        ("python3 (pid 4242", "89469 MiB free", "or less in group_data/site.py"),
    ),
    "a drop-in with another program": (
        drop_in("[Service]\nExecStart=\nExecStart=/bin/vllm serve\n"),
        {},
        (f"{DROP_IN} replaces ExecStart of {UNIT}", "judged", f"take {DROP_IN} away"),
    ),
    "a drop-in with another value": (
        drop_in('[Service]\nEnvironment="A=1" \\\n  HF_HUB_OFFLINE=0\n'),
        {},
        ("replaces Environment", "judged", "server_environment"),
    ),
    "a drop-in that empties the environment": (
        drop_in("[Service]\nEnvironment=\n"),
        {},
        ("replaces Environment", "judged", "server_environment"),
    ),
    "a drop-in with another user": (
        drop_in("[Service]\nUser=root\n"),
        {},
        ("replaces User", "judged", "server_user"),
    ),
    "the same unit failed": (
        replace(GOOD, failed={SHA: failure(CAUSE)}),
        {},
        ("failed its gate before: no nvcc", "mended", "run the deploy; to try the same once more"),
    ),
    "the same unit failed and nobody knows why": (
        replace(GOOD, failed={SHA: failure(None)}),
        {},
        ("ValueError: of old", "mended", "retry_failed"),
    ),
    "512 failed with 501 blocks, now 505": (
        replace(
            GOOD,
            failed={"0" * 64: failure(MAMBA, AT_512)},
            verdict=resolved(max_num_seqs=505),
        ),
        {},
        ("max-num-seqs is 505", "at most 501", "set max-num-seqs to 480 in group_data/site.py"),
    ),
    "512 failed with 501 blocks, now the default": (
        replace(
            GOOD,
            failed={"0" * 64: failure(MAMBA, AT_512)},
            verdict=resolved(max_num_seqs=None),
        ),
        {
            "flags": {},
            "command": [w for w in COMMAND if w not in ("--max-num-seqs", "480")],
            "sources": {},
        },
        ("max-num-seqs is 1024", "at most 501", "(it leaves some room), or raise"),
    ),
    "heads that can't be cut": (
        replace(GOOD, config=HEADS),
        over(5),
        (
            "tensor-parallel-size 5 can't cut 24 attention heads and 4 key-value heads (config",
            "whole heads",
            f"set tensor-parallel-size to one of 1, 2, 4, 8, 12 in {CARD_FILE}",
        ),
    ),
    "more stages than layers": (
        replace(GOOD, config=HEADS),
        {"flags": {**FLAGS, "pipeline-parallel-size": 65}},
        ("64 layers into 65 stages", "a layer at least", "set pipeline-parallel-size to less"),
    ),
    "weights that no card holds": (
        replace(GOOD, config=HEADS, weights_bytes=111_200_000_000),
        {},
        (
            "111.2 GB of weights over 1 card: 111.2 GB a card, and 17.2 GB of KV cache for one",
            "room for the KV cache",
            "set tensor-parallel-size 2, on a box with 2 such cards",
        ),
    ),
    "replicas that each hold everything": (
        replace(GOOD, config=HEADS, weights_bytes=111_200_000_000, cards=BOTH),
        {"flags": {**FLAGS, "data-parallel-size": 2}, "gpu_uuid": ["GPU-1", "GPU-2"]},
        ("over 1 card", "room for the KV cache", "tensor-parallel-size 2, on a box with 4 such"),
    ),
    "one of two cards is held": (
        replace(GOOD, cards=(IDLE, replace(card(90_000, OTHER), uuid="GPU-2", index=1))),
        over(2),
        ("MiB of card 1 would be free without our own server", "MiB free", "stop python3"),
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused_with_cause_and_remedy(case: str) -> None:
    evidence, changed, (found, expected, remedy) = REFUSED[case]
    (refusal,) = refusals(evidence, {**SPEC, **changed})
    assert found in refusal.found
    assert expected in refusal.expected
    assert remedy in refusal.remedy


def test_all_faults_stand_in_one_answer() -> None:
    evidence = replace(
        GOOD,
        verdict=verdict("kv-cache-dtype"),
        index={"weight_map": {}},
        port_owner=Owner(99, "nc"),
        cards=(card(90_000, OTHER),),
    )
    found = refusals(evidence, SPEC)
    assert len(found) == 4
    error = together(found).refusal
    for part in (error.found, error.expected, error.remedy):
        assert [line[:2] for line in part.splitlines()] == ["1.", "2.", "3.", "4."]


def test_one_fault_needs_no_number() -> None:
    one = Refusal("a", "b", "c")
    assert together([one]).refusal == one


WARNED: dict[str, tuple[Evidence, dict[str, Any], str]] = {
    "NVML does not answer": (
        replace(GOOD, cards=(), nvml_error="Driver Not Loaded"),
        {},
        "not judged: free memory of the card (NVML says: Driver Not Loaded)",
    ),
    "two cards": (
        replace(GOOD, cards=(IDLE, replace(IDLE, uuid="GPU-2"))),
        {},
        "not known which one serves",
    ),
    "weights": (replace(GOOD, config=None, index=None), {}, "config and index can't be read"),
    "an override": (
        GOOD,
        {"flags": {**FLAGS, "hf-overrides": {"a": 1}}},
        "not judged: max-model-len",
    ),
    "a drop-in": (drop_in("[Service]\nEnvironment=MINE=1\n"), {}, f"{DROP_IN} adds MINE"),
    "a file of variables": (
        drop_in("[Service]\nEnvironmentFile=-/etc/x\n"),
        {},
        f"{DROP_IN} adds EnvironmentFile=-/etc/x",
    ),
    "the parser's": (
        replace(
            GOOD,
            verdict=replace(
                GOOD.verdict,
                warnings=({"flag": "speculative-config", "text": "is old"},),
            ),
        ),
        {},
        f"speculative-config ({CARD_FILE}) is old",
    ),
}


@pytest.mark.parametrize("case", WARNED)
def test_what_is_only_told(case: str) -> None:
    evidence, changed, text = WARNED[case]
    (row,) = warnings(evidence, {**SPEC, **changed})
    assert text in row
    assert refusals(evidence, {**SPEC, **changed}) == []


def test_the_reference_has_no_warning() -> None:
    assert warnings(GOOD, SPEC) == []


def test_what_a_drop_in_that_stays_changes_is_told() -> None:
    """It is not refused, and not silent."""
    evidence = drop_in("[Service]\nNice=5\nCPUWeight=10\nNice=6\n")
    assert list(refusals(evidence, SPEC)) == []
    assert warnings(evidence, SPEC) == [f"{DROP_IN} stays and changes Nice, CPUWeight of the unit"]


CONTEXTS: list[tuple[dict[str, Any], float | None]] = [
    ({}, None),
    ({"max_position_embeddings": 4096}, 4096),
    ({"max_position_embeddings": 4096, "max_seq_len": 2048}, 2048),
    ({"max_position_embeddings": 4096, "model_max_length": 8192}, 8192),
    ({"text_config": {"max_position_embeddings": 4096}, "max_position_embeddings": 1}, 4096),
    ({"max_position_embeddings": 4096, "rope_scaling": {"type": "linear", "factor": 2.0}}, 8192),
    ({"max_position_embeddings": 4096, "rope_scaling": {"type": "yarn", "factor": 4.0}}, 4096),
    ({"max_position_embeddings": 4096, "rope_scaling": None}, 4096),
    ({"max_position_embeddings": "many", "rope_parameters": [1]}, None),
    (
        {
            "max_position_embeddings": 4096,
            "rope_parameters": {"full": {"rope_type": "dynamic", "factor": 2}, "sliding": None},
        },
        8192,
    ),
]


@pytest.mark.parametrize(("config", "tokens"), CONTEXTS)
def test_the_models_own_context(config: dict[str, Any], tokens: float | None) -> None:
    assert own_context(config) == tokens


# --- odd evidence ------------------------------------------------------------------------------

words = st.sampled_from([
    *("max_position_embeddings", "text_config", "rope_parameters", "factor", "rope_type", "yarn"),
    *("mtp_num_hidden_layers", "weight_map", "mtp.a", "cause", "command", "kind", "mamba_blocks"),
    *("found", "passing", "lines", SHA, "max_num_seqs", "max_model_len", "hf_overrides", "flag"),
    *("gpu_memory_utilization", "max_num_batched_tokens", "line"),
    *("[Service]\nUser=\nEnvironment=a", "[Service]\nEnvironment='b"),
    *("Mamba cache blocks (9)", "original_max_position_embeddings", "method", "faults", "warnings"),
])  # fmt: skip
odd = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | words,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(words | st.text(max_size=4), inner, max_size=4)
    ),
    max_leaves=12,
)
mappings = st.dictionaries(words, odd, max_size=6)
counts = st.none() | st.integers(min_value=0, max_value=2**40)
cards = st.builds(
    Card,
    st.integers(0, 9),
    st.text(max_size=4),
    st.sampled_from(["GPU-1", "GPU-2"]),
    counts,
    st.none(),
    st.none(),
    counts,
    st.lists(st.builds(Holder, st.integers(1, 9), st.text(max_size=3), counts)).map(tuple),
)
evidences = st.builds(
    Evidence,
    verdict=st.builds(
        Verdict,
        faults=st.lists(mappings, max_size=2).map(tuple),
        warnings=st.lists(mappings, max_size=2).map(tuple),
        resolved=mappings,
    ),
    config=st.none() | mappings,
    index=st.none() | mappings,
    port_owner=st.none() | st.builds(Owner, st.integers(1, 9), st.text(max_size=3)),
    own_pids=st.frozensets(st.integers(1, 9), max_size=3),
    cards=st.lists(cards, max_size=2).map(tuple),
    nvml_error=st.none() | st.text(max_size=4),
    drop_ins=st.dictionaries(st.just(DROP_IN), words | st.text(max_size=60), max_size=1),
    failed=mappings,
)


@settings(max_examples=100, deadline=None)
@given(evidences, mappings, st.none() | mappings)
def test_odd_evidence_is_judged_and_never_raises(
    evidence: Evidence, flags: dict[str, Any], head: dict[str, Any] | None
) -> None:
    spec = {**SPEC, "flags": flags, "head": head}
    for refusal in refusals(evidence, spec):
        assert refusal.found and refusal.expected and refusal.remedy
    assert all(isinstance(row, str) for row in warnings(evidence, spec))
