import pytest

from aibox.decide.weights import (
    CommitFolder,
    FileStamp,
    LockedFile,
    WeightsPlan,
    content,
    index_complete,
    plan,
    strays_refusal,
    superseded,
)

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


def test_weights_beside_those_of_the_lock_keep_a_plan_open() -> None:
    seen = dict.fromkeys(("x.safetensors", "deep/y.safetensors", "z.txt"), CONFIG)
    todo = plan({}, seen, {})
    assert todo.strays == ("x.safetensors",)
    assert not todo.complete
    refusal = strays_refusal("/srv/m", todo.strays)
    assert refusal is not None and refusal.found.startswith("x.safetensors in /srv/m")
    assert strays_refusal("/srv/m", ()) is None


def test_a_folder_without_its_list_is_not_complete() -> None:
    assert plan({}, {}, {}).complete
    assert not plan({}, {}, {}, listed=False).complete


def test_the_list_of_the_content_does_not_depend_on_the_locks_order() -> None:
    turned = dict(reversed(LOCK.items()))
    assert list(content(turned, "c")["files"]) == sorted(LOCK)  # type: ignore[call-overload]  # a dict
    assert content(turned, "c") == content(LOCK, "c")


A, B, C, D = (letter * 40 for letter in "abcd")


def folders(**finished: float | None) -> list[CommitFolder]:
    names = {"a": A, "b": B, "c": C, "d": D}
    return [CommitFolder(names[name], at) for name, at in finished.items()]


@pytest.mark.parametrize(
    ("found", "served_before", "going"),
    [
        (folders(a=1), None, ()),
        (folders(a=1, b=2), None, ()),  # one other is kept
        (folders(a=3, b=1, c=2), None, (B,)),  # the newest of the others
        (folders(a=3, b=1, c=2), B, (C,)),  # but rather the one that was served
        (folders(a=3, b=None, c=2), D, (B,)),
        (folders(a=1, b=2, c=3, d=4), None, (B, C)),
        ([*folders(a=1), CommitFolder(f".partial-{B}", None)], None, (f".partial-{B}",)),
        ([*folders(a=1), CommitFolder(f".partial-{A}", None)], None, (f".partial-{A}",)),
        ([CommitFolder(f".partial-{A}", None)], None, ()),
        ([*folders(a=1), CommitFolder(f".removed-{B}", 1)], None, (f".removed-{B}",)),
        ([*folders(a=1), CommitFolder("mine", 1), CommitFolder(".partial-x", 1)], None, ()),
    ],
)
def test_one_other_commit_is_kept(
    found: list[CommitFolder], served_before: str | None, going: tuple[str, ...]
) -> None:
    assert superseded(found, A, served_before) == going
