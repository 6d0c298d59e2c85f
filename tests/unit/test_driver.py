import pytest

from aibox.decide.driver import floor_for_cuda, too_old, version_tuple


@pytest.mark.parametrize(
    ("driver", "floor", "old"),
    [
        ("580.65.06", "580.65.06", False),
        ("580.65.05", "580.65.06", True),
        ("580.178.04", "580.65.06", False),
        ("580.65", "580.65.06", True),
        ("590.48.01", "580.65.06", False),
        ("1000.1", "580.65.06", False),
        ("570.211.01", "580.65.06", True),
        ("470.1", None, False),
    ],
)
def test_versions_are_compared_as_numbers(driver: str, floor: str | None, old: bool) -> None:
    assert too_old(driver, floor) == old


@pytest.mark.parametrize("text", ["", "580", "580.", "v580.65", "580.65.06-0ubuntu1", "58٠.65"])
def test_other_texts_are_no_versions(text: str) -> None:
    with pytest.raises(ValueError, match="is not a driver version"):
        version_tuple(text)


def test_each_cuda_has_its_floor() -> None:
    assert floor_for_cuda("13.0") == "580.65.06"
    assert floor_for_cuda("12.8") == "525.60.13"
    assert floor_for_cuda("14.0") == "580.65.06"
    assert floor_for_cuda("11.8") is None
    assert floor_for_cuda(None) is None
