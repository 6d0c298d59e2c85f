"""Files for a Prometheus and a Grafana that you run already: `python -m tasks.monitoring_files`.

It writes them into reports/monitoring/, with your boxes' addresses, and asks no box anything. Exit
codes: 0 written, 1 refused.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass
from pathlib import Path

import yaml
from pyinfra.api import Config, State
from pyinfra.api.exceptions import PyinfraError
from pyinfra.context import ctx_state

from aibox.decide import inventory as deciding
from aibox.decide import scraping
from aibox.decide.refusal import Refusal
from aibox.parser import Parser
from tasks import inventory_names, invocation, targets
from tasks.box import PROJECT

FOLDER = PROJECT / "reports/monitoring"
MADE = PROJECT / "templates/monitoring"  # by python -m aibox.monitoring
WHAT_TO_DO = """\
scrape.yml      name it under scrape_config_files of your prometheus.yml; a Prometheus before 2.43
                does not know that: take its scrape_configs over
alerts.yml      name it under rule_files, then reload Prometheus
dashboard.json  import it in Grafana: Dashboards, New, Import
on the boxes    monitoring = True, and metrics_from with your Prometheus' address; then a deploy"""


@dataclass(frozen=True)
class Files:
    """texts: {name of a file: what it says}. lacking: boxes without the exporters that it asks.
    doubts: boxes that it may not reach, in words."""

    texts: dict[str, str]
    lacking: list[str]
    doubts: list[str]


def main(words: list[str] | None = None) -> int:
    parser = Parser(prog="python -m tasks.monitoring_files", description=__doc__)
    parser.add_argument("inventory", nargs="?", default=str(PROJECT / "inventory"))
    parser.add_argument("--into", type=Path, default=FOLDER, metavar="FOLDER")
    asked = parser.parse_args(words)
    try:
        made = files(asked.inventory)
        if isinstance(made, Refusal):
            print(made, file=sys.stderr)
            return 1
        asked.into.mkdir(parents=True, exist_ok=True)
        for name, text in made.texts.items():
            asked.into.joinpath(name).write_text(text)
    except (PyinfraError, OSError, ValueError) as error:
        expected = "boxes with settings that work, and a folder that can be written"
        print(Refusal(str(error), expected, "correct it, and run this again"), file=sys.stderr)
        return 1
    print(f"written to {os.path.relpath(asked.into)}:\n{WHAT_TO_DO}")
    if made.lacking:
        print(f"these do not have monitoring = True yet: {', '.join(made.lacking)}")
    for doubt in made.doubts:
        print(doubt)
    return 0


def files(inventory: str) -> Files | Refusal:
    """What is to be written; a refusal where the inventory can't be meant.

    Raises PyinfraError for settings that cannot work, ValueError without a box.
    """
    path = str(Path(inventory).absolute()) if Path(inventory).exists() else inventory
    invocation.remember({"inventory": path})
    state = State()
    with ctx_state.use(state):  # the inventory may ask for it while it is read
        read = inventory_names.read(path, str(PROJECT))
        if isinstance(read, Refusal):
            return read
        state.init(read, Config())
        refusal = deciding.judge(inventory_names.of(state.inventory, path))
        if refusal:
            return refusal
        boxes, lacking = targets.seen_from_afar(), targets.without_exporters()
    if not boxes:
        raise ValueError(f"no box in {inventory}, or all of them with monitoring = False")
    texts = {
        "scrape.yml": yaml.safe_dump({"scrape_configs": scraping.jobs(boxes)}, sort_keys=False),
        "alerts.yml": MADE.joinpath("rules.yml").read_text(),
        "dashboard.json": MADE.joinpath("dashboard.json").read_text(),
    }
    return Files(texts, lacking, [scraping.asked_at(one) for one in boxes if one.doubt])


if __name__ == "__main__":
    sys.exit(main())
