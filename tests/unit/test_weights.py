import pytest

from aibox.decide.weights import FileStamp, LockedFile, WeightsPlan, index_complete, plan

LOCK = {"config.json": LockedFile(10, "a" * 64), "model.safetensors": LockedFile(100, "b" * 64)}
STAMP = FileStamp(100, 5, 7)
CONFIG = FileStamp(10, 5, 8)
DONE = {"config.json": (CONFIG, "a" * 64)}


@pytest.mark.parametrize(
    ("seen", "recorded", "fetch", "hash_again"),
    [
        (None, None, ["model.safetensors"], []),
        (FileStamp(99, 5, 7), None, ["model.safetensors"], []),
        (STAMP, None, [], ["model.safetensors"]),
        (STAMP, (STAMP, "b" * 64), [], []),
        (FileStamp(100, 6, 7), (STAMP, "b" * 64), [], ["model.safetensors"]),
        (FileStamp(100, 5, 9), (STAMP, "b" * 64), [], ["model.safetensors"]),
        (STAMP, (STAMP, "c" * 64), ["model.safetensors"], []),
        (FileStamp(100, 6, 7), (STAMP, "c" * 64), [], ["model.safetensors"]),
    ],
)
def test_a_file_is_fetched_or_hashed_only_when_it_must_be(
    seen: FileStamp | None,
    recorded: tuple[FileStamp, str] | None,
    fetch: list[str],
    hash_again: list[str],
) -> None:
    files = {"config.json": CONFIG} | ({"model.safetensors": seen} if seen else {})
    records = DONE | ({"model.safetensors": recorded} if recorded else {})
    assert plan(LOCK, files, records) == WeightsPlan(tuple(fetch), tuple(hash_again), ())


def test_files_of_others_are_named_and_do_not_count() -> None:
    todo = plan(LOCK, {"config.json": CONFIG, "model.safetensors": STAMP, "x": CONFIG}, {})
    assert todo.foreign == ("x",)
    assert not todo.complete
    assert plan({}, {"x": CONFIG}, {}).complete


def test_an_index_whose_shards_are_all_locked_is_complete() -> None:
    assert index_complete({"weight_map": {"a": "1.safetensors"}}, {"1.safetensors", "x"}) is None


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ({"weight_map": {"a": "1", "b": "2", "c": "3"}}, "lacks: 2, 3"),
        ({"weight_map": {str(n): str(n) for n in range(1, 7)}}, "lacks: 2, 3, 4 and 2 more"),
        ({"weight_map": {}}, "without a weight_map"),
        ({"weight_map": ["1"]}, "without a weight_map"),
        ({}, "without a weight_map"),
    ],
)
def test_an_incomplete_index_is_refused(index: dict[str, object], words: str) -> None:
    refusal = index_complete(index, {"1"})
    assert refusal is not None
    assert words in refusal.found
