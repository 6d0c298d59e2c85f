"""Two benchmarks side by side: `python -m tasks.compare A B`.

Each is a report (reports/*.json) or the name of a model card, which means its newest report of that
mode that came to its end. Exit codes: 0 compared, 1 not.
"""

from __future__ import annotations

import sys
from pathlib import Path

from aibox.decide import bench_compare
from aibox.decide.bench_plan import MODES
from aibox.decide.bench_report import Report, is_whole
from aibox.decide.refusal import Refusal
from tasks.parser import Parser

REPORTS = Path(__file__).resolve().parent.parent / "reports"


def main(words: list[str] | None = None) -> int:
    parser = Parser(prog="python -m tasks.compare", description=__doc__)
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
    """By what the reports themselves say: one card's name may begin with another's."""
    found = {path: sound_report(path) for path in REPORTS.glob(f"{mode}-*.json")}
    whole = {path: one for path, one in found.items() if one and is_whole(one)}
    fitting = [path for path, one in whole.items() if (one["card"], one["mode"]) == (card, mode)]
    return max(fitting, key=lambda path: whole[path]["when"], default=None)


def sound_report(path: Path) -> Report | None:
    """None for a file that is none, which is in nobody's way here."""
    try:
        found = bench_compare.read(str(path), path.read_text())
    except (OSError, UnicodeDecodeError):
        return None
    return None if isinstance(found, Refusal) else found


if __name__ == "__main__":
    sys.exit(main())
