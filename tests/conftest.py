"""How tests are shared out among pytest-xdist's processes, two cores being two processes."""

from __future__ import annotations

import pytest

# All starts of the real vLLM in one process: each wants both cores, and together they are counted.
STARTS_VLLM = ("test_main_job.py", "test_debian13.py")


@pytest.hookimpl(tryfirst=True)  # pytest-xdist's own reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A file's tests stay together, for they share its boxes; the dearest files come first."""
    for item in items:
        name = item.path.name
        item.add_marker(pytest.mark.xdist_group("vllm" if name in STARTS_VLLM else name))
    items.sort(key=cost, reverse=True)


def cost(item: pytest.Item) -> int:
    """A rank; within one, tests keep their order."""
    if item.path.name in STARTS_VLLM:
        return 2
    return 1 if item.path.parent.name == "rehearsal" else 0
