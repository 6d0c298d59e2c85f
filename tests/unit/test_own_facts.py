"""What a box tells of a benchmark that has its server."""

from __future__ import annotations

import pytest

from aibox.decide import own_facts
from aibox.decide.own_facts import OwnFacts


@pytest.mark.parametrize("lent", [False, True])
def test_a_lent_server_is_always_told(lent: bool) -> None:
    facts = OwnFacts(
        built={},
        speculative=True,
        passed=None,
        failed=None,
        gated=True,
        reboot_reasons=None,
        kernel_log=(),
        when=0.0,
        lent=lent,
    )
    assert f"aibox_server_lent {int(lent)}" in own_facts.exposition(facts).splitlines()
