"""Two benchmarks side by side: `python -m tasks.compare A B`.

Each is a report (reports/*.json) or the name of a model card, which means its newest report of that
mode. Exit codes: 0 compared, 1 not.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from aibox.decide import bench_compare
from aibox.decide.bench_plan import MODES
from aibox.decide.bench_report import Report
from aibox.decide.refusal import Refusal

REPORTS = Path(__file__).resolve().parent.parent / "reports"


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tasks.compare", description=__doc__)
    parser.add_argument("first", help="what the other is held against")
    parser.add_argument("second")
    parser.add_argument("--mode", choices=MODES, default="seed", help="of cards' newest reports")
    asked = parser.parse_args(words)
    reports: list[Report] = []
    for name in (asked.first, asked.second):
        found = report_named(name, asked.mode)
        if isinstance(found, Refusal):
            print(found, file=sys.stderr)
            return 1
        reports.append(found)
    told = bench_compare.page(*reports)
    if isinstance(told, Refusal):
        print(told, file=sys.stderr)
        return 1
    print(told, end="")
    return 0


def report_named(name: str, mode: str) -> Report | Refusal:
    path = Path(name) if name.endswith(".json") else newest(name, mode)
    if path is None:
        return Refusal(
            f"no report of mode {mode} of a card {name} in {REPORTS}",
            "a report's file, or a card that was measured",
            f"pyinfra inventory tasks/bench.py --data mode={mode}, with that model deployed",
        )
    try:
        return bench_compare.read(str(path), path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "no text"
        return Refusal(f"{path} can't be read: {why}", "a report of a benchmark", "name another")


def newest(card: str, mode: str) -> Path | None:
    """By the moment in its name."""
    found = REPORTS.glob(f"{mode}-{card}-*.json")
    return max(found, key=lambda path: path.stem.split("-")[-2:], default=None)


if __name__ == "__main__":
    sys.exit(main())
