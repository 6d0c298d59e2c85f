import pytest

from aibox.decide.refusal import Refusal
from aibox.decide.vram import Card, judge

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


def refusal(*cards: Card, error: str | None = None, uuid: str | None = None) -> Refusal:
    judged = judge(cards, error, uuid)
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
    assert judge([fitting], None, None) == fitting


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
    assert judge([small, large], None, "GPU-00000001") == large
    assert judge([small, large], None, "gpu-00000001") == large
    assert "RTX 5090" in refusal(small, large, uuid="GPU-00000000").found
    unknown = refusal(small, large, uuid="GPU-99999999")
    assert "GPU-99999999" in unknown.expected
    assert "GPU-00000001" in unknown.found
