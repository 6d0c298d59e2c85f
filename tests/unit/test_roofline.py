"""How close a run is to what the card's memory allows."""

from __future__ import annotations

import pytest

from aibox.decide.roofline import Step, line, step_of

CARD = "10de:2bb1"
SIZES = {
    "model.language_model.layers.0.mlp.down_proj.weight": 50_000_000_000,
    "model.language_model.embed_tokens.weight": 2_500_000_000,
    "lm_head.weight": 2_500_000_000,
    "model.visual.blocks.0.attn.qkv.weight": 900_000_000,
    "mtp.layers.0.mlp.down_proj.weight": 800_000_000,
}


def test_a_step_reads_neither_images_nor_the_table_of_tokens() -> None:
    found = step_of(SIZES, {}, "mtp.")
    assert found == Step(model=52_500_000_000, head=3_300_000_000)
    assert (found.bytes(0), found.bytes(2)) == (52.5e9, 59.1e9)


@pytest.mark.parametrize(
    ("more", "head"),
    [
        ({}, 3_300_000_000),  # the model's output layer makes the drafts too
        ({"mtp.lm_head.weight": 2_000_000_000}, 2_800_000_000),
        ({"mtp.layers.0.shared_head.head.weight": 2_000_000_000}, 2_800_000_000),
    ],
)
def test_each_draft_reads_an_output_layer(more: dict[str, int], head: int) -> None:
    assert step_of({**SIZES, **more}, {}, "mtp.").head == head


def test_without_a_head_nothing_is_drafted() -> None:
    assert step_of(SIZES, {}, None).head == 0


def test_of_experts_only_those_that_a_token_takes() -> None:
    sizes = {"layers.0.mlp.experts.7.w": 80_000_000_000, "layers.0.attn.w": 4_000_000_000}
    config = {"text_config": {"num_experts": 128, "num_experts_per_tok": 8}}
    found = step_of(sizes, config, None)
    assert found.bytes(0) == 4e9 + 80e9 / 16
    assert found.bytes(2) == 4e9 + 3 * 80e9 / 16  # the tokens of a step may take others
    assert found.bytes(40) == 84e9  # all of them, and no more


def test_his_box_is_close_to_the_roof() -> None:
    found = line(Step(model=55e9), CARD, 28.5, 0, 1.0)
    assert found == (
        "55.0 GB a step at 1,792 GB/s allow 32.6 steps/s; the run makes 28.5, 87 % of that"
    )


def test_drafts_make_more_tokens_of_about_as_many_steps() -> None:
    found = line(Step(model=55e9, head=0.8e9), CARD, 66.9, 2, 2.35)
    assert "the run makes 28.5, 90 % of that" in found


@pytest.mark.parametrize("card", [None, "10de:1234"])
def test_a_card_nobody_wrote_down_is_said(card: str | None) -> None:
    found = line(Step(model=55e9), card, 28.5, 0, 1.0)
    assert "55.0 GB a step" in found
    assert "nobody wrote down" in found


def test_a_tiny_model_is_shown_in_megabytes() -> None:
    assert line(Step(model=600_000), CARD, 40.0, 0, 1.0).startswith("0.60 MB a step")


def test_cards_that_read_together_are_as_fast_as_all_of_them() -> None:
    found = line(Step(model=55e9), CARD, 50.0, 0, 1.0, tensor=2)
    assert "at 2 × 1,792 GB/s allow 65.2 steps/s; the run makes 50.0, 77 % of that" in found
