"""The memory of the cards that serve, as `aibox status` and a diagnosis count it."""

from __future__ import annotations

import pytest

from aibox.box import status, surroundings
from aibox.decide.vram import Card, Holder

UNIT = "vllm-coder.service"
OURS, OTHER = Holder(7, "VLLM::Worker_TP0", 60), Holder(9, "train", 5)


def card(index: int, total: int, free: int | None, *holders: Holder) -> Card:
    return Card(index, "x", f"GPU-{index}", total, (12, 0), None, free, holders)


CARDS = (card(0, 100, 40, OURS), card(1, 90, 20, OURS, OTHER), card(2, 30, 30))


@pytest.fixture(autouse=True)
def box(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(surroundings, "cards_now", lambda: (CARDS, None))
    for one in (status, surroundings):
        monkeypatch.setattr(one, "unit_of", lambda pid: UNIT if pid == OURS.pid else None)


@pytest.mark.parametrize(
    ("pinned", "memory"),
    [
        (("GPU-0",), (100, 60, 60)),
        (("GPU-0", "gpu-1"), (190, 130, 120)),
        ((), None),  # which of the three serves is not known
        (("GPU-0", "GPU-9"), None),
    ],
)
def test_all_cards_that_serve_count(
    pinned: tuple[str, ...], memory: tuple[int, int, int] | None
) -> None:
    assert status.memory(UNIT, pinned) == memory


def test_a_card_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = (CARDS[0], card(1, 90, None))
    monkeypatch.setattr(surroundings, "cards_now", lambda: (silent, None))
    assert status.memory(UNIT, ("GPU-0", "GPU-1")) is None


def test_the_smallest_of_several_counts_for_a_diagnosis() -> None:
    size, holders = surroundings.card(UNIT, ("GPU-0", "GPU-1"))
    assert (size, [one.pid for one in holders]) == (90, [OTHER.pid])
    assert surroundings.card(UNIT)[0] == 100
