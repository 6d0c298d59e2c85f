"""The plan on one screen."""

import json
from dataclasses import replace
from typing import Any

import pytest

from aibox.decide import plan
from aibox.decide.plan import DiskChange, Fetch, PlanFacts, Rate, Service
from aibox.decide.preflight import BoxReport, to_write
from tests.unit.conftest import ROOT
from tests.unit.test_preflight import GB, WANTED, good_report

SERVICE = Service("vllm-coder.service", restart=True, serves=True, good=True)
FACTS = PlanFacts(
    steps={"Base": (2, 6), "Driver": (0, 18), "Server": (1, 5)},
    fetches=(Fetch("weights of x", 55 * GB), Fetch("vLLM", None, "up to 12 GB on the disk")),
    rate=Rate(94e6, None),
    disks=(DiskChange("/", 200 * GB, 70 * GB),),
    reboot=(),
    service=SERVICE,
    replaced=(),
    found=False,
)


def lines(facts: PlanFacts = FACTS, **changes: Any) -> str:
    rows = plan.rows(replace(facts, **changes))
    return "\n".join(f"{label} {text}".strip() for label, text in rows)


def test_nothing_to_do_is_no_page() -> None:
    assert plan.rows(replace(FACTS, steps={"Base": (0, 6), "Server": (0, 5)})) == []


def test_the_whole_page() -> None:
    assert lines().splitlines() == [
        "steps 3 of 29 have something to do: Base 2, Server 1",
        "fetches weights of x: 55.0 GB",
        "vLLM: not known before it comes; up to 12 GB on the disk",
        "55.0 GB and what is not known: about 10 min at 94.0 MB/s, measured just now with one "
        "connection",
        "disk /: 200.0 GB free now, about 130.0 GB afterwards",
        "reboot none",
        "service vllm-coder.service serves until its turn, and then pauses for one start of the "
        "server; how long that takes here is not known yet",
        "replaces nothing of yours",
        "undo a server that fails its gate makes way by itself for what serves now",
        "what serves now is kept, and comes back with",
        "pyinfra inventory tasks/rollback.py",
    ]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"pins": "x/y at abc, 12 files"}, "pins x/y at abc, 12 files"),
        ({"rate": Rate(None, "the hub answers 401 without a token")}, "not measured: the hub"),
        ({"rate": Rate(1e6, None, limited=True)}, "15.3 h at 1.0 MB/s"),
        ({"rate": Rate(1e6, None, limited=True)}, "held back by download_limit_mbps"),
        ({"fetches": ()}, "fetches nothing"),
        (
            {"fetches": (Fetch("weights of x", 0, "they lie on the box"),), "rate": None},
            "fetches weights of x: nothing; they lie on the box\ndisk",
        ),
        ({"reboot": ("nouveau is loaded",)}, "reboot once, by itself: nouveau is loaded"),
        (
            {"reboot": ("nouveau is loaded",), "cut_off": ("q.service (port 9000)",)},
            "nouveau is loaded; it cuts off q.service (port 9000)",
        ),
        ({"cut_off": ("q.service",)}, "reboot none\n"),
        ({"reboot": tuple("abcde")}, "reboot once, by itself: a; b; c; and 2 more"),
        ({"replaced": ("a file",)}, "replaces a file"),
        ({"changes": ("a -> b", "+ c")}, "changes a -> b\n+ c\nreplaces"),
        ({"changes": tuple("abcdefgh")}, "changes a\nb\nc\nd\ne\nf\nand 2 more (--diff)\n"),
        (
            {"steps": {"Base": (3, 6), "Driver": (10, 18)}, "driver_stays": True},
            "Base 3, Driver 10 (its files and services: the driver itself stays)",
        ),
        ({"found": True}, "rollback.py --data to=found"),
        ({"service": replace(SERVICE, down=93.2)}, "for about 2 min, as in the last switch"),
        ({"service": replace(SERVICE, start=63.0)}, "for at least 63 s, which its last start"),
        ({"service": replace(SERVICE, serves=False)}, "does not serve now: nobody is cut off"),
        ({"service": replace(SERVICE, restart=False)}, "vllm-coder.service is not restarted"),
    ],
)
def test_each_row_says_what_is_the_case(changes: dict[str, Any], words: str) -> None:
    assert words in lines(**changes)


def test_a_first_server_has_nothing_to_go_back_to() -> None:
    service = Service("vllm-coder.service", restart=True, serves=False)
    assert "undo" not in lines(service=service)


def test_what_is_not_restarted_needs_no_way_back() -> None:
    assert "undo" not in lines(service=replace(SERVICE, restart=False))


def test_folders_of_one_file_system_are_one_row() -> None:
    report = good_report()
    report["disks"]["/srv/models"] = {"filesystem": "2", "mount": "/srv", "free_bytes": 100 * GB}
    found = plan.disk_changes(
        parsed := BoxReport.parse(json.dumps(report)), to_write(parsed, WANTED, 3 * GB)
    )
    assert found == [DiskChange("/", 200 * GB, 15 * GB), DiskChange("/srv", 100 * GB, 55 * GB)]


def test_a_disk_that_is_not_known_is_left_out() -> None:
    report = good_report()
    report["disks"] = {}
    parsed = BoxReport.parse(json.dumps(report))
    assert plan.disk_changes(parsed, to_write(parsed, WANTED, 0)) == []


def test_what_is_added_to_apt_and_to_the_boot_has_its_rows() -> None:
    due = {"Driver | NVIDIA's repository", "Driver | nouveau is off", "Server | User vllm"}
    found = plan.added(due)
    assert found == [
        ("apt", "gets NVIDIA's repository, by its own key"),
        ("boot", "gets nouveau blacklisted"),
    ]
    assert "apt gets NVIDIA's repository, by its own key\nboot gets nouveau" in lines(added=found)
    assert plan.added({"Server | User vllm"}) == []


def test_nouveau_that_a_person_has_turned_off_is_said_to_be_off() -> None:
    found = plan.added({plan.NOUVEAU}, ["/etc/modprobe.d/blacklist-nouveau.conf"])
    assert found == [
        (
            "boot",
            "gets nouveau blacklisted (already off by /etc/modprobe.d/blacklist-nouveau.conf; "
            "written down again in aibox-nvidia.conf)",
        )
    ]


OURS = ["/r/bin/vllm", "serve", "/w", "--port", "8000", "--max-num-seqs", "512", "--seed", "7"]


@pytest.mark.parametrize(
    ("command", "unit", "rows"),
    [
        (
            "/r/bin/python /r/bin/vllm serve /w --port 8000 --max-num-seqs 8 --api-key sk-12345678",
            None,
            ["--max-num-seqs 8 -> --max-num-seqs 512", "+ --seed 7", "- --api-key (hidden)"],
        ),
        (
            "",
            "[Service]\nExecStart=/r/bin/vllm serve /w --port 8000 \\\n  --max-num-seqs 8\n",
            ["--max-num-seqs 8 -> --max-num-seqs 512", "+ --seed 7"],
        ),
        ("/bin/sh /home/me/start.sh", None, []),
        ("", None, []),
        (" ".join(OURS), None, []),
    ],
)
def test_flags_that_change_are_told_from_what_runs_or_would(
    command: str, unit: str | None, rows: list[str]
) -> None:
    assert plan.flags_that_change(command.split(), unit, OURS) == rows


@pytest.mark.parametrize("name", [*plan._APT, *plan._BOOT])
def test_what_is_added_goes_by_names_that_operations_have(name: str) -> None:
    stage, _, title = name.partition(" | ")
    assert f'name="{title}"' in (ROOT / f"tasks/{stage.lower()}.py").read_text()
