import json
from dataclasses import replace
from typing import Any

import pytest

from aibox.decide.refusal import Refusal
from aibox.decide.spread import Choice
from aibox.decide.vram import (
    Card,
    Cuda,
    Holder,
    VramReport,
    cuda_refusal,
    judge,
    memory_refusal,
    memory_refusals,
    power_reasons,
    power_refusal,
    power_refusals,
    too_few,
)

MIB = 2**20
WORKSTATION = "NVIDIA RTX PRO 6000 Blackwell Workstation Edition"


def card(
    name: str = WORKSTATION,
    mib: int | None = 97887,
    capability: tuple[int, int] | None = (12, 0),
    mig: str | None = None,
    index: int = 0,
) -> Card:
    memory = None if mib is None else mib * MIB
    return Card(index, name, f"GPU-0000000{index}", memory, capability, mig)


ONE = Choice()


def refusal(*cards: Card, error: str | None = None, wanted: Choice = ONE) -> Refusal:
    judged = judge(cards, error, wanted)
    assert isinstance(judged, Refusal)
    return judged


@pytest.mark.parametrize(
    "fitting",
    [
        card(),
        card("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition"),
        card("NVIDIA RTX PRO 6000 Blackwell Server Edition", mig="disabled"),
        card(mib=91769),  # should ECC take 1/16 of a Workstation card
        Card(0, WORKSTATION, "GPU-0", 96 * 10**9, (12, 0), None),
    ],
)
def test_a_96_gb_blackwell_card_fits(fitting: Card) -> None:
    assert judge([fitting], None, ONE) == (fitting,)


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (card("NVIDIA GeForce RTX 5090", 32607), ["34.2 GB (32607 MiB)", "too little memory"]),
        (
            card("NVIDIA RTX PRO 6000D Blackwell Workstation Edition", 84 * 10**9 // MIB),
            ["84.0 GB", "too little memory"],
        ),
        (card("NVIDIA H100 NVL", 95830, (9, 0)), ["100.5 GB (95830 MiB)", "capability 9.0"]),
        (card("NVIDIA GH200 480GB", 97871, (9, 0)), ["102.6 GB (97871 MiB)", "architecture"]),
        (card("NVIDIA H200", 143771, (9, 0)), ["150.8 GB", "another GPU architecture"]),
        (card("NVIDIA H200", 141 * 10**9 // MIB, (9, 0)), ["141.0 GB", "capability 9.0"]),
        (card("NVIDIA GB10", 124610, (12, 1)), ["capability 12.1", "another GPU architecture"]),
        (card("NVIDIA B200", 183359, (10, 0)), ["capability 10.0"]),
        (card(mib=None), ["memory not reported (not supported)", "memory unknown"]),
        (card(capability=None), ["compute capability not reported (not supported)"]),
        (card(mig="enabled"), ["102.6 GB (97887 MiB)", "MIG enabled"]),
        (
            Card(0, WORKSTATION, "GPU-0", 96 * 10**9 - 1, (12, 0), None),
            ["96.0 GB (91552 MiB)", "too little memory"],
        ),
        (card("NVIDIA A100", 40960, (8, 0), "enabled"), ["too little", "another GPU", "MIG"]),
    ],
)
def test_any_other_card_is_refused_with_its_figures(other: Card, words: list[str]) -> None:
    judged = refusal(other)
    for word in [other.name, *words]:
        assert word in judged.found
    assert "96 GB" in judged.expected
    assert judged.remedy


def test_mig_alone_names_the_command() -> None:
    assert "nvidia-smi -i 0 -mig 0" in refusal(card(mig="enabled")).remedy


def test_no_card_and_no_driver_are_told_apart() -> None:
    assert "no card" in refusal().found
    judged = refusal(card(), error="Driver/library version mismatch")
    assert "Driver/library version mismatch" in judged.found
    assert "reboot" in judged.remedy
    assert "dmesg" in refusal(error="Unknown Error").remedy


def test_several_cards_need_a_choice() -> None:
    small = card("NVIDIA GeForce RTX 5090", 32607)
    judged = refusal(small, card(index=1))
    assert judged.found.startswith("2 cards: card 0, NVIDIA GeForce RTX 5090 (GPU-00000000)")
    assert "too little memory; card 1" in judged.found
    assert judged.remedy == 'set gpu_uuid = "GPU-00000001"'
    both = refusal(card(), card(index=1))
    assert both.remedy == "set gpu_uuid to one of GPU-00000000, GPU-00000001"
    assert "none of these" in refusal(small, small).remedy


def test_the_chosen_card_is_judged_alone() -> None:
    small, large = card("NVIDIA GeForce RTX 5090", 32607), card(index=1)
    assert judge([small, large], None, Choice(("GPU-00000001",))) == (large,)
    assert judge([small, large], None, Choice(("gpu-00000001",))) == (large,)
    assert "RTX 5090" in refusal(small, large, wanted=Choice(("GPU-00000000",))).found
    unknown = refusal(small, large, wanted=Choice(("GPU-99999999",)))
    assert "GPU-99999999" in unknown.expected
    assert "GPU-00000001" in unknown.found


# --- several cards ---

TWO = Choice(count=2, why="tensor-parallel-size 2")
SMALL = card("NVIDIA GeForce RTX 5090", 32607, index=2)


@pytest.mark.parametrize(
    ("cards", "wanted", "indexes"),
    [
        ([card(), card(index=1)], TWO, [0, 1]),
        ([SMALL, card(), card(index=1)], TWO, [0, 1]),  # a display's card is no choice
        ([card(), card(index=1)], Choice(("GPU-00000001", "gpu-00000000"), 2), [1, 0]),
    ],
)
def test_as_many_as_fit_are_taken(cards: list[Card], wanted: Choice, indexes: list[int]) -> None:
    judged = judge(cards, None, wanted)
    assert not isinstance(judged, Refusal)
    assert [one.index for one in judged] == indexes


@pytest.mark.parametrize(
    ("cards", "wanted", "found", "expected", "remedy"),
    [
        ([card()], TWO, "1 card: card 0", "2 cards (tensor-parallel-size 2), each with at least 96",
         '{"tensor-parallel-size": 1}'),
        ([card(), SMALL], TWO, "2 cards: card 0", "2 cards (tensor", '{"tensor-parallel-size": 1}'),
        ([SMALL, SMALL], TWO, "too little memory", "2 cards (tensor", "none of these cards"),
        ([card(), card(index=1), card(index=3)], TWO, "3 cards: ", "naming the 2 that serve",
         'set gpu_uuid = ["GPU-00000000", "GPU-00000001"]'),
        ([card()], Choice(("GPU-00000000", "GPU-00000009", "GPU-00000008"), 3), "card 0, ",
         "the cards that gpu_uuid names, GPU-00000009, GPU-00000008", "set gpu_uuid to 3 of"),
        ([card(), SMALL], Choice(("GPU-00000000", "GPU-00000002"), 2), "card 2, NVIDIA GeForce",
         "at least 96 GB", "use a box with"),
    ],
)  # fmt: skip
def test_too_few_and_too_many_are_refused_with_what_to_write(
    cards: list[Card], wanted: Choice, found: str, expected: str, remedy: str
) -> None:
    judged = refusal(*cards, wanted=wanted)
    assert found in judged.found
    assert expected in judged.expected
    assert remedy in judged.remedy


def test_a_divided_card_is_made_whole_where_that_is_enough() -> None:
    divided = [replace(card(index=at), mig="enabled") for at in (1, 2)]
    switch = "switch MIG off with `nvidia-smi -i 1 -mig 0` "
    assert refusal(card(), divided[0], wanted=TWO).remedy.startswith(f"{switch}and reboot")
    both = refusal(*divided, wanted=TWO).remedy
    assert both.startswith(f"{switch}and `nvidia-smi -i 2 -mig 0` and reboot")
    assert refusal(*divided).remedy.startswith(f"{switch}and reboot")
    three = Choice(count=3, why="pipeline-parallel-size 3")
    assert "MIG" not in refusal(card(), divided[0], wanted=three).remedy


def test_fewer_cards_are_a_size_that_cuts_a_model() -> None:
    judged = too_few(Choice(count=4, why="tensor-parallel-size 4"), 3, "x")
    assert judged is not None
    assert '{"tensor-parallel-size": 2}' in judged.remedy


def test_the_bus_alone_tells_too_few() -> None:
    assert too_few(TWO, 2, "x") is None
    assert too_few(ONE, 1, "x") is None
    judged = too_few(TWO, 1, "10de:2bb1 in slot 01")
    assert judged is not None
    assert (judged.found, judged.expected) == ("10de:2bb1 in slot 01", f"2 cards ({TWO.why})")


def test_each_card_is_judged_and_told_in_one_answer() -> None:
    low, high = 150.0, 600.0
    able = replace(card(), power_min_w=low, power_max_w=high)
    weak = replace(card("Max-Q", index=1), power_min_w=low, power_max_w=300.0)
    judged = power_refusals([able, weak], 450)
    assert judged is not None
    assert "which Max-Q allows" in judged.expected and WORKSTATION not in judged.expected
    assert power_refusals([able, able], 450) is None
    other = replace(BUSY, index=1, processes=(Holder(9, "train", None),))
    held = memory_refusals([BUSY, replace(card(), free_bytes=97250 * MIB), other], 0.9, False)
    assert held is not None
    assert "on card 0" in held.found and "on card 1, held by train" in held.found
    assert memory_refusals([BUSY, other], 0.9, True) is None


# --- the whole answer ---


def answer(**changes: Any) -> dict[str, Any]:
    first = {
        "index": 0,
        "name": WORKSTATION,
        "uuid": "GPU-00000000",
        "memory_bytes": 97887 * MIB,
        "capability": [12, 0],
        "mig": None,
        "free_bytes": 97250 * MIB,
        "processes": [{"pid": 4242, "name": "python3", "used_bytes": None}],
        "power_limit_w": 600.0,
        "power_min_w": 150,
        "power_max_w": 600,
    }
    cuda = {"code": 0, "name": "CUDA_SUCCESS", "text": "no error"}
    return {"error": None, "cards": [first | changes], "cuda": cuda}


def test_the_answer_is_read_whole() -> None:
    report = VramReport.parse(json.dumps(answer()))
    [found] = report.cards
    assert found.processes == (Holder(4242, "python3", None),)
    assert (found.power_limit_w, found.power_max_w) == (600.0, 600.0)
    assert judge(report.cards, report.error, ONE) == (found,)
    assert report.cuda == Cuda(0, "CUDA_SUCCESS", "no error")
    assert VramReport.parse(json.dumps(answer() | {"cuda": None})).cuda is None


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"memory_bytes": "96 GB"}, "vram report.cards[0].memory_bytes: expected a whole number"),
        ({"free_bytes": -1}, "vram report.cards[0].free_bytes: expected 0 or more"),
        ({"processes": None}, "vram report.cards[0].processes: expected a list of objects"),
        ({"processes": [{"pid": 1}]}, "processes[0].name: missing"),
        ({"power_limit_w": "600"}, "vram report.cards[0].power_limit_w: expected a number"),
        ({"power_max_w": float("inf")}, "power_max_w: expected a number or null"),
        ({"mig": "N/A"}, "mig: expected enabled, disabled or null"),
    ],
)
def test_a_malformed_answer_is_a_value_error(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError) as caught:
        VramReport.parse(json.dumps(answer(**changes)))
    assert words in str(caught.value)


# --- cuInit ---


@pytest.mark.parametrize(
    ("cuda", "hmm", "words"),
    [
        (Cuda(3, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"), False,
         ["cuInit answers 3 CUDA_ERROR_NOT_INITIALIZED (initialization error)",
          "set uvm_disable_hmm = True"]),
        (Cuda(999, "CUDA_ERROR_UNKNOWN", "unknown error"), False,
         ["cuInit answers 999", "modprobe nvidia-uvm", "set uvm_disable_hmm = True"]),
        (Cuda(999, "CUDA_ERROR_UNKNOWN", "unknown error"), True,
         ["uvm_disable_hmm is set already", "/dev/nvidia-uvm"]),
        (Cuda(802, "CUDA_ERROR_SYSTEM_NOT_READY", "system not yet initialized"), False,
         ["802", "system not yet initialized", "a single card needs no fabric manager"]),
        (Cuda(803, "CUDA_ERROR_SYSTEM_DRIVER_MISMATCH", "mismatch"), False, ["reboot the box"]),
        (Cuda(100, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device"), False, ["/dev/nvidia0"]),
        (Cuda(-11, "SIGSEGV", "it crashed"), False, ["cuInit answers -11 SIGSEGV", "dmesg"]),
        (None, False, ["no libcuda.so.1"]),
    ],
)  # fmt: skip
def test_a_cuda_that_does_not_start_is_refused(
    cuda: Cuda | None, hmm: bool, words: list[str]
) -> None:
    judged = cuda_refusal(cuda, hmm)
    assert judged is not None
    for word in words:
        assert word in str(judged)
    assert "nvidia-smi alone is no proof" in judged.expected


def test_a_cuda_that_starts_is_fine() -> None:
    assert cuda_refusal(Cuda(0, "CUDA_SUCCESS", "no error"), False) is None


# --- free memory ---

BUSY = replace(
    card(),
    free_bytes=9089 * MIB,
    processes=(Holder(4242, "python3", 88160 * MIB), Holder(7, "Xorg", None)),
)


def test_who_holds_the_memory_is_named() -> None:
    judged = memory_refusal(BUSY, 0.9, serving=False)
    assert judged is not None
    assert judged.found == (
        "8.88 GiB of 95.59 GiB free on card 0, held by python3 (pid 4242) with 86.09 GiB, "
        "Xorg (pid 7) with an unknown amount"
    )
    assert "86.03 GiB free: gpu-memory-utilization 0.9" in judged.expected
    assert "ps -fp 4242,7" in judged.remedy


def test_memory_that_nobody_seems_to_hold_is_a_displays() -> None:
    judged = memory_refusal(replace(BUSY, processes=()), 0.9, serving=False)
    assert judged is not None
    assert "a display?" in judged.found


@pytest.mark.parametrize(
    ("free", "utilization", "serving", "refused"),
    [
        (97250 * MIB, 0.99, False, False),
        (97250 * MIB, 1.0, False, True),
        (int(97887 * MIB * 0.9), 0.9, False, False),
        (int(97887 * MIB * 0.9) - 1, 0.9, False, True),
        (0, 0.9, True, False),  # our own server holds it
        (None, 0.9, False, False),
    ],
)
def test_free_memory_is_judged_while_our_server_is_stopped(
    free: int | None, utilization: float, serving: bool, refused: bool
) -> None:
    judged = memory_refusal(replace(card(), free_bytes=free), utilization, serving)
    assert (judged is not None) == refused


# --- power ---


@pytest.mark.parametrize(
    ("limit", "low", "high", "refused"),
    [
        (None, 150.0, 600.0, False),
        (150, 150.0, 600.0, False),
        (600, 150.0, 600.0, False),
        (149, 150.0, 600.0, True),
        (601, 150.0, 600.0, True),
        (601, None, None, False),
    ],
)
def test_a_power_limit_is_one_that_the_card_allows(
    limit: int | None, low: float | None, high: float | None, refused: bool
) -> None:
    judged = power_refusal(replace(card(), power_min_w=low, power_max_w=high), limit)
    assert (judged is not None) == refused
    if judged is not None:
        assert judged.found == f"power_limit_w = {limit}"
        assert f"150 to 600 W, which {WORKSTATION} allows" in judged.expected


@pytest.mark.parametrize(
    ("in_force", "limit", "reasons"),
    [
        (600.0, None, []),
        (450.0, 450, []),
        (600.0, 450, ["the power limit is 600 W, not 450 W"]),
        (None, 450, []),
    ],
)
def test_a_lost_power_limit_is_set_again(
    in_force: float | None, limit: int | None, reasons: list[str]
) -> None:
    assert power_reasons(replace(card(), power_limit_w=in_force), limit) == reasons
