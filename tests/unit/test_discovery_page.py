"""The page about a box that no deploy has seen."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aibox.decide import discovery_page
from aibox.decide.discovery import Discovered
from aibox.decide.preflight import BoxReport
from tests.unit.driver_report import UBUNTU, bare, driven, evidence, package
from tests.unit.driver_report import WANTED as DRIVER
from tests.unit.test_adopting import CACHED, NAMED, OURS, found
from tests.unit.test_preflight import at, good_report, with_cards

WEIGHTS = {
    "folder": CACHED,
    "repository": "Qwen/Qwen3.8-27B",
    "commit": "abc",
    "bytes": 55_600_000_000,
    "missing": 0,
    "head": "carried",
    "dtype": "bfloat16",
}
COUNTERS = {
    "drafts": 70,
    "draft_tokens": 140,
    "accepted_tokens": 90,
    "accepted_at": [52, 38],
    "generation_tokens": 200,
}
NOTHING: dict[str, Any] = {"servers": [], "weights": [], "listeners": []}


def page(
    box: Discovered | None = None,
    report: dict[str, Any] | None = None,
    driver: dict[str, Any] | None = None,
    ours: Any = OURS,
) -> list[str]:
    """As it is read, a row a line."""
    parsed = BoxReport.parse(json.dumps(report or good_report()))
    rows = discovery_page.page(parsed, evidence(driver), DRIVER, box, ours)
    return [f"{label} {text}".strip() for label, text in rows]


def empty(**changes: Any) -> Discovered:
    return Discovered.parse(json.dumps(NOTHING | changes))


def test_a_right_box_that_serves_fits_on_a_page() -> None:
    lines = page(found(f"{NAMED} --max-num-seqs 512", weights=[WEIGHTS]))
    assert len(lines) <= 25
    text = "\n".join(lines)
    assert "card NVIDIA RTX PRO 6000 Blackwell Workstation Edition, 102.6 GB" in text
    assert "12.0: the right one" in text
    assert "driver 580.178.04, open modules: the right one" in text
    assert "serves qwen3.8-27b on port 8000 (it answers), by /etc/systemd/system" in text
    assert "\nMTP off\n" in text
    assert (
        "Qwen/Qwen3.8-27B at abc: 55.6 GB, bfloat16, MTP head carried, in /home/me/.cache" in text
    )
    assert "a deploy takes them over by their sums, and fetches none again" in text
    assert "8000  this box only    python (vllm-coder.service)" in text
    assert "changes --max-num-seqs 512 -> --max-num-seqs 480" in text
    assert "pyinfra inventory tasks/rollback.py --data to=found" in text


def test_cards_that_serve_together_are_each_named() -> None:
    wanted = replace(DRIVER, cards=2, cards_for="tensor-parallel-size 2")
    parsed = BoxReport.parse(json.dumps(with_cards("GPU-1", "GPU-2")))
    rows = discovery_page.page(parsed, evidence(), wanted, empty(), OURS)
    first, second = (text for _, text in rows[1:3])
    assert first.startswith("card 0, ") and first.endswith("12.0: a right one")
    assert second.startswith("card 1, ") and "(GPU-2)" in second
    alone = BoxReport.parse(json.dumps(good_report()))
    rows = discovery_page.page(alone, evidence(), wanted, empty(), OURS)
    assert "it takes 2 cards (tensor-parallel-size 2), each with at least 96 GB" in rows[2][1]


def test_what_keeps_their_way_stands_below_it_and_once_in_one_line() -> None:
    lines = page(found(f"{NAMED} --max-num-seqs 512 --max-model-len 300000"))
    at = lines.index("keep all that flags keep, by this one line in group_data/site.py:")
    assert lines[at + 1] == 'serve = {"max-model-len": 300000, "max-num-seqs": 512}'
    assert sum(line.startswith("serve = ") for line in lines) == 1
    mind = next(
        at for at, line in enumerate(lines) if line.startswith("mind max-num-seqs: of more")
    )
    assert lines[mind + 1].startswith("but each sequence takes memory")


@pytest.mark.parametrize(
    ("report", "driver", "words"),
    [
        (at(good_report(), "gpu.cards.0.memory_bytes", 34 * 10**9), None, "too little memory"),
        (at(good_report(), "gpu.cards.0.capability", [9, 0]), None, "another GPU architecture"),
        (
            at(
                good_report(), "gpu", {"library": False, "error": None, "driver": None, "cards": []}
            ),
            bare(),
            "card RTX PRO 6000 Blackwell (10de:2bb1, held by nouveau): the right one by its PCI id",
        ),
        (
            at(good_report(), "gpu.cards", []),
            driven() | {"pci": [{"slot": "0", "id": "10de:2335", "driver": None}]},
            "card H200 (10de:2335, held by no module): not one of gpu_pci_ids",
        ),
        (at(good_report(), "gpu.cards", []), driven() | {"pci": []}, "no NVIDIA card on the PCI"),
    ],
)
def test_a_wrong_card_is_told_before_anything_is_refused(
    report: dict[str, Any], driver: dict[str, Any] | None, words: str
) -> None:
    assert words in "\n".join(page(empty(), report, driver))


@pytest.mark.parametrize(
    ("driver", "words"),
    [
        (bare(), "nouveau holds the card; a deploy installs 580.178.04 with open modules and"),
        (
            driven() | {"loaded": {"version": "580.178.04", "open": False}},
            "580.178.04, proprietary modules; a deploy reboots once: the loaded module is the",
        ),
        (
            driven() | {"loaded": None, "library": None, "packages": {}},
            "no NVIDIA module is loaded; a deploy installs 580.178.04 with open modules and "
            "reboots once: there is no driver yet",
        ),
    ],
)
def test_what_becomes_of_the_driver_is_told(driver: dict[str, Any], words: str) -> None:
    assert f"driver {words}" in "\n".join(page(empty(), None, driver))


def test_a_right_driver_in_packages_of_the_distribution_is_told_of_the_exchange() -> None:
    packages = {"nvidia-driver-580-open": package(), "nvidia-compute-utils-580": package()}
    found = evidence(driven() | {"packages": packages})
    parsed = BoxReport.parse(json.dumps(good_report()))
    rows = dict(discovery_page.page(parsed, found, UBUNTU, empty(), OURS))
    assert rows["driver"] == (
        "580.178.04, open modules: the right one; a deploy exchanges its packages "
        "(nvidia-compute-utils-580; nvidia-driver-580-open) for NVIDIA's own of the same version, "
        "without a reboot"
    )


def test_acceptance_is_told_where_the_server_tells_it() -> None:
    words = f'{NAMED} --speculative-config {{"method":"mtp"}}'
    lines = page(found(words, metrics=COUNTERS))
    assert any(
        line.startswith("MTP on; since its start: 64.3 % of the drafted tokens") for line in lines
    )
    assert "MTP on; it does not tell its counters" in page(found(words))
    assert "MTP off" in page(found(f'{NAMED} --speculative-config {{"method":"ngram"}}'))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"manager": "container", "unit": "0123456789ab"}, "by a container (0123456789ab)"),
        ({"manager": "user", "unit": "llm.service"}, "by the user unit llm.service of me"),
        ({"manager": "none", "unit": None, "within": "tmux"}, "by me, by hand and inside tmux"),
        ({"health": None}, "(nothing answers there)"),
        ({"health": 503}, "(/health: 503)"),
        ({"pid": None}, "nothing now; /etc/systemd/system/vllm-coder.service would, as me"),
        ({"drop_ins": {"/x/a.conf": ""}}, "vllm-coder.service and 1 drop-in(s) as me"),
    ],
)
def test_whoever_runs_it_is_named(changes: dict[str, Any], words: str) -> None:
    assert words in "\n".join(page(found(NAMED, **changes)))


@pytest.mark.parametrize(
    ("weights", "ours", "words"),
    [
        ([], OURS, "a deploy fetches Qwen/Qwen3.8-27B (55.0 GB)"),
        ([], replace(OURS, weights_bytes=None, commit=None), "a deploy fetches Qwen/Qwen3.8-27B"),
        (
            [WEIGHTS],
            replace(OURS, commit=None),
            "takes over by sum what it finds of Qwen/Qwen3.8-27B",
        ),
        ([WEIGHTS | {"commit": "def"}], OURS, "takes over what has the same sum, and fetches"),
        ([WEIGHTS | {"missing": 2}], OURS, "55.6 GB, 2 files missing"),
        ([WEIGHTS | {"repository": "un/sloth"}], OURS, "a deploy fetches Qwen/Qwen3.8-27B"),
        ([WEIGHTS] * 9, OURS, "and 5 more"),
    ],
)
def test_what_becomes_of_the_weights_is_told(
    weights: list[dict[str, Any]], ours: Any, words: str
) -> None:
    assert words in "\n".join(page(empty(weights=weights), ours=ours))


def test_ports_that_matter_come_before_many_others() -> None:
    many = [
        {"port": port, "address": "127.0.0.1", "name": "x", "unit": None}
        for port in [*range(20_000, 20_030), 3000, 4000, 9090]
    ]
    lines = "\n".join(page(empty(listeners=many)))
    assert all(f"{port}  this box only" in lines for port in (3000, 4000, 9090))
    assert "and 24 more" in lines


def test_a_box_that_does_not_answer_still_has_a_page() -> None:
    assert page(None)[-1] == "serves the box gave no answer: what runs on it is not known"


@pytest.mark.parametrize(
    "change", [{"servers": [{}]}, {"weights": [{"folder": 1}]}, {"listeners": "none"}]
)
def test_an_answer_of_another_form_is_refused_by_name(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="discovery"):
        empty(**change)
