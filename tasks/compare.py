"""Two benchmarks side by side: `python -m tasks.compare A B`.

Each is a report (reports/*.json) or the name of a model card, which means its newest report of that
mode that came to its end and measured something. Exit codes: 0 compared, 1 not.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from aibox.decide import bench_compare
from aibox.decide.bench_plan import MODES
from aibox.decide.bench_report import Report, is_whole
from aibox.decide.nearest import did_you_mean
from aibox.decide.refusal import Refusal
from aibox.parser import Parser
from tasks import markdown_page

PROJECT = Path(__file__).resolve().parent.parent
REPORTS, CARDS = PROJECT / "reports", PROJECT / "group_data/models"


def main(words: list[str] | None = None) -> int:
    parser = Parser(prog="python -m tasks.compare", description=__doc__)
    parser.add_argument("first", help="what the second is held against")
    parser.add_argument("second", help="what is held against the first")
    parser.add_argument("--mode", choices=MODES, default="seed", help="of cards' newest reports")
    asked = parser.parse_args(words)
    told = compared(asked.first, asked.second, asked.mode)
    if isinstance(told, Refusal):
        print(told, file=sys.stderr)
        return 1
    if sys.stdout.isatty():
        told = "\n".join([*markdown_page.lines(told, shutil.get_terminal_size().columns), ""])
    print(told, end="")
    return 0


def compared(first: str, second: str, mode: str) -> str | Refusal:
    """Both as Markdown, by their names."""
    paths = file_named(first, mode), file_named(second, mode)
    reports: list[Report] = []
    for path in paths:
        found = path if isinstance(path, Refusal) else report_in(path)
        if isinstance(found, Refusal):
            return found
        reports.append(found)
    names = str(paths[0]), str(paths[1])
    return bench_compare.page(reports[0], reports[1], names)


def file_named(name: str, mode: str) -> Path | Refusal:
    """The report's file that a person means."""
    path = Path(name) if name.endswith(".json") else newest(name, mode)
    return path or bench_compare.not_found(name, mode, cards(), did_you_mean(name, cards()))


def report_in(path: Path) -> Report | Refusal:
    try:
        return bench_compare.read(str(path), path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "no text"
        return Refusal(f"{path} can't be read: {why}", "a report of a benchmark", "name another")


def cards() -> list[str]:
    """Those of this project, and those that were measured."""
    measured = [one["card"] for path in REPORTS.glob("*.json") if (one := sound_report(path))]
    return sorted({*(path.stem for path in CARDS.glob("*.yml")), *filter(None, measured)})


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
