"""How tests are shared out among pytest-xdist's processes: a file stays together."""

from __future__ import annotations

import pytest

DEAREST = "test_main_job.py"  # it starts the real vLLM


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The dearest come first, so that no process is left with them alone in the end."""
    items.sort(key=cost, reverse=True)


def cost(item: pytest.Item) -> int:
    """A rank; within one, tests keep their order."""
    if item.path.name == DEAREST:
        return 2
    return 1 if item.path.parent.name == "rehearsal" else 0
