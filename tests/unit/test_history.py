"""What passed the gate, and what a box can go back to."""

import json
from dataclasses import asdict, replace

import pytest

from aibox.decide import history
from aibox.decide.history import Passed, changes, chosen, read, to_go_back_to, with_newest
from aibox.decide.refusal import Refusal
from tests.unit.passed import passed

A, B, C = passed("a"), passed("b", ["--seed", "7"]), passed("c", ["--seed", "8"])
BACK_TO_A = passed("a", how=history.BY_ROLLBACK, when=9.0)
THERE = {A.release, A.weights, *(entry.sha256 for entry in (A, B, C))}


def test_it_comes_back_as_it_was_written() -> None:
    assert read(json.loads(json.dumps([asdict(B), asdict(A)]))) == [B, A]


@pytest.mark.parametrize(
    "record", [None, {}, "x", [1], [{"sha256": 1}], [{**asdict(A), "sha256": 3}], [{}]]
)
def test_what_is_no_entry_is_left_out(record: object) -> None:
    assert read(record) == []


def test_the_same_unit_in_a_row_is_one_entry_and_ten_are_kept() -> None:
    again = passed("a", when=5.0)
    assert with_newest([A], again) == [asdict(again)]
    many: list[Passed] = []
    for number in range(30):
        many = read(with_newest(many, passed("ab"[number % 2], when=float(number))))
    assert [entry.when for entry in many] == [float(number) for number in range(29, 19, -1)]


@pytest.mark.parametrize(
    ("entries", "current", "target"),
    [
        ([B, A], B.sha256, A),
        ([C, B, A], C.sha256, B),
        ([C, B, A], B.sha256, A),
        ([BACK_TO_A, B, A], A.sha256, None),  # nothing older than A
        ([BACK_TO_A, B, A, C], A.sha256, C),  # further back, not forward again
        ([A, B, A], A.sha256, B),
        ([A], A.sha256, None),
        ([B, A], "f" * 64, B),  # by hand: what passed last
        ([B, A], None, B),
        ([], None, None),
    ],
)
def test_a_rollback_goes_to_what_served_before(
    entries: list[Passed], current: str | None, target: Passed | None
) -> None:
    assert to_go_back_to(entries, THERE, current) == target


@pytest.mark.parametrize("lost", [A.release, A.weights, B.sha256])
def test_what_was_removed_is_not_offered(lost: str) -> None:
    found = to_go_back_to([C, B, A], THERE - {lost}, C.sha256)
    assert found == (A if lost == B.sha256 else None)


@pytest.mark.parametrize(
    ("name", "target"),
    [("1", C), ("3", A), ("bbbb", B), (A.sha256, A)],
)
def test_a_person_names_one(name: str, target: Passed) -> None:
    assert chosen([C, B, A], THERE, C.sha256, name) == target


@pytest.mark.parametrize(
    ("entries", "name", "words"),
    [
        ([], None, "nothing has passed its gate on this box"),
        ([], "1", "nothing has passed its gate on this box"),
        ([A], None, "nothing served here before what runs now"),
        ([C, B, A], "4", "no unit of the history by the name '4'"),
        ([C, B, A], "0", "no unit of the history by the name '0'"),
        ([C, B, A], "b", "no unit of the history by the name 'b'"),
        ([C, B, A], "", "no unit of the history by the name ''"),
        ([C, replace(B, sha256="cccc" + "d" * 60)], "cccc", "several units of the history by the"),
    ],
)
def test_what_cannot_be_chosen_is_refused(
    entries: list[Passed], name: str | None, words: str
) -> None:
    current = entries[0].sha256 if entries else None
    found = chosen(entries, THERE, current, name)
    assert isinstance(found, Refusal)
    assert found.found.startswith(words)


def test_one_that_is_gone_is_refused_by_its_name() -> None:
    found = chosen([C, B, A], THERE - {B.weights}, C.sha256, "2")
    assert isinstance(found, Refusal)
    assert found.found == "2: its weights are gone"


def test_changes_in_words() -> None:
    newer = passed("d", ["--seed", "8", "--x"], release_id="0.32.0-bbbbbbbb", commit="d" * 40)
    assert changes(newer, B) == [
        "vLLM 0.31.0-aaaaaaaa -> vLLM 0.32.0-bbbbbbbb",
        f"weights {'c' * 12} -> {'d' * 12}",
        "--seed 7 -> --seed 8",
        "+ --x",
    ]
    assert changes(B, B) == []


def test_variables_that_changed_are_told_in_the_notation_of_flags() -> None:
    older = passed("a", environment={"A": "1", "B": "2", "PATH": "/x"})
    newer = passed("b", environment={"A": "1", "B": "3", "C": "4", "PATH": "/y"})
    assert changes(newer, older) == ["B=2 -> B=3", "+ C=4"]
    assert changes(older, newer) == ["B=3 -> B=2", "- C=4"]
    assert changes(newer, passed("f")) == []  # of a unit that was found they are not known


def test_the_slowest_start_of_a_unit_counts_and_is_not_forgotten() -> None:
    cold = passed("a", seconds_start=165.0, seconds_down=170.0, account={"kv_tokens": 7})
    untouched = passed("a", when=5.0)  # passed again, and was not started anew
    found = read(with_newest([cold], untouched))[0]
    assert (found.seconds_start, found.seconds_down, found.account) == (165.0, 170.0, cold.account)
    warm = passed("a", when=6.0, seconds_start=30.0, seconds_down=31.0)
    found = read(with_newest([cold], warm))[0]
    assert (found.seconds_start, found.seconds_down) == (165.0, 31.0)


def test_where_nothing_serves_a_rollback_goes_to_the_last_good_one() -> None:
    assert chosen([C, B, A], THERE, C.sha256, None, serves=False) == C
    assert chosen([C, B, A], THERE, C.sha256, None) == B


# --- a person's own unit -------------------------------------------------------------------------

HIS = passed("f", ["--seed", "9"], how=history.AS_FOUND, release="/home/me/v", release_id="v")


def test_a_persons_own_unit_is_gone_back_to_by_its_name_for_ever() -> None:
    there = THERE | {HIS.release, HIS.sha256}
    assert chosen([C, B, A], there, C.sha256, "found", found=HIS) == HIS
    assert chosen([], there, None, "found", found=HIS) == HIS  # it never served, and is kept


def test_an_older_unit_of_theirs_is_gone_back_to_by_its_sum() -> None:
    older = passed("e", how=history.AS_FOUND)
    there = THERE | {older.release, older.sha256, HIS.release, HIS.sha256}
    for entries in ([C, B, A], []):
        assert chosen(entries, there, None, "e" * 12, found=HIS, kept=[HIS, older]) == older
    assert isinstance(chosen([C, B, A], there, None, "4", found=HIS, kept=[HIS]), Refusal)
    gone = chosen([], there - {older.sha256}, None, "e" * 12, found=HIS, kept=[HIS, older])
    assert isinstance(gone, Refusal)


@pytest.mark.parametrize(
    ("found", "words"),
    [(None, "no unit of your own was found"), (HIS, "your own unit: its release is gone and")],
)
def test_a_persons_own_unit_that_cannot_come_back(found: Passed | None, words: str) -> None:
    refusal = chosen([C, B, A], THERE, C.sha256, "found", found=found)
    assert isinstance(refusal, Refusal)
    assert refusal.found.startswith(words)


def test_where_nothing_older_served_the_own_unit_is_offered() -> None:
    refusal = chosen([A], THERE, A.sha256, None, found=HIS)
    assert isinstance(refusal, Refusal)
    assert refusal.remedy.endswith("--data to=found")


def test_what_is_not_known_of_a_found_unit_has_words() -> None:
    his = passed("f", release="", release_id="", weights="Qwen/Q", commit="")
    assert changes(A, his)[:2] == [
        "a vLLM of its own -> vLLM 0.31.0-aaaaaaaa",
        f"weights Qwen/Q -> {'c' * 12}",
    ]


@pytest.mark.parametrize(
    ("release_id", "words"),
    [
        ("0.31.0-aaaaaaaa", "vLLM 0.31.0-aaaaaaaa"),
        ("0.31.0+standin-da3f32b2", "vLLM 0.31.0+standin-da3f32b2"),
        ("vllm-env", "your own venv /home/me/vllm-env"),
        ("", "a vLLM of its own"),
    ],
)
def test_a_venv_that_was_found_is_not_called_a_release_of_ours(release_id: str, words: str) -> None:
    entry = passed("f", [], release="/home/me/vllm-env", release_id=release_id)
    assert history.release_of(entry) == words


@pytest.mark.parametrize(
    ("entry", "port", "his", "rows"),
    [
        (
            passed("a", when=1796028370.0),
            8000,
            False,
            {
                "serves": "qwen on http://localhost:8000/v1",
                "unit": "aaaaaaaaaaaa of 2026-11-30 08:46 UTC",
                "release": "vLLM 0.31.0-aaaaaaaa",
                "MTP": "on",
            },
        ),
        (
            replace(HIS, when=1796028370.0, speculative=False),
            None,
            True,
            {
                "serves": "qwen",
                "unit": "your own, as it stood at 2026-11-30 08:46 UTC",
                "release": "your own venv /home/me/v",
                "MTP": "off",
            },
        ),
    ],
    ids=["ours", "his own"],
)
def test_a_rollback_ends_with_what_serves_and_the_way_forward(
    entry: Passed, port: int | None, his: bool, rows: dict[str, str]
) -> None:
    said = history.last_screen(entry, port, his=his)
    assert rows.items() <= dict(said).items()
    assert ("", "pyinfra inventory deploy.py") in said
